// For launch.cc files: choosing a kernel's element type and width, and launching elementwise bodies.
#ifndef KERNELS_GPU_LAUNCH_ELEMENTS_H_
#define KERNELS_GPU_LAUNCH_ELEMENTS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/dtype.h"
#include "kernels/gpu/elements.h"
#include "kernels/kx/launch.h"

namespace strata::gpu {

// cudaErrorInvalidValue.
inline constexpr int kBadArgument = 1;

template <class T>
struct TypeTag {
  using Type = T;
};

// f(TypeTag<T>) for the element type of a compute dtype.
template <class F>
LaunchStatus WithElementType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(TypeTag<float>());
    case DType::kBF16:
      return f(TypeTag<bf16>());
    case DType::kF16:
      return f(TypeTag<f16>());
    default:
      return {kBadArgument, "kernels compute in f32, bf16 or f16"};
  }
}

// Blocks of a grid's dimension. More than fit 32 bits become a number that CUDA refuses.
inline uint32_t Blocks(int64_t n, int64_t per_block) {
  return static_cast<uint32_t>(std::min<int64_t>((n + per_block - 1) / per_block, 0xffffffff));
}

// Whether all pointers are multiples of `bytes`. Null is.
inline bool Aligned(std::initializer_list<const void*> pointers, int64_t bytes = 16) {
  for (const void* p : pointers) {
    if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) != 0) return false;
  }
  return true;
}

// `vector`: the pointers are aligned to kWidth elements and, with several rows, so are the rows.
template <class Body>
LaunchStatus LaunchElements(kx::Stream stream, const Body& body, int64_t rows, int64_t width, bool vector) {
  const int64_t per_thread = vector ? Body::kWidth : 1;
  // At least as many threads as there are elements left behind whole vectors.
  const int64_t pieces = width / per_thread > Body::kWidth ? width / per_thread
                         : width < Body::kWidth            ? width
                                                           : Body::kWidth;
  const ElementGrid grid = {width, Blocks(pieces, kBlockThreads)};
  const LaunchConfig config = {{Blocks(rows * grid.blocks_per_row, 1)}, {kBlockThreads}, 0, stream};
  return vector ? Launch(config, ForElements<Body, true>, body, grid)
                : Launch(config, ForElements<Body, false>, body, grid);
}

}  // namespace strata::gpu

#endif  // KERNELS_GPU_LAUNCH_ELEMENTS_H_
