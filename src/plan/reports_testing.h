// SPDX-License-Identifier: Apache-2.0
// Programs of the user's streams as they stand in a model, for the tests of find_reports.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {

// D is the ambient stream; A, B and C are the user's. Each step has a name and a line of its own;
// what it writes anew is a buffer of its name.
class UserProgram {
 public:
  BufferId input(std::string name) { return add_buffer(std::move(name), Role::kInput); }
  BufferId constant(std::string name) { return add_buffer(std::move(name), Role::kConstant); }
  BufferId temporary(std::string name) { return add_buffer(std::move(name), Role::kTemporary); }
  BufferId output(std::string name) { return add_buffer(std::move(name), Role::kOutput); }

  // name = f(reads...)
  BufferId make(StreamId stream, std::string name, std::vector<BufferId> reads = {}) {
    const BufferId made = temporary(name);
    make_into(stream, std::move(name), made, reads);
    return made;
  }
  // What the program gives back.
  BufferId give(StreamId stream, std::string name, std::vector<BufferId> reads = {}) {
    const BufferId made = output(name);
    make_into(stream, std::move(name), made, reads);
    return made;
  }
  StepId make_into(StreamId stream, std::string name, BufferId to,
                   const std::vector<BufferId>& reads = {}) {
    std::vector<Access> accesses{builder.write(to)};
    for (const BufferId read : reads) accesses.push_back(builder.read(read));
    return step(stream, std::move(name), std::move(accesses));
  }
  // buffer = f(buffer, reads...), in place
  StepId change(StreamId stream, std::string name, BufferId buffer,
                const std::vector<BufferId>& reads = {}) {
    std::vector<Access> accesses{builder.read_write(buffer)};
    for (const BufferId read : reads) accesses.push_back(builder.read(read));
    return step(stream, std::move(name), std::move(accesses));
  }
  StepId use(StreamId stream, std::string name, BufferId buffer) {
    return step(stream, std::move(name), {builder.read(buffer)});
  }
  StepId host(StreamId stream, std::string name, std::vector<Access> accesses) {
    return step(stream, std::move(name), std::move(accesses), StepKind::kHost);
  }
  StepId step(StreamId stream, std::string name, std::vector<Access> accesses,
              StepKind kind = StepKind::kCompute) {
    return builder.add_step({.kind = kind,
                             .stream = stream,
                             .name = std::move(name),
                             .source = "model.py:" + std::to_string(++line_),
                             .accesses = std::move(accesses)});
  }
  EventId event(std::string name) { return builder.add_event(std::move(name)); }
  void record(EventId event, StreamId stream) { builder.record_event(stream, event); }
  void wait(EventId event, StreamId stream) { builder.wait_event(stream, event); }
  // to.wait_stream(from)
  void join(StreamId to, StreamId from) {
    const EventId mark = builder.add_event("join");
    builder.record_event(from, mark);
    builder.wait_event(to, mark);
  }

  Program program() const {
    Result<Program> built = builder.build();
    if (!built) ADD_FAILURE() << built.error().message();
    return *built;
  }
  std::vector<SyncReport> full_reports(bool strict = false) const {
    return *find_reports(program(), {.strict = strict});
  }
  // "race-flow: first, second", "caller" for what is outside. The planner refuses errors, and plans
  // whatever else.
  std::vector<std::string> reports(bool strict = false) const {
    const Program built = program();
    bool is_refused = false;
    std::vector<std::string> found;
    const std::vector<SyncReport> reports = *find_reports(built, {.strict = strict});
    for (const SyncReport& report : reports) {
      const auto name = [&](StepId id) {
        return id == kNoStep ? std::string("caller") : built.step(id).name;
      };
      found.push_back(report.message.substr(0, report.message.find(':')) + ": " +
                      name(report.first) + ", " + name(report.second));
      is_refused |= report.severity == Severity::kError;
    }
    const Result<Plan> plan = make_plan(built, {.strict = strict});
    EXPECT_EQ(plan ? StatusCode::kOk : plan.error().code(),
              is_refused ? StatusCode::kUnsynchronised : StatusCode::kOk);
    return found;
  }

  ProgramBuilder builder;
  StreamId d = kAmbient;
  StreamId a = builder.add_stream("A", StreamOrigin::kUserSynchronised);
  StreamId b = builder.add_stream("B", StreamOrigin::kUserSynchronised);
  StreamId c = builder.add_stream("C", StreamOrigin::kUserSynchronised);

 private:
  BufferId add_buffer(std::string name, Role role) {
    return builder.add_buffer({std::move(name), role, 4096, 64});
  }
  int line_ = 0;
};

}  // namespace anabranch
