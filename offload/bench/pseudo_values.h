// Values that are a pure function of (key, index), made at about the speed of memory.
#ifndef OFFLOAD_BENCH_PSEUDO_VALUES_H_
#define OFFLOAD_BENCH_PSEUDO_VALUES_H_

#include <cstdint>
#include <span>

namespace strata {

// Mixes two numbers into one, for keys.
uint64_t MixKeys(uint64_t a, uint64_t b);

// out[i] = the value of index `first + i`: uniform in [-amplitude, amplitude). Indices below 2^32.
void PseudoValues(uint64_t key, int64_t first, float amplitude, std::span<float> out);

}  // namespace strata

#endif  // OFFLOAD_BENCH_PSEUDO_VALUES_H_
