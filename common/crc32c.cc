#include "common/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strata {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli, reflected.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t UpdateTable(uint32_t crc, const unsigned char* data, size_t size) {
  for (size_t i = 0; i < size; ++i) crc = kTable[(crc ^ data[i]) & 0xFF] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)

// The instruction has a latency of 3 and a throughput of 1, so three streams run side by side over
// blocks of this size and are joined by multiplying with x^(8 * block) in the CRC's field.
constexpr size_t kBlock = 2048;

// crc * x^(8 * kBlock) as four byte-indexed tables.
struct ShiftTable {
  uint32_t t[4][256];
};

constexpr uint32_t ShiftBits(uint32_t crc, size_t bits) {
  for (size_t i = 0; i < bits; ++i) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
  return crc;
}

ShiftTable MakeShiftTable() {
  // The shift is linear, so each byte value's image is the xor of its bits' images.
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    uint32_t image[8];
    for (int bit = 0; bit < 8; ++bit) image[bit] = ShiftBits(uint32_t{1} << (8 * byte + bit), 8 * kBlock);
    for (int value = 0; value < 256; ++value) {
      uint32_t sum = 0;
      for (int bit = 0; bit < 8; ++bit) sum ^= (value >> bit & 1) ? image[bit] : 0;
      table.t[byte][value] = sum;
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table.t[0][crc & 0xFF] ^ table.t[1][crc >> 8 & 0xFF] ^ table.t[2][crc >> 16 & 0xFF] ^
         table.t[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t UpdateHardware(uint32_t crc, const unsigned char* data,
                                                          size_t size) {
  static const ShiftTable table = MakeShiftTable();
  const auto load = [](const unsigned char* p) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    return word;
  };
  while (size >= 3 * kBlock) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kBlock; i += 8) {
      // The streams are too short for the hardware's prefetchers: one round ahead by hand makes data that is
      // not in the caches 1.6 x as fast (9 -> 14.5 GB/s). Prefetching past the end is harmless.
      if (i % 64 == 0) {
        __builtin_prefetch(data + i + 3 * kBlock);
        __builtin_prefetch(data + i + 4 * kBlock);
        __builtin_prefetch(data + i + 5 * kBlock);
      }
      a = _mm_crc32_u64(a, load(data + i));
      b = _mm_crc32_u64(b, load(data + kBlock + i));
      c = _mm_crc32_u64(c, load(data + 2 * kBlock + i));
    }
    crc = Shift(table, Shift(table, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
          static_cast<uint32_t>(c);
    data += 3 * kBlock;
    size -= 3 * kBlock;
  }
  uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load(data));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) crc = _mm_crc32_u8(crc, *data);
  return crc;
}

// Folding by carry-less multiplication ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Gopal and others, Intel 2009), on vectors of four 128-bit lanes. The state is kept as long
// polynomials that are congruent to the message so far; one step moves them `bits` further and adds the bytes
// found there. One sequential stream: what the hardware prefetches, twice as fast as the above on data from
// memory.

// x^n mod P, reflected, in the form that a multiplication of reflected 64-bit halves needs: shifted left by
// one.
constexpr uint64_t FoldConstant(uint64_t n) { return uint64_t{ShiftBits(uint32_t{1} << 31, n)} << 1; }

// The pair that moves a 128-bit lane by `bits`: for the half that comes first, and for the second one.
struct FoldPair {
  uint64_t first, second;
};
constexpr FoldPair MakeFoldPair(uint64_t bits) { return {FoldConstant(bits + 32), FoldConstant(bits - 32)}; }
constexpr FoldPair kFold2048 = MakeFoldPair(2048), kFold512 = MakeFoldPair(512), kFold384 = MakeFoldPair(384),
                   kFold256 = MakeFoldPair(256), kFold128 = MakeFoldPair(128);

#define STRATA_FOLD_TARGET __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq")))

STRATA_FOLD_TARGET inline __m512i Fold(__m512i state, __m512i pair, __m512i next) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(state, pair, 0x00),
                                   _mm512_clmulepi64_epi128(state, pair, 0x11), next, /*a ^ b ^ c*/ 0x96);
}

STRATA_FOLD_TARGET inline __m512i Broadcast(FoldPair pair) {
  const auto first = static_cast<int64_t>(pair.first), second = static_cast<int64_t>(pair.second);
  return _mm512_set_epi64(second, first, second, first, second, first, second, first);
}

constexpr size_t kFoldMin = 1024;

// `size` >= 256.
STRATA_FOLD_TARGET uint32_t UpdateFolding(uint32_t crc, const unsigned char* data, size_t size) {
  __m512i state[4];
  for (int i = 0; i < 4; ++i) state[i] = _mm512_loadu_si512(data + 64 * i);
  state[0] = _mm512_xor_si512(state[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  const __m512i by2048 = Broadcast(kFold2048);
  for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
    for (int i = 0; i < 4; ++i) state[i] = Fold(state[i], by2048, _mm512_loadu_si512(data + 64 * i));
  }
  const __m512i by512 = Broadcast(kFold512);
  __m512i sum = state[0];
  for (int i = 1; i < 4; ++i) sum = Fold(sum, by512, state[i]);
  // The four lanes onto the last: a lane's pair is for its distance to that, and the last one stays as it is.
  const __m512i pairs =
      _mm512_set_epi64(0, 0, static_cast<int64_t>(kFold128.second), static_cast<int64_t>(kFold128.first),
                       static_cast<int64_t>(kFold256.second), static_cast<int64_t>(kFold256.first),
                       static_cast<int64_t>(kFold384.second), static_cast<int64_t>(kFold384.first));
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, Fold(sum, pairs, _mm512_maskz_mov_epi64(0xC0, sum)));
  const uint64_t first = lanes[0] ^ lanes[2] ^ lanes[4] ^ lanes[6];
  const uint64_t second = lanes[1] ^ lanes[3] ^ lanes[5] ^ lanes[7];
  // What is left is like a message of 16 bytes.
  crc = static_cast<uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, first), second));
  return UpdateHardware(crc, data, size);
}

#endif

}  // namespace

uint32_t Crc32c(const void* data, size_t size, uint32_t crc) {
  const auto* bytes = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  static const bool folding = hardware && __builtin_cpu_supports("pclmul") &&
                              __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("vpclmulqdq");
  if (folding && size >= kFoldMin) return ~UpdateFolding(~crc, bytes, size);
  if (hardware) return ~UpdateHardware(~crc, bytes, size);
#endif
  return ~UpdateTable(~crc, bytes, size);
}

}  // namespace strata
