// Dropout of activations: which random numbers a place of the model draws.
#ifndef WORKER_MODEL_ACTIVATION_DROPOUT_H_
#define WORKER_MODEL_ACTIVATION_DROPOUT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "offload/exec/block_compute.h"

namespace strata {

// One probability for activations T [rows, hidden] of a micro-batch. What is dropped is a pure function of
// the run's seed, the step, the place, and an element's row in the global batch and column: so it is the same
// when FORWARD runs again and in BACKWARD, for every placement, and however the global batch is cut into
// micro-batches. Stateless.
class ActivationDropout {
 public:
  // Places of a model, from the numbers of its blocks.
  static int64_t OfAttention(int block) { return 2 * int64_t{block} - 1; }
  // Of the MLP, or of the embedding.
  static int64_t OfOutput(int block) { return 2 * int64_t{block}; }

  // `ops` outlives this.
  ActivationDropout(Ops& ops, uint64_t seed, double drop, int64_t rows, int64_t hidden);

  // Whether the call that `args` are of drops anything.
  bool Drops(const BlockArgs& args) const { return drop_ > 0 && args.draw.has_value(); }
  // out = what is left of x at `place`; out may be x. The gradient is the same call.
  absl::Status Run(Stream* stream, const BlockArgs& args, int64_t place, const void* x, void* out) const;

 private:
  Ops& ops_;
  const uint64_t seed_;
  const double drop_;
  const int64_t rows_, hidden_;
};

}  // namespace strata

#endif  // WORKER_MODEL_ACTIVATION_DROPOUT_H_
