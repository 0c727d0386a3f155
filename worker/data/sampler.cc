#include "worker/data/sampler.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/checked.h"
#include "common/random.h"
#include "common/status.h"

namespace strata {
namespace {

// Upper bits of the random streams used here, so that no other use of the job's seed shares their numbers.
constexpr uint64_t kOffsetStream = uint64_t{0xDA7A} << 48;
constexpr uint64_t kPermutationStream = uint64_t{0xDA7B} << 48;

// With n half-width bits a Feistel network of few rounds is visibly regular for tiny n; rounds are cheap.
constexpr int kRounds = 8;

constexpr int64_t kBatchIdsLimit = int64_t{1} << 30;

// Splits one window of seq_len + 1 tokens into inputs and targets.
absl::Status ReadWindow(const TokenStream& stream, int64_t start, std::span<int32_t> window,
                        std::span<int32_t> inputs, std::span<int32_t> targets) {
  STRATA_RETURN_IF_ERROR(stream.Read(start, window));
  std::copy(window.begin(), window.end() - 1, inputs.begin());
  std::copy(window.begin() + 1, window.end(), targets.begin());
  return absl::OkStatus();
}

template <typename StartOf>
absl::Status ReadWindows(const TokenStream& stream, int64_t seq_len, int64_t index, int64_t count,
                         std::span<int32_t> inputs, std::span<int32_t> targets, StartOf start_of) {
  STRATA_CHECK(index >= 0 && count >= 0);
  STRATA_CHECK(static_cast<int64_t>(inputs.size()) == count * seq_len && targets.size() == inputs.size());
  std::vector<int32_t> window(static_cast<size_t>(seq_len + 1));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i * seq_len), n = static_cast<size_t>(seq_len);
    STRATA_RETURN_IF_ERROR(
        ReadWindow(stream, start_of(index + i), window, inputs.subspan(at, n), targets.subspan(at, n)),
        "sequence ", index + i);
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const TokenStream& stream, int64_t seq_len) {
  if (seq_len < 1)
    return absl::InvalidArgumentError(absl::StrCat("data.seq_len is ", seq_len, "; it must be at least 1"));
  if (stream.size() < seq_len + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has ", stream.size(), " tokens, one sequence needs data.seq_len + 1 = ", seq_len + 1));
  }
  return absl::OkStatus();
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream)
    : size_(static_cast<uint64_t>(size)), seed_(seed), stream_(stream) {
  STRATA_CHECK(size > 0 && size <= (int64_t{1} << 62));
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  const CounterRandom random(seed_, stream_);
  for (uint64_t round = 0; round < kRounds; ++round) {
    // right < 2^31, so round and right share one counter without overlap.
    const uint64_t next = left ^ (random.Bits(round << 32 | right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  STRATA_CHECK(index >= 0 && static_cast<uint64_t>(index) < size_);
  // The network permutes a domain of at most 4 * size; following its cycle from a value of the range must
  // come back into the range, and the first return is itself a bijection of the range.
  auto value = static_cast<uint64_t>(index);
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

absl::StatusOr<Sampler> Sampler::Create(TokenStream stream, int64_t seq_len, uint64_t seed) {
  STRATA_RETURN_IF_ERROR(CheckWindow(stream, seq_len));
  const int64_t windows = std::max<int64_t>(1, (stream.size() - seq_len) / seq_len);
  return Sampler(std::move(stream), seq_len, seed, windows);
}

int64_t Sampler::WindowStart(int64_t index) const {
  STRATA_CHECK(index >= 0);
  const auto epoch = static_cast<uint64_t>(index / windows_);
  const int64_t room = std::min(seq_len_, stream_.size() - windows_ * seq_len_);
  const auto offset =
      static_cast<int64_t>(CounterRandom(seed_, kOffsetStream).Below(epoch, static_cast<uint64_t>(room)));
  const Permutation permutation(windows_, seed_, kPermutationStream + epoch);
  return offset + permutation(index % windows_) * seq_len_;
}

absl::Status Sampler::Read(int64_t index, int64_t count, std::span<int32_t> inputs,
                           std::span<int32_t> targets) const {
  return ReadWindows(stream_, seq_len_, index, count, inputs, targets,
                     [&](int64_t i) { return WindowStart(i); });
}

absl::StatusOr<TokenBatch> Sampler::Batch(int64_t step, int64_t global_batch) const {
  STRATA_CHECK(step >= 0 && global_batch >= 1);
  const std::optional<int64_t> first = CheckedMul(step, global_batch),
                               ids = CheckedMul(global_batch, seq_len_);
  if (!first.has_value() || !ids.has_value() || *ids > kBatchIdsLimit) {
    return absl::InvalidArgumentError(absl::StrCat("training.global_batch = ", global_batch,
                                                   " x data.seq_len = ", seq_len_, " is more than ",
                                                   kBatchIdsLimit, " tokens in one step"));
  }
  TokenBatch batch{.sequences = global_batch, .seq_len = seq_len_};
  batch.inputs.resize(static_cast<size_t>(*ids));
  batch.targets.resize(batch.inputs.size());
  STRATA_RETURN_IF_ERROR(Read(*first, global_batch, batch.inputs, batch.targets), "step ", step);
  return batch;
}

absl::StatusOr<EvalWindows> EvalWindows::Create(TokenStream stream, int64_t seq_len) {
  STRATA_RETURN_IF_ERROR(CheckWindow(stream, seq_len));
  const int64_t count = (stream.size() - 1) / seq_len;
  return EvalWindows(std::move(stream), seq_len, count);
}

absl::Status EvalWindows::Read(int64_t index, int64_t count, std::span<int32_t> inputs,
                               std::span<int32_t> targets) const {
  STRATA_CHECK(count >= 0 && index >= 0 && index + count <= count_);
  return ReadWindows(stream_, seq_len_, index, count, inputs, targets,
                     [&](int64_t i) { return i * seq_len_; });
}

}  // namespace strata
