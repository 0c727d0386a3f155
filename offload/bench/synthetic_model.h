// A model that exists for the engine only: units and blocks of a given size with odd tensor shapes, a unit
// that two blocks share, two parameter groups, and frozen tensors (norm2 of every other layer).
#ifndef OFFLOAD_BENCH_SYNTHETIC_MODEL_H_
#define OFFLOAD_BENCH_SYNTHETIC_MODEL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "offload/model/model_layout.h"
#include "offload/plan/machine_profile.h"

namespace strata {

struct SyntheticShape {
  int64_t parameters = 10'000'000;  // about: the model has the odd sizes that come nearest
  int layers = 24;
  DType compute_dtype = DType::kBF16;
  Moments moments = Moments::kF32;
  int64_t rows = 64;             // tokens of a micro-batch: what activations grow with
  absl::Duration compute_delay;  // each block's forward and backward takes at least this
  uint64_t frozen_layers = 0;    // a bit for each of the first 64: nothing of it is trained
};

// Speeds that make the planner see what SyntheticCompute takes: FLOPs of the layout are nanoseconds.
inline constexpr double kSyntheticFlopsPerSecond = 1e9;
ComputeRates SyntheticRates();

// kInvalidArgument for sizes that no such model has.
absl::StatusOr<ModelLayout> MakeSyntheticLayout(const SyntheticShape& shape);

}  // namespace strata

#endif  // OFFLOAD_BENCH_SYNTHETIC_MODEL_H_
