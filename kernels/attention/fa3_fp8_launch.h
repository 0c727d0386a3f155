// Definitions of the fp8 launchers, for inst/*.cu.
#ifndef KERNELS_ATTENTION_FA3_FP8_LAUNCH_H_
#define KERNELS_ATTENTION_FA3_FP8_LAUNCH_H_

#include "kernels/attention/fa3_fp8.h"
#include "kernels/attention/fp8_quantise.h"
#include "kernels/attention/grid.h"
#include "kernels/attention/kernel_table.h"
#include "kernels/kx/launch.h"

namespace strata::attention {

// The map of codes [heads][rows][columns], boxes of box_rows rows and 128 columns: columns past the last load
// as zeros.
inline kx::LaunchStatus MapCodes(const void* base, int heads, int64_t rows, int64_t columns, int box_rows,
                                 kx::TensorMap* map) {
  kx::TensorMapSpec spec;
  spec.base = base;
  spec.rank = 4;
  spec.element_bytes = 1;
  const uint64_t extent[4] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(heads), 1};
  const uint32_t box[4] = {128, static_cast<uint32_t>(box_rows), 1, 1};
  for (int i = 0; i < 4; ++i) {
    spec.extent[i] = extent[i];
    spec.box[i] = box[i];
    if (i > 0) spec.stride_bytes[i - 1] = extent[i - 1] * (i > 1 ? spec.stride_bytes[i - 2] : 1);
  }
  return kx::EncodeTensorMap(spec, map);
}

template <class T, int kHeadDim>
kx::LaunchStatus LaunchFp8Forward(kx::Stream stream, const ForwardCall& call) {
  using Tile = Fa3Fp8Tile<kHeadDim>;
  const Shape& s = call.shape;
  const Fp8Layout layout = Fp8LayoutOf(s, call.cu_q != nullptr);
  const auto codes = [&](int64_t at) { return static_cast<kx::e4m3*>(call.workspace) + at; };
  const auto scales = [&](int64_t at) { return reinterpret_cast<float*>(codes(at)); };

  QuantiseParams<T> x;
  Fp8Params<T> p;
  p.forward = MakeParams<T>(call);
  x.problem = p.forward.problem;
  x.incoherent = call.incoherent;
  x.x = p.forward.q;
  x.ld = call.ldq;
  x.codes = codes(layout.q);
  x.scales = scales(layout.q_scale);
  x.rows = layout.q_rows;
  const auto blocks = [](int seq) { return static_cast<int>(Fp8RoundUp(seq)); };
  kx::LaunchStatus status = kx::Launch({GridOf(blocks(s.seq_q), kFp8QueryBlock, s.heads, s.batch),
                                        {kFp8RowThreads<kHeadDim, kFp8QueryBlock>},
                                        kFp8QuantiseSharedBytes,
                                        stream},
                                       Fp8QuantiseRows<T, kHeadDim, true>, x);
  if (!status.ok()) return status;
  const kx::Dim3 key_grid = GridOf(s.seq_k, kFp8Block, s.kv_heads, s.batch);
  constexpr uint32_t kKeyThreads = kFp8RowThreads<kHeadDim, kFp8Block>;
  x.x = p.forward.k;
  x.ld = call.ldk;
  x.codes = codes(layout.k);
  x.scales = scales(layout.kv_scale);
  x.scale_step = 2;
  x.rows = layout.k_rows;
  status = kx::Launch({key_grid, {kKeyThreads}, kFp8QuantiseSharedBytes, stream},
                      Fp8QuantiseRows<T, kHeadDim, false>, x);
  if (!status.ok()) return status;
  x.x = p.forward.v;
  x.ld = call.ldv;
  x.codes = codes(layout.v);
  x.scales = scales(layout.kv_scale) + 1;
  status = kx::Launch({key_grid, {kKeyThreads}, kFp8QuantiseSharedBytes, stream},
                      Fp8QuantiseTransposed<T, kHeadDim>, x);
  if (!status.ok()) return status;

  p.q_scales = static_cast<const float*>(scales(layout.q_scale));
  p.kv_scales = static_cast<const float*>(scales(layout.kv_scale));
  p.q_rows = layout.q_rows;
  p.k_rows = layout.k_rows;
  kx::TensorMap q, k, v;
  status = MapCodes(codes(layout.q), s.heads, layout.q_rows, kHeadDim, Tile::kRows, &q);
  if (status.ok())
    status = MapCodes(codes(layout.k), s.kv_heads, layout.k_rows, kHeadDim, Tile::kColumns, &k);
  if (status.ok()) status = MapCodes(codes(layout.v), s.kv_heads, kHeadDim, layout.k_rows, kHeadDim, &v);
  if (!status.ok()) return status;
  return kx::Launch(
      {GridOf(s.seq_q, Tile::kRows, s.heads, s.batch), {Tile::kThreads}, Tile::kSharedBytes, stream},
      Fa3Fp8Forward<T, kHeadDim>, q, k, v, p);
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_FP8_LAUNCH_H_
