#include "kernels/bench/kernel_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"
#include "kernels/checksum/pieces.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/fp8/launch.h"
#include "kernels/optimizer/code8.h"
#include "kernels/state_ops.h"
#include "kernels/workspace.h"

namespace strata {

void* CallMemory::Values(int64_t n, DType type) {
  static const std::vector<float> few = [] {
    std::vector<float> values(1 << 16);
    const CounterRandom random(1, 0);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.Normal(i));
    return values;
  }();
  const int64_t size = SizeOf(type), count = static_cast<int64_t>(few.size());
  std::vector<char> pattern(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    const BFloat16 b = ToBFloat16(few[i]);
    const Float16 h = ToFloat16(few[i]);
    const void* from = type == DType::kBF16  ? static_cast<const void*>(&b)
                       : type == DType::kF16 ? static_cast<const void*>(&h)
                                             : &few[i];
    std::memcpy(pattern.data() + i * size, from, static_cast<size_t>(size));
  }
  char* const data = static_cast<char*>(Zeros(n * size));
  for (int64_t done = 0; data != nullptr && done < n; done += count) {
    Keep(CopyIn(data + done * size, pattern.data(), std::min(count, n - done) * size));
  }
  return data;
}

int32_t* CallMemory::Tokens(int64_t n, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(i * 7919 % vocab);
  return Copy(tokens);
}

int32_t* CallMemory::Copy(const std::vector<int32_t>& values) {
  return static_cast<int32_t*>(CopyBytes(values.data(), static_cast<int64_t>(values.size()) * 4));
}

void* CallMemory::CopyBytes(const void* from, int64_t bytes) {
  void* const data = Zeros(bytes);
  if (data != nullptr) Keep(CopyIn(data, from, bytes));
  return data;
}

void VisitMemoryCalls(Ops& ops, const MemoryShapes& shapes, CallVisitor& visitor) {
  constexpr DType kType = DType::kBF16;
  const auto& [rows, hidden, ffn, vocab, seq, heads, loss_rows, state_elements] = shapes;
  const int64_t elements = rows * hidden;
  const auto t = [](CallMemory& memory, int64_t n) { return memory.Values(n, kType); };
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    const std::string name = kind == NormKind::kRmsNorm ? "rms norm" : "layer norm";
    const auto lender = visitor.NewMemory();
    CallMemory& memory = *lender;
    NormArgs f = {.kind = kind, .rows = rows, .width = hidden, .x = t(memory, elements)};
    f.weight = t(memory, hidden);
    f.bias = kind == NormKind::kLayerNorm ? t(memory, hidden) : nullptr;
    f.y = memory.Zeros(elements * 2);
    f.mean = kind == NormKind::kLayerNorm ? memory.Zeros(rows * 4) : nullptr;
    f.rstd = memory.Zeros(rows * 4);
    visitor.Bytes(name + " forward", elements * 4, memory, [&] { return ops.NormForward(nullptr, f); });
    NormBackwardArgs b = {.kind = kind, .rows = rows, .width = hidden, .x = f.x, .weight = f.weight};
    b.dy = t(memory, elements);
    b.mean = f.mean;
    b.rstd = f.rstd;
    b.dx = memory.Zeros(elements * 2);
    b.dweight = memory.Zeros(hidden * 4);
    b.dbias = kind == NormKind::kLayerNorm ? memory.Zeros(hidden * 4) : nullptr;
    b.workspace = memory.Lend(NormBackwardWorkspaceBytes(kType, rows, hidden));
    visitor.Bytes(name + " backward", elements * 8, memory, [&] { return ops.NormBackward(nullptr, b); });
    f.residual = b.dy;
    f.sum = b.dx;
    visitor.Bytes(name + " forward with the residual sum", elements * 8, memory,
                  [&] { return ops.NormForward(nullptr, f); });
  }
  {
    const auto lender = visitor.NewMemory();
    CallMemory& memory = *lender;
    const void* const x = t(memory, 2 * rows * ffn);
    void* const y = memory.Values(rows * ffn, kType);
    void* const dx = memory.Zeros(2 * rows * ffn * 2);
    visitor.Bytes("swiglu forward", 3 * rows * ffn * 2, memory,
                  [&] { return ops.SwigluForward(nullptr, rows, ffn, x, y); });
    visitor.Bytes("swiglu backward", 5 * rows * ffn * 2, memory,
                  [&] { return ops.SwigluBackward(nullptr, rows, ffn, x, y, dx); });
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      const std::string name = kind == GeluKind::kTanh ? "gelu tanh" : "gelu erf";
      visitor.Bytes(name + " forward", 2 * rows * ffn * 2, memory,
                    [&] { return ops.GeluForward(nullptr, kind, rows * ffn, x, dx); });
      visitor.Bytes(name + " backward", 3 * rows * ffn * 2, memory,
                    [&] { return ops.GeluBackward(nullptr, kind, rows * ffn, x, y, dx); });
    }
    visitor.Bytes("add", 3 * rows * ffn * 2, memory, [&] { return ops.Add(nullptr, rows * ffn, x, y, dx); });
    const DropoutArgs dropout = {.n = rows * ffn, .drop = 0.1, .seed = 1, .x = x, .out = dx};
    visitor.Bytes("dropout", 2 * rows * ffn * 2, memory, [&] { return ops.Dropout(nullptr, dropout); });
  }
  {
    const auto lender = visitor.NewMemory();
    CallMemory& memory = *lender;
    RopeArgs a = {.rows = rows, .seq = seq, .heads = heads, .head_dim = 128, .ld = hidden};
    a.x = t(memory, elements);
    visitor.Bytes("rope", elements * 4, memory, [&] { return ops.Rope(nullptr, a); });
    void* const dbias = memory.Zeros(hidden * 4);
    const Workspace workspace = memory.Lend(BiasBackwardWorkspaceBytes(kType, rows, hidden));
    visitor.Bytes("bias backward", elements * 2, memory,
                  [&] { return ops.BiasBackward(nullptr, rows, hidden, a.x, hidden, dbias, workspace); });
  }
  {
    const auto lender = visitor.NewMemory();
    CallMemory& memory = *lender;
    CrossEntropyArgs a = {.rows = loss_rows, .vocab = vocab, .logits = t(memory, loss_rows * vocab)};
    a.targets = memory.Tokens(loss_rows, vocab);
    a.loss = static_cast<double*>(memory.Zeros(16));
    a.gradient = true;
    a.gradient_scale = 1;
    a.workspace = memory.Lend(CrossEntropyWorkspaceBytes(kType, loss_rows, vocab));
    visitor.Bytes("cross entropy", 2 * loss_rows * vocab * 2, memory,
                  [&] { return ops.CrossEntropy(nullptr, a); });
  }
  {
    const auto lender = visitor.NewMemory();
    CallMemory& memory = *lender;
    const int32_t* const tokens = memory.Tokens(rows, vocab);
    const void* const table = t(memory, vocab * hidden);
    void* const out = t(memory, elements);
    void* const gradient = memory.Zeros(vocab * hidden * 4);
    visitor.Bytes("embedding forward", elements * 4, memory, [&] {
      return ops.EmbeddingForward(nullptr, rows, seq, vocab, hidden, tokens, table, nullptr, out);
    });
    visitor.Bytes("embedding backward", elements * 2 + vocab * hidden * 4, memory, [&] {
      return ops.EmbeddingBackward(nullptr, rows, seq, vocab, hidden, tokens, out, gradient, nullptr, seq);
    });
  }
}

void VisitStateCalls(const MemoryShapes& shapes, CallVisitor& visitor) {
  const int64_t elements = shapes.state_elements;
  const auto lender = visitor.NewMemory();
  CallMemory& memory = *lender;
  const std::unique_ptr<StateOps> ops =
      MakeCudaStateOps({memory.Zeros(CudaStateScratchBytes()), CudaStateScratchBytes()});
  AdamWStep step = {.n = elements};
  float* const grad = static_cast<float*>(memory.Values(elements, DType::kF32));
  step.grad = grad;
  step.master = static_cast<float*>(memory.Values(elements, DType::kF32));
  step.m = static_cast<float*>(memory.Zeros(elements * 4));
  step.v = static_cast<float*>(memory.Zeros(elements * 4));
  step.params = memory.Zeros(elements * 2);
  step.lr = 1e-4;
  double* const sum = static_cast<double*>(memory.Zeros(8));
  int64_t* const first_bad = static_cast<int64_t*>(memory.Zeros(8));
  visitor.Bytes("AdamW", elements * 30, memory, [&] { return ops->AdamW(nullptr, step); });
  const auto blocks = static_cast<int64_t>(elements / kCode8Block);
  const Code8Moments moments = {
      static_cast<uint8_t*>(memory.Zeros(elements)), static_cast<uint8_t*>(memory.Zeros(elements)),
      static_cast<float*>(memory.Zeros(blocks * 4)), static_cast<float*>(memory.Zeros(blocks * 4))};
  visitor.Bytes("AdamW, eight-bit states", elements * 18 + blocks * 16, memory,
                [&] { return ops->AdamW8(nullptr, step, moments); });
  visitor.Bytes("cast of parameters", elements * 6, memory,
                [&] { return ops->CastParams(nullptr, step.master, step.params, DType::kBF16, elements); });
  visitor.Bytes("sum of squares", elements * 4, memory,
                [&] { return ops->SumSquares(nullptr, grad, elements, sum, first_bad); });
  visitor.Bytes("accumulate", elements * 12, memory,
                [&] { return ops->Accumulate(nullptr, step.m, grad, elements); });
  auto* const crcs = static_cast<uint32_t*>(memory.Zeros(ChecksumPieces(elements * 4) * 4));
  visitor.Bytes("checksums", elements * 4, memory,
                [&] { return ops->Checksums(nullptr, grad, elements * 4, crcs); });
}

void VisitFp8Calls(const MemoryShapes& shapes, CallVisitor& visitor) {
  const auto lender = visitor.NewMemory();
  CallMemory& memory = *lender;
  gpu::Fp8QuantizeArgs q = {.rows = shapes.rows, .columns = shapes.hidden, .ld = shapes.hidden};
  const int64_t elements = q.rows * q.columns;
  q.x = memory.Values(elements, DType::kBF16);
  q.codes = static_cast<uint8_t*>(memory.Zeros(elements));
  q.scale = static_cast<float*>(memory.Zeros(sizeof(float)));
  q.scratch = static_cast<uint32_t*>(memory.Zeros(gpu::kFp8ScratchBytes));
  for (const bool transpose : {false, true}) {
    q.transpose = transpose;
    visitor.Bytes(transpose ? "fp8 codes of a matrix, transposed" : "fp8 codes of a matrix", elements * 5,
                  memory, [&] {
                    const kx::LaunchStatus status = gpu::Fp8Quantize(nullptr, q);
                    return status.ok() ? absl::OkStatus() : absl::InternalError(status.message);
                  });
  }
}

int64_t AttentionCase::rows() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

double AttentionCase::Flop() const {
  double pairs = 0;
  for (const double n : lengths) {
    const double hidden = window > 0 ? std::max(0.0, n - static_cast<double>(window)) : 0;
    pairs += (n * n - hidden * hidden) / 2;
  }
  return 4.0 * static_cast<double>(width()) * pairs;
}

AttentionMemory::AttentionMemory(const AttentionCase& c, std::unique_ptr<CallMemory> from)
    : lender(std::move(from)) {
  const int64_t rows = c.rows();
  AttentionArgs& a = args.forward;
  a = {.batch = static_cast<int64_t>(c.lengths.size()),
       .seq = *std::max_element(c.lengths.begin(), c.lengths.end()),
       .heads = c.heads,
       .kv_heads = c.heads,
       .head_dim = c.head_dim};
  a.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  a.q = lender->Values(rows * c.width(), kAttentionType);
  a.k = lender->Values(rows * c.width(), kAttentionType);
  a.v = lender->Values(rows * c.width(), kAttentionType);
  a.out = lender->Zeros(rows * c.width() * 2);
  a.lse = lender->Zeros(rows * c.heads * 4);
  a.ldq = a.ldk = a.ldv = a.ldo = args.lddo = args.lddq = args.lddk = args.lddv = c.width();
  args.dout = lender->Values(rows * c.width(), kAttentionType);
  args.dq = lender->Zeros(rows * c.width() * 2);
  args.dk = lender->Zeros(rows * c.width() * 2);
  args.dv = lender->Zeros(rows * c.width() * 2);
}

attention::BackwardCall OwnAttentionCall(const AttentionCase& c, AttentionMemory& memory) {
  const AttentionBackwardArgs& g = memory.args;
  const AttentionArgs& a = g.forward;
  attention::BackwardCall call;
  attention::ForwardCall& f = call.forward;
  f.shape = {.batch = static_cast<int32_t>(a.batch),
             .heads = static_cast<int32_t>(c.heads),
             .kv_heads = static_cast<int32_t>(c.heads),
             .head_dim = static_cast<int32_t>(c.head_dim),
             .seq_q = static_cast<int32_t>(a.seq),
             .seq_k = static_cast<int32_t>(a.seq),
             .total_q = static_cast<int32_t>(c.rows()),
             .total_k = static_cast<int32_t>(c.rows()),
             .left = c.window > 0 ? static_cast<int32_t>(c.window - 1) : attention::kUnbounded,
             .right = 0,
             .scale = static_cast<float>(a.scale)};
  if (c.packed) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t n : c.lengths) offsets.push_back(offsets.back() + n);
    f.cu_q = f.cu_k = memory.lender->Copy(offsets);
  }
  f.q = a.q;
  f.k = a.k;
  f.v = a.v;
  f.out = a.out;
  f.lse = static_cast<float*>(a.lse);
  f.ldq = f.ldk = f.ldv = f.ldo = c.width();
  call.dout = g.dout;
  call.delta = static_cast<float*>(memory.lender->Zeros(c.rows() * c.heads * 4));
  call.dq = g.dq;
  call.dk = g.dk;
  call.dv = g.dv;
  call.lddo = call.lddq = call.lddk = call.lddv = c.width();
  return call;
}

}  // namespace strata
