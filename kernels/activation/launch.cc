#include "kernels/activation/launch.h"

#include "kernels/activation/activation.h"
#include "kernels/gpu/launch_elements.h"

namespace strata::gpu {

LaunchStatus GeluForward(kx::Stream stream, DType dtype, GeluKind kind, int64_t n, const void* x, void* y) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const GeluForwardBody<T> body = {static_cast<const T*>(x), static_cast<T*>(y), kind == GeluKind::kErf};
    return LaunchElements(stream, body, 1, n, Aligned({x, y}));
  });
}

LaunchStatus GeluBackward(kx::Stream stream, DType dtype, GeluKind kind, int64_t n, const void* x,
                          const void* dy, void* dx) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const GeluBackwardBody<T> body = {static_cast<const T*>(x), static_cast<const T*>(dy),
                                      static_cast<T*>(dx), kind == GeluKind::kErf};
    return LaunchElements(stream, body, 1, n, Aligned({x, dy, dx}));
  });
}

LaunchStatus SwigluForward(kx::Stream stream, DType dtype, int64_t rows, int64_t ffn, const void* x,
                           void* y) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const SwigluForwardBody<T> body = {static_cast<const T*>(x), static_cast<T*>(y), ffn};
    return LaunchElements(stream, body, rows, ffn, Aligned({x, y}) && ffn % kWide<T> == 0);
  });
}

LaunchStatus SwigluBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t ffn, const void* x,
                            const void* dy, void* dx) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const SwigluBackwardBody<T> body = {static_cast<const T*>(x), static_cast<const T*>(dy),
                                        static_cast<T*>(dx), ffn};
    return LaunchElements(stream, body, rows, ffn, Aligned({x, dy, dx}) && ffn % kWide<T> == 0);
  });
}

}  // namespace strata::gpu
