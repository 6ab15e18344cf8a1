// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "anabranch/status.h"

namespace anabranch {
namespace {

TEST(PrintableText, LeavesTextOfEveryLanguageAsItIs) {
  for (const char* text :
       {"", "linear (model.py:88)", "größe", "流", "\xf0\x9f\x98\x80", "C:\\x"}) {
    EXPECT_EQ(printable_text(text), text);
  }
}

TEST(PrintableText, ShowsControlsAsText) {
  EXPECT_EQ(printable_text("\x1b[2J\x07"), "\\x1b[2J\\x07");
  EXPECT_EQ(printable_text("a\nb\tc\rd\x7f"), "a\\nb\\tc\\x0dd\\x7f");
  EXPECT_EQ(printable_text(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "2J"),
            "\\x9b2J");  // CSI of eight bits
}

TEST(PrintableText, ShowsWhatTurnsTheDirectionOrEndsALine) {
  EXPECT_EQ(printable_text("a\xe2\x80\xaetxt"), "a\\u202etxt");
  EXPECT_EQ(printable_text("\xe2\x81\xa6\xe2\x80\xa8"), "\\u2066\\u2028");
}

TEST(PrintableText, ShowsBytesThatAreNoText) {
  EXPECT_EQ(printable_text("\xff\x9b"
                           "a\xe2\x82"),
            "\\xff\\x9ba\\xe2\\x82");
}

TEST(Status, HoldsNoControlsButTheEndsOfItsLines) {
  const Status status(StatusCode::kFileUnreadable, "read '\x1b[2Jx':\nno \x07 file");
  EXPECT_EQ(status.message(), "read '\\x1b[2Jx':\nno \\x07 file [E0501]");
}

}  // namespace
}  // namespace anabranch
