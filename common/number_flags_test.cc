#include "common/number_flags.h"

#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

template <typename T>
bool Parses(const std::string& text, CLI::Validator number, T& value) {
  CLI::App app;
  app.add_option("--n", value, "")->transform(number);
  const std::string flag = "--n=" + text;
  const std::vector<const char*> argv = {"program", flag.c_str()};
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError&) {
    return false;
  }
  return true;
}

TEST(NumberFlagsTest, WholeNumbersAreDecimalAndInRange) {
  int64_t value = 0;
  for (const auto& [text, wanted] :
       {std::pair<const char*, int64_t>{"7", 7}, {"010", 10}, {"0", 0}, {" 5", 5}}) {
    EXPECT_TRUE(Parses(text, WholeNumber<int64_t>(0), value)) << text;
    EXPECT_EQ(value, wanted) << text;
  }
  for (const char* text : {"", "-1", "1.5", "7x", "0x10", "1e3", "nan", "inf", "9223372036854775808",
                           "99999999999999999999999999"}) {
    EXPECT_FALSE(Parses(text, WholeNumber<int64_t>(0), value)) << text;
  }
  int32_t small = 0;
  EXPECT_TRUE(Parses("2147483647", WholeNumber<int32_t>(0), small));
  EXPECT_FALSE(Parses("2147483648", WholeNumber<int32_t>(0), small));
  EXPECT_FALSE(Parses("65", WholeNumber(1, 64), small));
}

TEST(NumberFlagsTest, AnUnsignedNumberIsNeitherNegativeNorBeyondItsType) {
  uint64_t value = 0;
  EXPECT_TRUE(Parses("18446744073709551615", WholeNumber<uint64_t>(0), value));
  EXPECT_EQ(value, UINT64_MAX);
  for (const char* text : {"-1", "18446744073709551616", "1e30"})
    EXPECT_FALSE(Parses(text, WholeNumber<uint64_t>(0), value)) << text;
}

TEST(NumberFlagsTest, RealNumbersAreFiniteAndInRange) {
  double value = 0;
  EXPECT_TRUE(Parses("1.5e3", RealNumber(0, 1e4), value));
  EXPECT_EQ(value, 1500);
  for (const char* text : {"", "nan", "inf", "-inf", "1e400", "-0.1", "10001", "1.5s", "0x10"})
    EXPECT_FALSE(Parses(text, RealNumber(0, 1e4), value)) << text;
}

}  // namespace
}  // namespace strata
