#include "offload/device/cuda_plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "common/status.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/cufile_library.h"

namespace strata {
namespace {

absl::Status NoGpu(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("no GPU: ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Accelerator>> OpenCudaPlugin(const std::string& folder, CudaPluginLog log) {
  const std::string path = absl::StrCat(folder, "/", kCudaPluginFile);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return NoGpu(
        absl::StrCat(path,
                     " is not there: build //offload/device/cuda:libstrata_cuda.so on a machine with "
                     "nvcc and put it beside the program"));
  }
  if (!S_ISREG(info.st_mode)) return NoGpu(absl::StrCat(path, " is not a file"));
  // Never closed: CUDA has threads and exit handlers of its own.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoGpu(absl::StrCat("the plugin does not load: ", dlerror()));
  const auto entry = reinterpret_cast<decltype(&strata_cuda_plugin)>(dlsym(library, kCudaPluginSymbol));
  if (entry == nullptr) {
    return NoGpu(absl::StrCat(path, " has no symbol ", kCudaPluginSymbol,
                              ": it is not Strata's; put the one of this build there"));
  }
  const CudaPluginTable* const table = entry();
  if (table == nullptr) {
    return NoGpu(absl::StrCat(path, " gives no table: put the one of this build there"));
  }
  if (table->abi != kCudaPluginAbi || table->bytes != sizeof(CudaPluginTable)) {
    return NoGpu(absl::StrCat(path, " is of another build: ABI ", table->abi, " of ", table->bytes,
                              " bytes, this program needs ", kCudaPluginAbi, " of ", sizeof(CudaPluginTable),
                              "; put the one of this build there"));
  }
  STRATA_ASSIGN_OR_RETURN(
      auto accelerator,
      CreateCudaAccelerator(
          table->api(),
          {.make_ops = table->make_ops, .states = {table->state_scratch_bytes(), table->make_state_ops}},
          [] { return LoadCufile(); }));
  if (const absl::Status ready = table->ready(); !ready.ok()) return NoGpu(std::string(ready.message()));
  if (log != nullptr) table->set_log(log);
  return accelerator;
}

std::string ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, size > 0 ? static_cast<size_t>(size) : 0);
  return program.substr(0, program.rfind('/') == std::string::npos ? 0 : program.rfind('/'));
}

}  // namespace strata
