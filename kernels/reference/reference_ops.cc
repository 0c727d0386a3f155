#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"
#include "common/random.h"
#include "common/status.h"
#include "kernels/fp8/fp8_format.h"
#include "kernels/validate.h"

namespace strata {
namespace {

template <typename Acc>
Acc Load(const void* data, int64_t i, BFloat16) {
  return ToFloat(static_cast<const BFloat16*>(data)[i]);
}
template <typename Acc>
Acc Load(const void* data, int64_t i, Float16) {
  return ToFloat(static_cast<const Float16*>(data)[i]);
}
template <typename Acc, typename T>
Acc Load(const void* data, int64_t i, T) {
  return static_cast<const T*>(data)[i];
}

template <typename Acc>
void StoreAs(void* data, int64_t i, Acc value, BFloat16) {
  static_cast<BFloat16*>(data)[i] = ToBFloat16(value);
}
template <typename Acc>
void StoreAs(void* data, int64_t i, Acc value, Float16) {
  static_cast<Float16*>(data)[i] = ToFloat16(value);
}
template <typename Acc, typename T>
void StoreAs(void* data, int64_t i, Acc value, T) {
  static_cast<T*>(data)[i] = value;
}

template <typename T>
class ReferenceOps final : public Ops {
 public:
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

  DType compute_dtype() const override {
    if (std::is_same_v<T, double>) return DType::kF64;
    if (std::is_same_v<T, float>) return DType::kF32;
    return std::is_same_v<T, Float16> ? DType::kF16 : DType::kBF16;
  }
  DType acc_dtype() const override { return std::is_same_v<Acc, double> ? DType::kF64 : DType::kF32; }

  absl::Status Gemm(Stream*, const GemmArgs& g) override {
    STRATA_RETURN_IF_ERROR(WithoutWorkspace(g));
    const std::vector<Acc> a = Factor(g, g.a_type, g.a, g.m, g.k, g.lda, g.transpose_a);
    const std::vector<Acc> b = Factor(g, g.b_type, g.b, g.n, g.k, g.ldb, !g.transpose_b);
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        Acc sum = 0;
        for (int64_t p = 0; p < g.k; ++p) sum += a[i * g.k + p] * b[j * g.k + p];
        if (g.bias) sum += Get(g.bias, j);
        const int64_t c = i * g.ldc + j;
        if (g.c_is_acc) {
          if (g.accumulate) sum += GetAcc(g.c, c);
          PutAcc(g.c, c, sum);
        } else {
          if (g.accumulate) sum += Get(g.c, c);
          Put(g.c, c, sum);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status NormForward(Stream*, const NormArgs& a) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), a));
    if (a.residual) {
      STRATA_RETURN_IF_ERROR(Add(nullptr, a.rows * a.width, a.x, a.residual, a.sum));
      NormArgs of_sum = a;
      of_sum.x = a.sum;
      of_sum.residual = of_sum.sum = nullptr;
      return NormForward(nullptr, of_sum);
    }
    const bool layer_norm = a.kind == NormKind::kLayerNorm;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t row = r * a.width;
      Acc mean = 0;
      if (layer_norm) {
        for (int64_t i = 0; i < a.width; ++i) mean += Get(a.x, row + i);
        mean /= a.width;
        PutAcc(a.mean, r, mean);
      }
      Acc square = 0;
      for (int64_t i = 0; i < a.width; ++i) {
        const Acc centred = Get(a.x, row + i) - mean;
        square += centred * centred;
      }
      const Acc rstd = 1 / std::sqrt(square / a.width + static_cast<Acc>(a.eps));
      PutAcc(a.rstd, r, rstd);
      for (int64_t i = 0; i < a.width; ++i) {
        Acc y = (Get(a.x, row + i) - mean) * rstd * Get(a.weight, i);
        if (layer_norm) y += Get(a.bias, i);
        Put(a.y, row + i, y);
      }
    }
    return absl::OkStatus();
  }

  // With xhat = (x - mean) rstd and g = dy weight:
  //   LayerNorm dx = rstd (g - mean(g) - xhat mean(g xhat)); RMSNorm without the mean(g) term.
  absl::Status NormBackward(Stream*, const NormBackwardArgs& args) override {
    NormBackwardArgs a = args;
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), Lend(a)));
    const bool layer_norm = a.kind == NormKind::kLayerNorm;
    std::vector<Acc> dweight(a.width, 0), dbias(a.width, 0);
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t row = r * a.width;
      const Acc mean = layer_norm ? GetAcc(a.mean, r) : 0;
      const Acc rstd = GetAcc(a.rstd, r);
      Acc sum_g = 0, sum_gx = 0;
      for (int64_t i = 0; i < a.width; ++i) {
        const Acc xhat = (Get(a.x, row + i) - mean) * rstd;
        const Acc dy = Get(a.dy, row + i);
        const Acc g = dy * Get(a.weight, i);
        sum_g += g;
        sum_gx += g * xhat;
        dweight[i] += dy * xhat;
        dbias[i] += dy;
      }
      const Acc mean_g = layer_norm ? sum_g / a.width : 0, mean_gx = sum_gx / a.width;
      for (int64_t i = 0; i < a.width; ++i) {
        const Acc xhat = (Get(a.x, row + i) - mean) * rstd;
        const Acc g = Get(a.dy, row + i) * Get(a.weight, i);
        Put(a.dx, row + i, Get(a.dx, row + i) + rstd * (g - mean_g - xhat * mean_gx));
      }
    }
    for (int64_t i = 0; i < a.width; ++i) {
      PutAcc(a.dweight, i, dweight[i]);
      if (layer_norm) PutAcc(a.dbias, i, dbias[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Rope(Stream*, const RopeArgs& a) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), a));
    const int64_t half = a.head_dim / 2;
    for (int64_t r = 0; r < a.rows; ++r) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(r % a.seq) * std::pow(a.theta, -2.0 * i / a.head_dim);
        const Acc c = std::cos(angle), s = a.inverse ? -std::sin(angle) : std::sin(angle);
        for (int64_t h = 0; h < a.heads; ++h) {
          const int64_t at = r * a.ld + h * a.head_dim + i;
          const Acc x0 = Get(a.x, at), x1 = Get(a.x, at + half);
          Put(a.x, at, x0 * c - x1 * s);
          Put(a.x, at + half, x1 * c + x0 * s);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status AttentionForward(Stream*, const AttentionArgs& args) override {
    AttentionArgs a = args;
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), Lend(a)));
    std::vector<Acc> p(a.seq);
    for (int64_t b = 0; b < a.batch; ++b) {
      for (int64_t h = 0; h < a.heads; ++h) {
        for (int64_t i = 0; i < a.seq; ++i) {
          const int64_t q_at = Row(a, b, i, a.ldq, h), out_at = Row(a, b, i, a.ldo, h);
          Acc max = -std::numeric_limits<Acc>::infinity();
          for (int64_t j = 0; j <= i; ++j) {
            p[j] = Dot(a.head_dim, a.q, q_at, a.k, KvRow(a, b, j, a.ldk, h)) * static_cast<Acc>(a.scale);
            max = std::max(max, p[j]);
          }
          Acc sum = 0;
          for (int64_t j = 0; j <= i; ++j) sum += p[j] = std::exp(p[j] - max);
          for (int64_t d = 0; d < a.head_dim; ++d) {
            Acc out = 0;
            for (int64_t j = 0; j <= i; ++j) out += Rounded(p[j]) * Get(a.v, KvRow(a, b, j, a.ldv, h) + d);
            Put(a.out, out_at + d, out / sum);
          }
          PutAcc(a.lse, (b * a.heads + h) * a.seq + i, max + std::log(sum));
        }
      }
    }
    return absl::OkStatus();
  }

  // P = exp(scale q k^T - lse), dP = dO v^T, dS = P (dP - sum(dO O)) scale; dq = dS k, dk = dS^T q, dv = P^T
  // dO.
  absl::Status AttentionBackward(Stream*, const AttentionBackwardArgs& args) override {
    AttentionBackwardArgs g = args;
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), Lend(g)));
    const AttentionArgs& a = g.forward;
    const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
    for (int64_t b = 0; b < a.batch; ++b) {
      for (int64_t kv = 0; kv < a.kv_heads; ++kv) {
        std::vector<Acc> dk(a.seq * dim, 0), dv(a.seq * dim, 0), dq(dim);
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
          for (int64_t i = 0; i < a.seq; ++i) {
            const int64_t q_at = Row(a, b, i, a.ldq, h), do_at = Row(a, b, i, g.lddo, h);
            const Acc delta = Dot(dim, g.dout, do_at, a.out, Row(a, b, i, a.ldo, h));
            const Acc lse = GetAcc(a.lse, (b * a.heads + h) * a.seq + i);
            std::fill(dq.begin(), dq.end(), Acc{0});
            for (int64_t j = 0; j <= i; ++j) {
              const int64_t k_at = KvRow(a, b, j, a.ldk, h), v_at = KvRow(a, b, j, a.ldv, h);
              const Acc p = std::exp(Dot(dim, a.q, q_at, a.k, k_at) * static_cast<Acc>(a.scale) - lse);
              const Acc dp = Dot(dim, g.dout, do_at, a.v, v_at);
              const Acc p_low = Rounded(p), ds = Rounded(p * (dp - delta) * static_cast<Acc>(a.scale));
              for (int64_t d = 0; d < dim; ++d) {
                dq[d] += ds * Get(a.k, k_at + d);
                dk[j * dim + d] += ds * Get(a.q, q_at + d);
                dv[j * dim + d] += p_low * Get(g.dout, do_at + d);
              }
            }
            for (int64_t d = 0; d < dim; ++d) Put(g.dq, Row(a, b, i, g.lddq, h) + d, dq[d]);
          }
        }
        for (int64_t j = 0; j < a.seq; ++j) {
          for (int64_t d = 0; d < dim; ++d) {
            Put(g.dk, (b * a.seq + j) * g.lddk + kv * dim + d, dk[j * dim + d]);
            Put(g.dv, (b * a.seq + j) * g.lddv + kv * dim + d, dv[j * dim + d]);
          }
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status GeluForward(Stream*, GeluKind kind, int64_t n, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu", {n}));
    for (int64_t i = 0; i < n; ++i) {
      const Acc v = Get(x, i);
      Put(y, i, v * (kind == GeluKind::kErf ? NormalCdf(v) : HalfOnePlusTanh(GeluInner(v))));
    }
    return absl::OkStatus();
  }

  absl::Status GeluBackward(Stream*, GeluKind kind, int64_t n, const void* x, const void* dy,
                            void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu backward", {n}));
    for (int64_t i = 0; i < n; ++i) {
      const Acc v = Get(x, i);
      Acc slope;
      if (kind == GeluKind::kErf) {
        slope = NormalCdf(v) + v * static_cast<Acc>(kInvSqrt2Pi) * std::exp(-v * v / 2);
      } else {
        const Acc up = HalfOnePlusTanh(GeluInner(v)), down = HalfOnePlusTanh(-GeluInner(v));
        const Acc inner_slope =
            static_cast<Acc>(kSqrt2OverPi) * (1 + static_cast<Acc>(3 * kGeluCubic) * v * v);
        slope = up + v * 2 * up * down * inner_slope;
      }
      Put(dx, i, Get(dy, i) * slope);
    }
    return absl::OkStatus();
  }

  absl::Status SwigluForward(Stream*, int64_t rows, int64_t ffn, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu", {rows, ffn}));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < ffn; ++i) {
        const Acc gate = Get(x, r * 2 * ffn + i), up = Get(x, r * 2 * ffn + ffn + i);
        Put(y, r * ffn + i, gate / (1 + std::exp(-gate)) * up);
      }
    }
    return absl::OkStatus();
  }

  absl::Status SwigluBackward(Stream*, int64_t rows, int64_t ffn, const void* x, const void* dy,
                              void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu backward", {rows, ffn}));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < ffn; ++i) {
        const int64_t at = r * 2 * ffn + i;
        const Acc gate = Get(x, at), up = Get(x, at + ffn), d = Get(dy, r * ffn + i);
        const Acc sigmoid = 1 / (1 + std::exp(-gate));
        Put(dx, at, d * up * sigmoid * (1 + gate * (1 - sigmoid)));
        Put(dx, at + ffn, d * gate * sigmoid);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Add(Stream*, int64_t n, const void* a, const void* b, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("add", {n}));
    for (int64_t i = 0; i < n; ++i) Put(out, i, Get(a, i) + Get(b, i));
    return absl::OkStatus();
  }

  absl::Status Dropout(Stream*, const DropoutArgs& a) override {
    STRATA_RETURN_IF_ERROR(Validate(a));
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(a.seed), static_cast<uint32_t>(a.seed >> 32)};
    for (int64_t i = 0; i < a.n; ++i) {
      const uint64_t position = static_cast<uint64_t>(a.first + i), block = position / 4;
      const auto words = Philox4x32(
          {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), a.tensor, a.step}, key);
      const bool kept = words[position % 4] < a.keep_below();
      Put(a.out, i, kept ? Get(a.x, i) * static_cast<Acc>(a.scale()) : Acc{0});
    }
    return absl::OkStatus();
  }

  absl::Status BiasBackward(Stream*, int64_t rows, int64_t n, const void* dy, int64_t ldy, void* dbias,
                            Workspace) override {
    STRATA_RETURN_IF_ERROR(ValidateBiasBackward(compute_dtype(), rows, n, ldy, AnyWorkspace()));
    for (int64_t j = 0; j < n; ++j) {
      Acc sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += Get(dy, r * ldy + j);
      PutAcc(dbias, j, sum);
    }
    return absl::OkStatus();
  }

  absl::Status EmbeddingForward(Stream*, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                const int32_t* tokens, const void* wte, const void* wpe, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding", {rows, seq, vocab, width}));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        Acc v = Get(wte, tokens[r] * width + i);
        if (wpe) v += Get(wpe, r % seq * width + i);
        Put(out, r * width + i, v);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EmbeddingBackward(Stream*, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 const int32_t* tokens, const void* dout, void* dwte, void* dwpe,
                                 int64_t seq_max) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding backward", {rows, seq, vocab, width}));
    if (dwpe && seq_max < seq) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding backward: seq ", seq, " is larger than seq_max ", seq_max));
    }
    std::fill_n(static_cast<Acc*>(dwte), vocab * width, Acc{0});
    if (dwpe) std::fill_n(static_cast<Acc*>(dwpe), seq_max * width, Acc{0});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const Acc d = Get(dout, r * width + i);
        static_cast<Acc*>(dwte)[tokens[r] * width + i] += d;
        if (dwpe) static_cast<Acc*>(dwpe)[r % seq * width + i] += d;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CrossEntropy(Stream*, const CrossEntropyArgs& args) override {
    CrossEntropyArgs a = args;
    STRATA_RETURN_IF_ERROR(Validate(compute_dtype(), Lend(a)));
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t row = r * a.vocab;
      const int32_t target = a.targets[r];
      if (target < 0) {
        for (int64_t i = 0; a.gradient && i < a.vocab; ++i) Put(a.logits, row + i, 0);
        continue;
      }
      Acc max = Get(a.logits, row);
      for (int64_t i = 1; i < a.vocab; ++i) max = std::max(max, Get(a.logits, row + i));
      Acc sum = 0;
      for (int64_t i = 0; i < a.vocab; ++i) sum += std::exp(Get(a.logits, row + i) - max);
      a.loss[0] += max + std::log(sum) - Get(a.logits, row + target);
      a.loss[1] += 1;
      for (int64_t i = 0; a.gradient && i < a.vocab; ++i) {
        const Acc p = std::exp(Get(a.logits, row + i) - max) / sum;
        Put(a.logits, row + i, (p - (i == target ? 1 : 0)) * static_cast<Acc>(a.gradient_scale));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Zero(Stream*, void* data, int64_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
    return absl::OkStatus();
  }

 private:
  static constexpr double kInvSqrt2Pi = 0.39894228040143267794;
  static constexpr double kSqrt2OverPi = 0.79788456080286535588;
  static constexpr double kGeluCubic = 0.044715;

  // x[rows, k] (stored [k, rows] when transposed), with fp8 as it is rounded.
  static std::vector<Acc> Factor(const GemmArgs& g, Fp8 type, const void* x, int64_t rows, int64_t k,
                                 int64_t ld, bool transposed) {
    std::vector<Acc> values(rows * k);
    uint32_t largest = 0;
    for (int64_t i = 0; i < rows * k; ++i) {
      values[i] = Get(x, transposed ? i % k * ld + i / k : i / k * ld + i % k);
      const float magnitude = std::fabs(static_cast<float>(values[i]));
      uint32_t bits;
      std::memcpy(&bits, &magnitude, sizeof(bits));
      largest = std::max(largest, bits);
    }
    const int e = Fp8ScaleExponent(type, largest);
    for (Acc& value : values) {
      if (g.fp8) value = RoundToFp8(type, static_cast<float>(value), e);
    }
    return values;
  }

  static Acc Get(const void* data, int64_t i) { return Load<Acc>(data, i, T{}); }
  static void Put(void* data, int64_t i, Acc value) { StoreAs<Acc>(data, i, value, T{}); }
  static Acc GetAcc(const void* data, int64_t i) { return static_cast<const Acc*>(data)[i]; }
  static void PutAcc(void* data, int64_t i, Acc value) { static_cast<Acc*>(data)[i] = value; }
  static Acc Rounded(Acc value) {
    T stored;
    Put(&stored, 0, value);
    return Get(&stored, 0);
  }
  static Acc Dot(int64_t n, const void* x, int64_t x_at, const void* y, int64_t y_at) {
    Acc sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += Get(x, x_at + i) * Get(y, y_at + i);
    return sum;
  }
  static int64_t Row(const AttentionArgs& a, int64_t b, int64_t s, int64_t ld, int64_t h) {
    return (b * a.seq + s) * ld + h * a.head_dim;
  }
  static int64_t KvRow(const AttentionArgs& a, int64_t b, int64_t s, int64_t ld, int64_t h) {
    return Row(a, b, s, ld, h / (a.heads / a.kv_heads));
  }
  static Acc NormalCdf(Acc v) { return std::erfc(-v * static_cast<Acc>(M_SQRT1_2)) / 2; }
  // (1 + tanh u) / 2 without the cancellation for negative u.
  static Acc HalfOnePlusTanh(Acc u) { return 1 / (1 + std::exp(-2 * u)); }
  static Acc GeluInner(Acc v) {
    return static_cast<Acc>(kSqrt2OverPi) * (v + static_cast<Acc>(kGeluCubic) * v * v * v);
  }

  // The reference needs no workspace, so it accepts a call that lends none: validation sees a pretended one.
  static Workspace AnyWorkspace() { return {reinterpret_cast<void*>(uintptr_t{64}), int64_t{1} << 62}; }
  static const AttentionBackwardArgs& Lend(AttentionBackwardArgs& args) {
    args.forward.workspace = AnyWorkspace();
    return args;
  }
  template <typename Args>
  static const Args& Lend(Args& args) {
    args.workspace = AnyWorkspace();
    return args;
  }
  absl::Status WithoutWorkspace(GemmArgs args) const { return Validate(compute_dtype(), Lend(args)); }
};

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps(DType compute) {
  switch (compute) {
    case DType::kF64:
      return std::make_unique<ReferenceOps<double>>();
    case DType::kF32:
      return std::make_unique<ReferenceOps<float>>();
    case DType::kBF16:
      return std::make_unique<ReferenceOps<BFloat16>>();
    case DType::kF16:
      return std::make_unique<ReferenceOps<Float16>>();
    case DType::kI32:
      break;
  }
  STRATA_CHECK(false && "compute type of the reference is f64, f32, bf16 or f16");
  return nullptr;
}

}  // namespace strata
