#include "kernels/optimizer/isa.h"

#include "kernels/f16c.h"

namespace strata {

bool Supported(Isa isa) {
#if STRATA_OPTIMIZER_X86
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
    case Isa::kAvx512:
      return Supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
}

Isa BestIsa() {
  static const Isa best = Supported(Isa::kAvx512) ? Isa::kAvx512
                          : Supported(Isa::kAvx2) ? Isa::kAvx2
                                                  : Isa::kScalar;
  return best;
}

}  // namespace strata
