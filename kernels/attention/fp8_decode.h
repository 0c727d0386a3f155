// What the fp8 forward pass multiplied, read back from its workspace, for tests.
#ifndef KERNELS_ATTENTION_FP8_DECODE_H_
#define KERNELS_ATTENTION_FP8_DECODE_H_

#include "kernels/attention/ref.h"

namespace strata::attention {

// q, k and v of `in` as the workspace (fp8_layout.h) holds them, in heads of Fp8Dim(head_dim) columns; q and
// k as they were transformed. The workspace is host memory.
ReferenceInputs DecodeFp8(const ReferenceInputs& in, const void* workspace);

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FP8_DECODE_H_
