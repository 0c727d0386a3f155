// Instruction sets of the optimizer kernels. Every path of a kernel gives the same bits, so the choice is
// speed only; tests and benches force one.
#ifndef KERNELS_OPTIMIZER_ISA_H_
#define KERNELS_OPTIMIZER_ISA_H_

#include <cstdint>

#if defined(__x86_64__)
#define STRATA_OPTIMIZER_X86 1
#define STRATA_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define STRATA_TARGET_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define STRATA_OPTIMIZER_X86 0
#endif

namespace strata {

enum class Isa : uint8_t {
  kScalar,  // runs anywhere; fused multiply-adds in software where the processor has none
  kAvx2,    // AVX2, FMA and F16C
  kAvx512,  // AVX-512 F, BW, DQ, VL
};

constexpr const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

// Whether this processor (and its operating system) can run it.
bool Supported(Isa isa);

// The fastest supported one; decided once per process.
Isa BestIsa();

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ISA_H_
