// Memory of the emulated device for tests.
#ifndef KERNELS_CUDA_DEVICE_ARRAY_H_
#define KERNELS_CUDA_DEVICE_ARRAY_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

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

#endif  // KERNELS_CUDA_DEVICE_ARRAY_H_
