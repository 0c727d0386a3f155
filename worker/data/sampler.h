// Sampler: which window of the text is the k-th sequence of the run. A pure function of (seed, k): the cursor
// of a run is one integer, and resuming at any point is exact.
//
// An epoch e has W = max(1, (n - seq_len) / seq_len) windows of seq_len + 1 tokens in a stream of n; window w
// starts at offset(e) + w * seq_len, with offset(e) uniform in what the stream leaves room for (at most
// seq_len values), so that windows are cut at other places in every epoch. Sequence k is window Permute(k mod
// W) of epoch k / W, where Permute is a keyed bijection of [0, W): every window comes exactly once per epoch.
#ifndef WORKER_DATA_SAMPLER_H_
#define WORKER_DATA_SAMPLER_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace strata {

// A pseudo-random bijection of [0, size), a function of (size, seed, stream) that needs no table: a Feistel
// network on the smallest even number of bits that holds size, walked until the value falls into the range
// (expected < 4 rounds).
class Permutation {
 public:
  // 0 < size <= 2^62.
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t Encrypt(uint64_t value) const;

  uint64_t size_;
  uint64_t seed_;
  uint64_t stream_;
  int half_bits_;
};

// Token ids of `sequences` x `seq_len`, row-major; targets are inputs shifted by one.
struct TokenBatch {
  int64_t sequences = 0;
  int64_t seq_len = 0;
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

// Immutable and thread-safe.
class Sampler {
 public:
  // kInvalidArgument if the stream is shorter than one window or seq_len < 1.
  static absl::StatusOr<Sampler> Create(TokenStream stream, int64_t seq_len, uint64_t seed);

  int64_t seq_len() const { return seq_len_; }
  int64_t windows_per_epoch() const { return windows_; }

  // First token of sequence `index` >= 0 of the run.
  int64_t WindowStart(int64_t index) const;

  // Sequences [index, index + count). `inputs` and `targets` hold count * seq_len ids.
  absl::Status Read(int64_t index, int64_t count, std::span<int32_t> inputs,
                    std::span<int32_t> targets) const;

  // The batch of optimizer step `step` (from 0): sequences [step * global_batch, (step + 1) * global_batch).
  absl::StatusOr<TokenBatch> Batch(int64_t step, int64_t global_batch) const;

 private:
  Sampler(TokenStream stream, int64_t seq_len, uint64_t seed, int64_t windows)
      : stream_(std::move(stream)), seq_len_(seq_len), seed_(seed), windows_(windows) {}

  TokenStream stream_;
  int64_t seq_len_;
  uint64_t seed_;
  int64_t windows_;
};

// Evaluation: the whole stream in order, in windows without overlap of their targets. The rest that does not
// fill a window is left out.
class EvalWindows {
 public:
  static absl::StatusOr<EvalWindows> Create(TokenStream stream, int64_t seq_len);
  int64_t count() const { return count_; }
  absl::Status Read(int64_t index, int64_t count, std::span<int32_t> inputs,
                    std::span<int32_t> targets) const;

 private:
  EvalWindows(TokenStream stream, int64_t seq_len, int64_t count)
      : stream_(std::move(stream)), seq_len_(seq_len), count_(count) {}

  TokenStream stream_;
  int64_t seq_len_;
  int64_t count_;
};

}  // namespace strata

#endif  // WORKER_DATA_SAMPLER_H_
