#include "worker/data/dataset.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace strata {
namespace {

class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/dataset");
    ASSERT_TRUE(RemoveTree(folder_).ok() && MakeDirectories(folder_).ok());
  }

  std::string Put(const std::string& name, absl::string_view text) {
    const std::string path = folder_ + "/" + name;
    const auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT_TRUE(fd.ok() && WriteAll(*fd, text, path).ok());
    return path;
  }

  // The code, and that the message has all of `says`.
  void ExpectRefused(const DataOptions& options, absl::StatusCode code,
                     const std::vector<std::string>& says) {
    const auto status = Dataset::Open(tokenizer_, options).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& word : says) {
      EXPECT_NE(status.message().find(word), absl::string_view::npos) << word << " not in: " << status;
    }
  }

  static std::string ReadAll(const TokenStream& stream) {
    std::vector<int32_t> ids(static_cast<size_t>(stream.size()));
    EXPECT_TRUE(stream.Read(0, ids).ok());
    return *BytesTokenizer().Decode(ids);
  }

  BytesTokenizer tokenizer_;
  std::string folder_;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(DatasetTest, FilesFollowEachOtherAndOnlyTheByteOrderMarkIsDropped) {
  const std::string one = Put("one", absl::string_view("\xEF\xBB\xBF"
                                                       "ab\r\nc\0d\xEF\xBB\xBF",
                                                       13));
  const std::string two = Put("two", "\xFF\xFExyz");
  const auto data = Dataset::Open(tokenizer_, {.train = {one, two, one}, .seq_len = 2});
  ASSERT_TRUE(data.ok()) << data.status();
  const std::string first("ab\r\nc\0d\xEF\xBB\xBF", 10);
  const std::string all = first + "\xFF\xFExyz" + first;
  EXPECT_EQ(ReadAll(data->train()), all);
  EXPECT_EQ(data->eval().size(), 0);
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t n = 0; n <= all.size() - begin; ++n) {
      std::vector<int32_t> ids(n);
      ASSERT_TRUE(data->train().Read(static_cast<int64_t>(begin), ids).ok());
      EXPECT_EQ(*tokenizer_.Decode(ids), all.substr(begin, n));
    }
  }
}

TEST_F(DatasetTest, TheEvalFractionIsTheEndOfTheText) {
  const std::string path = Put("text", "0123456789");
  const auto data = Dataset::Open(tokenizer_, {.train = {path}, .eval_fraction = 0.39, .seq_len = 2});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(data->train()), "0123456");
  EXPECT_EQ(ReadAll(data->eval()), "789");
  ExpectRefused({.train = {path}, .eval_fraction = 0.29, .seq_len = 2}, kInvalid,
                {"data.eval_fraction", "2 to evaluate"});
  ExpectRefused({.train = {path}, .eval_fraction = 0.9, .seq_len = 2}, kInvalid,
                {"data.eval_fraction", "1 tokens to train"});
  ExpectRefused({.train = {path}, .eval_fraction = 1, .seq_len = 2}, kInvalid, {"data.eval_fraction"});
  ExpectRefused({.train = {path}, .eval_fraction = -0.1, .seq_len = 2}, kInvalid, {"data.eval_fraction"});
  ExpectRefused({.train = {path}, .eval_fraction = 0.0 / 0.0, .seq_len = 2}, kInvalid,
                {"data.eval_fraction"});
  ExpectRefused({.train = {path}, .eval = {path}, .eval_fraction = 0.3, .seq_len = 2}, kInvalid,
                {"data.eval"});
}

TEST_F(DatasetTest, EveryBadFileIsNamedByFieldAndPath) {
  const std::string good = Put("good", "hello world");
  const std::string none = folder_ + "/none";
  ExpectRefused({.train = {good, none}, .seq_len = 4}, absl::StatusCode::kNotFound, {"data.train[1]", none});
  ExpectRefused({.train = {good}, .eval = {none}, .seq_len = 4}, absl::StatusCode::kNotFound,
                {"data.eval[0]", none});
  ExpectRefused({.train = {folder_}, .seq_len = 4}, kInvalid, {"data.train[0]", "not a regular file"});
  ExpectRefused({.train = {Put("empty", "")}, .seq_len = 4}, kInvalid, {"data.train[0]", "empty"});
  const std::string small = Put("small", "abcd");
  ExpectRefused({.train = {small}, .seq_len = 4}, kInvalid,
                {"data.train[0]", small, "has 4 tokens", "seq_len + 1 = 5"});
  EXPECT_TRUE(Dataset::Open(tokenizer_, {.train = {small}, .seq_len = 3}).ok());
  ExpectRefused({.train = {Put("mark", "\xEF\xBB\xBF")}, .seq_len = 4}, kInvalid, {"has 0 tokens"});
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused({.train = {pipe}, .seq_len = 4}, kInvalid, {"not a regular file"});
  ExpectRefused({.train = {}, .seq_len = 4}, kInvalid, {"data.train is empty"});
  ExpectRefused({.train = {good}, .seq_len = 0}, kInvalid, {"data.seq_len"});
  ExpectRefused({.train = std::vector<std::string>(1000, good), .seq_len = 4}, kInvalid, {"1000", "limit"});
  if (geteuid() != 0) {  // Root reads everything.
    ASSERT_EQ(chmod(good.c_str(), 0), 0);
    ExpectRefused({.train = {good}, .seq_len = 4}, absl::StatusCode::kPermissionDenied,
                  {"data.train[0]", good});
  }
}

TEST_F(DatasetTest, AFileThatShrinksIsAnErrorWithItsOffset) {
  const std::string path = Put("shrinks", "0123456789");
  const auto data = Dataset::Open(tokenizer_, {.train = {path}, .seq_len = 2});
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(truncate(path.c_str(), 5), 0);
  std::vector<int32_t> ids(4);
  EXPECT_TRUE(data->train().Read(1, ids).ok());
  const absl::Status status = data->train().Read(3, ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("offset 5"), absl::string_view::npos) << status;
}

TEST_F(DatasetTest, TheFingerprintTellsTextsAndSplitsApart) {
  const std::string a = Put("a", "0123456789"), b = Put("b", "0123456799"), c = Put("c", "0123456789");
  const auto of = [&](const DataOptions& options) {
    return Dataset::Open(tokenizer_, options)->fingerprint();
  };
  const std::string base = of({.train = {a}, .seq_len = 2});
  EXPECT_EQ(base.size(), 16);
  EXPECT_EQ(of({.train = {c}, .seq_len = 2}), base) << "the same bytes under another name are the same data";
  EXPECT_EQ(of({.train = {a}, .seq_len = 3}), base);
  EXPECT_NE(of({.train = {b}, .seq_len = 2}), base);
  EXPECT_NE(of({.train = {a, a}, .seq_len = 2}), base);
  EXPECT_NE(of({.train = {a}, .eval = {a}, .seq_len = 2}), base);
  EXPECT_NE(of({.train = {a}, .eval_fraction = 0.4, .seq_len = 2}), base);
}

}  // namespace
}  // namespace strata
