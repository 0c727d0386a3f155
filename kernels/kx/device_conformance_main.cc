// Runs every conformance kernel on the GPU of this machine, if there is one. nvcc compiles it.
//   exit 0: all passed, or there is no GPU (the last line says which); 1: something differs
#include <cstdio>

#include "kernels/kx/conformance_check.h"
#include "kernels/kx/launch.h"

namespace strata::kx::conformance {
namespace {

int Run() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    // Any error means "no GPU"; without a driver it is 35.
    std::printf("SKIPPED: no GPU: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none found");
    return 0;
  }
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::printf("FAILED: device 0 has no properties\n");
    return 1;
  }
  std::printf("%s, sm_%d%d\n", device.name, device.major, device.minor);
  if (device.major != 9) {
    std::printf("SKIPPED: these kernels are built for sm_90a\n");
    return 0;
  }
  struct Check {
    const char* name;
    std::string (*run)();
  };
  const Check checks[] = {{"mma, ldmatrix, cp.async", &CheckMma},
                          {"shuffles, votes, atomics across blocks", &CheckReduce},
                          {"wgmma, TMA loads and stores", &CheckWgmma},
                          {"conversions to and from e4m3 and e5m2", &CheckConvert8},
                          {"mbarrier ring, stmatrix, setmaxnreg", &CheckPipeline},
                          {"rounded and approximate arithmetic, 16-bit conversions", &CheckArithmetic},
                          {"every atomic, shuffle and vote", &CheckGather},
                          {"every form of stmatrix and ldmatrix, named barriers", &CheckMatrices},
                          {"TMA boxes across the edges of tensors of rank 2 to 4", &CheckBoxes},
                          {"tensor maps of a thread without a context", &CheckFreshThread}};
  int failed = 0, passed = 0;
  for (const Check& check : checks) {
    const std::string wrong = check.run();
    std::printf("%s %s %s\n", wrong.empty() ? "PASSED" : "FAILED", check.name, wrong.c_str());
    ++(wrong.empty() ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 ? 1 : 0;
}

}  // namespace
}  // namespace strata::kx::conformance

int main() { return strata::kx::conformance::Run(); }
