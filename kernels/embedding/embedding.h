// Token and position embedding. The backward pass needs no atomics and no workspace: a block owns a range of
// tokens, finds their rows in row order, and adds them in that order.
#ifndef KERNELS_EMBEDDING_EMBEDDING_H_
#define KERNELS_EMBEDDING_EMBEDDING_H_

#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"

namespace strata::gpu {

// out[r] = wte[tokens[r]] (+ wpe[r % seq]).
template <class T>
struct EmbeddingForwardBody {
  static constexpr int kWidth = kWide<T>;
  Gmem<const int32_t> tokens;
  Gmem<const T> wte;
  Gmem<const T> wpe;  // null: none
  Gmem<T> out;
  int64_t seq, width;

  template <int W>
  KX_DEVICE void Run(int64_t row, int64_t i) const {
    float v[W];
    LoadFloats<W>(wte, tokens.Load(row) * width + i, v);
    if (!wpe.IsNull()) {
      float position[W];
      LoadFloats<W>(wpe, row % seq * width + i, position);
      KX_UNROLL
      for (int k = 0; k < W; ++k) v[k] += position[k];
    }
    StoreFloats<T>(out, row * width + i, v);
  }
};

// The gradient is float: its lanes write 16 bytes of it side by side.
inline constexpr int kGradientWidth = kWide<float>;
inline constexpr int kEmbeddingThreads = 128;
inline constexpr int kTokensPerBlock = 64;
// The lists of TokenGradient, each aligned to 128 bytes.
inline constexpr int64_t kTokenGradientSharedBytes =
    kEmbeddingThreads * (sizeof(int64_t) + sizeof(int32_t)) + 128;

template <class T>
struct TokenGradientParams {
  Gmem<const int32_t> tokens;
  Gmem<const T> dout;  // [rows, width]
  Gmem<float> dwte;    // [vocab, width], overwritten
  int64_t rows, vocab, width;
};

// Grid: x over ranges of kTokensPerBlock tokens, y over kEmbeddingThreads * W columns.
template <class T, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kEmbeddingThreads) void TokenGradient(const TokenGradientParams<T> p) {
  constexpr int W = kVector ? kGradientWidth : 1, kWarps = kEmbeddingThreads / 32;
  Smem smem;
  // Of the rows that were looked at: those of this block's tokens, in row order, and how many each warp has.
  const auto found_row = smem.Alloc<int64_t>(kEmbeddingThreads);
  const auto found_token = smem.Alloc<int32_t>(kEmbeddingThreads);
  const auto per_warp = smem.Alloc<int32_t>(kWarps);
  const int thread = static_cast<int>(ThreadIdx().x), lane = LaneId(), warp = WarpId();
  const int64_t first = static_cast<int64_t>(BlockIdx().x) * kTokensPerBlock;
  const int64_t end = first + kTokensPerBlock < p.vocab ? first + kTokensPerBlock : p.vocab;
  const int64_t column = (static_cast<int64_t>(BlockIdx().y) * kEmbeddingThreads + thread) * W;
  const bool mine = column < p.width;  // a thread's columns are its own: no other ever touches them

  const float zero[W] = {};
  for (int64_t token = first; mine && token < end; ++token)
    StoreFloats<float>(p.dwte, token * p.width + column, zero);

  for (int64_t begin = 0; begin < p.rows; begin += kEmbeddingThreads) {
    const int64_t row = begin + thread;
    const int64_t token = row < p.rows ? p.tokens.Load(row) : -1;
    const bool is_ours = token >= first && token < end;
    const uint32_t lanes = Ballot(is_ours);
    if (lane == 0) per_warp.Store(warp, BitCount(lanes));
    KX_MUTANT("fused/embedding/count_sync", Sync(), (void)0);
    int found = 0, before = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int count = per_warp.Load(w);
      if (w < warp) before += count;
      found += count;
    }
    if (is_ours) {
      const int at = before + BitCount(lanes & ((1u << lane) - 1));
      found_row.Store(at, row);
      found_token.Store(at, static_cast<int32_t>(token));
    }
    KX_MUTANT("fused/embedding/list_sync", Sync(), (void)0);
    for (int i = 0; mine && i < found; ++i) {
      const int64_t at = found_token.Load(i) * p.width + column;
      float sum[W], d[W];
      LoadFloats<W>(p.dwte, at, sum);
      LoadFloats<W>(p.dout, found_row.Load(i) * p.width + column, d);
      KX_UNROLL
      for (int k = 0; k < W; ++k) sum[k] += d[k];
      StoreFloats<float>(p.dwte, at, sum);
    }
    // The next round writes the lists behind its first barrier: all have added by then.
  }
}

// dwpe[s] = the sum of dout over the rows at position s, in row order; zero from `seq` on. ForElements over
// [seq_max, width].
template <class T>
struct PositionGradientBody {
  static constexpr int kWidth = kGradientWidth;
  Gmem<const T> dout;
  Gmem<float> dwpe;
  int64_t rows, seq, width;

  template <int W>
  KX_DEVICE void Run(int64_t position, int64_t i) const {
    float sum[W] = {};
    for (int64_t row = position; position < seq && row < rows; row += seq) {
      float d[W];
      LoadFloats<W>(dout, row * width + i, d);
      KX_UNROLL
      for (int k = 0; k < W; ++k) sum[k] += d[k];
    }
    StoreFloats<float>(dwpe, position * width + i, sum);
  }
};

}  // namespace strata::gpu

#endif  // KERNELS_EMBEDDING_EMBEDDING_H_
