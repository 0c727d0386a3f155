// Definitions of the FA3 launchers, for inst/*.cu.
#ifndef KERNELS_ATTENTION_FA3_LAUNCH_H_
#define KERNELS_ATTENTION_FA3_LAUNCH_H_

#include "kernels/attention/fa3_bwd.h"
#include "kernels/attention/fa3_fwd.h"
#include "kernels/attention/grid.h"
#include "kernels/attention/kernel_table.h"
#include "kernels/kx/launch.h"

namespace strata::attention {

// The map of a matrix of `heads` heads, boxes of `rows` rows and 64 columns. Batched: [head_dim, seq, heads,
// batch], so that what lies past the end of a sequence loads as zeros; packed: one sequence of all rows.
inline kx::LaunchStatus MapRows(const Shape& shape, bool packed, const void* base, int64_t ld, int heads,
                                int seq, int total, int rows, kx::TensorMap* map) {
  kx::TensorMapSpec spec;
  spec.base = base;
  spec.rank = 4;
  const int sequence = packed ? total : seq;
  spec.extent[0] = static_cast<uint64_t>(shape.head_dim);
  spec.extent[1] = static_cast<uint64_t>(sequence);
  spec.extent[2] = static_cast<uint64_t>(heads);
  spec.extent[3] = static_cast<uint64_t>(packed ? 1 : shape.batch);
  spec.stride_bytes[0] = static_cast<uint64_t>(ld) * 2;
  spec.stride_bytes[1] = static_cast<uint64_t>(shape.head_dim) * 2;
  spec.stride_bytes[2] = static_cast<uint64_t>(sequence) * static_cast<uint64_t>(ld) * 2;
  spec.box[0] = 64;
  spec.box[1] = static_cast<uint32_t>(rows);
  spec.box[2] = spec.box[3] = 1;
  return kx::EncodeTensorMap(spec, map);
}
inline kx::LaunchStatus MapQueries(const ForwardCall& call, const void* base, int64_t ld, int rows,
                                   kx::TensorMap* map) {
  const Shape& s = call.shape;
  return MapRows(s, call.cu_q != nullptr, base, ld, s.heads, s.seq_q, s.total_q, rows, map);
}
inline kx::LaunchStatus MapKeys(const ForwardCall& call, const void* base, int64_t ld, int rows,
                                kx::TensorMap* map) {
  const Shape& s = call.shape;
  return MapRows(s, call.cu_q != nullptr, base, ld, s.kv_heads, s.seq_k, s.total_k, rows, map);
}

template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa3Forward(kx::Stream stream, const ForwardCall& call) {
  using Tile = Fa3ForwardTile<kHeadDim>;
  const Shape& shape = call.shape;
  kx::TensorMap q, k, v;
  kx::LaunchStatus status = MapQueries(call, call.q, call.ldq, Tile::kRows, &q);
  if (status.ok()) status = MapKeys(call, call.k, call.ldk, Tile::kColumns, &k);
  if (status.ok()) status = MapKeys(call, call.v, call.ldv, Tile::kColumns, &v);
  if (!status.ok()) return status;
  return kx::Launch({GridOf(shape.seq_q, Tile::kRows, shape.heads, shape.batch),
                     {Tile::kThreads},
                     Tile::kSharedBytes,
                     stream},
                    Fa3Forward<T, kHeadDim>, q, k, v, MakeParams<T>(call));
}

template <class T, int kHeadDim>
kx::LaunchStatus LaunchFa3Backward(kx::Stream stream, const BackwardCall& call) {
  using Tile = Fa3BackwardTile<kHeadDim>;
  const ForwardCall& forward = call.forward;
  const Shape& shape = forward.shape;
  const BackwardParams<T> params = MakeParams<T>(call);
  // A block's own rows and the rows it walks over come in boxes of different heights.
  constexpr int kOwn = Tile::kRows, kWalked = Tile::kColumns;
  kx::TensorMap q, k, v, dout;
  kx::LaunchStatus status = MapQueries(forward, forward.q, forward.ldq, kWalked, &q);
  if (status.ok()) status = MapQueries(forward, call.dout, call.lddo, kWalked, &dout);
  if (status.ok()) status = MapKeys(forward, forward.k, forward.ldk, kOwn, &k);
  if (status.ok()) status = MapKeys(forward, forward.v, forward.ldv, kOwn, &v);
  if (status.ok()) {
    status = kx::Launch({GridOf(shape.seq_k, kOwn, shape.kv_heads, shape.batch),
                         {Tile::kThreads},
                         Tile::kKeysSharedBytes,
                         stream},
                        Fa3BackwardKeys<T, kHeadDim>, q, k, v, dout, params);
  }
  if (status.ok()) status = MapQueries(forward, forward.q, forward.ldq, kOwn, &q);
  if (status.ok()) status = MapQueries(forward, call.dout, call.lddo, kOwn, &dout);
  if (status.ok()) status = MapKeys(forward, forward.k, forward.ldk, kWalked, &k);
  if (status.ok()) status = MapKeys(forward, forward.v, forward.ldv, kWalked, &v);
  if (!status.ok()) return status;
  return kx::Launch({GridOf(shape.seq_q, kOwn, shape.heads, shape.batch),
                     {Tile::kThreads},
                     Tile::kQueriesSharedBytes,
                     stream},
                    Fa3BackwardQueries<T, kHeadDim>, q, k, v, dout, params);
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_LAUNCH_H_
