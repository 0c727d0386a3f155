#include "kernels/columns/launch.h"

#include "kernels/columns/launch_columns.h"

namespace strata::gpu {

LaunchStatus BiasBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t n, const void* dy,
                          int64_t ldy, void* dbias, void* workspace) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const PlainTerm<T> term = {static_cast<const T*>(dy), ldy};
    const bool vector = Aligned({dy}) && n % kWide<T> == 0 && ldy % kWide<T> == 0;
    return SumColumns(stream, term, rows, n, vector, static_cast<float*>(workspace),
                      {static_cast<float*>(dbias)});
  });
}

}  // namespace strata::gpu
