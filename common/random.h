// Counter-based random numbers: a value is a pure function of (seed, stream, index), so it never depends
// on the order in which values are drawn. Philox4x32-10 (Salmon et al., SC 2011).
#ifndef COMMON_RANDOM_H_
#define COMMON_RANDOM_H_

#include <array>
#include <cstdint>

namespace strata {

// Ten rounds of Philox4x32 over `counter` with `key`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// One stream of values keyed by (seed, stream). Stateless and cheap to copy.
class CounterRandom {
 public:
  CounterRandom(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint64_t Bits(uint64_t index) const;
  // Uniform in [0, 1) with 53 bits.
  double Uniform(uint64_t index) const;
  // Uniform in [0, bound), bound > 0, without modulo bias worth noting (128-bit multiply).
  uint64_t Below(uint64_t index, uint64_t bound) const;
  // Standard normal by Box-Muller on two values of `index`.
  double Normal(uint64_t index) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace strata

#endif  // COMMON_RANDOM_H_
