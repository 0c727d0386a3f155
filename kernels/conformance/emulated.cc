#include "kernels/conformance/emulated.h"

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reference_gemm.h"
#include "kernels/dispatch/cuda_attention.h"
#include "kernels/kx/emu/emu.h"

namespace strata::conformance {
namespace {

using kx::emu::GlobalRange;
using kx::emu::RangeKind;

class EmulatedMemory final : public Memory {
 public:
  void* Allocate(int64_t bytes) override { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
  void Free(void* data) override { std::free(data); }
  void CopyIn(void* device, const void* host, int64_t bytes) override { std::memcpy(device, host, bytes); }
  void CopyOut(void* host, const void* device, int64_t bytes, Stream*) override {
    std::memcpy(host, device, bytes);
  }
  std::shared_ptr<void> Expose(const std::string& name, void* begin, int64_t bytes, Access access) override {
    if (bytes == 0) return nullptr;
    const RangeKind kind = access == Access::kRead    ? RangeKind::kInput
                           : access == Access::kWrite ? RangeKind::kOutput
                                                      : RangeKind::kInOut;
    return std::make_shared<GlobalRange>(name, begin, bytes, kind);
  }
};

}  // namespace

Backend EmulatedBackend(const char* name, DType compute, const char* no_attention) {
  static EmulatedMemory memory;
  static ReferenceGemm gemm;
  static CudaAttention attention(/*arch=*/80, {});
  Backend backend = {name, compute, [=](int) { return MakeCudaOps(compute, gemm, attention); }, &memory};
  backend.settings.clear();
  for (const auto order : kx::emu::kAllOrders) backend.settings.push_back(static_cast<int>(order));
  backend.setting_name = "wake order";
  backend.repeat = false;
  backend.run = [](int setting, const std::function<absl::Status()>& call) {
    kx::emu::Options options;
    options.order = static_cast<kx::emu::Order>(setting);
    options.seed = Draw::Seed();
    options.only_registered = true;
    const kx::emu::Session session(options);
    return call();
  };
  backend.emulated = true;
  backend.no_attention = no_attention;
  backend.attention_unit = 8;
  return backend;
}

}  // namespace strata::conformance
