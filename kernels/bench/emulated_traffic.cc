// Bank conflicts and sectors of every kernel, counted on the emulator (kernels/kx/emu/traffic.h) at small
// shapes whose rows and heads are a model's. A line per call:
//   name | shared: passes, wavefronts | ldmatrix: matrices, wavefronts | global: bytes asked for, bytes of
//   their sectors
// Wavefronts equal passes (or matrices) where no bank is hit twice. What TMA and wgmma move is not in it.
// usage: emulated_traffic [--lines]   (--lines: below each call the source lines that make the difference)
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention/launch.h"
#include "kernels/bench/kernel_calls.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reference_gemm.h"
#include "kernels/dispatch/cuda_attention.h"
#include "kernels/kx/emu/emu.h"

namespace strata {
namespace {

constexpr MemoryShapes kShapes = {.rows = 32,
                                  .hidden = 4096,
                                  .ffn = 1024,
                                  .vocab = 2048,
                                  .seq = 32,
                                  .heads = 32,
                                  .loss_rows = 8,
                                  .state_elements = 16384};

class HostMemory final : public CallMemory {
 public:
  // Aligned as cudaMalloc does.
  void* Zeros(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    const auto size = static_cast<size_t>((bytes + 255) / 256 * 256);
    blocks_.emplace_back(std::aligned_alloc(256, size));
    return std::memset(blocks_.back().get(), 0, size);
  }

 private:
  absl::Status CopyIn(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  struct Release {
    void operator()(void* block) const { std::free(block); }
  };
  std::vector<std::unique_ptr<void, Release>> blocks_;
};

class Counter final : public CallVisitor {
 public:
  explicit Counter(bool lines) : lines_(lines) {}
  std::unique_ptr<CallMemory> NewMemory() override { return std::make_unique<HostMemory>(); }
  void Bytes(const std::string& name, int64_t, const CallMemory&, const KernelCall& call) override {
    Count(name, call);
  }
  void Count(const std::string& name, const KernelCall& call) {
    // Races are the conformance suite's to find.
    const kx::emu::Session session({.shared_races = false, .global_races = false, .traffic = true});
    const absl::Status status = call();
    if (!status.ok() || !session.report().ok()) {
      std::fprintf(stderr, "%s: %s %s\n", name.c_str(), std::string(status.message()).c_str(),
                   session.report().FirstError().c_str());
      failed_ = true;
      return;
    }
    const kx::emu::Stats& s = session.report().stats;
    std::printf("%s | %" PRIu64 " %" PRIu64 " | %" PRIu64 " %" PRIu64 " | %" PRIu64 " %" PRIu64 "\n",
                name.c_str(), s.shared_passes, s.shared_wavefronts, s.ldmatrix, s.ldmatrix_wavefronts,
                s.global_bytes, s.global_sector_bytes);
    if (!lines_) return;
    for (const auto& [place, wavefronts] : s.conflicts) {
      std::printf("  %s: %" PRIu64 " more wavefronts\n", place.c_str(), wavefronts);
    }
    for (const auto& [place, bytes] : s.unused_sector_bytes) {
      std::printf("  %s: %" PRIu64 " bytes of sectors not asked for\n", place.c_str(), bytes);
    }
  }
  bool failed() const { return failed_; }

 private:
  const bool lines_;
  bool failed_ = false;
};

absl::Status ToStatus(const kx::LaunchStatus& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.message);
}

void CountAttention(Counter& counter) {
  const struct {
    attention::Family family;
    const char* name;
  } families[] = {{attention::Family::kFa2, "fa2"},
                  {attention::Family::kFa3, "fa3"},
                  {attention::Family::kFa3Fp8, "fa3-fp8"}};
  for (const auto& [family, name] : families) {
    for (const int64_t head_dim : {64, 96, 128, 256}) {
      const AttentionCase c = {.heads = 1, .head_dim = head_dim, .lengths = {256}};
      AttentionMemory memory(c, counter.NewMemory());
      attention::BackwardCall call = OwnAttentionCall(c, memory);
      if (family == attention::Family::kFa3Fp8) {
        call.forward.workspace_bytes = attention::Fp8WorkspaceBytes(call.forward.shape, false);
        call.forward.workspace = memory.lender->Zeros(call.forward.workspace_bytes);
      }
      counter.Count(absl::StrCat("attention forward ", name, " d", head_dim), [&] {
        return ToStatus(attention::Forward(nullptr, family, kAttentionType, call.forward));
      });
      if (family == attention::Family::kFa3Fp8 || head_dim > 128) continue;  // forward is all there is
      counter.Count(absl::StrCat("attention backward ", name, " d", head_dim),
                    [&] { return ToStatus(attention::Backward(nullptr, family, kAttentionType, call)); });
    }
  }
}

int Main(bool lines) {
  Counter counter(lines);
  ReferenceGemm gemm;
  CudaAttention attention(/*arch=*/80, {});
  VisitMemoryCalls(*MakeCudaOps(DType::kBF16, gemm, attention), kShapes, counter);
  VisitStateCalls(kShapes, counter);
  VisitFp8Calls(kShapes, counter);
  CountAttention(counter);
  return counter.failed() ? 1 : 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--lines") != 0)) {
    std::fprintf(stderr, "usage: emulated_traffic [--lines]\n");
    return 2;
  }
  return strata::Main(/*lines=*/argc == 2);
}
