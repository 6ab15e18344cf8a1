// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "anabranch/trace.h"
#include "trace/example_events.h"

namespace anabranch {
namespace {

using Json = nlohmann::json;

TEST(PlanJson, HoldsWhatThePlanHolds) {
  const Plan plan = example_plan();
  const Json json = Json::parse(dump_plan_json(plan));
  ASSERT_EQ(json["steps"].size(), 3u);
  EXPECT_EQ(json["steps"][1], Json::parse(R"({"name": "down", "kind": "compute", "stream": 1,
                            "source": "model\\x.py:\"88\"", "reads": [0], "writes": [2]})"));
  EXPECT_EQ(json["steps"][2]["reads"], Json({1, 2}));
  EXPECT_EQ(json["streams"][1]["name"], "side \"A\"");
  EXPECT_EQ(json["streams"][0], Json::parse(R"({"name": "ambient", "priority": 0,
                                                "is_users": false})"));
  EXPECT_EQ(json["waits"], Json::parse("[[2, 1]]"));
  EXPECT_EQ(json["order"].size(), 3u);
  EXPECT_TRUE(json["exits"].empty());
  EXPECT_EQ(json["arena"]["size_bytes"], plan.arena().size_bytes);
  EXPECT_EQ(json["arena"]["lower_bound_bytes"], plan.arena().lower_bound_bytes);
}

TEST(PlanJson, SaysWhereBuffersLieAndOfTheCallersThatThePlanDoesNotKnow) {
  const Plan plan = example_plan();
  const Json buffers = Json::parse(dump_plan_json(plan))["buffers"];
  ASSERT_EQ(buffers.size(), 4u);
  EXPECT_EQ(buffers[0], Json::parse(R"({"name": "x", "role": "input", "size_bytes": 64,
                                        "offset_bytes": null})"));
  EXPECT_EQ(buffers[1]["role"], "temporary");
  EXPECT_EQ(buffers[1]["offset_bytes"], plan.arena().offsets[1]);
  EXPECT_EQ(buffers[3]["role"], "output");
}

TEST(PlanJson, NamesABufferOnceThatAStepReadsAndWrites) {
  ProgramBuilder builder;
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64});
  builder.compute(kAmbient, "both", {builder.read_write(x), builder.read(x)});
  const Json step = Json::parse(dump_plan_json(*make_plan(*builder.build())))["steps"][0];
  EXPECT_EQ(step["reads"], Json::array({0}));
  EXPECT_EQ(step["writes"], Json::array({0}));
}

TEST(PlanJson, OfAnEmptyProgramHoldsNothing) {
  const Json json = Json::parse(dump_plan_json(*make_plan(*ProgramBuilder().build())));
  EXPECT_TRUE(json["steps"].empty());
  EXPECT_TRUE(json["buffers"].empty());
  EXPECT_EQ(json["arena"]["size_bytes"], 0);
}

}  // namespace
}  // namespace anabranch
