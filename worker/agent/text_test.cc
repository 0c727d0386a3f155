#include "worker/agent/text.h"

#include <gtest/gtest.h>

#include <string>

namespace strata {
namespace {

TEST(ToValidUtf8Test, KeepsWhatIsValid) {
  const std::string text = "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\x9F\xBF \xF4\x8F\xBF\xBF";
  EXPECT_EQ(ToValidUtf8(text), text);
  EXPECT_EQ(ToValidUtf8(""), "");
}

TEST(ToValidUtf8Test, ReplacesEveryByteThatIsNot) {
  EXPECT_EQ(ToValidUtf8("a\xFF"), "a?");
  EXPECT_EQ(ToValidUtf8("\xC3"), "?");                 // cut
  EXPECT_EQ(ToValidUtf8("\xE2\x82"), "??");            // cut
  EXPECT_EQ(ToValidUtf8("\xE2\x82X"), "??X");          // broken off
  EXPECT_EQ(ToValidUtf8("\xC0\xAF"), "??");            // overlong
  EXPECT_EQ(ToValidUtf8("\xE0\x80\xAF"), "???");       // overlong
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), "???");       // surrogate
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), "????");  // above U+10FFFF
  EXPECT_EQ(ToValidUtf8("\x80"), "?");                 // continuation alone
}

}  // namespace
}  // namespace strata
