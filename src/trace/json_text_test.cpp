// SPDX-License-Identifier: Apache-2.0
#include "trace/json_text.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/random_program.h"

namespace anabranch {
namespace {

std::string json_text(std::string_view text) {
  std::string out;
  append_json_text(out, text);
  return out;
}

TEST(JsonText, ComesBackAsItWasFromAParser) {
  for (const char* text :
       {"", "model.py:88", "a \"quoted\" \\ name", "tab\tline\nreturn\rbell\a\x7f",
        "Übertrag → 流 🌊", "\xf4\x8f\xbf\xbf", "</script>"}) {
    EXPECT_EQ(nlohmann::json::parse(json_text(text)).get<std::string>(), text);
  }
  const std::string zero("a\0b", 3);
  EXPECT_EQ(nlohmann::json::parse(json_text(zero)).get<std::string>(), zero);
}

TEST(JsonText, ReplacesEachByteThatIsNoUtf8) {
  const std::pair<const char*, const char*> cases[] = {
      {"\xff", "\\ufffd"},
      {"a\x80z", "a\\ufffdz"},
      {"\xc0\xaf", "\\ufffd\\ufffd"},                        // overlong
      {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},             // surrogate
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},  // above U+10FFFF
      {"\xe2\x86", "\\ufffd\\ufffd"},                        // cut
      {"\xe2\x86\"", "\\ufffd\\ufffd\\\""}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(json_text(text), '"' + std::string(expected) + '"');
  }
}

TEST(JsonText, IsValidJsonForAnyBytes) {
  RandomNumbers random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random.below(12), '\0');
    // Half of them from the ranges in which sequences begin and go on.
    for (char& c : text)
      c = static_cast<char>(random.chance(50) ? random.below(256) : 0x80 + random.below(128));
    ASSERT_TRUE(nlohmann::json::accept(json_text(text))) << round;
  }
}

}  // namespace
}  // namespace anabranch
