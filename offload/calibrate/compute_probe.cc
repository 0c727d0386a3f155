#include "offload/calibrate/compute_probe.h"

#include <algorithm>
#include <utility>

#include "common/checked.h"
#include "common/clock.h"
#include "common/status.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

constexpr int kCalls = 6;
// Of one measurement.
constexpr double kProductsSlice = 0.06;
constexpr double kAttentionSlice = 0.025;
constexpr double kElementwiseSlice = 0.02;
constexpr double kDropoutSlice = 0.01;

double Now() { return static_cast<double>(Clock::Real().MonotonicNanos()) * 1e-9; }

absl::Status TooSmall() { return absl::InternalError("the memory of the measurements is too small"); }

// The matrix products of a transformer block of `hidden` with `rows` rows: inputs and outputs of the widths
// that Llama and GPT-2 have, in the forms that forward and backward passes use.
class BlockProducts {
 public:
  BlockProducts(const ComputeBench& bench, ComputeBench::Products size, bool fp8)
      : ops_(*bench.ops),
        stream_(bench.stream),
        rows_(size.rows),
        hidden_(size.hidden),
        fp8_(fp8),
        size_(SizeOf(bench.ops->compute_dtype())) {
    const DType dtype = ops_.compute_dtype();
    const int64_t rows = rows_, hidden = hidden_;
    ProbeMemory memory(bench.memory);
    x_ = memory.Take(rows * 4 * hidden * size_);
    y_ = memory.Take(rows * 4 * hidden * size_);
    weight_ = memory.Take(4 * hidden * hidden * size_);
    gradient_ = memory.Take(4 * hidden * hidden * 4);
    int64_t workspace = 0;
    const auto lend = [&](int64_t m, int64_t n, int64_t k) {
      workspace = std::max(workspace, fp8 ? Fp8GemmWorkspaceBytes(m, n, k)
                                          : GemmWorkspaceBytes(bench.gemm_library, dtype, m, n, k));
    };
    for (const auto& [in, out] : Shapes()) {
      lend(rows, out, in);
      lend(rows, in, out);
      lend(out, in, rows);
    }
    workspace_ = {memory.Take(workspace), workspace};
  }

  bool fits() const { return workspace_.data != nullptr; }
  double forward_flops() const { return 24.0 * static_cast<double>(rows_ * hidden_ * hidden_); }

  absl::Status Forward() {
    for (const auto& [in, out] : Shapes()) {
      GemmArgs gemm = Args(rows_, out, in, x_, in, weight_, in, y_, out);
      gemm.transpose_b = true;
      STRATA_RETURN_IF_ERROR(ops_.Gemm(stream_, gemm));
    }
    return absl::OkStatus();
  }

  absl::Status Backward() {
    for (const auto& [in, out] : Shapes()) {
      GemmArgs gemm = Args(rows_, in, out, y_, out, weight_, in, x_, in);
      gemm.a_type = Fp8::kE5M2;
      STRATA_RETURN_IF_ERROR(ops_.Gemm(stream_, gemm));
      gemm = Args(out, in, rows_, y_, out, x_, in, gradient_, in);
      gemm.a_type = Fp8::kE5M2;
      gemm.transpose_a = true;
      gemm.c_is_acc = true;
      STRATA_RETURN_IF_ERROR(ops_.Gemm(stream_, gemm));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> Shapes() const {  // {in, out}
    return {{hidden_, 3 * hidden_}, {hidden_, hidden_}, {hidden_, 4 * hidden_}, {4 * hidden_, hidden_}};
  }
  GemmArgs Args(int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b, int64_t ldb,
                void* c, int64_t ldc) const {
    GemmArgs gemm;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = a;
    gemm.lda = lda;
    gemm.b = b;
    gemm.ldb = ldb;
    gemm.c = c;
    gemm.ldc = ldc;
    gemm.workspace = workspace_;
    gemm.fp8 = fp8_;
    return gemm;
  }

  Ops& ops_;
  Stream* const stream_;
  const int64_t rows_, hidden_;
  const bool fp8_;
  const int64_t size_;
  void *x_, *y_, *weight_, *gradient_;
  Workspace workspace_;
};

absl::Status MeasureProducts(const ComputeBench& bench, bool fp8, std::vector<RatePoint>* forward_gemm,
                             std::vector<RatePoint>* backward_gemm) {
  forward_gemm->clear();
  backward_gemm->clear();
  double per_flop = 0;  // of the size before, both passes
  for (const ComputeBench::Products size : bench.products) {
    BlockProducts products(bench, size, fp8);
    const double flops = products.forward_flops();
    if (!products.fits() || per_flop * flops > kProbeLongestSeconds) break;
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds forward,
                            BestSeconds(bench.time, kProductsSlice / 2, [&] { return products.Forward(); }));
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds backward,
                            BestSeconds(bench.time, kProductsSlice, [&] { return products.Backward(); }));
    forward_gemm->push_back({flops, flops / forward.device});
    backward_gemm->push_back({flops, 2 * flops / backward.device});
    per_flop = (forward.wall + backward.wall) / flops;
  }
  return forward_gemm->empty() ? TooSmall() : absl::OkStatus();
}

// Of sizes that were left out for fp8 alone, or all where it is not taken: slower or faster than without by
// as much as the size before.
void FillUp(const std::vector<RatePoint>& without, std::vector<RatePoint>* fp8) {
  const double ratio = fp8->empty() ? 1 : fp8->back().rate / without[fp8->size() - 1].rate;
  for (size_t i = fp8->size(); i < without.size(); ++i)
    fp8->push_back({without[i].work, ratio * without[i].rate});
  fp8->resize(without.size());
}

absl::Status MeasureAttention(const ComputeBench& bench, ComputeRates* rates) {
  Ops& ops = *bench.ops;
  const DType dtype = ops.compute_dtype();
  double per_flop = 0;  // of the size before, both passes
  for (const ComputeBench::Attention& size : bench.attention) {
    AttentionArgs a;
    a.batch = size.batch;
    a.seq = size.seq;
    a.heads = size.heads;
    a.kv_heads = size.heads;
    a.head_dim = size.head_dim;
    a.scale = 0.125;
    const int64_t width = a.heads * a.head_dim, rows = a.batch * a.seq;
    ProbeMemory memory(bench.memory);
    std::vector<void*> wide;
    for (int i = 0; i < 8; ++i) wide.push_back(memory.Take(rows * width * SizeOf(dtype)));
    a.q = wide[0];
    a.k = wide[1];
    a.v = wide[2];
    a.out = wide[3];
    a.ldq = a.ldk = a.ldv = a.ldo = width;
    a.lse = memory.Take(rows * a.heads * 4);
    const int64_t workspace =
        std::max(AttentionForwardWorkspaceBytes(dtype, a.batch, a.seq, a.heads, a.kv_heads, a.head_dim),
                 AttentionBackwardWorkspaceBytes(dtype, a.batch, a.seq, a.heads, a.kv_heads, a.head_dim));
    a.workspace = {memory.Take(workspace), workspace};
    AttentionBackwardArgs b;
    b.forward = a;
    b.dout = wide[4];
    b.dq = wide[5];
    b.dk = wide[6];
    b.dv = wide[7];
    b.lddo = b.lddq = b.lddk = b.lddv = width;
    const double product = static_cast<double>(rows * a.seq * width);
    if (a.workspace.data == nullptr || per_flop * product > kProbeLongestSeconds) break;
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds forward, BestSeconds(bench.time, kAttentionSlice, [&] {
                              return ops.AttentionForward(bench.stream, a);
                            }));
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds backward, BestSeconds(bench.time, kAttentionSlice, [&] {
                              return ops.AttentionBackward(bench.stream, b);
                            }));
    rates->attention_flops = 2 * product / forward.device;
    rates->attention_backward_flops = 5 * product / backward.device;
    per_flop = (forward.wall + backward.wall) / product;
  }
  return per_flop == 0 ? TooSmall() : absl::OkStatus();
}

absl::Status MeasureElementwise(const ComputeBench& bench, ComputeRates* rates) {
  Ops& ops = *bench.ops;
  const int64_t size = SizeOf(ops.compute_dtype());
  double per_byte = 0;  // of the size before
  for (const auto& [rows, hidden, ffn] : bench.elementwise) {
    ProbeMemory memory(bench.memory);
    NormArgs norm;
    norm.rows = rows;
    norm.width = hidden;
    void* const x = memory.Take(rows * hidden * size);
    void* const y = memory.Take(rows * hidden * size);
    void* const gate = memory.Take(rows * 2 * ffn * size);
    void* const inner = memory.Take(rows * ffn * size);
    norm.x = x;
    norm.weight = memory.Take(hidden * size);
    norm.y = y;
    norm.rstd = memory.Take(rows * 4);
    norm.mean = memory.Take(rows * 4);
    const double bytes = static_cast<double>(rows * size * (2 * hidden + 3 * hidden + 3 * ffn + 5 * ffn));
    if (norm.mean == nullptr || per_byte * bytes > kProbeLongestSeconds) break;
    const int64_t elements = rows * hidden, n = rows, inner_width = ffn;
    STRATA_ASSIGN_OR_RETURN(
        const ProbeSeconds seconds,
        BestSeconds(bench.time, kElementwiseSlice, [&, elements, n, inner_width]() -> absl::Status {
          STRATA_RETURN_IF_ERROR(ops.NormForward(bench.stream, norm));
          STRATA_RETURN_IF_ERROR(ops.Add(bench.stream, elements, x, y, y));
          STRATA_RETURN_IF_ERROR(ops.SwigluForward(bench.stream, n, inner_width, gate, inner));
          return ops.SwigluBackward(bench.stream, n, inner_width, gate, inner, gate);
        }));
    rates->elementwise_bytes_per_second = bytes / seconds.device;
    const DropoutArgs dropout = {.n = elements, .drop = 0.1, .x = x, .out = y};
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds drawn, BestSeconds(bench.time, kDropoutSlice, [&] {
                              return ops.Dropout(bench.stream, dropout);
                            }));
    rates->dropout_elements_per_second = static_cast<double>(elements) / drawn.device;
    per_byte = seconds.wall / bytes;
  }
  return per_byte == 0 ? TooSmall() : absl::OkStatus();
}

}  // namespace

void* ProbeMemory::Take(int64_t bytes) {
  std::byte* const at = memory_.data() + used_;
  const int64_t size = static_cast<int64_t>(memory_.size());
  used_ = std::min(size + 1, used_ + RoundUp<int64_t>(bytes, 4096));
  return used_ <= size ? at : nullptr;
}

absl::StatusOr<ProbeSeconds> BestSeconds(const ProbeTimer& time, double slice,
                                         const std::function<absl::Status()>& call) {
  ProbeSeconds best;
  const double begin = Now();
  for (int i = 0; i < kCalls; ++i) {
    const double start = Now();
    if (i > 1 && start - begin > slice) break;
    STRATA_ASSIGN_OR_RETURN(const double device, time(call));
    const double wall = Now() - start;
    if (i <= 1 || device < best.device) best.device = std::max(1e-9, device);
    if (i <= 1 || wall < best.wall) best.wall = wall;
  }
  return best;
}

absl::Status MeasureCompute(const ComputeBench& bench, ComputeRates* rates) {
  STRATA_RETURN_IF_ERROR(MeasureProducts(bench, /*fp8=*/false, &rates->forward_gemm, &rates->backward_gemm));
  rates->fp8_forward_gemm.clear();
  rates->fp8_backward_gemm.clear();
  if (bench.fp8)
    STRATA_RETURN_IF_ERROR(
        MeasureProducts(bench, /*fp8=*/true, &rates->fp8_forward_gemm, &rates->fp8_backward_gemm));
  FillUp(rates->forward_gemm, &rates->fp8_forward_gemm);
  FillUp(rates->backward_gemm, &rates->fp8_backward_gemm);
  STRATA_RETURN_IF_ERROR(MeasureAttention(bench, rates));
  return MeasureElementwise(bench, rates);
}

}  // namespace strata
