#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/f16c.h"

namespace strata {
namespace {

// Linux keeps the 8 KiB of tile state off until a process asks for it (arch_prctl(2)).
bool RequestAmx() {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  const bool amx_bf16 = edx >> 22 & 1, amx_tile = edx >> 24 & 1;
  if (!amx_bf16 || !amx_tile) return false;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

CpuIsa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16c()) return CpuIsa::kBase;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return CpuIsa::kAvx2;
  }
  unsigned eax, ebx, ecx, edx;
  const bool bf16 = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
  if (!bf16) return CpuIsa::kAvx512;
  return RequestAmx() ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}

}  // namespace

CpuIsa DetectCpuIsa() {
  static const CpuIsa isa = Detect();
  return isa;
}

const char* Name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBase:
      return "x86-64";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512-bf16";
    case CpuIsa::kAmx:
      return "amx-bf16";
  }
  return "?";
}

}  // namespace strata
