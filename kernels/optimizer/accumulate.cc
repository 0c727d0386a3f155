#include "kernels/optimizer/accumulate.h"

#include "kernels/optimizer/isa.h"
#include "kernels/optimizer/parallel.h"

namespace strata {
namespace {

// One rounding per element: the compiler may vectorise it in any width and the bits stay.
[[gnu::always_inline]] inline void AddLoop(float* __restrict acc, const float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += x[i];
}

void AddScalar(float* acc, const float* x, int64_t n) { AddLoop(acc, x, n); }
#if STRATA_OPTIMIZER_X86
STRATA_TARGET_AVX2 void AddAvx2(float* acc, const float* x, int64_t n) { AddLoop(acc, x, n); }
STRATA_TARGET_AVX512 void AddAvx512(float* acc, const float* x, int64_t n) { AddLoop(acc, x, n); }
#endif

}  // namespace

void Accumulate(float* acc, const float* x, int64_t n, int threads) {
  auto add = AddScalar;
#if STRATA_OPTIMIZER_X86
  if (BestIsa() == Isa::kAvx512) add = AddAvx512;
  if (BestIsa() == Isa::kAvx2) add = AddAvx2;
#endif
  ForEachPart(n, threads, [&](int64_t begin, int64_t end) { add(acc + begin, x + begin, end - begin); });
}

}  // namespace strata
