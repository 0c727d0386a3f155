// AdamW with m and v in eight bits (code8.h): 6.125 bytes of state per parameter instead of 12. Per element,
// with adamw.h's update between decoding and encoding:
//     m = m_scale * code value, v likewise          one rounding each
//     (master, m, v, params) = AdamW
//     m_scale, v_scale, codes                       from the block's new m and v, as code8.h says
// All instruction sets follow it: the bits do not depend on the path, on threads, or on how a range is cut at
// multiples of kCode8Block. kernels/state has them on a device.
#ifndef KERNELS_OPTIMIZER_ADAMW8_H_
#define KERNELS_OPTIMIZER_ADAMW8_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/isa.h"

namespace strata {

// Blocks of kCode8Block elements start at element 0; the last may be shorter. Ranges do not overlap. What
// becomes of a gradient that is not finite is not defined: such a step is skipped, or its update thrown away.
struct AdamW8Range {
  int64_t n = 0;
  const float* grad = nullptr;
  float* master = nullptr;   // updated in place, like all of m and v
  uint8_t* m = nullptr;      // [n] codes, zero at first
  float* m_scale = nullptr;  // [blocks], zero at first
  uint8_t* v = nullptr;
  float* v_scale = nullptr;
  void* params = nullptr;             // written: by params_dtype; nullptr writes none
  DType params_dtype = DType::kBF16;  // kBF16, kF16 or kF32
};

// Thread-safe on different ranges. With threads > 1 an OpenMP team shares the range.
void AdamW8(const AdamWScalars& scalars, const AdamW8Range& range, int threads = 1);

// The same on a given instruction set, which must be Supported().
void AdamW8OnIsa(Isa isa, const AdamWScalars& scalars, const AdamW8Range& range, int threads = 1);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ADAMW8_H_
