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
    case kFileNotSupported:
    case kFileTypeInvalid:
      return "the file system is not supported";
    case kNotDirect:
      return "the file is not open for O_DIRECT";
    case kPinningFailed:
      return "the GPU's memory cannot be mapped so far: its BAR1 is too small, or in use (nvidia-smi -q)";
    case kIoError:
      return "the drive or its driver failed";
    default:
      return "see cufile.h";
  }
}

bool Has(unsigned bits, int bit) { return (bits >> bit & 1) != 0; }

absl::Status Failed(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(why, "; ", kRemedy));
}

}  // namespace

std::string CufileErrorText(const char* call, const Error& error) {
  return absl::StrCat(call, ": cuFile error ", error.code, ", ", Meaning(error.code),
                      error.code == kCudaDriverError ? absl::StrCat(" with CUDA error ", error.cuda) : "");
}

absl::StatusOr<std::string> CheckGpuDirect(CufileApi& api) {
  if (const Error error = api.DriverOpen(); error.code != kSuccess)
    return Failed(CufileErrorText("cuFileDriverOpen", error));
  Properties properties;
  const Error asked = api.DriverGetProperties(&properties);
  const Error closed = api.DriverClose();
  if (asked.code != kSuccess) return Failed(CufileErrorText("cuFileDriverGetProperties", asked));
  if (closed.code != kSuccess) return Failed(CufileErrorText("cuFileDriverClose", closed));
  if (Has(properties.features, kP2pSupported)) return "the kernel's peer-to-peer DMA";
  const std::string nvfs = absl::StrCat("nvidia-fs ", properties.nvfs_major, ".", properties.nvfs_minor);
  // Without the module the library answers as well, and copies through host memory itself.
  if (properties.nvfs_major == 0 && properties.nvfs_minor == 0)
    return Failed("nvidia-fs is not loaded: modprobe nvidia-fs");
  if (!Has(properties.status, kNvmeSupported))
    return Failed(absl::StrCat(nvfs, " has no support for NVMe: load it after the nvme module"));
  return nvfs;
}

}  // namespace strata
