// What the fp8 forward pass keeps in its workspace (launch.h): Q, K and V as e4m3 and the scales of their
// blocks. For hosts and kernels.
//
// A sequence's rows begin at a multiple of kFp8Block (Fp8RowOf), and what is between its last row and the
// next multiple is zeros, so that no tile holds a neighbour's rows. With D the compiled head dimension:
//   q  [heads][q_rows][D]       q_scale   [heads][q_rows / kFp8QueryBlock]
//   k  [kv_heads][k_rows][D]    kv_scale  [kv_heads][k_rows / kFp8Block][2], K's and V's: read together
//   v  [kv_heads][D][k_rows]
// V is transposed, since wgmma's eight-bit operands are K-major, and its keys are exchanged within groups of
// 16 (Fp8KeyAt), so that the scores of one lane, rounded to e4m3, are the A operand of the second product as
// they are.
#ifndef KERNELS_ATTENTION_FP8_LAYOUT_H_
#define KERNELS_ATTENTION_FP8_LAYOUT_H_

#include <cstdint>

#include "kernels/attention/launch.h"
#include "kernels/kx/target.h"

namespace strata::attention {

inline constexpr int kFp8Block = 128;      // rows of K and V with one scale: a tile of the forward kernel
inline constexpr int kFp8QueryBlock = 64;  // rows of Q with one scale: those of a warpgroup

KX_HOST_DEVICE constexpr int64_t Fp8RoundUp(int64_t rows) {
  return (rows + kFp8Block - 1) / kFp8Block * kFp8Block;
}
// First row of sequence b: `seq` rows each when batched, else beginning at row `begin` of the packed matrix.
KX_HOST_DEVICE constexpr int64_t Fp8RowOf(bool packed, int b, int seq, int64_t begin) {
  return packed ? Fp8RoundUp(begin) + static_cast<int64_t>(kFp8Block) * b : Fp8RoundUp(seq) * b;
}
// The key, of 16, whose values stand at `place`: a lane has scores 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t, and
// gives wgmma columns 4 t to 4 t + 3.
KX_HOST_DEVICE constexpr int Fp8KeyAt(int place) { return place % 2 + 2 * (place / 4) + 8 * (place / 2 % 2); }

// The compiled dimension that holds head_dim.
constexpr int Fp8Dim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}
// Elements that the Hadamard transform mixes: the largest power of two that divides the dimension.
KX_HOST_DEVICE constexpr int HadamardGroup(int dim) { return dim & -dim; }

struct Fp8Layout {
  int64_t q_rows, k_rows;
  int64_t q, k, v, q_scale, kv_scale, bytes;  // offsets in bytes, multiples of 128, and the size
};
inline Fp8Layout Fp8LayoutOf(const Shape& s, bool packed) {
  Fp8Layout l = {};
  // Packed, rounding a beginning up adds less than a block to each sequence, rounding its end another.
  l.q_rows = packed ? Fp8RoundUp(s.total_q) + static_cast<int64_t>(kFp8Block) * s.batch
                    : Fp8RoundUp(s.seq_q) * s.batch;
  l.k_rows = packed ? Fp8RoundUp(s.total_k) + static_cast<int64_t>(kFp8Block) * s.batch
                    : Fp8RoundUp(s.seq_k) * s.batch;
  const int64_t dim = Fp8Dim(s.head_dim);
  const auto take = [&l](int64_t bytes) {
    const int64_t at = l.bytes;
    l.bytes += Fp8RoundUp(bytes);
    return at;
  };
  l.q = take(s.heads * l.q_rows * dim);
  l.k = take(s.kv_heads * l.k_rows * dim);
  l.v = take(s.kv_heads * l.k_rows * dim);
  l.q_scale = take(s.heads * (l.q_rows / kFp8QueryBlock) * 4);
  l.kv_scale = take(s.kv_heads * (l.k_rows / kFp8Block) * 8);
  return l;
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FP8_LAYOUT_H_
