// Memory of a device for tests: checked by the emulator, or, with STRATA_DEVICE_ARRAY_GPU, of the GPU.
#ifndef KERNELS_CUDA_DEVICE_ARRAY_H_
#define KERNELS_CUDA_DEVICE_ARRAY_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#ifdef STRATA_DEVICE_ARRAY_GPU

#include <cuda_runtime_api.h>

#include "common/check.h"

namespace strata {

namespace kx::emu {
enum class RangeKind : uint8_t { kInput, kOutput, kInOut };
}  // namespace kx::emu

// As below, in managed memory. An error of the work before ends the process where it comes out.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const std::string&, int64_t n, kx::emu::RangeKind, int64_t offset = 0) : n_(n) {
    const size_t bytes = (n + offset) * sizeof(T) + 1;
    STRATA_CHECK(cudaMallocManaged(&storage_, bytes) == cudaSuccess);
    std::memset(storage_, '\xA5', bytes);
    data_ = static_cast<T*>(storage_) + offset;
  }
  DeviceArray(const std::string& name, const std::vector<T>& values, kx::emu::RangeKind kind,
              int64_t offset = 0)
      : DeviceArray(name, static_cast<int64_t>(values.size()), kind, offset) {
    if (n_ > 0) std::memcpy(data_, values.data(), n_ * sizeof(T));
  }
  ~DeviceArray() { (void)cudaFree(storage_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  std::vector<T> Values() const {
    STRATA_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    return std::vector<T>(data_, data_ + n_);
  }

 private:
  void* storage_ = nullptr;
  T* data_;
  int64_t n_;
};

}  // namespace strata

#else

#include "kernels/kx/emu/emu.h"

namespace strata {

// n elements, `offset` elements behind a 64-byte boundary, which kernels may touch as `kind` says and nothing
// around them.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const std::string& name, int64_t n, kx::emu::RangeKind kind, int64_t offset = 0)
      : storage_((n + offset) * sizeof(T) + 64, '\xA5'), n_(n) {
    const uintptr_t start = (reinterpret_cast<uintptr_t>(storage_.data()) + 63) / 64 * 64;
    data_ = reinterpret_cast<T*>(start) + offset;
    if (n > 0) range_ = std::make_unique<kx::emu::GlobalRange>(name, data_, n * sizeof(T), kind);
  }
  DeviceArray(const std::string& name, const std::vector<T>& values, kx::emu::RangeKind kind,
              int64_t offset = 0)
      : DeviceArray(name, static_cast<int64_t>(values.size()), kind, offset) {
    if (n_ > 0) std::memcpy(data_, values.data(), n_ * sizeof(T));
  }

  T* data() { return data_; }
  std::vector<T> Values() const { return std::vector<T>(data_, data_ + n_); }

 private:
  std::vector<char> storage_;
  int64_t n_;
  T* data_;
  std::unique_ptr<kx::emu::GlobalRange> range_;
};

}  // namespace strata

#endif  // STRATA_DEVICE_ARRAY_GPU

#endif  // KERNELS_CUDA_DEVICE_ARRAY_H_
