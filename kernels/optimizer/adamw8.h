// AdamW with m and v in eight bits (code8.h): 12 bytes of state per parameter less 6. Per element, with
// adamw.h's update between decoding and encoding:
//     m = m_scale * code value, v likewise          one rounding each
//     (master, m, v, params) = AdamW
//     m_scale = max |m| of the block / 1.875        one rounding; v likewise
//     code = the nearest code of m / m_scale        0 where the scale is 0
// The reference of kernels/state's kernel, which has the same bits.
#ifndef KERNELS_OPTIMIZER_ADAMW8_H_
#define KERNELS_OPTIMIZER_ADAMW8_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/optimizer/adamw.h"

namespace strata {

// Blocks of kCode8Block elements start at element 0; the last may be shorter. Ranges do not overlap. All
// numbers are finite: a step with a gradient that is not is skipped before it comes here.
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

// The bits do not depend on the machine.
void AdamW8(const AdamWScalars& scalars, const AdamW8Range& range);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ADAMW8_H_
