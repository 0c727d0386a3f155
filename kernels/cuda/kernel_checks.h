// Checks of kernels that have no op of their own: "" or the first thing wrong. On the emulator they run in
// the innermost emu::Session; with STRATA_DEVICE_ARRAY_GPU, on a GPU.
#ifndef KERNELS_CUDA_KERNEL_CHECKS_H_
#define KERNELS_CUDA_KERNEL_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/launch.h"
#include "kernels/conformance/harness.h"
#include "kernels/dtype.h"

namespace strata {

// AdamW and the sum of squares have the CPU's bits.
std::string CheckStates(conformance::Draw& draw, int64_t n);

// AdamW with eight-bit states has the bits of its reference over two steps; `offset` elements behind a
// boundary.
std::string CheckAdamW8(conformance::Draw& draw, DType params_dtype, int64_t n, int64_t offset);

// Checksums have the host's bits; `bytes` as of StateOps::Checksums.
std::string CheckChecksums(conformance::Draw& draw, int64_t bytes);

// Attention with products of e4m3 (kernels/attention), one sequence, causal or all visible, plain and with
// incoherent processing: against the definition in double, within what three matrices of three bits of
// fraction allow. sm_90a.
struct Fp8Problem {
  DType dtype;
  attention::Shape shape;
};
// One of each kind: every head dimension, groups, more and fewer queries than keys, one query; keys from
// `seq` to six times as many, so that rings wrap when it is 100 or more.
std::vector<Fp8Problem> Fp8Problems(int seq);
std::string CheckFp8Attention(conformance::Draw& draw, DType dtype, const attention::Shape& shape);

}  // namespace strata

#endif  // KERNELS_CUDA_KERNEL_CHECKS_H_
