// SPDX-License-Identifier: Apache-2.0
// For tests of record and of what follows it: plans in a line, regions from lambdas.
#pragma once

#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "anabranch/record.h"

namespace anabranch::testing {

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return *std::move(result);
}

inline Plan plan_of(const ProgramBuilder& builder) {
  return must(make_plan(must(builder.build())));
}

// The program again, its steps named by their numbers ("step 3") and changed.
template <typename Change>
Program with_named_steps(const Program& program, Change change) {
  ProgramBuilder builder;
  for (std::size_t i = 1; i < program.streams().size(); ++i) {
    builder.add_stream(program.streams()[i], program.origins()[i]);
  }
  for (const std::string& event : program.events()) builder.add_event(event);
  for (const Buffer& buffer : program.buffers()) builder.add_buffer(buffer);
  for (std::size_t i = 0; i < program.steps().size(); ++i) {
    Step step = program.steps()[i];
    step.name = "step " + std::to_string(i);
    change(step);
    builder.add_step(step);
  }
  return must(builder.build());
}

// Named regions that call what they are given.
class Regions {
 public:
  using Function = std::function<std::int32_t(const RegionCall&)>;

  void add(const std::string& name, Function function) {
    functions_.push_back(std::move(function));
    table_[name] = {call, &functions_.back()};
  }
  const RegionTable& table() const { return table_; }

 private:
  static std::int32_t call(void* function, const RegionCall* region_call) {
    return (*static_cast<Function*>(function))(*region_call);
  }
  std::deque<Function> functions_;
  RegionTable table_;
};

}  // namespace anabranch::testing
