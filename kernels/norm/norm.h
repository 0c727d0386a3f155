// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), a block per row. Up to kRowVectors
// vectors of a row stay in a thread's registers, so that a row is read once.
#ifndef KERNELS_NORM_NORM_H_
#define KERNELS_NORM_NORM_H_

#include "kernels/columns/columns.h"
#include "kernels/gpu/elements.h"
#include "kernels/gpu/reduce.h"

namespace strata::gpu {

inline constexpr int kNormThreadsMax = 512;
inline constexpr int kRowVectors = 4;
// Of two sums of BlockSum.
inline constexpr int64_t kNormSharedBytes = 2 * kWarpsMax * sizeof(float);

// This thread's part of a row. kVector: width is a multiple of kWide<T> and at most
// kRowVectors * kWide<T> * threads; the part is held in registers. Otherwise any width: elements are read
// again.
template <class T, bool kVector>
class RowPart {
 public:
  static constexpr int kWidth = kVector ? kWide<T> : 1;

  KX_DEVICE explicit RowPart(int64_t width) : width_(width) {}

  // Where piece number `piece` of this thread starts; past the row's end when there is none.
  KX_DEVICE int64_t At(int piece) const {
    return (static_cast<int64_t>(piece) * BlockDim().x + ThreadIdx().x) * kWidth;
  }
  // Calls f(i, piece) for each piece.
  template <class F>
  KX_DEVICE void ForEach(F&& f) const {
    if constexpr (kVector) {
      KX_UNROLL
      for (int piece = 0; piece < kRowVectors; ++piece) {
        const int64_t i = At(piece);
        if (i < width_) f(i, piece);
      }
    } else {
      KX_NO_UNROLL
      for (int64_t i = ThreadIdx().x; i < width_; i += BlockDim().x) f(i, 0);
    }
  }
  // Reads a row (kVector) or remembers where it is.
  KX_DEVICE void Read(Gmem<const T> row) {
    row_ = row;
    if constexpr (kVector) {
      ForEach([&](int64_t i, int piece) { kept_[piece] = row.template LoadVec<16>(i); });
    }
  }
  // Replaces a piece by the sum with another row's, rounded to T, and writes it to `out`.
  KX_DEVICE void AddAndStore(Gmem<const T> other, Gmem<T> out) {
    ForEach([&](int64_t i, int piece) {
      float a[kWidth], b[kWidth];
      Get(i, piece, a);
      LoadFloats<kWidth>(other, i, b);
      KX_UNROLL
      for (int k = 0; k < kWidth; ++k) a[k] += b[k];
      StoreFloats<T>(out, i, a);
      if constexpr (kVector) {
        KX_UNROLL
        for (int k = 0; k < kWidth; ++k) kept_[piece][k] = FromFloat<T>(a[k]);
      }
    });
    row_ = out.template As<const T>();
  }
  KX_DEVICE void Get(int64_t i, int piece, float (&v)[kWidth]) const {
    if constexpr (kVector) {
      KX_UNROLL
      for (int k = 0; k < kWidth; ++k) v[k] = ToFloat(kept_[piece][k]);
    } else {
      LoadFloats<1>(row_, i, v);
    }
  }

 private:
  int64_t width_;
  Gmem<const T> row_;
  Vec<T> kept_[kVector ? kRowVectors : 1];
};

template <class T>
struct NormForwardParams {
  Gmem<const T> x;
  Gmem<const T> residual;  // null: none; else the norm is of x + residual, rounded to T,
  Gmem<T> sum;             // which is written here (it may be x or residual)
  Gmem<const T> weight;
  Gmem<const T> bias;  // LayerNorm only
  Gmem<T> y;
  Gmem<float> mean;  // LayerNorm only
  Gmem<float> rstd;
  int64_t width;
  float eps;
  bool layer_norm;
};

// Grid: rows.
template <class T, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kNormThreadsMax) void NormForwardKernel(const NormForwardParams<T> p) {
  constexpr int W = RowPart<T, kVector>::kWidth;
  Smem smem;
  const auto partial = smem.Alloc<float, 4>(kWarpsMax);
  const auto partial_square = smem.Alloc<float, 4>(kWarpsMax);
  const int64_t row = BlockIdx().x, start = row * p.width;
  const float width = static_cast<float>(p.width);
  RowPart<T, kVector> x(p.width);
  x.Read(p.x + start);
  if (!p.residual.IsNull()) x.AddAndStore(p.residual + start, p.sum + start);

  float mean = 0;
  if (p.layer_norm) {
    float sum = 0;
    x.ForEach([&](int64_t i, int piece) {
      float v[W];
      x.Get(i, piece, v);
      KX_UNROLL
      for (int k = 0; k < W; ++k) sum += v[k];
    });
    mean = DivRn(BlockSum(sum, partial), width);
  }
  // Centred, so that a large mean costs no digits.
  float square = 0;
  x.ForEach([&](int64_t i, int piece) {
    float v[W];
    x.Get(i, piece, v);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const float centred = KX_MUTANT("fused/norm/centre", v[k] - mean, v[k]);
      square = Fma(centred, centred, square);
    }
  });
  square = BlockSum(square, partial_square);
  const float rstd = DivRn(1.0f, SqrtRn(DivRn(square, width) + KX_MUTANT("fused/norm/eps", p.eps, 0.0f)));
  if (ThreadIdx().x == 0) {
    p.rstd.Store(row, rstd);
    if (p.layer_norm) p.mean.Store(row, mean);
  }
  x.ForEach([&](int64_t i, int piece) {
    float v[W], weight[W];
    x.Get(i, piece, v);
    LoadFloats<W>(p.weight, i, weight);
    KX_UNROLL
    for (int k = 0; k < W; ++k) v[k] = (v[k] - mean) * rstd * weight[k];
    if (p.layer_norm) {
      float bias[W];
      LoadFloats<W>(p.bias, i, bias);
      KX_UNROLL
      for (int k = 0; k < W; ++k) v[k] += bias[k];
    }
    StoreFloats<T>(p.y, start + i, v);
  });
}

template <class T>
struct NormBackwardParams {
  Gmem<const T> x;
  Gmem<const T> weight;
  Gmem<const T> dy;
  Gmem<const float> mean;  // LayerNorm only
  Gmem<const float> rstd;
  Gmem<T> dx;  // +=
  int64_t width;
  bool layer_norm;
};

// With xhat = (x - mean) rstd and g = dy weight:
//   LayerNorm dx += rstd (g - mean(g) - xhat mean(g xhat)); RMSNorm without the mean(g) term.
// Grid: rows. The parameters' gradients are ColumnPartials of NormTerm.
template <class T, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kNormThreadsMax) void NormBackwardKernel(const NormBackwardParams<T> p) {
  constexpr int W = RowPart<T, kVector>::kWidth;
  Smem smem;
  const auto partial = smem.Alloc<float, 4>(kWarpsMax);
  const auto partial_x = smem.Alloc<float, 4>(kWarpsMax);
  const int64_t row = BlockIdx().x, start = row * p.width;
  const float width = static_cast<float>(p.width);
  RowPart<T, kVector> x(p.width), dy(p.width);
  x.Read(p.x + start);
  dy.Read(p.dy + start);
  const float mean = p.layer_norm ? p.mean.Load(row) : 0.0f, rstd = p.rstd.Load(row);

  const auto normal_and_slope = [&](int64_t i, int piece, float(&normal)[W], float(&g)[W]) {
    float weight[W];
    x.Get(i, piece, normal);
    dy.Get(i, piece, g);
    LoadFloats<W>(p.weight, i, weight);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      normal[k] = (normal[k] - mean) * rstd;
      g[k] *= weight[k];
    }
  };
  float sum_g = 0, sum_gx = 0;
  x.ForEach([&](int64_t i, int piece) {
    float normal[W], g[W];
    normal_and_slope(i, piece, normal, g);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      sum_g += g[k];
      sum_gx = Fma(g[k], normal[k], sum_gx);
    }
  });
  const float mean_gx = DivRn(BlockSum(sum_gx, partial_x), width);
  float mean_g = 0;
  if (p.layer_norm) mean_g = KX_MUTANT("fused/norm/mean_g", DivRn(BlockSum(sum_g, partial), width), 0.0f);
  x.ForEach([&](int64_t i, int piece) {
    float normal[W], g[W], dx[W];
    normal_and_slope(i, piece, normal, g);
    LoadFloats<W>(p.dx, start + i, dx);
    KX_UNROLL
    for (int k = 0; k < W; ++k) dx[k] = Fma(Fma(-normal[k], mean_gx, g[k] - mean_g), rstd, dx[k]);
    StoreFloats<T>(p.dx, start + i, dx);
  });
}

// What a norm's weight and bias get: dy xhat, and (LayerNorm) dy.
template <class T, bool kLayerNorm>
struct NormTerm {
  static constexpr int kWidth = kWide<T>, kSums = kLayerNorm ? 2 : 1;
  Gmem<const T> x;
  Gmem<const T> dy;
  Gmem<const float> mean;
  Gmem<const float> rstd;
  int64_t width;

  template <int W>
  KX_DEVICE void Add(int64_t row, int64_t column, float (&sums)[kSums][W]) const {
    const float m = kLayerNorm ? mean.Load(row) : 0.0f, r = rstd.Load(row);
    float v[W], d[W];
    LoadFloats<W>(x, row * width + column, v);
    LoadFloats<W>(dy, row * width + column, d);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      sums[0][k] = Fma(d[k], (v[k] - m) * r, sums[0][k]);
      if constexpr (kLayerNorm) sums[1][k] += d[k];
    }
  }
};

}  // namespace strata::gpu

#endif  // KERNELS_NORM_NORM_H_
