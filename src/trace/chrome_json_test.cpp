// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "anabranch/trace.h"
#include "trace/example_events.h"

namespace anabranch {
namespace {

using Json = nlohmann::json;

std::vector<Json> events_of(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("traceEvents").begin(), json.at("traceEvents").end()};
}

std::vector<Json> find_events(const std::vector<Json>& events, const char* key,
                              const std::string& value) {
  std::vector<Json> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [&](const Json& event) { return event.contains(key) && event[key] == value; });
  return found;
}

std::vector<Json> example_json() {
  return events_of(dump_chrome_json(example_plan(), example_events()));
}

TEST(ChromeJson, NamesAThreadForEachStreamWithTheAmbientOneFirst) {
  std::map<int, std::pair<int, std::string>> by_place;
  for (const Json& event : find_events(example_json(), "name", "thread_sort_index")) {
    by_place[event["args"]["sort_index"]].first = event["tid"];
  }
  for (const Json& event : find_events(example_json(), "name", "thread_name")) {
    for (auto& [place, thread] : by_place) {
      if (thread.first == event["tid"]) thread.second = event["args"]["name"];
    }
  }
  ASSERT_EQ(by_place.size(), 2u);
  EXPECT_EQ(by_place[0].second, "ambient");
  EXPECT_EQ(by_place[1].second, "side \"A\"");
}

TEST(ChromeJson, HoldsEveryStepOnceALaunchOnItsStream) {
  const auto steps = find_events(example_json(), "cat", "step");
  ASSERT_EQ(steps.size(), 6u);
  std::multiset<std::tuple<int, int, std::string>> found;
  for (const Json& step : steps) {
    found.emplace(step["args"]["step"], step["tid"], step["name"]);
  }
  const std::multiset<std::tuple<int, int, std::string>> expected{
      {0, 1, "up"}, {0, 1, "up"}, {1, 2, "down"}, {1, 2, "down"}, {2, 1, "join"}, {2, 1, "join"}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(find_events(example_json(), "cat", "launch").size(), 2u);
}

TEST(ChromeJson, KeepsSourceKindAndLane) {
  const Json down = find_events(example_json(), "name", "down").at(0);
  EXPECT_EQ(down["args"]["source"], "model\\x.py:\"88\"");
  EXPECT_EQ(down["args"]["kind"], "compute");
  EXPECT_EQ(down["args"]["lane"], 1);
}

TEST(ChromeJson, CountsMicrosecondsFromTheFirstEventWithoutLosingNanoseconds) {
  const Json down = find_events(example_json(), "name", "down").at(1);
  EXPECT_DOUBLE_EQ(down["ts"], 1001.1);
  EXPECT_DOUBLE_EQ(down["dur"], 8.001);
}

TEST(ChromeJson, DrawsAFlowFromWhatWasWaitedForToWhatWaited) {
  const std::vector<Json> all = example_json();
  const auto begins = find_events(all, "ph", "s"), ends = find_events(all, "ph", "f");
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    EXPECT_EQ(begins[i]["id"], ends[i]["id"]);
    EXPECT_EQ(begins[i]["cat"], ends[i]["cat"]);
    EXPECT_EQ(ends[i]["bp"], "e");
    // Each end lies in the slice it is about.
    EXPECT_EQ(begins[i]["tid"], 2);
    EXPECT_EQ(begins[i]["ts"], find_events(all, "name", "down")[i]["ts"]);
    EXPECT_EQ(ends[i]["tid"], 1);
    EXPECT_EQ(ends[i]["ts"], find_events(all, "name", "join")[i]["ts"]);
  }
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
}

TEST(ChromeJson, ListsSlicesInTheOrderOfTheirBegin) {
  double last = 0;
  for (const Json& slice : find_events(example_json(), "ph", "X")) {
    EXPECT_GE(slice["ts"].get<double>(), last);
    EXPECT_GE(slice["dur"].get<double>(), 0);
    last = slice["ts"];
  }
}

TEST(ChromeJson, LeavesOutAFlowWithOneEndDropped) {
  std::vector<TraceEvent> events = example_events();
  std::erase_if(events, [](const TraceEvent& event) {
    return event.kind == EventKind::kStep && event.step == 1 && event.begin_ns < 2'000'000;
  });
  const auto all = events_of(dump_chrome_json(example_plan(), events));
  EXPECT_EQ(find_events(all, "ph", "s").size(), 1u);
  EXPECT_EQ(find_events(all, "ph", "f").size(), 1u);
}

TEST(ChromeJson, LeavesOutStepsThatThePlanDoesNotHave) {
  const std::vector<TraceEvent> events{{EventKind::kStep, 0, 3, 0, 5, 6},
                                       {EventKind::kStep, 0, ~0u, 0, 5, 6},
                                       {EventKind::kWait, 0, ~0u, ~0u, 5, 6}};
  const auto all = events_of(dump_chrome_json(example_plan(), events));
  EXPECT_TRUE(find_events(all, "cat", "step").empty());
  EXPECT_EQ(find_events(all, "cat", "wait").size(), 1u);  // a wait of the launch as a whole
}

TEST(ChromeJson, IsValidWithoutEvents) {
  EXPECT_TRUE(find_events(events_of(dump_chrome_json(example_plan(), {})), "ph", "X").empty());
}

}  // namespace
}  // namespace anabranch
