// Element types of device and host memory.
#ifndef KERNELS_DTYPE_H_
#define KERNELS_DTYPE_H_

#include <cstdint>

namespace strata {

enum class DType : uint8_t {
  kF64,  // only the reference backend computes in it
  kF32,
  kBF16,
  kF16,
  kI32,
};

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI32:
      return 4;
  }
  return 0;
}

constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

}  // namespace strata

#endif  // KERNELS_DTYPE_H_
