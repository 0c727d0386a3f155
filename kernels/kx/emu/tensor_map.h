// What the emulator keeps in the 128 bytes of a TensorMap (kx_hopper.h).
#ifndef KERNELS_KX_EMU_TENSOR_MAP_H_
#define KERNELS_KX_EMU_TENSOR_MAP_H_

#include <cstdint>

namespace strata::kx::emu {

struct TensorMapFields {
  static constexpr uint32_t kMagic = 0x6b786d70;
  uint32_t magic;
  uint16_t rank;
  uint16_t element_bytes;
  void* base;
  uint32_t extent[5];      // elements, innermost first
  uint64_t stride[4];      // bytes between elements of dimension 1, 2, ...
  uint16_t box[5];         // elements
  uint16_t swizzle_bytes;  // 0 or 128
};
static_assert(sizeof(TensorMapFields) <= 128);

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_TENSOR_MAP_H_
