#include "proto/job_spec/text.h"

#include "gtest/gtest.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {
namespace {

TEST(EnumTextTest, DropsThePrefixThatTheZeroValueShows) {
  EXPECT_EQ(EnumText(*v1::Mode_descriptor()->FindValueByName("MODE_FORWARD_OVERLAP")), "forward-overlap");
  EXPECT_EQ(EnumText(*v1::DirectIo_descriptor()->FindValueByName("DIRECT_IO_OFF")), "off");
  EXPECT_EQ(EnumTexts(*v1::Precision_descriptor()),
            (std::vector<std::string>{"fp32", "bf16", "fp16", "fp8"}));
  EXPECT_EQ(EnumText(*v1::Feature_descriptor()->FindValueByName("FEATURE_IO_URING")), "io_uring");
}

TEST(ClosestMatchTest, FindsTyposAndNothingFarAway) {
  const std::vector<std::string> names = {"layers", "hidden", "heads", "kv_heads", "lr"};
  EXPECT_EQ(ClosestMatch("layer", names), "layers");
  EXPECT_EQ(ClosestMatch("hiddne", names), "hidden");
  EXPECT_EQ(ClosestMatch("kv-heads", names), "kv_heads");
  EXPECT_EQ(ClosestMatch("HEADS", names), "heads");
  EXPECT_EQ(ClosestMatch("temperature", names), "");
  EXPECT_EQ(ClosestMatch("xy", names), "");
  EXPECT_EQ(ClosestMatch(std::string(100'000, 'l'), names), "");
}

TEST(NearestDivisorTest, PrefersTheNearerAndThenTheSmaller) {
  EXPECT_EQ(NearestDivisor(384, 7), 6);
  EXPECT_EQ(NearestDivisor(32, 5), 4);
  EXPECT_EQ(NearestDivisor(13, 5), 1);
  EXPECT_EQ(NearestDivisor(1, 9), 1);
}

TEST(FindBadTextTest, AcceptsUtf8AndFindsTheFirstBadByte) {
  EXPECT_FALSE(FindBadText("a\tb\r\n \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"));
  EXPECT_EQ(FindBadText(absl::string_view("ab\0", 3)), 2u);
  EXPECT_EQ(FindBadText("ab\x7F"), 2u);
  for (const char* bad :
       {"\xFF", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80"}) {
    EXPECT_EQ(FindBadText(bad), 0u) << bad;
  }
}

TEST(PrintableTest, EscapesWhatATerminalWouldActOn) {
  EXPECT_EQ(Printable("plain \xC3\xA9 \"quoted\" \\"), "plain \xC3\xA9 \"quoted\" \\");
  EXPECT_EQ(Printable("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(Printable("\x1b[2Jgone\x7f"), "\\x1b[2Jgone\\x7f");
  EXPECT_EQ(Printable(absl::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "2J"),
            "\\xc2\\x9b"
            "2J");  // U+009B is ESC [ in one character
  EXPECT_EQ(Printable("\xC2\xA0"), "\xC2\xA0");
  EXPECT_EQ(Printable("a\xFF\xE2\x82"), "a\\xff\\xe2\\x82");
}

TEST(PrintableTest, KeepsLinesWhereAsked) {
  EXPECT_EQ(Printable("a\tb\r\nc\rd\r", Newlines::kKept), "a\tb\nc\nd\n");
  EXPECT_EQ(Printable("a\n\x1b[A", Newlines::kKept), "a\n\\x1b[A");
}

TEST(PrintableExcerptTest, ShortensAtACharacterAndEscapes) {
  EXPECT_EQ(PrintableExcerpt("plain"), "plain");
  EXPECT_EQ(PrintableExcerpt("a\nb"), "a\\nb");
  EXPECT_EQ(PrintableExcerpt("\xFF"), "\\xff");
  const std::string excerpt = PrintableExcerpt(std::string(39, 'a') + "\xE2\x82\xAC" + "tail");
  EXPECT_EQ(excerpt, std::string(39, 'a') + "\xE2\x82\xAC...");
}

}  // namespace
}  // namespace strata
