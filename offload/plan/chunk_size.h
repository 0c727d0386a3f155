// The size of a chunk as people give it (memory.chunk, --chunk): bytes of its fp32 elements.
#ifndef OFFLOAD_PLAN_CHUNK_SIZE_H_
#define OFFLOAD_PLAN_CHUNK_SIZE_H_

#include <cstdint>

#include "common/checked.h"

namespace strata {

// In elements, and in whole blocks of the NVMe store for every class of state; 0 stays 0 (the planner
// chooses).
inline int64_t ChunkElements(int64_t bytes) {
  return bytes > 0 ? RoundUp<int64_t>(CeilDiv<int64_t>(bytes, 4), 4096) : 0;
}

}  // namespace strata

#endif  // OFFLOAD_PLAN_CHUNK_SIZE_H_
