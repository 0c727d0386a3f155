// CufileApi: the calls of GPUDirect Storage's library (cuFile) that are made here, as an interface: the real
// library is fetched by dlopen (cufile_library.h), tests have a fake (fake_cufile.h). Each call is the
// library's function of the same name; the constants are those of cufile.h.
#ifndef OFFLOAD_DEVICE_CUFILE_API_H_
#define OFFLOAD_DEVICE_CUFILE_API_H_

#include <sys/types.h>

#include <cstddef>

namespace strata {

namespace cufile {

inline constexpr int kSuccess = 0;
inline constexpr int kVersionMismatch = 5004;       // of the library and nvidia-fs
inline constexpr int kPlatformNotSupported = 5007;  // an IOMMU, say
inline constexpr int kFileNotSupported = 5008;
inline constexpr int kDeviceNotSupported = 5009;
inline constexpr int kNvfsDriverError = 5010;  // nvidia-fs is not loaded, or does not answer
inline constexpr int kCudaDriverError = 5011;  // Error::cuda says which
inline constexpr int kPointerInvalid = 5012;
inline constexpr int kContextMismatch = 5015;
inline constexpr int kFileTypeInvalid = 5018;
inline constexpr int kNotDirect = 5020;  // the file was opened without O_DIRECT
inline constexpr int kPermissionDenied = 5025;
inline constexpr int kHandleAlreadyRegistered = 5028;
inline constexpr int kPinningFailed = 5036;  // of the GPU's memory
inline constexpr int kIoError = 5044;
inline constexpr int kInvalidContext = 5047;
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

// A CUfileHandle_t: a file.
using Handle = void*;

// A CUfileDescr_t.
inline constexpr int kHandleTypeFd = 1;
struct Description {
  int type = kHandleTypeFd;
  union {
    int fd;
    void* pointer;
  } handle = {};
  const void* file_system = nullptr;
};

}  // namespace cufile

// Threads: any, as with the library.
class CufileApi {
 public:
  virtual ~CufileApi() = default;

  virtual cufile::Error DriverOpen() = 0;
  virtual cufile::Error DriverClose() = 0;
  virtual cufile::Error DriverGetProperties(cufile::Properties* properties) = 0;

  virtual cufile::Error HandleRegister(cufile::Handle* handle, int fd) = 0;
  virtual void HandleDeregister(cufile::Handle handle) = 0;
  // Device memory from where an allocation begins.
  virtual cufile::Error BufRegister(const void* base, size_t bytes) = 0;
  virtual cufile::Error BufDeregister(const void* base) = 0;
  // Block. The bytes moved; -1: errno says why not; else the error's code, negative. `base` is a registered
  // one's.
  virtual ssize_t Read(cufile::Handle handle, void* base, size_t bytes, off_t file_offset,
                       off_t base_offset) = 0;
  virtual ssize_t Write(cufile::Handle handle, const void* base, size_t bytes, off_t file_offset,
                        off_t base_offset) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUFILE_API_H_
