// Matrices to fp8 on the device.
#ifndef KERNELS_FP8_LAUNCH_H_
#define KERNELS_FP8_LAUNCH_H_

#include <cstdint>

#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

struct Fp8QuantizeArgs {
  Fp8 type = Fp8::kE4M3;
  const void* x = nullptr;  // bf16 [rows, columns], aligned to 16 bytes; all sizes are multiples of 16
  int64_t rows = 0, columns = 0, ld = 0;
  bool transpose = false;
  uint8_t* codes = nullptr;     // [rows, columns], transposed [columns, rows]; aligned to 16 bytes
  float* scale = nullptr;       // what the codes' values are multiplied with to be those of x, rounded
  uint32_t* scratch = nullptr;  // kFp8ScratchBytes
};
inline constexpr int64_t kFp8ScratchBytes = 256 * sizeof(uint32_t);

// Two launches.
kx::LaunchStatus Fp8Quantize(kx::Stream stream, const Fp8QuantizeArgs& args);

}  // namespace strata::gpu

#endif  // KERNELS_FP8_LAUNCH_H_
