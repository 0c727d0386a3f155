// Tensor maps: how TMA sees a tensor in global memory. A kernel takes one as `KX_GRID_CONSTANT
// kx::TensorMap`.
#ifndef KERNELS_KX_TENSOR_MAP_H_
#define KERNELS_KX_TENSOR_MAP_H_

#include <cstdint>
#include <string>

#include "kernels/kx/types.h"

namespace strata::kx {

// 128 opaque bytes: a CUtensorMap on the GPU, where it must be aligned.
#if KX_GPU
struct alignas(64) TensorMap {
#else
struct TensorMap {
#endif
  unsigned char opaque[128];
};

// A tensor of `rank` dimensions, innermost first, and the box that one copy moves.
struct TensorMapSpec {
  const void* base = nullptr;     // device pointer, a multiple of 16
  int rank = 2;                   // 2..4
  int element_bytes = 2;          // 1, 2 or 4
  uint64_t extent[4] = {};        // elements, 1..2^32 - 1
  uint64_t stride_bytes[3] = {};  // of dimensions 1, 2, 3: multiples of 16, below 2^40
  uint32_t box[4] = {};           // elements, 1..256; the innermost spans a multiple of 16 bytes
  bool swizzle128 = true;         // then the innermost box spans 128 bytes
};

// "" or what is wrong with the specification, naming the field.
inline std::string CheckTensorMapSpec(const TensorMapSpec& spec) {
  const auto bad = [](const char* field, int i, const char* rule) {
    return "tensor map: " + std::string(field) + "[" + std::to_string(i) + "] " + rule;
  };
  if (spec.rank < 2 || spec.rank > 4) return "tensor map: rank must be 2, 3 or 4";
  if (spec.element_bytes != 1 && spec.element_bytes != 2 && spec.element_bytes != 4) {
    return "tensor map: element_bytes must be 1, 2 or 4";
  }
  if (spec.base == nullptr || reinterpret_cast<uintptr_t>(spec.base) % 16 != 0) {
    return "tensor map: base must be a multiple of 16 and not null";
  }
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.extent[i] == 0 || spec.extent[i] > 0xffffffffu) return bad("extent", i, "must be in [1, 2^32)");
    if (spec.box[i] == 0 || spec.box[i] > 256) return bad("box", i, "must be in [1, 256]");
    if (i > 0 && (spec.stride_bytes[i - 1] % 16 != 0 || spec.stride_bytes[i - 1] >= uint64_t{1} << 40)) {
      return bad("stride_bytes", i - 1, "must be a multiple of 16 below 2^40");
    }
  }
  const uint32_t inner = spec.box[0] * static_cast<uint32_t>(spec.element_bytes);
  if (inner % 16 != 0) return bad("box", 0, "must span a multiple of 16 bytes");
  // Less is allowed, but where its rows then lie is not said by any document.
  if (spec.swizzle128 && inner != 128) return bad("box", 0, "must span 128 bytes under the 128-byte swizzle");
  return "";
}

}  // namespace strata::kx

#endif  // KERNELS_KX_TENSOR_MAP_H_
