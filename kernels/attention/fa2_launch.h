// Definitions of the FA2 launchers, for inst/*.cu.
#ifndef KERNELS_ATTENTION_FA2_LAUNCH_H_
#define KERNELS_ATTENTION_FA2_LAUNCH_H_

#include "kernels/attention/delta.h"
#include "kernels/attention/fa2_bwd.h"
#include "kernels/attention/fa2_fwd.h"
#include "kernels/attention/grid.h"
#include "kernels/attention/kernel_table.h"
#include "kernels/kx/launch.h"

namespace strata::attention {

template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa2Forward(kx::Stream stream, const ForwardCall& call) {
  using Tile = Fa2ForwardTile<kHeadDim>;
  const Shape& shape = call.shape;
  return kx::Launch({GridOf(shape.seq_q, Tile::kRows, shape.heads, shape.batch),
                     {Tile::kThreads},
                     Tile::kSharedBytes,
                     stream},
                    Fa2Forward<T, kHeadDim>, MakeParams<T>(call));
}

template <class T>
kx::LaunchStatus LaunchDelta(kx::Stream stream, const BackwardCall& call) {
  const Shape& shape = call.forward.shape;
  return kx::Launch({GridOf(shape.seq_q, kDeltaRows, shape.heads, shape.batch), {kDeltaThreads}, 0, stream},
                    AttentionDelta<T>, MakeParams<T>(call));
}

template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa2Backward(kx::Stream stream, const BackwardCall& call) {
  using Keys = Fa2BackwardKeysTile<kHeadDim>;
  using Queries = Fa2BackwardQueriesTile<kHeadDim>;
  const Shape& shape = call.forward.shape;
  const BackwardParams<T> params = MakeParams<T>(call);
  kx::LaunchStatus status = kx::Launch({GridOf(shape.seq_k, Keys::kRows, shape.kv_heads, shape.batch),
                                        {Keys::kThreads},
                                        Keys::kSharedBytes,
                                        stream},
                                       Fa2BackwardKeys<T, kHeadDim>, params);
  if (!status.ok()) return status;
  return kx::Launch({GridOf(shape.seq_q, Queries::kRows, shape.heads, shape.batch),
                     {Queries::kThreads},
                     Queries::kSharedBytes,
                     stream},
                    Fa2BackwardQueries<T, kHeadDim>, params);
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA2_LAUNCH_H_
