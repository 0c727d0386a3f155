#include "worker/data/tokenizer.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

TEST(BytesTokenizer, EveryByteIsItsOwnToken) {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  const BytesTokenizer tokenizer;
  const auto ids = tokenizer.Encode(text);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 256);
  for (int i = 0; i < 256; ++i) EXPECT_EQ((*ids)[i], i);
  EXPECT_EQ(*tokenizer.Decode(*ids), text);
  EXPECT_EQ(tokenizer.vocab(), 256);
}

TEST(BytesTokenizer, RefusesIdsThatAreNoBytes) {
  const BytesTokenizer tokenizer;
  for (const int32_t id : {-1, 256, 1 << 30}) {
    const std::vector<int32_t> ids = {1, id};
    const auto status = tokenizer.Decode(ids).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("token 1"), absl::string_view::npos) << status;
  }
}

TEST(MakeTokenizer, KnowsBytesAndRefusesTheRestByName) {
  EXPECT_EQ((*MakeTokenizer(""))->name(), "bytes");
  EXPECT_EQ((*MakeTokenizer("bytes"))->name(), "bytes");
  const auto status = MakeTokenizer("train-bpe:2048").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("data.tokenizer"), absl::string_view::npos);
  EXPECT_NE(status.message().find("train-bpe:2048"), absl::string_view::npos);
}

}  // namespace
}  // namespace strata
