#include "common/random.h"

#include <cmath>

namespace strata {
namespace {

std::array<uint32_t, 4> Block(uint64_t seed, uint64_t stream, uint64_t index) {
  return Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t CounterRandom::Bits(uint64_t index) const {
  const auto block = Block(seed_, stream_, index);
  return uint64_t{block[1]} << 32 | block[0];
}

double CounterRandom::Uniform(uint64_t index) const {
  return static_cast<double>(Bits(index) >> 11) * 0x1p-53;
}

uint64_t CounterRandom::Below(uint64_t index, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Bits(index)) * bound) >> 64);
}

double CounterRandom::Normal(uint64_t index) const {
  const auto block = Block(seed_, stream_, index);
  const uint64_t a = uint64_t{block[1]} << 32 | block[0];
  const uint64_t b = uint64_t{block[3]} << 32 | block[2];
  const double u = static_cast<double>((a >> 11) + 1) * 0x1p-53;  // (0, 1]: the logarithm is finite.
  const double v = static_cast<double>(b >> 11) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v);
}

}  // namespace strata
