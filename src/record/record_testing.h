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
