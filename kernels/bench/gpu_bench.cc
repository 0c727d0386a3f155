// Speed of the CUDA backend on the GPU of this machine, by events around batches of calls on one stream. Run
// by tests/gpu/run_on_device, which reads its lines; each is a JSON object:
//   {"name": "...", "value": 612.3, "unit": "TFLOP/s", "ms": 0.898}   a median over batches
//   {"name": "...", "error": "..."}                                    what could not be measured
//   {"name": "...", "skipped": "..."}                                  what cannot be measured here, and why
// usage: gpu_bench [--card]   (--card: one object that describes the GPU, and nothing else)
//   exit 0: all measured, or "SKIPPED: REASON" where there is no GPU; 1: an error among them
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"
#include "common/status.h"
#include "kernels/attention/launch.h"
#include "kernels/cublaslt/cublaslt_gemm.h"
#include "kernels/cublaslt/cublaslt_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cudnn/cudnn_attention.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/dispatch/cuda_attention.h"
#include "kernels/ops.h"
#include "kernels/optimizer/code8.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

constexpr double kBatchMs = 30;
constexpr int kBatches = 5, kCallsMax = 2000;

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

// Device memory of one measurement. The first failure is kept, and what would use the memory is not run.
class Lender {
 public:
  ~Lender() {
    for (void* block : blocks_) (void)cudaFree(block);
  }
  // Normal numbers: what a tensor core draws, and so its clock, depends on the bits.
  void* Values(int64_t n, DType type) {
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
    char* const data = static_cast<char*>(Bytes(n * size));
    for (int64_t done = 0; data != nullptr && done < n; done += count) {
      Keep(CudaCall(cudaMemcpy(data + done * size, pattern.data(),
                               static_cast<size_t>(std::min(count, n - done) * size), cudaMemcpyHostToDevice),
                    "copy to device"));
    }
    return data;
  }
  int32_t* Tokens(int64_t n, int64_t vocab) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(i * 7919 % vocab);
    return Copy(tokens);
  }
  int32_t* Copy(const std::vector<int32_t>& values) {
    void* const data = Bytes(static_cast<int64_t>(values.size()) * 4);
    if (data != nullptr) {
      Keep(CudaCall(cudaMemcpy(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice),
                    "copy to device"));
    }
    return static_cast<int32_t*>(data);
  }
  // Zeroed; nullptr for 0 bytes.
  void* Bytes(int64_t bytes) {
    if (bytes == 0 || !status_.ok()) return nullptr;
    void* data = nullptr;
    Keep(CudaCall(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc"));
    if (!status_.ok()) {
      (void)cudaGetLastError();
      return nullptr;
    }
    blocks_.push_back(data);
    Keep(CudaCall(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset"));
    return data;
  }
  Workspace Lend(int64_t bytes) { return {Bytes(bytes), bytes}; }
  const absl::Status& status() const { return status_; }

 private:
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  absl::Status status_;
  std::vector<void*> blocks_;
};

class Bench {
 public:
  using Call = std::function<absl::Status()>;

  // `work` of a call in units of 1e12 (TFLOP/s) or 1e9 (GB/s).
  void Rate(const std::string& name, const char* unit, double work, const Lender& memory, const Call& call) {
    double ms = 0;
    absl::Status status = memory.status();
    if (status.ok()) status = Median(call, ms);
    if (status.ok()) {
      std::printf("{\"name\": %s, \"value\": %.4g, \"unit\": \"%s\", \"ms\": %.4g}\n", Quoted(name).c_str(),
                  work / (ms * 1e-3), unit, ms);
    } else {
      Fail(name, status);
    }
    std::fflush(stdout);
  }
  void Flops(const std::string& name, double flop, const Lender& memory, const Call& call) {
    Rate(name, "TFLOP/s", flop / 1e12, memory, call);
  }
  void Bytes(const std::string& name, int64_t bytes, const Lender& memory, const Call& call) {
    Rate(name, "GB/s", static_cast<double>(bytes) / 1e9, memory, call);
  }
  void Fail(const std::string& name, const absl::Status& status) {
    failed_ = true;
    std::printf("{\"name\": %s, \"error\": %s}\n", Quoted(name).c_str(),
                Quoted(std::string(status.message())).c_str());
  }
  // What a machine without it does not have: no failure.
  void Skip(const std::string& name, const std::string& reason) {
    std::printf("{\"name\": %s, \"skipped\": %s}\n", Quoted(name).c_str(), Quoted(reason).c_str());
  }
  bool failed() const { return failed_; }

  // On the stream of `call`, the default one: time of one call, the median of the batches.
  absl::Status Median(const Call& call, double& ms) {
    STRATA_RETURN_IF_ERROR(call());  // chooses and loads
    STRATA_ASSIGN_OR_RETURN(double one, Batch(call, 1));
    const int calls = std::clamp(static_cast<int>(kBatchMs / std::max(one, 1e-3)), 1, kCallsMax);
    std::vector<double> times;
    for (int i = 0; i < kBatches; ++i) {
      STRATA_ASSIGN_OR_RETURN(one, Batch(call, calls));
      times.push_back(one);
    }
    std::sort(times.begin(), times.end());
    ms = times[kBatches / 2];
    return absl::OkStatus();
  }

 private:
  // Milliseconds a call.
  absl::StatusOr<double> Batch(const Call& call, int calls) {
    cudaEvent_t begin = nullptr, end = nullptr;
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventCreate(&begin), "cudaEventCreate"));
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventCreate(&end), "cudaEventCreate"));
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventRecord(begin), "cudaEventRecord"));
    for (int i = 0; i < calls; ++i) STRATA_RETURN_IF_ERROR(call());
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventRecord(end), "cudaEventRecord"));
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventSynchronize(end), "cudaEventSynchronize"));
    float ms = 0;
    STRATA_RETURN_IF_ERROR(CudaCall(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime"));
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return ms / calls;
  }
  bool failed_ = false;
};

// Causal attention of 16 heads of 128 in bf16.
constexpr int64_t kHeads = 16, kDim = 128, kWidth = kHeads * kDim;
constexpr DType kAttentionType = DType::kBF16;

struct AttentionCase {
  std::string name;
  std::vector<int32_t> lengths;  // of the sequences
  int64_t window = 0;            // as in CudnnAttentionShape
  bool packed = false;           // one after another by their offsets; else all of one length

  int64_t rows() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  // Of the forward pass; half of each square, less what the window hides.
  double Flop() const {
    double pairs = 0;
    for (const double n : lengths) {
      const double hidden = window > 0 ? std::max(0.0, n - static_cast<double>(window)) : 0;
      pairs += (n * n - hidden * hidden) / 2;
    }
    return 4.0 * kDim * kHeads * pairs;
  }
};

std::vector<AttentionCase> AttentionCases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](const std::string& name, const std::vector<int32_t>& lengths, int64_t window,
                       bool packed) {
    cases.push_back({name, lengths, window, packed});
  };
  // 16 Ki tokens, or one sequence where that is longer.
  for (const int32_t seq : {2048, 4096, 8192, 16384, 32768}) {
    add(absl::StrCat("causal d128 bf16 ", seq / 1024, "k"),
        std::vector<int32_t>(static_cast<size_t>(std::max(1, 16384 / seq)), seq), 0, false);
  }
  for (const int32_t seq : {8192, 32768}) {
    add(absl::StrCat("causal d128 bf16 ", seq / 1024, "k, window 1k"),
        std::vector<int32_t>(static_cast<size_t>(std::max(1, 16384 / seq)), seq), 1024, false);
  }
  // Documents of one length are the problem that a batch of them is: what packing costs.
  add("causal d128 bf16 2k, packed", std::vector<int32_t>(8, 2048), 0, true);
  add("causal d128 bf16 mixed, packed", {9000, 257, 4100, 31, 1900, 680, 416}, 0, true);
  return cases;
}

// The tensors of a case, and the calls of it for either provider.
struct AttentionMemory {
  explicit AttentionMemory(const AttentionCase& c) {
    const int64_t rows = c.rows();
    AttentionArgs& a = args.forward;
    a = {.batch = static_cast<int64_t>(c.lengths.size()),
         .seq = *std::max_element(c.lengths.begin(), c.lengths.end()),
         .heads = kHeads,
         .kv_heads = kHeads,
         .head_dim = kDim};
    a.scale = 0.08838834764831845;  // 1 / sqrt(128)
    a.q = lender.Values(rows * kWidth, kAttentionType);
    a.k = lender.Values(rows * kWidth, kAttentionType);
    a.v = lender.Values(rows * kWidth, kAttentionType);
    a.out = lender.Bytes(rows * kWidth * 2);
    a.lse = lender.Bytes(rows * kHeads * 4);
    a.ldq = a.ldk = a.ldv = a.ldo = args.lddo = args.lddq = args.lddk = args.lddv = kWidth;
    args.dout = lender.Values(rows * kWidth, kAttentionType);
    args.dq = lender.Bytes(rows * kWidth * 2);
    args.dk = lender.Bytes(rows * kWidth * 2);
    args.dv = lender.Bytes(rows * kWidth * 2);
  }

  Lender lender;
  AttentionBackwardArgs args;
};

attention::BackwardCall OwnCall(const AttentionCase& c, AttentionMemory& memory) {
  const AttentionBackwardArgs& g = memory.args;
  const AttentionArgs& a = g.forward;
  attention::BackwardCall call;
  attention::ForwardCall& f = call.forward;
  f.shape = {.batch = static_cast<int32_t>(a.batch),
             .heads = kHeads,
             .kv_heads = kHeads,
             .head_dim = kDim,
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
    f.cu_q = f.cu_k = memory.lender.Copy(offsets);
  }
  f.q = a.q;
  f.k = a.k;
  f.v = a.v;
  f.out = a.out;
  f.lse = static_cast<float*>(a.lse);
  f.ldq = f.ldk = f.ldv = f.ldo = kWidth;
  call.dout = g.dout;
  call.delta = static_cast<float*>(memory.lender.Bytes(c.rows() * kHeads * 4));
  call.dq = g.dq;
  call.dk = g.dk;
  call.dv = g.dv;
  call.lddo = call.lddq = call.lddk = call.lddv = kWidth;
  return call;
}

absl::Status Launched(const kx::LaunchStatus& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.message);
}

void OwnAttentionBenches(Bench& bench, const std::string& who, attention::Family family) {
  for (const AttentionCase& c : AttentionCases()) {
    AttentionMemory memory(c);
    const attention::BackwardCall call = OwnCall(c, memory);
    bench.Flops(absl::StrCat("attention forward ", who, " ", c.name), c.Flop(), memory.lender,
                [&] { return Launched(attention::Forward(nullptr, family, kAttentionType, call.forward)); });
    bench.Flops(absl::StrCat("attention backward ", who, " ", c.name), 2.5 * c.Flop(), memory.lender,
                [&] { return Launched(attention::Backward(nullptr, family, kAttentionType, call)); });
  }
}

// Forward is all there is of it, on whole sequences.
void Fp8AttentionBenches(Bench& bench) {
  CudaAttention attention(90, {.forced = AttentionProvider::kFa3Fp8});
  for (const AttentionCase& c : AttentionCases()) {
    if (c.packed || c.window > 0) continue;
    AttentionMemory memory(c);
    AttentionArgs& forward = memory.args.forward;
    forward.workspace = memory.lender.Lend(
        AttentionForwardWorkspaceBytes(kAttentionType, forward.batch, forward.seq, kHeads, kHeads, kDim));
    bench.Flops(absl::StrCat("attention forward ", Name(AttentionProvider::kFa3Fp8), " ", c.name), c.Flop(),
                memory.lender, [&] { return attention.Forward(nullptr, kAttentionType, forward); });
  }
}

// Backward in both of its forms; what it asks of the workspace for each.
void CudnnAttentionBenches(Bench& bench, CudnnAttention& attention) {
  for (const AttentionCase& c : AttentionCases()) {
    if (c.packed) {
      bench.Skip(absl::StrCat("attention cudnn ", c.name), "is not used for packed sequences");
      continue;
    }
    {
      AttentionMemory memory(c);
      memory.args.forward.workspace = memory.lender.Lend(AttentionForwardWorkspaceBytes(
          kAttentionType, memory.args.forward.batch, memory.args.forward.seq, kHeads, kHeads, kDim));
      bench.Flops(absl::StrCat("attention forward cudnn ", c.name), c.Flop(), memory.lender, [&] {
        return attention.Forward(nullptr, kAttentionType, memory.args.forward, {.window = c.window});
      });
    }
    for (const bool deterministic : {true, false}) {
      const std::string name =
          absl::StrCat("attention backward cudnn ", c.name, deterministic ? ", deterministic" : "");
      const CudnnAttentionOptions options{.window = c.window, .deterministic = deterministic};
      AttentionMemory memory(c);
      const auto bytes = attention.BackwardWorkspaceBytes(kAttentionType, memory.args, options);
      if (absl::IsUnimplemented(bytes.status())) {
        bench.Skip(name, std::string(bytes.status().message()));
      } else if (!bytes.ok()) {
        bench.Fail(name, bytes.status());
      } else {
        memory.args.forward.workspace = memory.lender.Lend(*bytes);
        bench.Flops(name, 2.5 * c.Flop(), memory.lender,
                    [&] { return attention.Backward(nullptr, kAttentionType, memory.args, options); });
      }
    }
  }
}

void GemmBenches(Bench& bench, CublasLtGemm& gemm) {
  struct Shape {
    const char* name;
    int64_t m, n, k;
    bool gradient;  // of weights: A transposed, a float result
  };
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const Shape& s :
         {Shape{"4k cubed", 4096, 4096, 4096, false}, Shape{"8k cubed", 8192, 8192, 8192, false},
          Shape{"qkv 8k x 12k x 4k", 8192, 12288, 4096, false},
          Shape{"dW 12k x 4k x 8k", 12288, 4096, 8192, true}}) {
      Lender memory;
      GemmArgs a = {.m = s.m, .n = s.n, .k = s.k};
      a.a = memory.Values(s.m * s.k, type);
      a.b = memory.Values(s.k * s.n, type);
      a.transpose_a = s.gradient;
      a.transpose_b = !s.gradient;
      a.lda = s.gradient ? s.m : s.k;
      a.ldb = s.gradient ? s.n : s.k;
      a.c_is_acc = s.gradient;
      a.c = memory.Bytes(s.m * s.n * (s.gradient ? 4 : 2));
      a.ldc = s.n;
      a.workspace = memory.Lend(GemmWorkspaceBytes(type, s.m, s.n, s.k));
      bench.Flops(absl::StrCat("gemm ", Name(type), " ", s.name), 2.0 * static_cast<double>(s.m * s.n * s.k),
                  memory, [&] { return gemm.Gemm(nullptr, type, a); });
    }
  }
  constexpr int64_t kSide = 8192;
  Lender memory;
  Fp8GemmArgs a = {.m = kSide, .n = kSide, .k = kSide, .lda = kSide, .ldb = kSide, .ldc = kSide};
  // Pairs of them are the halves of bf16 numbers: any byte but NaN (0x7f, 0xff) will do, and zeros are
  // faster.
  std::vector<unsigned char> bytes(kSide * kSide);
  const CounterRandom random(2, 0);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((random.Below(i, 2) << 7) | random.Below(i + bytes.size(), 0x60));
  for (const void** side : {&a.a, &a.b}) {
    void* const data = memory.Bytes(kSide * kSide);
    if (data != nullptr) (void)cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    *side = data;
  }
  a.a_scale = a.b_scale = static_cast<const float*>(memory.Values(1, DType::kF32));
  a.c = memory.Bytes(kSide * kSide * 2);
  a.workspace = memory.Lend(GemmWorkspaceBytes(DType::kBF16, kSide, kSide, kSide));
  bench.Flops("gemm e4m3 8k cubed", 2.0 * kSide * kSide * kSide, memory,
              [&] { return gemm.Fp8Gemm(nullptr, a); });
}

// What moves memory, at the shapes of a model of 7e9 parameters with 16 Ki tokens; bytes are those that must
// move.
void MemoryBenches(Bench& bench, Ops& ops) {
  constexpr DType kType = DType::kBF16;
  constexpr int64_t kRows = 16384, kHidden = 4096, kFfn = 11008, kVocab = 32000, kSeq = 4096, kHeads = 32;
  constexpr int64_t kElements = kRows * kHidden;
  const auto t = [](Lender& memory, int64_t n) { return memory.Values(n, kType); };
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    const std::string name = kind == NormKind::kRmsNorm ? "rms norm" : "layer norm";
    Lender memory;
    NormArgs f = {.kind = kind, .rows = kRows, .width = kHidden, .x = t(memory, kElements)};
    f.weight = t(memory, kHidden);
    f.bias = kind == NormKind::kLayerNorm ? t(memory, kHidden) : nullptr;
    f.y = memory.Bytes(kElements * 2);
    f.mean = kind == NormKind::kLayerNorm ? memory.Bytes(kRows * 4) : nullptr;
    f.rstd = memory.Bytes(kRows * 4);
    bench.Bytes(name + " forward", kElements * 4, memory, [&] { return ops.NormForward(nullptr, f); });
    NormBackwardArgs b = {.kind = kind, .rows = kRows, .width = kHidden, .x = f.x, .weight = f.weight};
    b.dy = t(memory, kElements);
    b.mean = f.mean;
    b.rstd = f.rstd;
    b.dx = memory.Bytes(kElements * 2);
    b.dweight = memory.Bytes(kHidden * 4);
    b.dbias = kind == NormKind::kLayerNorm ? memory.Bytes(kHidden * 4) : nullptr;
    b.workspace = memory.Lend(NormBackwardWorkspaceBytes(kType, kRows, kHidden));
    bench.Bytes(name + " backward", kElements * 8, memory, [&] { return ops.NormBackward(nullptr, b); });
    f.residual = b.dy;
    f.sum = b.dx;
    bench.Bytes(name + " forward with the residual sum", kElements * 8, memory,
                [&] { return ops.NormForward(nullptr, f); });
  }
  {
    Lender memory;
    const void* const x = t(memory, 2 * kRows * kFfn);
    void* const y = memory.Values(kRows * kFfn, kType);
    void* const dx = memory.Bytes(2 * kRows * kFfn * 2);
    bench.Bytes("swiglu forward", 3 * kRows * kFfn * 2, memory,
                [&] { return ops.SwigluForward(nullptr, kRows, kFfn, x, y); });
    bench.Bytes("swiglu backward", 5 * kRows * kFfn * 2, memory,
                [&] { return ops.SwigluBackward(nullptr, kRows, kFfn, x, y, dx); });
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      const std::string name = kind == GeluKind::kTanh ? "gelu tanh" : "gelu erf";
      bench.Bytes(name + " forward", 2 * kRows * kFfn * 2, memory,
                  [&] { return ops.GeluForward(nullptr, kind, kRows * kFfn, x, dx); });
      bench.Bytes(name + " backward", 3 * kRows * kFfn * 2, memory,
                  [&] { return ops.GeluBackward(nullptr, kind, kRows * kFfn, x, y, dx); });
    }
    bench.Bytes("add", 3 * kRows * kFfn * 2, memory,
                [&] { return ops.Add(nullptr, kRows * kFfn, x, y, dx); });
    const DropoutArgs dropout = {.n = kRows * kFfn, .drop = 0.1, .seed = 1, .x = x, .out = dx};
    bench.Bytes("dropout", 2 * kRows * kFfn * 2, memory, [&] { return ops.Dropout(nullptr, dropout); });
  }
  {
    Lender memory;
    RopeArgs a = {.rows = kRows, .seq = kSeq, .heads = kHeads, .head_dim = 128, .ld = kHidden};
    a.x = t(memory, kElements);
    bench.Bytes("rope", kElements * 4, memory, [&] { return ops.Rope(nullptr, a); });
    void* const dbias = memory.Bytes(kHidden * 4);
    const Workspace workspace = memory.Lend(BiasBackwardWorkspaceBytes(kType, kRows, kHidden));
    bench.Bytes("bias backward", kElements * 2, memory,
                [&] { return ops.BiasBackward(nullptr, kRows, kHidden, a.x, kHidden, dbias, workspace); });
  }
  {
    Lender memory;
    CrossEntropyArgs a = {.rows = 4096, .vocab = kVocab, .logits = t(memory, 4096 * kVocab)};
    a.targets = memory.Tokens(4096, kVocab);
    a.loss = static_cast<double*>(memory.Bytes(16));
    a.gradient = true;
    a.gradient_scale = 1;
    a.workspace = memory.Lend(CrossEntropyWorkspaceBytes(kType, 4096, kVocab));
    bench.Bytes("cross entropy", 2 * 4096 * kVocab * 2, memory, [&] { return ops.CrossEntropy(nullptr, a); });
  }
  {
    Lender memory;
    const int32_t* const tokens = memory.Tokens(kRows, kVocab);
    const void* const table = t(memory, kVocab * kHidden);
    void* const out = t(memory, kElements);
    void* const gradient = memory.Bytes(kVocab * kHidden * 4);
    bench.Bytes("embedding forward", kElements * 4, memory, [&] {
      return ops.EmbeddingForward(nullptr, kRows, kSeq, kVocab, kHidden, tokens, table, nullptr, out);
    });
    bench.Bytes("embedding backward", kElements * 2 + kVocab * kHidden * 4, memory, [&] {
      return ops.EmbeddingBackward(nullptr, kRows, kSeq, kVocab, kHidden, tokens, out, gradient, nullptr,
                                   kSeq);
    });
  }
}

void StateBenches(Bench& bench) {
  constexpr int64_t kElements = int64_t{1} << 27;
  Lender memory;
  const std::unique_ptr<StateOps> ops =
      MakeCudaStateOps({memory.Bytes(CudaStateScratchBytes()), CudaStateScratchBytes()});
  AdamWStep step = {.n = kElements};
  float* const grad = static_cast<float*>(memory.Values(kElements, DType::kF32));
  step.grad = grad;
  step.master = static_cast<float*>(memory.Values(kElements, DType::kF32));
  step.m = static_cast<float*>(memory.Bytes(kElements * 4));
  step.v = static_cast<float*>(memory.Bytes(kElements * 4));
  step.params = memory.Bytes(kElements * 2);
  step.lr = 1e-4;
  double* const sum = static_cast<double*>(memory.Bytes(8));
  int64_t* const first_bad = static_cast<int64_t*>(memory.Bytes(8));
  bench.Bytes("AdamW", kElements * 30, memory, [&] { return ops->AdamW(nullptr, step); });
  const auto blocks = static_cast<int64_t>(kElements / kCode8Block);
  const Code8Moments moments = {
      static_cast<uint8_t*>(memory.Bytes(kElements)), static_cast<uint8_t*>(memory.Bytes(kElements)),
      static_cast<float*>(memory.Bytes(blocks * 4)), static_cast<float*>(memory.Bytes(blocks * 4))};
  bench.Bytes("AdamW, eight-bit states", kElements * 18 + blocks * 16, memory,
              [&] { return ops->AdamW8(nullptr, step, moments); });
  bench.Bytes("cast of parameters", kElements * 6, memory,
              [&] { return ops->CastParams(nullptr, step.master, step.params, DType::kBF16, kElements); });
  bench.Bytes("sum of squares", kElements * 4, memory,
              [&] { return ops->SumSquares(nullptr, grad, kElements, sum, first_bad); });
  bench.Bytes("accumulate", kElements * 12, memory,
              [&] { return ops->Accumulate(nullptr, step.m, grad, kElements); });
}

absl::Status Run(const Gpu& gpu, Bench& bench) {
  STRATA_ASSIGN_OR_RETURN(CublasLtApi* const cublaslt, LoadCublasLt());
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<CublasLtGemm> gemm, CublasLtGemm::Create(*cublaslt));
  if (gpu.arch == 90) OwnAttentionBenches(bench, "fa3", attention::Family::kFa3);
  OwnAttentionBenches(bench, "fa2", attention::Family::kFa2);
  if (gpu.arch == 90) Fp8AttentionBenches(bench);
  // Beside them, where it is.
  if (const auto library = LoadCudnn(); !library.ok()) {
    bench.Skip("attention cudnn", std::string(library.status().message()));
  } else if (const auto cudnn = CudnnAttention::Create(**library); !cudnn.ok()) {
    bench.Fail("attention cudnn", cudnn.status());
  } else {
    CudnnAttentionBenches(bench, **cudnn);
  }
  GemmBenches(bench, *gemm);
  CudaAttention attention(gpu.arch, {});
  MemoryBenches(bench, *MakeCudaOps(DType::kBF16, *gemm, attention));
  StateBenches(bench);
  return absl::OkStatus();
}

int Main(bool card_only) {
  const auto gpu = FindGpu();
  if (!gpu.ok()) {
    std::printf("SKIPPED: %s\n", std::string(gpu.status().message()).c_str());
    return 0;
  }
  if (card_only) {
    const auto version = [](int v) { return absl::StrCat(v / 1000, ".", v % 1000 / 10); };
    std::printf(
        "{\"name\": %s, \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, \"memory_bytes\": %lld, "
        "\"driver_cuda\": \"%s\", \"runtime_cuda\": \"%s\"}\n",
        Quoted(gpu->name).c_str(), gpu->arch / 10, gpu->arch % 10, gpu->multiprocessors,
        static_cast<long long>(gpu->memory_bytes), version(gpu->driver_cuda).c_str(),
        version(gpu->runtime_cuda).c_str());
    return 0;
  }
  Bench bench;
  if (const absl::Status status = Run(*gpu, bench); !status.ok()) bench.Fail("libraries", status);
  return bench.failed() ? 1 : 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--card") != 0)) {
    std::fprintf(stderr, "usage: gpu_bench [--card]\n");
    return 2;
  }
  return strata::Main(/*card_only=*/argc == 2);
}
