// For launch.cc files: sums over rows of a term.
#ifndef KERNELS_COLUMNS_LAUNCH_COLUMNS_H_
#define KERNELS_COLUMNS_LAUNCH_COLUMNS_H_

#include "kernels/columns/columns.h"
#include "kernels/gpu/launch_elements.h"
#include "kernels/workspace.h"

namespace strata::gpu {

// outs[s] = sums of the term's s-th value over `rows`. `partial` has room for Term::kSums *
// ReductionBlocks(rows)
// * width floats. `vector`: accesses of kWidth columns are aligned.
template <class Term>
LaunchStatus SumColumns(kx::Stream stream, const Term& term, int64_t rows, int64_t width, bool vector,
                        float* partial, float* const (&outs)[Term::kSums]) {
  const ColumnGrid grid = {rows, width, ReductionBlockRows(rows), ReductionBlocks(rows)};
  const int64_t columns = 32 * (vector ? Term::kWidth : 1);
  const LaunchConfig config = {{Blocks(width, columns), static_cast<uint32_t>(grid.row_blocks)},
                               {kBlockThreads},
                               Term::kSums * kColumnWarps * columns * sizeof(float),
                               stream};
  LaunchStatus status = vector ? Launch(config, ColumnPartials<Term, true>, term, grid, partial)
                               : Launch(config, ColumnPartials<Term, false>, term, grid, partial);
  for (int s = 0; status.ok() && s < Term::kSums; ++s) {
    const float* sums = partial + s * grid.row_blocks * width;
    status = Launch({{Blocks(width, kBlockThreads)}, {kBlockThreads}, 0, stream}, ColumnTree<kRowBlocksMax>,
                    sums, outs[s], width, static_cast<int>(grid.row_blocks));
  }
  return status;
}

}  // namespace strata::gpu

#endif  // KERNELS_COLUMNS_LAUNCH_COLUMNS_H_
