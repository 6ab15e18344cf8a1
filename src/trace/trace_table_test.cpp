// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "anabranch/trace.h"
#include "trace/example_events.h"

namespace anabranch {
namespace {

TEST(TraceTable, ShowsEachEventInTheOrderOfTimeAndWhatItWaitedFor) {
  std::vector<TraceEvent> events = example_events();
  events.resize(5);
  EXPECT_EQ(dump_trace(example_plan(), events),
            "    begin us      took us  lane  stream    what             waited for\n"
            "       0.000       10.000     0  ambient   launch\n"
            "       1.000        1.500     0  ambient     up\n"
            "       1.100        8.001     1  side \"A\"    down\n"
            "       2.500        6.700     0  ambient     wait for down\n"
            "       9.200        0.700     0  ambient     join           down\n");
}

TEST(TraceTable, HasOnlyAHeadingWithoutEvents) {
  const std::string table = dump_trace(example_plan(), {});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1);
}

TEST(TraceTable, NamesWhatCopiesFillsAndEventsAreAbout) {
  ProgramBuilder builder;
  const EventId event = builder.add_event("half");
  const BufferId x = builder.add_buffer({"x", Role::kOutput, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 64});
  builder.fill(kAmbient, builder.whole(x), 1);
  builder.copy(kAmbient, builder.whole(y), builder.whole(x));
  builder.record_event(kAmbient, event);
  const std::string table =
      dump_trace(*make_plan(*builder.build()), {{EventKind::kStep, 0, 0, 0, 1, 2},
                                                {EventKind::kStep, 0, 1, 0, 2, 3},
                                                {EventKind::kStep, 0, 2, 0, 3, 4}});
  EXPECT_NE(table.find("fill x\n"), std::string::npos) << table;
  EXPECT_NE(table.find("copy y\n"), std::string::npos) << table;
  EXPECT_NE(table.find("record_event half\n"), std::string::npos) << table;
}

TEST(TraceTable, ShowsControlsInNamesAsText) {
  ProgramBuilder builder;
  builder.compute(builder.add_stream("s\x1b[2J\n"), "f\n\x07", {});
  const std::string table =
      dump_trace(*make_plan(*builder.build()), {{EventKind::kStep, 0, 0, 0, 1, 2}});
  EXPECT_NE(table.find("s\\x1b[2J\\n"), std::string::npos) << table;
  EXPECT_NE(table.find("f\\n\\x07"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2) << table;
}

}  // namespace
}  // namespace anabranch
