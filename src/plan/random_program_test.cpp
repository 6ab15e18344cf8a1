// SPDX-License-Identifier: Apache-2.0
#include "plan/random_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace anabranch {
namespace {

bool same_steps(const Program& a, const Program& b) {
  const auto same_access = [](const Access& x, const Access& y) {
    return x.mode == y.mode && x.view == y.view;
  };
  return std::equal(a.steps().begin(), a.steps().end(), b.steps().begin(), b.steps().end(),
                    [&](const Step& x, const Step& y) {
                      return x.kind == y.kind && x.stream == y.stream && x.name == y.name &&
                             x.event == y.event &&
                             std::equal(x.accesses.begin(), x.accesses.end(), y.accesses.begin(),
                                        y.accesses.end(), same_access);
                    });
}

TEST(RandomProgram, IsTheSameForTheSameSeedAndAnotherForAnother) {
  RandomProgramOptions options;
  options.syncs = 10;
  EXPECT_TRUE(same_steps(random_program(5, options), random_program(5, options)));
  EXPECT_FALSE(same_steps(random_program(5, options), random_program(6, options)));
}

TEST(RandomProgram, HasEveryKindRoleModeAndShapeOfView) {
  RandomProgramOptions options;
  options.steps = 2000;
  options.syncs = 10;
  const Program program = random_program(1, options);
  std::array<int, 7> kinds{};
  std::array<int, 4> modes{};
  std::array<int, 4> roles{};
  int parts = 0;
  int backwards = 0;
  for (const Buffer& buffer : program.buffers()) ++roles[static_cast<std::size_t>(buffer.role)];
  for (const Step& step : program.steps()) {
    ++kinds[static_cast<std::size_t>(step.kind)];
    for (const Access& access : step.accesses) {
      ++modes[static_cast<std::size_t>(access.mode)];
      const std::vector<Dim>& dims = access.view.dims;
      parts += dims.empty() ? 0 : 1;
      backwards += std::any_of(dims.begin(), dims.end(),
                               [](const Dim& dim) { return dim.stride_bytes < 0; });
    }
  }
  for (const int count : kinds) EXPECT_GT(count, 5);
  for (const int count : roles) EXPECT_GT(count, 0);
  for (const std::size_t mode : {1, 2, 3}) EXPECT_GT(modes[mode], 20);
  EXPECT_GT(parts, 100);
  EXPECT_GT(backwards, 10);
}

TEST(RandomProgram, HasAsManyStepsAndStreamsAsAsked) {
  RandomProgramOptions options;
  options.steps = 500;
  options.streams = 7;
  const Program program = random_program(3, options);
  EXPECT_EQ(program.steps().size(), 500u);
  EXPECT_EQ(program.streams().size(), 7u);
  std::array<int, 7> steps{};
  for (const Step& step : program.steps()) ++steps[index_of(step.stream)];
  for (const int count : steps) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace anabranch
