#include "kernels/embedding/launch.h"

#include "kernels/embedding/embedding.h"
#include "kernels/gpu/launch_elements.h"

namespace strata::gpu {

LaunchStatus EmbeddingForward(kx::Stream stream, DType dtype, int64_t rows, int64_t seq, int64_t width,
                              const int32_t* tokens, const void* wte, const void* wpe, void* out) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const EmbeddingForwardBody<T> body = {
        tokens, static_cast<const T*>(wte), static_cast<const T*>(wpe), static_cast<T*>(out), seq, width};
    return LaunchElements(stream, body, rows, width, Aligned({wte, wpe, out}) && width % kWide<T> == 0);
  });
}

LaunchStatus EmbeddingBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t seq, int64_t vocab,
                               int64_t width, const int32_t* tokens, const void* dout, void* dwte, void* dwpe,
                               int64_t seq_max) {
  return WithElementType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const bool vector =
        Aligned({dwte, dwpe}) && Aligned({dout}, kGradientWidth * sizeof(T)) && width % kGradientWidth == 0;
    const TokenGradientParams<T> p = {
        tokens, static_cast<const T*>(dout), static_cast<float*>(dwte), rows, vocab, width};
    const LaunchConfig config = {
        {Blocks(vocab, kTokensPerBlock), Blocks(width, kEmbeddingThreads * (vector ? kGradientWidth : 1))},
        {kEmbeddingThreads},
        kTokenGradientSharedBytes,
        stream};
    const LaunchStatus status =
        vector ? Launch(config, TokenGradient<T, true>, p) : Launch(config, TokenGradient<T, false>, p);
    if (!status.ok() || dwpe == nullptr) return status;
    const PositionGradientBody<T> body = {static_cast<const T*>(dout), static_cast<float*>(dwpe), rows, seq,
                                          width};
    return LaunchElements(stream, body, seq_max, width, vector);
  });
}

}  // namespace strata::gpu
