// Memory as a step finds it that has not touched it for long.
#ifndef OFFLOAD_CALIBRATE_EVICT_H_
#define OFFLOAD_CALIBRATE_EVICT_H_

#include <cstddef>
#include <span>

namespace strata {

// Writes `memory` back and drops it from every cache; about 40 us per MiB. Where the processor cannot (not
// x86), nothing happens, and what is measured then may be a cache.
void EvictFromCaches(std::span<const std::byte> memory);

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_EVICT_H_
