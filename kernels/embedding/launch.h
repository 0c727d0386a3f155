// Embeddings on the device: arguments as in kernels/ops.h, checked by the caller.
#ifndef KERNELS_EMBEDDING_LAUNCH_H_
#define KERNELS_EMBEDDING_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"

namespace strata::gpu {

kx::LaunchStatus EmbeddingForward(kx::Stream stream, DType dtype, int64_t rows, int64_t seq, int64_t width,
                                  const int32_t* tokens, const void* wte, const void* wpe, void* out);
kx::LaunchStatus EmbeddingBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t seq, int64_t vocab,
                                   int64_t width, const int32_t* tokens, const void* dout, void* dwte,
                                   void* dwpe, int64_t seq_max);

}  // namespace strata::gpu

#endif  // KERNELS_EMBEDDING_LAUNCH_H_
