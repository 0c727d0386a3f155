// SyntheticCompute: a BlockCompute that costs next to nothing and still notices every mistake of the engine.
//
// Gradients are a pure function of (step, micro-batch, block, unit, element) times the loss's gradient scale.
// Activations, what FORWARD saves and the gradient of activations carry stamps through all of their memory,
// and a digest of the parameters that made them; each call checks what it is given, BACKWARD that it sees the
// parameters that FORWARD saw. Wrong, stale or torn bytes are kDataLoss that names the buffer and the offset.
// The loss is a function of the parameters' digests, so it too depends on nothing but the step.
#ifndef OFFLOAD_BENCH_SYNTHETIC_COMPUTE_H_
#define OFFLOAD_BENCH_SYNTHETIC_COMPUTE_H_

#include <cstdint>
#include <optional>
#include <stop_token>

#include "absl/time/time.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"

namespace strata {

// One element of the gradient of a tensor that is not finite.
struct Injection {
  float value = 0;   // an infinity or a NaN
  int64_t step = 0;  // 0-based
  int unit = 0;
  int tensor = 0;  // index in the unit
};

struct SyntheticComputeOptions {
  uint64_t seed = 1;
  // What a call takes at least. Asleep, as the host is while an accelerator computes; or busy, which takes a
  // core from the lanes.
  absl::Duration delay;
  bool busy = false;
  std::optional<Injection> injection;
  std::stop_token stop;  // ends what is left of a delay
};

class SyntheticCompute : public BlockCompute {
 public:
  // `layout` is MakeSyntheticLayout's and outlives this.
  SyntheticCompute(const ModelLayout& layout, const SyntheticComputeOptions& options)
      : layout_(layout), options_(options) {}

  absl::Status Forward(Stream* stream, const BlockArgs& args) override;
  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) override;
  absl::Status Backward(Stream* stream, const BlockArgs& args) override;
  absl::Status Loss(Stream* stream, const BlockArgs& args) override;

  // What FillBatch writes into the first two tokens of a micro-batch.
  static void MarkBatch(int64_t step, int64_t micro_batch, int32_t* tokens);

 private:
  uint64_t ParamsDigest(const BlockArgs& args) const;
  void WriteGradients(const BlockArgs& args, uint64_t batch, double scale) const;

  const ModelLayout& layout_;
  const SyntheticComputeOptions options_;
};

}  // namespace strata

#endif  // OFFLOAD_BENCH_SYNTHETIC_COMPUTE_H_
