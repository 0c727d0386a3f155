// The conformance suite on the CPU backend, each instruction set of it.
#include "kernels/conformance/harness.h"
#include "kernels/cpu/cpu_ops.h"

namespace strata::conformance {
namespace {

Backend Cpu(const char* name, DType compute, CpuIsa isa) {
  return {name, compute, [=](int threads) -> std::unique_ptr<Ops> {
            return DetectCpuIsa() >= isa ? MakeCpuOps(compute, threads, isa) : nullptr;
          }};
}

}  // namespace

// A backend is one line here.
std::vector<Backend> Backends() {
  return {
      Cpu("CpuF32Base", DType::kF32, CpuIsa::kBase),
      Cpu("CpuF32Avx2", DType::kF32, CpuIsa::kAvx2),
      Cpu("CpuF32Avx512", DType::kF32, CpuIsa::kAvx512),
      Cpu("CpuBf16Base", DType::kBF16, CpuIsa::kBase),
      Cpu("CpuBf16Avx2", DType::kBF16, CpuIsa::kAvx2),
      Cpu("CpuBf16Avx512", DType::kBF16, CpuIsa::kAvx512),
      Cpu("CpuBf16Avx512Bf16", DType::kBF16, CpuIsa::kAvx512Bf16),
      Cpu("CpuBf16Amx", DType::kBF16, CpuIsa::kAmx),
      Cpu("CpuF16Base", DType::kF16, CpuIsa::kBase),
      Cpu("CpuF16Avx2", DType::kF16, CpuIsa::kAvx2),
      Cpu("CpuF16Avx512", DType::kF16, CpuIsa::kAvx512),
      Cpu("CpuF16Avx512Bf16", DType::kF16, CpuIsa::kAvx512Bf16),
  };
}

}  // namespace strata::conformance
