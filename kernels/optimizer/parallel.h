// Splits a range of elements over an OpenMP team at boundaries that are multiples of 4096 elements from its
// start, whatever the team.
#ifndef KERNELS_OPTIMIZER_PARALLEL_H_
#define KERNELS_OPTIMIZER_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "common/checked.h"

namespace strata {

inline constexpr int64_t kPartUnit = 4096;

// Calls f(begin, end) for parts that cover [0, n) once; f runs concurrently when threads > 1.
template <typename F>
void ForEachPart(int64_t n, int threads, F f) {
  const int64_t units = CeilDiv(n, kPartUnit);
  const int64_t parts = std::min<int64_t>(threads, units);
  if (parts <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = units * part / parts * kPartUnit;
    const int64_t end = std::min(n, units * (part + 1) / parts * kPartUnit);
    f(begin, end);
  }
}

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_PARALLEL_H_
