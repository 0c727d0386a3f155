#include "kernels/elementwise/launch.h"

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

LaunchStatus Dropout(kx::Stream stream, DType dtype, const DropoutArgs& args) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    DropoutBody<T> body = {};
    body.x = static_cast<const T*>(args.x);
    body.out = static_cast<T*>(args.out);
    body.first = args.first;
    body.seed = args.seed;
    body.step = args.step;
    body.tensor = args.tensor;
    body.threshold = args.keep_below();
    body.scale = static_cast<float>(args.scale());
    return LaunchElements(stream, body, 1, args.n, Aligned({args.x, args.out}));
  });
}

}  // namespace strata::gpu
