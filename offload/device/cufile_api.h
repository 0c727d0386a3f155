// CufileApi: the calls of GPUDirect Storage's library (cuFile) that tell what a machine has of it, as an
// interface: the real library is fetched by dlopen (cufile_library.h), tests have a fake (fake_cufile.h).
// Each call is the library's function of the same name; the constants are those of cufile.h.
#ifndef OFFLOAD_DEVICE_CUFILE_API_H_
#define OFFLOAD_DEVICE_CUFILE_API_H_

namespace strata {

namespace cufile {

inline constexpr int kSuccess = 0;
inline constexpr int kVersionMismatch = 5004;       // of the library and nvidia-fs
inline constexpr int kPlatformNotSupported = 5007;  // an IOMMU, say
inline constexpr int kDeviceNotSupported = 5009;
inline constexpr int kNvfsDriverError = 5010;  // nvidia-fs is not loaded, or does not answer
inline constexpr int kCudaDriverError = 5011;  // Error::cuda says which
inline constexpr int kPermissionDenied = 5025;
// Bits of Properties::status, by the kind of storage that nvidia-fs was built for.
inline constexpr int kNvmeSupported = 4;
// Bits of Properties::features.
inline constexpr int kP2pSupported = 4;  // the kernel's own peer-to-peer DMA, without nvidia-fs

// A CUfileError_t.
struct Error {
  int code = kSuccess;
  int cuda = 0;
};

// Of a CUfileDrvProps_t.
struct Properties {
  unsigned nvfs_major = 0, nvfs_minor = 0;  // 0.0: nvidia-fs is not there
  unsigned status = 0;
  unsigned features = 0;
};

}  // namespace cufile

// Threads: any, as with the library.
class CufileApi {
 public:
  virtual ~CufileApi() = default;

  virtual cufile::Error DriverOpen() = 0;
  virtual cufile::Error DriverClose() = 0;
  virtual cufile::Error DriverGetProperties(cufile::Properties* properties) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUFILE_API_H_
