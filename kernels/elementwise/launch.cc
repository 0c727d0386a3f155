#include "kernels/elementwise/launch.h"

#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gpu/launch_elements.h"

namespace strata::gpu {

LaunchStatus Add(kx::Stream stream, DType dtype, int64_t n, const void* a, const void* b, void* out) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const AddBody<T> body = {static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out)};
    return LaunchElements(stream, body, 1, n, Aligned({a, b, out}));
  });
}

LaunchStatus Clear(kx::Stream stream, void* data, int64_t bytes) {
  if (bytes <= 0) return {};
  return LaunchElements(stream, ClearBody{static_cast<uint8_t*>(data)}, 1, bytes, Aligned({data}));
}

LaunchStatus Dropout(kx::Stream stream, DType dtype, const DropoutDraw& draw, int64_t n, const void* x,
                     void* out) {
  if (n < 1 || draw.first < 0 || !(draw.drop >= 0 && draw.drop < 1)) {
    return {kBadArgument, "dropout: needs n >= 1, first >= 0 and 0 <= drop < 1; n=" + std::to_string(n) +
                              " first=" + std::to_string(draw.first) + " drop=" + std::to_string(draw.drop)};
  }
  const double keep = 1 - draw.drop;
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    DropoutBody<T> body = {};
    body.x = static_cast<const T*>(x);
    body.out = static_cast<T*>(out);
    body.first = draw.first;
    body.seed = draw.seed;
    body.step = draw.step;
    body.tensor = draw.tensor;
    body.threshold = static_cast<uint64_t>(std::llround(keep * 0x1p32));
    body.scale = static_cast<float>(1 / keep);
    return LaunchElements(stream, body, 1, n, Aligned({x, out}));
  });
}

}  // namespace strata::gpu
