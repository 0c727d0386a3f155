// Grids of the attention kernels.
#ifndef KERNELS_ATTENTION_GRID_H_
#define KERNELS_ATTENTION_GRID_H_

#include <cstdint>

#include "kernels/kx/types.h"

namespace strata::attention {

// Blocks of `rows` of a sequence, for each of `heads` heads of each sequence.
inline kx::Dim3 GridOf(int seq, int rows, int heads, int batch) {
  return {static_cast<uint32_t>((seq + rows - 1) / rows), static_cast<uint32_t>(heads),
          static_cast<uint32_t>(batch)};
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_GRID_H_
