// Speed of the CPU backend at the shapes of the main job (Llama kind, 6 layers, hidden 384, 6 heads of 64, 2
// kv heads, ffn 1024, 8 x 256 tokens), two threads unless STRATA_BENCH_THREADS says otherwise. Names say op
// and type; counters are FLOP/s for products and attention (causal: half of the square), bytes/s for what
// only moves memory.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/random.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

constexpr int64_t kBatch = 8, kSeq = 256, kRows = kBatch * kSeq, kHidden = 384, kHeads = 6, kKvHeads = 2,
                  kDim = 64;
constexpr int64_t kFfn = 1024, kVocab = 256, kQkv = (kHeads + 2 * kKvHeads) * kDim;

int Threads() {
  const char* set = std::getenv("STRATA_BENCH_THREADS");
  return set ? std::max(1, std::atoi(set)) : 2;
}

Ops& Backend(DType type) {
  static const std::unique_ptr<Ops> f32 = MakeCpuOps(DType::kF32, Threads());
  static const std::unique_ptr<Ops> bf16 = MakeCpuOps(DType::kBF16, Threads());
  return type == DType::kF32 ? *f32 : *bf16;
}

// Memory of one benchmark, filled with normal numbers of the type.
class Arena {
 public:
  explicit Arena(DType type) : type_(type) {}
  void* Values(int64_t n, DType type) {
    char* p = static_cast<char*>(Bytes(n * SizeOf(type)));
    const CounterRandom random(1, blocks_.size());
    std::vector<float> few(4096);
    for (size_t i = 0; i < few.size(); ++i) few[i] = static_cast<float>(random.Normal(i));
    for (int64_t i = 0; i < n; ++i) {
      if (type == DType::kBF16) reinterpret_cast<BFloat16*>(p)[i] = ToBFloat16(few[i % 4096]);
      if (type == DType::kF32) reinterpret_cast<float*>(p)[i] = few[i % 4096];
    }
    return p;
  }
  void* T(int64_t n) { return Values(n, type_); }
  void* Acc(int64_t n) { return Values(n, DType::kF32); }
  int32_t* Tokens(int64_t n, int64_t vocab) {
    int32_t* p = static_cast<int32_t*>(Bytes(n * 4));
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<int32_t>(i * 7919 % vocab);
    return p;
  }
  Workspace Lend(int64_t bytes) { return {Bytes(bytes), bytes}; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  void* Bytes(int64_t bytes) {
    blocks_.emplace_back(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    STRATA_CHECK(blocks_.back() != nullptr);
    std::memset(blocks_.back().get(), 0, bytes);
    return blocks_.back().get();
  }
  DType type_;
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

template <typename Call>
void Measure(benchmark::State& state, const char* counter, double per_call, const Call& call) {
  STRATA_CHECK(call().ok());  // compiles and caches
  for (auto _ : state) STRATA_CHECK(call().ok());
  state.counters[counter] = benchmark::Counter(per_call, benchmark::Counter::kIsIterationInvariantRate);
}

enum class Pass { kForward, kInputGradient, kWeightGradient };

// y = x W^T with W stored [out, in], and its two gradients.
void Gemm(benchmark::State& state, DType type, Pass pass, int64_t rows, int64_t in, int64_t out) {
  Arena arena(type);
  GemmArgs a;
  if (pass == Pass::kForward) a = {.m = rows, .n = out, .k = in, .lda = in, .ldb = in, .transpose_b = true};
  if (pass == Pass::kInputGradient) a = {.m = rows, .n = in, .k = out, .lda = out, .ldb = in};
  if (pass == Pass::kWeightGradient)
    a = {.m = out, .n = in, .k = rows, .lda = out, .transpose_a = true, .ldb = in};
  a.c_is_acc = pass == Pass::kWeightGradient;
  a.ldc = a.n;
  a.a = arena.T(a.m * a.k);
  a.b = arena.T(a.k * a.n);
  a.c = a.c_is_acc ? arena.Acc(a.m * a.n) : arena.T(a.m * a.n);
  a.workspace = arena.Lend(GemmWorkspaceBytes(type, a.m, a.n, a.k));
  Measure(state, "FLOP/s", 2.0 * a.m * a.n * a.k, [&] { return Backend(type).Gemm(nullptr, a); });
}

AttentionBackwardArgs AttentionArguments(Arena& arena, DType type, int64_t batch, int64_t seq, int64_t heads,
                                         int64_t kv_heads) {
  AttentionBackwardArgs g;
  AttentionArgs& a = g.forward;
  a = {.batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = kDim};
  a.scale = 0.125;
  const int64_t rows = batch * seq, width = heads * kDim, kv_width = kv_heads * kDim;
  a.q = arena.T(rows * width);
  a.k = arena.T(rows * kv_width);
  a.v = arena.T(rows * kv_width);
  a.out = arena.T(rows * width);
  a.lse = arena.Acc(rows * heads);
  g.dout = arena.T(rows * width);
  g.dq = arena.T(rows * width);
  g.dk = arena.T(rows * kv_width);
  g.dv = arena.T(rows * kv_width);
  a.ldq = a.ldo = g.lddo = g.lddq = width;
  a.ldk = a.ldv = g.lddk = g.lddv = kv_width;
  a.workspace =
      arena.Lend(std::max(AttentionForwardWorkspaceBytes(type, batch, seq, heads, kv_heads, kDim),
                          AttentionBackwardWorkspaceBytes(type, batch, seq, heads, kv_heads, kDim)));
  return g;
}

void Attention(benchmark::State& state, DType type, bool backward, int64_t batch, int64_t seq, int64_t heads,
               int64_t kv_heads) {
  Arena arena(type);
  const AttentionBackwardArgs args = AttentionArguments(arena, type, batch, seq, heads, kv_heads);
  STRATA_CHECK(Backend(type).AttentionForward(nullptr, args.forward).ok());
  const double forward_flops = 2.0 * batch * heads * seq * seq * kDim;
  Measure(state, "FLOP/s", backward ? 2.5 * forward_flops : forward_flops, [&] {
    return backward ? Backend(type).AttentionBackward(nullptr, args)
                    : Backend(type).AttentionForward(nullptr, args.forward);
  });
}

void Norm(benchmark::State& state, DType type, bool backward) {
  Arena arena(type);
  NormArgs f{.kind = NormKind::kRmsNorm, .rows = kRows, .width = kHidden, .x = arena.T(kRows * kHidden)};
  f.weight = arena.T(kHidden);
  f.y = arena.T(kRows * kHidden);
  f.rstd = arena.Acc(kRows);
  NormBackwardArgs b{.kind = f.kind, .rows = kRows, .width = kHidden, .x = f.x, .weight = f.weight};
  b.dy = arena.T(kRows * kHidden);
  b.dx = arena.T(kRows * kHidden);
  b.rstd = f.rstd;
  b.dweight = arena.Acc(kHidden);
  b.workspace = arena.Lend(NormBackwardWorkspaceBytes(type, kRows, kHidden));
  const double bytes = static_cast<double>(kRows * kHidden * SizeOf(type));
  Measure(state, "B/s", (backward ? 4 : 2) * bytes, [&] {
    return backward ? Backend(type).NormBackward(nullptr, b) : Backend(type).NormForward(nullptr, f);
  });
}

// The residual sum and the norm of it: two passes, or one.
void AddNorm(benchmark::State& state, DType type, bool fused) {
  Arena arena(type);
  NormArgs a{.kind = NormKind::kRmsNorm, .rows = kRows, .width = kHidden, .x = arena.T(kRows * kHidden)};
  a.weight = arena.T(kHidden);
  a.y = arena.T(kRows * kHidden);
  a.rstd = arena.Acc(kRows);
  const void* residual = arena.T(kRows * kHidden);
  void* sum = arena.T(kRows * kHidden);
  NormArgs of_sum = a;
  of_sum.x = sum;
  if (fused) {
    a.residual = residual;
    a.sum = sum;
  }
  Measure(state, "B/s", static_cast<double>((fused ? 4 : 5) * kRows * kHidden * SizeOf(type)), [&] {
    if (fused) return Backend(type).NormForward(nullptr, a);
    STRATA_CHECK(Backend(type).Add(nullptr, kRows * kHidden, a.x, residual, sum).ok());
    return Backend(type).NormForward(nullptr, of_sum);
  });
}

void Dropout(benchmark::State& state, DType type) {
  Arena arena(type);
  void* const x = arena.T(kRows * kHidden);
  const DropoutArgs args{.n = kRows * kHidden, .drop = 0.1, .seed = 1, .x = x, .out = x};
  Measure(state, "B/s", static_cast<double>(2 * kRows * kHidden * SizeOf(type)),
          [&] { return Backend(type).Dropout(nullptr, args); });
}

void Swiglu(benchmark::State& state, DType type, bool backward) {
  Arena arena(type);
  const void* x = arena.T(kRows * 2 * kFfn);
  void* y = arena.T(kRows * kFfn);
  void* dx = arena.T(kRows * 2 * kFfn);
  const double bytes = static_cast<double>(kRows * kFfn * SizeOf(type));
  Measure(state, "B/s", (backward ? 5 : 3) * bytes, [&] {
    return backward ? Backend(type).SwigluBackward(nullptr, kRows, kFfn, x, y, dx)
                    : Backend(type).SwigluForward(nullptr, kRows, kFfn, x, y);
  });
}

void Gelu(benchmark::State& state, DType type, GeluKind kind, bool backward) {
  Arena arena(type);
  const int64_t n = kRows * 4 * kHidden;
  const void* x = arena.T(n);
  void* y = arena.T(n);
  void* dx = arena.T(n);
  Measure(state, "B/s", static_cast<double>((backward ? 3 : 2) * n * SizeOf(type)), [&] {
    return backward ? Backend(type).GeluBackward(nullptr, kind, n, x, y, dx)
                    : Backend(type).GeluForward(nullptr, kind, n, x, y);
  });
}

void Rope(benchmark::State& state, DType type) {
  Arena arena(type);
  RopeArgs a{
      .rows = kRows, .seq = kSeq, .heads = kHeads, .head_dim = kDim, .ld = kQkv, .x = arena.T(kRows * kQkv)};
  Measure(state, "B/s", static_cast<double>(2 * kRows * kHeads * kDim * SizeOf(type)),
          [&] { return Backend(type).Rope(nullptr, a); });
}

void Add(benchmark::State& state, DType type) {
  Arena arena(type);
  const int64_t n = kRows * kHidden;
  const void* a = arena.T(n);
  const void* b = arena.T(n);
  void* out = arena.T(n);
  Measure(state, "B/s", static_cast<double>(3 * n * SizeOf(type)),
          [&] { return Backend(type).Add(nullptr, n, a, b, out); });
}

void CrossEntropy(benchmark::State& state, DType type) {
  Arena arena(type);
  double loss[2] = {};
  CrossEntropyArgs a{.rows = kRows, .vocab = kVocab, .logits = arena.T(kRows * kVocab)};
  a.targets = arena.Tokens(kRows, kVocab);
  a.loss = loss;
  a.gradient = true;
  a.gradient_scale = 1.0 / kRows;
  a.workspace = arena.Lend(CrossEntropyWorkspaceBytes(type, kRows, kVocab));
  Measure(state, "B/s", static_cast<double>(2 * kRows * kVocab * SizeOf(type)),
          [&] { return Backend(type).CrossEntropy(nullptr, a); });
}

void Embedding(benchmark::State& state, DType type, bool backward) {
  Arena arena(type);
  const int32_t* tokens = arena.Tokens(kRows, kVocab);
  void* wte = arena.T(kVocab * kHidden);
  void* dwte = arena.Acc(kVocab * kHidden);
  void* out = arena.T(kRows * kHidden);
  Measure(state, "B/s", static_cast<double>(2 * kRows * kHidden * SizeOf(type)), [&] {
    return backward ? Backend(type).EmbeddingBackward(nullptr, kRows, kSeq, kVocab, kHidden, tokens, out,
                                                      dwte, nullptr, kSeq)
                    : Backend(type).EmbeddingForward(nullptr, kRows, kSeq, kVocab, kHidden, tokens, wte,
                                                     nullptr, out);
  });
}

void Register(DType type) {
  const std::string suffix = std::string("/") + Name(type);
  const auto add = [&](const std::string& name, auto&& body) {
    benchmark::RegisterBenchmark((name + suffix).c_str(), body)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  for (const Layer& l :
       {Layer{"qkv", kHidden, kQkv}, Layer{"out", kHidden, kHidden}, Layer{"gate_up", kHidden, 2 * kFfn},
        Layer{"down", kFfn, kHidden}, Layer{"head", kHidden, kVocab}}) {
    const std::string name = std::string("gemm/") + l.name;
    const auto gemm = [=](Pass pass) {
      return [=](benchmark::State& s) { Gemm(s, type, pass, kRows, l.in, l.out); };
    };
    add(name + "/forward", gemm(Pass::kForward));
    add(name + "/dx", gemm(Pass::kInputGradient));
    add(name + "/dw", gemm(Pass::kWeightGradient));
  }
  for (const bool backward : {false, true}) {
    const std::string pass = backward ? "/backward" : "/forward";
    add("attention/job" + pass,
        [=](benchmark::State& s) { Attention(s, type, backward, kBatch, kSeq, kHeads, kKvHeads); });
    add("attention/1x1024x6" + pass,
        [=](benchmark::State& s) { Attention(s, type, backward, 1, 1024, 6, 6); });
    add("rmsnorm" + pass, [=](benchmark::State& s) { Norm(s, type, backward); });
    add("swiglu" + pass, [=](benchmark::State& s) { Swiglu(s, type, backward); });
    add("gelu_tanh" + pass, [=](benchmark::State& s) { Gelu(s, type, GeluKind::kTanh, backward); });
    add("gelu_erf" + pass, [=](benchmark::State& s) { Gelu(s, type, GeluKind::kErf, backward); });
    add("embedding" + pass, [=](benchmark::State& s) { Embedding(s, type, backward); });
  }
  add("rope/q", [=](benchmark::State& s) { Rope(s, type); });
  add("add", [=](benchmark::State& s) { Add(s, type); });
  add("add_rmsnorm/apart", [=](benchmark::State& s) { AddNorm(s, type, false); });
  add("add_rmsnorm/fused", [=](benchmark::State& s) { AddNorm(s, type, true); });
  add("dropout", [=](benchmark::State& s) { Dropout(s, type); });
  add("cross_entropy", [=](benchmark::State& s) { CrossEntropy(s, type); });
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Register(strata::DType::kBF16);
  strata::Register(strata::DType::kF32);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
