// Whether the processor converts between float and fp16 (F16C). Not asked of __builtin_cpu_supports, which
// does not know the name in clang 14. The operating system's part is that of AVX, which callers ask about
// anyway.
#ifndef KERNELS_F16C_H_
#define KERNELS_F16C_H_

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace strata {

inline bool HasF16c() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
#else
  return false;
#endif
}

}  // namespace strata

#endif  // KERNELS_F16C_H_
