// Residual addition, dropout and clearing, as bodies of ForElements.
#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_H_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_H_

#include "kernels/gpu/elements.h"

namespace strata::gpu {

// out = a + b; out may be either.
template <class T>
struct AddBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> a;
  Gmem<const T> b;
  Gmem<T> out;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float x[W], y[W];
    LoadFloats<W>(a, i, x);
    LoadFloats<W>(b, i, y);
    KX_UNROLL
    for (int k = 0; k < W; ++k) x[k] += y[k];
    StoreFloats<T>(out, i, x);
  }
};

// Zero bytes.
struct ClearBody {
  static constexpr int kWidth = 16;
  Gmem<uint8_t> data;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    if constexpr (W == 1) {
      data.Store(i, 0);
    } else {
      data.StoreVec(i, Vec<uint8_t>{});
    }
  }
};

// Ten rounds of Philox4x32 (Salmon et al., SC 2011), as common/random.h.
struct PhiloxBlock {
  uint32_t v[4];
};
KX_DEVICE PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  KX_UNROLL
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.v[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.v[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.v[1] ^ key0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.v[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Ops::Dropout (DropoutArgs): a block of four words is drawn once for the elements of a thread that share it.
template <class T>
struct DropoutBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> x;
  Gmem<T> out;
  int64_t first;
  uint64_t seed;
  uint32_t step, tensor;
  uint64_t threshold;  // keep probability * 2^32
  float scale;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float v[W];
    LoadFloats<W>(x, i, v);
    PhiloxBlock words;
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const uint64_t position = static_cast<uint64_t>(first + i + k);
      // `first` may start a row anywhere in a block of four.
      if (k == 0 || position % 4 == 0) {
        words = Philox4x32({{static_cast<uint32_t>(position / 4), static_cast<uint32_t>(position >> 34),
                             KX_MUTANT("fused/dropout/tensor", tensor, 0u), step}},
                           static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
      }
      const uint32_t at = position % 4;
      const uint32_t word = at == 0 ? words.v[0] : at == 1 ? words.v[1] : at == 2 ? words.v[2] : words.v[3];
      v[k] = word < threshold ? v[k] * scale : 0.0f;
    }
    StoreFloats<T>(out, i, v);
  }
};

}  // namespace strata::gpu

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_H_
