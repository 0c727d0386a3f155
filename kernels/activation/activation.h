// GELU and SwiGLU, forward and backward, as bodies of ForElements. Formulas: kernels/ops.h; GELU by
// Hendrycks and Gimpel 2016 (exact and tanh), SwiGLU by Shazeer 2020.
#ifndef KERNELS_ACTIVATION_ACTIVATION_H_
#define KERNELS_ACTIVATION_ACTIVATION_H_

#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"

namespace strata::gpu {

inline constexpr float kTwoSqrt2OverPi = 1.5957691f;
inline constexpr float kGeluCubic = 0.044715f;

// y = gelu(x).
template <class T>
struct GeluForwardBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> x;
  Gmem<T> y;
  bool exact;  // by the error function, else by tanh

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float v[W];
    LoadFloats<W>(x, i, v);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      if (exact) {
        v[k] *= Normal<T>(v[k]).cdf;
      } else {
        // (1 + tanh(u)) / 2 is the sigmoid of 2u, which does not cancel for negative u.
        const float u2 = kTwoSqrt2OverPi * v[k] * Fma(kGeluCubic * v[k], v[k], 1.0f);
        v[k] *= Sigmoid<T>(u2).value;
      }
    }
    StoreFloats<T>(y, i, v);
  }
};

// dx = dy gelu'(x); dx may be dy.
template <class T>
struct GeluBackwardBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> x;
  Gmem<const T> dy;
  Gmem<T> dx;
  bool exact;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float v[W], d[W];
    LoadFloats<W>(x, i, v);
    LoadFloats<W>(dy, i, d);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      if (exact) {
        const NormalValue normal = Normal<T>(v[k]);
        d[k] *= KX_MUTANT("fused/gelu/density", Fma(v[k], normal.density, normal.cdf), normal.cdf);
      } else {
        const float square = v[k] * v[k];
        const float u2 = kTwoSqrt2OverPi * v[k] * Fma(kGeluCubic, square, 1.0f);
        const float du2 = kTwoSqrt2OverPi * Fma(3 * kGeluCubic, square, 1.0f);
        const SigmoidValue s = Sigmoid<T>(u2);
        d[k] *= Fma(v[k] * du2, s.value * s.complement, s.value);
      }
    }
    StoreFloats<T>(dx, i, d);
  }
};

// y[r, i] = silu(x[r, i]) x[r, ffn + i]; x: [rows, 2 ffn].
template <class T>
struct SwigluForwardBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> x;
  Gmem<T> y;
  int64_t ffn;

  template <int W>
  KX_DEVICE void Run(int64_t row, int64_t i) const {
    float gate[W], up[W];
    LoadFloats<W>(x, row * 2 * ffn + i, gate);
    LoadFloats<W>(x, row * 2 * ffn + ffn + i, up);
    KX_UNROLL
    for (int k = 0; k < W; ++k) up[k] *= gate[k] * Sigmoid<T>(gate[k]).value;
    StoreFloats<T>(y, row * ffn + i, up);
  }
};

// dx may be x: each thread reads gate and up of its columns before it writes there.
template <class T>
struct SwigluBackwardBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const T> x;
  Gmem<const T> dy;
  Gmem<T> dx;
  int64_t ffn;

  template <int W>
  KX_DEVICE void Run(int64_t row, int64_t i) const {
    float gate[W], up[W], d[W];
    LoadFloats<W>(x, row * 2 * ffn + i, gate);
    LoadFloats<W>(x, row * 2 * ffn + ffn + i, up);
    LoadFloats<W>(dy, row * ffn + i, d);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const float g = gate[k];
      const SigmoidValue s = Sigmoid<T>(g);
      gate[k] = d[k] * up[k] * s.value *
                KX_MUTANT("fused/swiglu/slope", Fma(g, s.complement, 1.0f), Fma(g, s.value, 1.0f));
      up[k] = d[k] * g * s.value;
    }
    StoreFloats<T>(dx, row * 2 * ffn + i, gate);
    StoreFloats<T>(dx, row * 2 * ffn + ffn + i, up);
  }
};

}  // namespace strata::gpu

#endif  // KERNELS_ACTIVATION_ACTIVATION_H_
