#include "kernels/norm/launch.h"

#include <algorithm>

#include "kernels/columns/launch_columns.h"
#include "kernels/norm/norm.h"

namespace strata::gpu {
namespace {

// Two vectors (or elements) per thread, more in rows that are longer than a block.
uint32_t RowThreads(int64_t pieces) {
  return static_cast<uint32_t>(std::clamp<int64_t>((pieces / 2 + 31) / 32 * 32, 32, kNormThreadsMax));
}

// Whether a row is whole vectors and fits the registers of a block.
template <class T>
bool RowIsWide(int64_t width) {
  return width % kWide<T> == 0 && width <= int64_t{kRowVectors} * kWide<T> * kNormThreadsMax;
}

LaunchConfig RowConfig(int64_t rows, uint32_t threads, kx::Stream stream) {
  return {{Blocks(rows, 1)}, {threads}, kNormSharedBytes, stream};
}

template <bool kLayerNorm, class T>
LaunchStatus ParameterGradients(kx::Stream stream, const NormBackwardArgs& args, bool vector) {
  const NormTerm<T, kLayerNorm> term = {static_cast<const T*>(args.x), static_cast<const T*>(args.dy),
                                        static_cast<const float*>(args.mean),
                                        static_cast<const float*>(args.rstd), args.width};
  float* const partial = static_cast<float*>(args.workspace.data);
  if constexpr (kLayerNorm) {
    return SumColumns(stream, term, args.rows, args.width, vector, partial,
                      {static_cast<float*>(args.dweight), static_cast<float*>(args.dbias)});
  } else {
    return SumColumns(stream, term, args.rows, args.width, vector, partial,
                      {static_cast<float*>(args.dweight)});
  }
}

}  // namespace

LaunchStatus NormForward(kx::Stream stream, DType dtype, const NormArgs& args) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    NormForwardParams<T> p = {};
    p.x = static_cast<const T*>(args.x);
    p.residual = static_cast<const T*>(args.residual);
    p.sum = static_cast<T*>(args.sum);
    p.weight = static_cast<const T*>(args.weight);
    p.bias = static_cast<const T*>(args.bias);
    p.y = static_cast<T*>(args.y);
    p.mean = static_cast<float*>(args.mean);
    p.rstd = static_cast<float*>(args.rstd);
    p.width = args.width;
    p.eps = static_cast<float>(args.eps);
    p.layer_norm = args.kind == NormKind::kLayerNorm;
    if (RowIsWide<T>(args.width) &&
        Aligned({args.x, args.residual, args.sum, args.weight, args.bias, args.y})) {
      return Launch(RowConfig(args.rows, RowThreads(args.width / kWide<T>), stream),
                    NormForwardKernel<T, true>, p);
    }
    return Launch(RowConfig(args.rows, RowThreads(args.width), stream), NormForwardKernel<T, false>, p);
  });
}

LaunchStatus NormBackward(kx::Stream stream, DType dtype, const NormBackwardArgs& args) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const bool layer_norm = args.kind == NormKind::kLayerNorm;
    NormBackwardParams<T> p = {};
    p.x = static_cast<const T*>(args.x);
    p.weight = static_cast<const T*>(args.weight);
    p.dy = static_cast<const T*>(args.dy);
    p.mean = static_cast<const float*>(args.mean);
    p.rstd = static_cast<const float*>(args.rstd);
    p.dx = static_cast<T*>(args.dx);
    p.width = args.width;
    p.layer_norm = layer_norm;
    const bool aligned = Aligned({args.x, args.weight, args.dy, args.dx}) && args.width % kWide<T> == 0;
    const LaunchStatus status =
        aligned && RowIsWide<T>(args.width)
            ? Launch(RowConfig(args.rows, RowThreads(args.width / kWide<T>), stream),
                     NormBackwardKernel<T, true>, p)
            : Launch(RowConfig(args.rows, RowThreads(args.width), stream), NormBackwardKernel<T, false>, p);
    if (!status.ok()) return status;
    return layer_norm ? ParameterGradients<true, T>(stream, args, aligned)
                      : ParameterGradients<false, T>(stream, args, aligned);
  });
}

}  // namespace strata::gpu
