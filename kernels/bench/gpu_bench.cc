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
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status.h"
#include "kernels/attention/launch.h"
#include "kernels/bench/kernel_calls.h"
#include "kernels/cublaslt/cublaslt_gemm.h"
#include "kernels/cublaslt/cublaslt_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cudnn/cudnn_attention.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/dispatch/cuda_attention.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

// Of a model of 7e9 parameters with 16 Ki tokens.
constexpr MemoryShapes kShapes = {.rows = 16384,
                                  .hidden = 4096,
                                  .ffn = 11008,
                                  .vocab = 32000,
                                  .seq = 4096,
                                  .heads = 32,
                                  .loss_rows = 4096,
                                  .state_elements = int64_t{1} << 27};
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

class DeviceMemory final : public CallMemory {
 public:
  ~DeviceMemory() override {
    for (void* block : blocks_) (void)cudaFree(block);
  }
  void* Zeros(int64_t bytes) override {
    if (bytes == 0 || !status().ok()) return nullptr;
    void* data = nullptr;
    Keep(CudaCall(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc"));
    if (!status().ok()) {
      (void)cudaGetLastError();
      return nullptr;
    }
    blocks_.push_back(data);
    Keep(CudaCall(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset"));
    return data;
  }

 private:
  absl::Status CopyIn(void* device, const void* host, int64_t bytes) override {
    return CudaCall(cudaMemcpy(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                    "copy to device");
  }
  std::vector<void*> blocks_;
};

class Bench final : public CallVisitor {
 public:
  std::unique_ptr<CallMemory> NewMemory() override { return std::make_unique<DeviceMemory>(); }

  // `work` of a call in units of 1e12 (TFLOP/s) or 1e9 (GB/s).
  void Rate(const std::string& name, const char* unit, double work, const CallMemory& memory,
            const KernelCall& call) {
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
  void Flops(const std::string& name, double flop, const CallMemory& memory, const KernelCall& call) {
    Rate(name, "TFLOP/s", flop / 1e12, memory, call);
  }
  void Bytes(const std::string& name, int64_t bytes, const CallMemory& memory,
             const KernelCall& call) override {
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
  absl::Status Median(const KernelCall& call, double& ms) {
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
  absl::StatusOr<double> Batch(const KernelCall& call, int calls) {
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

constexpr int64_t kHeads = 16, kDim = 128;

std::vector<AttentionCase> AttentionCases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](const std::string& name, const std::vector<int32_t>& lengths, int64_t window,
                       bool packed) {
    cases.push_back({name, kHeads, kDim, lengths, window, packed});
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

absl::Status Launched(const kx::LaunchStatus& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.message);
}

void OwnAttentionBenches(Bench& bench, const std::string& who, attention::Family family) {
  for (const AttentionCase& c : AttentionCases()) {
    AttentionMemory memory(c, bench.NewMemory());
    const attention::BackwardCall call = OwnAttentionCall(c, memory);
    bench.Flops(absl::StrCat("attention forward ", who, " ", c.name), c.Flop(), *memory.lender,
                [&] { return Launched(attention::Forward(nullptr, family, kAttentionType, call.forward)); });
    bench.Flops(absl::StrCat("attention backward ", who, " ", c.name), 2.5 * c.Flop(), *memory.lender,
                [&] { return Launched(attention::Backward(nullptr, family, kAttentionType, call)); });
  }
}

// Forward is all there is of it, on whole sequences.
void Fp8AttentionBenches(Bench& bench) {
  CudaAttention attention(90, {.forced = AttentionProvider::kFa3Fp8});
  for (const AttentionCase& c : AttentionCases()) {
    if (c.packed || c.window > 0) continue;
    AttentionMemory memory(c, bench.NewMemory());
    AttentionArgs& forward = memory.args.forward;
    forward.workspace = memory.lender->Lend(
        AttentionForwardWorkspaceBytes(kAttentionType, forward.batch, forward.seq, kHeads, kHeads, kDim));
    bench.Flops(absl::StrCat("attention forward ", Name(AttentionProvider::kFa3Fp8), " ", c.name), c.Flop(),
                *memory.lender, [&] { return attention.Forward(nullptr, kAttentionType, forward); });
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
      AttentionMemory memory(c, bench.NewMemory());
      memory.args.forward.workspace = memory.lender->Lend(AttentionForwardWorkspaceBytes(
          kAttentionType, memory.args.forward.batch, memory.args.forward.seq, kHeads, kHeads, kDim));
      bench.Flops(absl::StrCat("attention forward cudnn ", c.name), c.Flop(), *memory.lender, [&] {
        return attention.Forward(nullptr, kAttentionType, memory.args.forward, {.window = c.window});
      });
    }
    for (const bool deterministic : {true, false}) {
      const std::string name =
          absl::StrCat("attention backward cudnn ", c.name, deterministic ? ", deterministic" : "");
      const CudnnAttentionOptions options{.window = c.window, .deterministic = deterministic};
      AttentionMemory memory(c, bench.NewMemory());
      const auto bytes = attention.BackwardWorkspaceBytes(kAttentionType, memory.args, options);
      if (absl::IsUnimplemented(bytes.status())) {
        bench.Skip(name, std::string(bytes.status().message()));
      } else if (!bytes.ok()) {
        bench.Fail(name, bytes.status());
      } else {
        memory.args.forward.workspace = memory.lender->Lend(*bytes);
        bench.Flops(name, 2.5 * c.Flop(), *memory.lender,
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
      DeviceMemory memory;
      GemmArgs a = {.m = s.m, .n = s.n, .k = s.k};
      a.a = memory.Values(s.m * s.k, type);
      a.b = memory.Values(s.k * s.n, type);
      a.transpose_a = s.gradient;
      a.transpose_b = !s.gradient;
      a.lda = s.gradient ? s.m : s.k;
      a.ldb = s.gradient ? s.n : s.k;
      a.c_is_acc = s.gradient;
      a.c = memory.Zeros(s.m * s.n * (s.gradient ? 4 : 2));
      a.ldc = s.n;
      a.workspace = memory.Lend(GemmWorkspaceBytes(type, s.m, s.n, s.k));
      bench.Flops(absl::StrCat("gemm ", Name(type), " ", s.name), 2.0 * static_cast<double>(s.m * s.n * s.k),
                  memory, [&] { return gemm.Gemm(nullptr, type, a); });
    }
  }
  constexpr int64_t kSide = 8192;
  DeviceMemory memory;
  Fp8GemmArgs a = {.m = kSide, .n = kSide, .k = kSide, .lda = kSide, .ldb = kSide, .ldc = kSide};
  // Pairs of them are the halves of bf16 numbers: any byte but NaN (0x7f, 0xff) will do, and zeros are
  // faster.
  std::vector<unsigned char> bytes(kSide * kSide);
  const CounterRandom random(2, 0);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((random.Below(i, 2) << 7) | random.Below(i + bytes.size(), 0x60));
  a.a = memory.CopyBytes(bytes.data(), kSide * kSide);
  a.b = memory.CopyBytes(bytes.data(), kSide * kSide);
  a.a_scale = a.b_scale = static_cast<const float*>(memory.Values(1, DType::kF32));
  a.c = memory.Zeros(kSide * kSide * 2);
  a.workspace = memory.Lend(GemmWorkspaceBytes(DType::kBF16, kSide, kSide, kSide));
  bench.Flops("gemm e4m3 8k cubed", 2.0 * kSide * kSide * kSide, memory,
              [&] { return gemm.Fp8Gemm(nullptr, a); });
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
  VisitMemoryCalls(*MakeCudaOps(DType::kBF16, *gemm, attention), kShapes, bench);
  VisitStateCalls(kShapes, bench);
  VisitFp8Calls(kShapes, bench);
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
