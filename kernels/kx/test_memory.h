// Memory of tests that run on either target: checked by the emulator, or managed memory of a device.
#ifndef KERNELS_KX_TEST_MEMORY_H_
#define KERNELS_KX_TEST_MEMORY_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kx/launch.h"

namespace strata::kx {

#if KX_GPU

namespace emu {
enum class RangeKind : uint8_t { kInput, kOutput, kInOut };

// As below, on a device. Read the results after Finish().
template <class T>
class Buffer {
 public:
  Buffer(const char*, const std::vector<T>& values, RangeKind kind) : count_(values.size()) {
    // Without memory the launch that uses it reports the fault.
    if (cudaMallocManaged(&data_, count_ * sizeof(T)) != cudaSuccess) return;
    if (kind == RangeKind::kOutput) {
      memset(data_, 0xff, count_ * sizeof(T));
    } else {
      memcpy(data_, values.data(), count_ * sizeof(T));
    }
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  size_t count() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t count_;
};
}  // namespace emu

// Waits for the launches so far; their faults come out here.
inline LaunchStatus Finish() { return FromCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

#else

namespace emu {
// An array aligned to 256 bytes, as device memory is, registered under `name` while it lives. An output
// starts as NaNs that no kernel may read.
template <class T>
class Buffer {
 public:
  Buffer(const char* name, const std::vector<T>& values, RangeKind kind)
      : storage_(values.size() * sizeof(T) + kAlign),
        data_(Aligned(storage_.data())),
        count_(values.size()),
        range_(name, data_, count_ * sizeof(T), kind) {
    if (kind == RangeKind::kOutput) {
      memset(data_, 0xff, count_ * sizeof(T));
    } else {
      memcpy(data_, values.data(), count_ * sizeof(T));
    }
  }
  T* data() { return data_; }
  size_t count() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const GlobalRange& range() const { return range_; }

 private:
  static constexpr size_t kAlign = 256;
  static T* Aligned(unsigned char* p) {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + kAlign - 1) / kAlign * kAlign);
  }
  std::vector<unsigned char> storage_;
  T* data_;
  size_t count_;
  GlobalRange range_;
};

}  // namespace emu

// An emulated launch has already run.
inline LaunchStatus Finish() { return {}; }

#endif

}  // namespace strata::kx

#endif  // KERNELS_KX_TEST_MEMORY_H_
