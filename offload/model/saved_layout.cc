#include "offload/model/saved_layout.h"

#include <algorithm>

#include "common/checked.h"
#include "kernels/workspace.h"
#include "offload/model/model_layout.h"

namespace strata {
namespace {

DType AccType(DType compute) { return compute == DType::kF64 ? DType::kF64 : DType::kF32; }

// Hands out the buffers of one area in order.
class Area {
 public:
  BufferRange Take(int64_t bytes) {
    const BufferRange range{end_, bytes};
    end_ += RoundUp(bytes, kBufferAlignment);
    return range;
  }
  int64_t end() const { return end_; }
  void set_end(int64_t end) { end_ = end; }

 private:
  int64_t end_ = 0;
};

// The sizes that occur everywhere.
struct Shape {
  Shape(const ModelConfig& config, DType compute, int64_t micro_batch, int64_t seq)
      : compute(compute),
        batch(micro_batch),
        seq(seq),
        rows(micro_batch * seq),
        hidden(config.hidden),
        q(config.heads * config.head_dim),
        kv(config.kv_heads * config.head_dim),
        qkv(q + 2 * kv),
        ffn(config.ffn),
        ffn_in(config.activation == Activation::kSwiglu ? 2 * config.ffn : config.ffn),
        value(SizeOf(compute)),
        acc(SizeOf(AccType(compute))) {}

  int64_t Matrix(int64_t width) const { return rows * width * value; }
  int64_t Statistics() const { return rows * acc; }

  DType compute;
  int64_t batch, seq, rows, hidden, q, kv, qkv, ffn, ffn_in, value, acc;
};

// The largest workspace of the ops of one operation.
class OpWorkspace {
 public:
  // `fp8`: of the linear layers.
  OpWorkspace(GemmLibrary gemm_library, DType compute, bool fp8 = false)
      : gemm_library_(gemm_library), compute_(compute), fp8_(fp8) {}

  void Add(int64_t bytes) { bytes_ = std::max(bytes_, bytes); }
  // y[rows, out] = x[rows, in] w
  void AddLinear(int64_t rows, int64_t in, int64_t out) { AddGemm(rows, out, in); }
  // The gradients of AddLinear: of x, and of w in either layout.
  void AddLinearBackward(int64_t rows, int64_t in, int64_t out) {
    AddGemm(rows, in, out);
    AddGemm(out, in, rows);
    AddGemm(in, out, rows);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void AddGemm(int64_t m, int64_t n, int64_t k) {
    Add(fp8_ ? Fp8GemmWorkspaceBytes(m, n, k) : GemmWorkspaceBytes(gemm_library_, compute_, m, n, k));
  }

  GemmLibrary gemm_library_;
  DType compute_;
  bool fp8_;
  int64_t bytes_ = 0;
};

// The projections of a transformer block: f(in, out) for each GEMM that the model code makes.
template <typename F>
void ForEachProjection(const ModelConfig& config, const Shape& s, F f) {
  if (QkvIsOneMatrix(config)) {
    f(s.hidden, s.qkv);
  } else {
    f(s.hidden, s.q);
    f(s.hidden, s.kv);
  }
  f(s.q, s.hidden);
  if (GateUpIsOneMatrix(config)) {
    f(s.hidden, s.ffn_in);
  } else {
    f(s.hidden, s.ffn);
  }
  f(s.ffn, s.hidden);
}

}  // namespace

bool QkvIsOneMatrix(const ModelConfig& config) {
  if (config.architecture == Architecture::kGpt2) return true;  // stored as one tensor
  return config.heads * config.head_dim * config.hidden % kTensorAlignment == 0 &&
         config.kv_heads * config.head_dim * config.hidden % kTensorAlignment == 0;
}

bool GateUpIsOneMatrix(const ModelConfig& config) {
  if (config.architecture == Architecture::kGpt2) return true;  // there is no gate
  return config.ffn * config.hidden % kTensorAlignment == 0;
}

int64_t LogitsChunkRows(DType compute, int64_t rows, int64_t vocab) {
  const int64_t wanted = std::max(kLogitsChunkBytes / (vocab * SizeOf(compute)), kMinLogitsChunkRows);
  if (wanted >= rows) return rows;
  const int64_t chunks = CeilDiv(rows, wanted / 16 * 16);
  return std::min(rows, RoundUp(CeilDiv(rows, chunks), int64_t{16}));
}

TransformerSaved MakeTransformerSaved(const ModelConfig& config, DType compute, int64_t micro_batch,
                                      int64_t seq) {
  const Shape s(config, compute, micro_batch, seq);
  Area area;
  TransformerSaved saved;
  saved.qkv = area.Take(s.Matrix(s.qkv));
  saved.attention = area.Take(s.Matrix(s.q));
  saved.lse = area.Take(s.rows * config.heads * s.acc);
  saved.residual = area.Take(s.Matrix(s.hidden));
  saved.bytes = area.end();
  Area rest;
  saved.ffn_in = rest.Take(s.Matrix(s.ffn_in));
  saved.rest_bytes = rest.end();
  return saved;
}

TransformerForwardWorkspace MakeTransformerForwardWorkspace(const ModelConfig& config, DType compute,
                                                            int64_t micro_batch, int64_t seq,
                                                            GemmLibrary gemm_library, bool fp8) {
  const Shape s(config, compute, micro_batch, seq);
  OpWorkspace op(gemm_library, compute, fp8);
  ForEachProjection(config, s, [&](int64_t in, int64_t out) { op.AddLinear(s.rows, in, out); });
  op.Add(AttentionForwardWorkspaceBytes(compute, s.batch, s.seq, config.heads, config.kv_heads,
                                        config.head_dim));

  Area area;
  TransformerForwardWorkspace work;
  work.mean = area.Take(s.Statistics());
  work.rstd = area.Take(s.Statistics());
  const int64_t shared = area.end();
  work.activated = area.Take(s.Matrix(s.ffn));
  const int64_t activated_end = area.end();
  area.set_end(shared);
  work.normed = area.Take(s.Matrix(s.hidden));
  area.set_end(std::max(area.end(), activated_end));
  work.op = area.Take(op.bytes());
  work.bytes = area.end();
  return work;
}

TransformerBackwardWorkspace MakeTransformerBackwardWorkspace(const ModelConfig& config, DType compute,
                                                              int64_t micro_batch, int64_t seq,
                                                              GemmLibrary gemm_library, bool fp8) {
  const Shape s(config, compute, micro_batch, seq);
  OpWorkspace op(gemm_library, compute, fp8);
  ForEachProjection(config, s, [&](int64_t in, int64_t out) {
    op.AddLinearBackward(s.rows, in, out);
    op.Add(BiasBackwardWorkspaceBytes(compute, s.rows, out));
  });
  op.Add(AttentionBackwardWorkspaceBytes(compute, s.batch, s.seq, config.heads, config.kv_heads,
                                         config.head_dim));
  op.Add(NormBackwardWorkspaceBytes(compute, s.rows, s.hidden));

  Area area;
  TransformerBackwardWorkspace work;
  work.mean = area.Take(s.Statistics());
  work.rstd = area.Take(s.Statistics());
  const int64_t shared = area.end();

  // MLP. Llama: the norm's buffers take the place of `activated`, which is dead by then.
  if (config.activation == Activation::kSwiglu) {
    work.ffn_grad = area.Take(s.Matrix(s.ffn_in));
    const int64_t reused = area.end();
    work.activated = area.Take(s.Matrix(s.ffn));
    const int64_t activated_end = area.end();
    area.set_end(reused);
    work.mlp_normed = area.Take(s.Matrix(s.hidden));
    work.mlp_normed_grad = area.Take(s.Matrix(s.hidden));
    area.set_end(std::max(area.end(), activated_end));
  } else {
    work.activated = area.Take(s.Matrix(s.ffn));
    work.ffn_grad = work.activated;
    work.mlp_normed = area.Take(s.Matrix(s.hidden));
    work.mlp_normed_grad = area.Take(s.Matrix(s.hidden));
    work.mlp_branch_grad = work.mlp_normed_grad;
  }
  const int64_t mlp_end = area.end();

  // Attention. Its output's gradient is dead when the norm's buffers come.
  area.set_end(shared);
  work.qkv_grad = area.Take(s.Matrix(s.qkv));
  if (config.activation != Activation::kSwiglu) {
    work.attn_branch_grad = {work.qkv_grad.offset, s.Matrix(s.hidden)};
  }
  const int64_t reused = area.end();
  work.attention_grad = area.Take(s.Matrix(s.q));
  const int64_t attention_grad_end = area.end();
  area.set_end(reused);
  work.attn_normed = area.Take(s.Matrix(s.hidden));
  work.attn_normed_grad = area.Take(s.Matrix(s.hidden));

  area.set_end(std::max({area.end(), attention_grad_end, mlp_end}));
  work.op = area.Take(op.bytes());
  work.bytes = area.end();
  return work;
}

HeadWorkspace MakeHeadWorkspace(const ModelConfig& config, DType compute, int64_t micro_batch, int64_t seq,
                                GemmLibrary gemm_library) {
  const Shape s(config, compute, micro_batch, seq);
  HeadWorkspace work;
  work.chunk_rows = LogitsChunkRows(compute, s.rows, config.vocab);
  const int64_t last_rows = s.rows - (CeilDiv(s.rows, work.chunk_rows) - 1) * work.chunk_rows;

  OpWorkspace op(gemm_library, compute);
  for (const int64_t rows : {work.chunk_rows, last_rows}) {
    op.AddLinear(rows, s.hidden, config.vocab);
    op.AddLinearBackward(rows, s.hidden, config.vocab);
    op.Add(CrossEntropyWorkspaceBytes(compute, rows, config.vocab));
  }
  op.Add(NormBackwardWorkspaceBytes(compute, s.rows, s.hidden));

  Area area;
  work.mean = area.Take(s.Statistics());
  work.rstd = area.Take(s.Statistics());
  work.normed = area.Take(s.Matrix(s.hidden));
  work.logits = area.Take(work.chunk_rows * config.vocab * s.value);
  work.op = area.Take(op.bytes());
  work.bytes = area.end();
  return work;
}

}  // namespace strata
