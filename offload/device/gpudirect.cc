#include "offload/device/gpudirect.h"

#include "absl/strings/str_cat.h"

namespace strata {

using namespace cufile;  // NOLINT: the constants

namespace {

constexpr char kRemedy[] = "gdscheck -p shows what GPUDirect Storage is missing";

const char* Meaning(int code) {
  switch (code) {
    case kVersionMismatch:
      return "the library and nvidia-fs are of different versions";
    case kPlatformNotSupported:
      return "the platform is not supported";
    case kDeviceNotSupported:
      return "the GPU is not supported";
    case kNvfsDriverError:
      return "nvidia-fs is not loaded, or does not answer";
    case kCudaDriverError:
      return "the CUDA driver failed";
    case kPermissionDenied:
      return "permission denied";
    default:
      return "see cufile.h";
  }
}

bool Has(unsigned bits, int bit) { return (bits >> bit & 1) != 0; }

std::string Failed(const char* call, const Error& error) {
  return absl::StrCat(call, ": cuFile error ", error.code, ", ", Meaning(error.code),
                      error.code == kCudaDriverError ? absl::StrCat(" with CUDA error ", error.cuda) : "",
                      "; ", kRemedy);
}

}  // namespace

std::string DescribeGpuDirect(CufileApi& api) {
  if (const Error error = api.DriverOpen(); error.code != kSuccess) return Failed("cuFileDriverOpen", error);
  Properties properties;
  const Error asked = api.DriverGetProperties(&properties);
  const Error closed = api.DriverClose();
  if (asked.code != kSuccess) return Failed("cuFileDriverGetProperties", asked);
  if (closed.code != kSuccess) return Failed("cuFileDriverClose", closed);
  if (Has(properties.features, kP2pSupported)) return "the kernel's peer-to-peer DMA could carry it";
  const std::string nvfs = absl::StrCat("nvidia-fs ", properties.nvfs_major, ".", properties.nvfs_minor);
  // Without the module the library answers as well, and copies through host memory itself.
  if (properties.nvfs_major == 0 && properties.nvfs_minor == 0)
    return absl::StrCat("nvidia-fs is not loaded: modprobe nvidia-fs; ", kRemedy);
  if (!Has(properties.status, kNvmeSupported))
    return absl::StrCat(nvfs, " has no support for NVMe: load it after the nvme module; ", kRemedy);
  return absl::StrCat(nvfs, " could carry it");
}

}  // namespace strata
