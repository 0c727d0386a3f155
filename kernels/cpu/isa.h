// Which vector instructions the kernels of the CPU backend use, chosen at run time.
#ifndef KERNELS_CPU_ISA_H_
#define KERNELS_CPU_ISA_H_

#include <cstdint>

namespace strata {

// Ordered: a level includes the ones below it.
enum class CpuIsa : uint8_t {
  kBase,        // x86-64 (SSE2)
  kAvx2,        // AVX2, FMA and F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and bf16 dot products
  kAmx,         // and bf16 tile matrix products
};

// The best level this CPU and operating system offer. The first call asks the kernel for permission to use
// AMX state; a refusal is a lower level, not an error.
CpuIsa DetectCpuIsa();

const char* Name(CpuIsa isa);

}  // namespace strata

#endif  // KERNELS_CPU_ISA_H_
