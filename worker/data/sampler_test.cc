#include "worker/data/sampler.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/random.h"

namespace strata {
namespace {

// `size` tokens whose value tells their position modulo 251.
TokenStream Stream(int64_t size, int64_t seq_len) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/sampler_", size);
  std::string text(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  const auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
  EXPECT_TRUE(fd.ok() && WriteAll(*fd, text, path).ok());
  const auto data = Dataset::Open(BytesTokenizer(), {.train = {path}, .seq_len = seq_len});
  EXPECT_TRUE(data.ok()) << data.status();
  return data->train();
}

TEST(Permutation, IsABijectionOfEverySize) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const int64_t size : {255, 256, 257, 4095, 4097, 65537, 100'003}) sizes.push_back(size);
  for (const int64_t size : sizes) {
    for (const uint64_t seed : {0ull, 42ull, ~0ull}) {
      const Permutation permutation(size, seed, static_cast<uint64_t>(size));
      std::vector<bool> seen(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t value = permutation(i);
        ASSERT_TRUE(value >= 0 && value < size);
        ASSERT_FALSE(seen[static_cast<size_t>(value)])
            << "size " << size << " seed " << seed << " index " << i;
        seen[static_cast<size_t>(value)] = true;
      }
    }
  }
}

TEST(Permutation, LooksShuffled) {
  // The rank correlation of index and value of a random permutation of n has a standard deviation of 1 /
  // sqrt(n - 1); and neighbours stay neighbours in about 2 of n places.
  for (const int64_t size : {1000, 1024, 5000}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Permutation permutation(size, seed, 1);
      const double mean = static_cast<double>(size - 1) / 2;
      double covariance = 0, variance = 0;
      int neighbours = 0;
      for (int64_t i = 0; i < size; ++i) {
        const double x = static_cast<double>(i) - mean, y = static_cast<double>(permutation(i)) - mean;
        covariance += x * y;
        variance += x * x;
        if (i > 0 && std::abs(permutation(i) - permutation(i - 1)) == 1) ++neighbours;
      }
      EXPECT_LT(std::fabs(covariance / variance), 5 / std::sqrt(static_cast<double>(size)))
          << size << " seed " << seed;
      EXPECT_LE(neighbours, 12) << size << " seed " << seed;
    }
  }
}

TEST(Permutation, DependsOnSeedAndStream) {
  const auto values = [](uint64_t seed, uint64_t stream) {
    const Permutation permutation(1000, seed, stream);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < 1000; ++i) out.push_back(permutation(i));
    return out;
  };
  EXPECT_EQ(values(1, 1), values(1, 1));
  EXPECT_NE(values(1, 1), values(2, 1));
  EXPECT_NE(values(1, 1), values(1, 2));
}

TEST(Sampler, EveryWindowComesOncePerEpochAndInsideTheText) {
  for (const int64_t seq_len : {1, 2, 7, 64}) {
    for (int64_t size = seq_len + 1; size < seq_len * 40; size += 1 + seq_len / 3) {
      const auto sampler = Sampler::Create(Stream(size, seq_len), seq_len, 7);
      ASSERT_TRUE(sampler.ok());
      const int64_t windows = sampler->windows_per_epoch();
      EXPECT_GE(windows * seq_len + 2 * seq_len, size) << "less than two windows are left out";
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int64_t> starts;
        for (int64_t i = 0; i < windows; ++i) starts.push_back(sampler->WindowStart(epoch * windows + i));
        std::sort(starts.begin(), starts.end());
        EXPECT_GE(starts.front(), 0);
        EXPECT_LE(starts.back() + seq_len + 1, size);
        EXPECT_LT(starts.front(), seq_len);
        for (size_t i = 1; i < starts.size(); ++i) ASSERT_EQ(starts[i] - starts[i - 1], seq_len);
      }
    }
  }
}

TEST(Sampler, EpochsDifferInOffsetAndOrder) {
  const auto sampler = Sampler::Create(Stream(10'000, 64), 64, 7);
  ASSERT_TRUE(sampler.ok());
  const int64_t windows = sampler->windows_per_epoch();
  std::set<int64_t> offsets;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < windows; ++i) order.push_back(sampler->WindowStart(epoch * windows + i) / 64);
    orders.insert(order);
    offsets.insert(sampler->WindowStart(epoch * windows) % 64);
  }
  EXPECT_EQ(orders.size(), 20);
  EXPECT_GT(offsets.size(), 10);
}

TEST(Sampler, ResumingAtAnyCursorGivesTheSameBatches) {
  const int64_t seq_len = 16, batch = 6;
  const TokenStream stream = Stream(1234, seq_len);
  const auto first = Sampler::Create(stream, seq_len, 42);
  ASSERT_TRUE(first.ok());
  // 75 windows per epoch and batches of 6: batches span epochs.
  std::vector<TokenBatch> batches;
  for (int64_t step = 0; step < 60; ++step) batches.push_back(*first->Batch(step, batch));
  const auto again = Sampler::Create(stream, seq_len, 42);
  for (int64_t step = 59; step >= 0; --step) {
    const TokenBatch& expected = batches[static_cast<size_t>(step)];
    const auto resumed = again->Batch(step, batch);
    ASSERT_TRUE(resumed.ok());
    EXPECT_EQ(resumed->inputs, expected.inputs);
    EXPECT_EQ(resumed->targets, expected.targets);
    // Micro-batches are the same sequences.
    std::vector<int32_t> inputs(static_cast<size_t>(2 * seq_len)), targets(inputs.size());
    for (int64_t micro = 0; micro < 3; ++micro) {
      ASSERT_TRUE(again->Read(step * batch + micro * 2, 2, inputs, targets).ok());
      EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), expected.inputs.begin() + micro * 2 * seq_len));
      EXPECT_TRUE(std::equal(targets.begin(), targets.end(), expected.targets.begin() + micro * 2 * seq_len));
    }
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t start = again->WindowStart(step * batch + i);
      for (int64_t t = 0; t < seq_len; ++t) {
        ASSERT_EQ(expected.inputs[static_cast<size_t>(i * seq_len + t)], (start + t) % 251);
        ASSERT_EQ(expected.targets[static_cast<size_t>(i * seq_len + t)], (start + t + 1) % 251);
      }
    }
  }
  EXPECT_NE(Sampler::Create(stream, seq_len, 43)->Batch(0, batch)->inputs, batches[0].inputs);
}

TEST(Sampler, RefusesTextsAndBatchesThatCannotBe) {
  const TokenStream stream = Stream(10, 3);
  EXPECT_EQ(Sampler::Create(stream, 10, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Sampler::Create(stream, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  const auto sampler = Sampler::Create(stream, 9, 1);
  ASSERT_TRUE(sampler.ok());
  EXPECT_EQ(sampler->windows_per_epoch(), 1);
  EXPECT_TRUE(sampler->Batch(1'000'000, 4).ok()) << "a batch may be larger than an epoch";
  EXPECT_EQ(sampler->Batch(1, int64_t{1} << 60).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler->Batch(int64_t{1} << 62, 4).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EvalWindows, GoThroughTheTextInOrder) {
  const auto eval = EvalWindows::Create(Stream(50, 8), 8);
  ASSERT_TRUE(eval.ok());
  ASSERT_EQ(eval->count(), 6);
  std::vector<int32_t> inputs(48), targets(48);
  ASSERT_TRUE(eval->Read(0, 6, inputs, targets).ok());
  for (int32_t i = 0; i < 48; ++i) {
    EXPECT_EQ(inputs[static_cast<size_t>(i)], i);
    EXPECT_EQ(targets[static_cast<size_t>(i)], i + 1);
  }
  EXPECT_FALSE(EvalWindows::Create(Stream(50, 8), 50).ok());
}

}  // namespace
}  // namespace strata
