#include "offload/calibrate/evict.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace strata {

#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;

bool HasClflushopt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
}

// Lines of it go in any order, ten times as fast.
__attribute__((target("clflushopt"))) void Flush(std::span<const std::byte> memory) {
  for (size_t at = 0; at < memory.size(); at += kLine)
    _mm_clflushopt(const_cast<std::byte*>(memory.data() + at));
}

void FlushInOrder(std::span<const std::byte> memory) {
  for (size_t at = 0; at < memory.size(); at += kLine) _mm_clflush(memory.data() + at);
}

}  // namespace

void EvictFromCaches(std::span<const std::byte> memory) {
  if (HasClflushopt()) {
    Flush(memory);
  } else {
    FlushInOrder(memory);
  }
  _mm_mfence();
}
#else
void EvictFromCaches(std::span<const std::byte>) {}
#endif

}  // namespace strata
