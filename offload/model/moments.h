// How optimizer records hold AdamW's m and v, and what a record of a chunk takes.
//
// A record of n elements (a multiple of kTensorAlignment, so of whole blocks of codes) is contiguous:
//   kF32:    master[n], m[n], v[n] floats: 12 n bytes
//   kCode8:  master[n] floats, codes of m[n], codes of v[n], then one float for each kCode8Block elements:
//            scales of m, scales of v: 6.125 n bytes (kernels/optimizer/code8.h)
#ifndef OFFLOAD_MODEL_MOMENTS_H_
#define OFFLOAD_MODEL_MOMENTS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace strata {

enum class Moments : uint8_t { kF32, kCode8 };

// training.optimizer.name of a job: "adamw", "adamw8bit".
const char* OptimizerName(Moments moments);
// nullopt: no optimizer has this name. All that have one: kOptimizerNames.
std::optional<Moments> MomentsOfOptimizer(absl::string_view name);
inline constexpr char kOptimizerNames[] = "adamw, adamw8bit";

// Of n elements, a multiple of kCode8Block.
int64_t RecordBytes(Moments moments, int64_t n);

}  // namespace strata

#endif  // OFFLOAD_MODEL_MOMENTS_H_
