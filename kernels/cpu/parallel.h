// Parallel loops of the CPU backend on OpenMP, the pool that oneDNN uses too.
#ifndef KERNELS_CPU_PARALLEL_H_
#define KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <cstdint>

namespace strata::cpu {

// Runs body(piece, thread) for every piece in [0, pieces), on up to `threads` threads. Which thread runs
// a piece is not defined, so a piece's result must not depend on it. Pieces start in order, so the longest
// should come first. One piece, or one thread, runs on the caller alone.
template <typename Body>
void ParallelFor(int threads, int64_t pieces, const Body& body) {
  if (threads == 1 || pieces <= 1) {
    for (int64_t i = 0; i < pieces; ++i) body(i, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < pieces; ++i) body(i, omp_get_thread_num());
}

// body(begin, end) over [0, n) in pieces of `piece` elements. For work so cheap per element that a parallel
// region only pays when there are several pieces.
template <typename Body>
void ParallelRanges(int threads, int64_t n, int64_t piece, const Body& body) {
  const int64_t pieces = (n + piece - 1) / piece;
  if (threads == 1 || pieces <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = i * piece, end = begin + piece < n ? begin + piece : n;
    body(begin, end);
  }
}

}  // namespace strata::cpu

#endif  // KERNELS_CPU_PARALLEL_H_
