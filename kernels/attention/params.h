// What the kernels are launched with, and which keys a query sees (see launch.h for the layout and the
// formulas).
#ifndef KERNELS_ATTENTION_PARAMS_H_
#define KERNELS_ATTENTION_PARAMS_H_

#include <cstdint>

#include "kernels/attention/launch.h"
#include "kernels/kx/kx.h"

namespace strata::attention {

struct Problem : Shape {
  kx::Gmem<const int32_t> cu_q, cu_k;
};

template <class T>
struct ForwardParams {
  Problem problem;
  kx::Gmem<const T> q, k, v;
  kx::Gmem<T> out;
  kx::Gmem<float> lse;
  int64_t ldq = 0, ldk = 0, ldv = 0, ldo = 0;
};

template <class T>
struct BackwardParams {
  Problem problem;
  kx::Gmem<const T> q, k, v, out, dout;
  kx::Gmem<const float> lse;
  kx::Gmem<float> delta;  // row sums of dout * out
  kx::Gmem<T> dq, dk, dv;
  int64_t ldq = 0, ldk = 0, ldv = 0, ldo = 0, lddo = 0, lddq = 0, lddk = 0, lddv = 0;
};

template <class T>
ForwardParams<T> MakeParams(const ForwardCall& call) {
  ForwardParams<T> p;
  static_cast<Shape&>(p.problem) = call.shape;
  p.problem.cu_q = call.cu_q;
  p.problem.cu_k = call.cu_k;
  p.q = static_cast<const T*>(call.q);
  p.k = static_cast<const T*>(call.k);
  p.v = static_cast<const T*>(call.v);
  p.out = static_cast<T*>(call.out);
  p.lse = call.lse;
  p.ldq = call.ldq;
  p.ldk = call.ldk;
  p.ldv = call.ldv;
  p.ldo = call.ldo;
  return p;
}

template <class T>
BackwardParams<T> MakeParams(const BackwardCall& call) {
  const ForwardParams<T> forward = MakeParams<T>(call.forward);
  BackwardParams<T> p;
  p.problem = forward.problem;
  p.q = forward.q;
  p.k = forward.k;
  p.v = forward.v;
  p.out = static_cast<const T*>(call.forward.out);
  p.lse = static_cast<const float*>(call.forward.lse);
  p.dout = static_cast<const T*>(call.dout);
  p.delta = call.delta;
  p.dq = static_cast<T*>(call.dq);
  p.dk = static_cast<T*>(call.dk);
  p.dv = static_cast<T*>(call.dv);
  p.ldq = forward.ldq;
  p.ldk = forward.ldk;
  p.ldv = forward.ldv;
  p.ldo = forward.ldo;
  p.lddo = call.lddo;
  p.lddq = call.lddq;
  p.lddk = call.lddk;
  p.lddv = call.lddv;
  return p;
}

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;

KX_HOST_DEVICE int Min(int a, int b) { return a < b ? a : b; }
KX_HOST_DEVICE int Max(int a, int b) { return a > b ? a : b; }

// One sequence of the batch, as a block sees it.
struct Sequence {
  int64_t q_begin, k_begin;  // first row in q, in k
  int q_count, k_count;
  int shift;         // k_count - q_count
  int64_t lse_at;    // of query 0 of head 0 in lse
  int64_t lse_head;  // elements between heads

  // Keys [KeyBegin, KeyEnd) hold all that queries [first, first + count) see.
  KX_DEVICE int KeyBegin(const Problem& p, int first) const { return Max(0, first + shift - p.left); }
  KX_DEVICE int KeyEnd(const Problem& p, int first, int count) const {
    return Min(k_count, Min(first + count, q_count) + shift + p.right);
  }
  // Queries [QueryBegin, QueryEnd) hold all that see keys [first, first + count).
  KX_DEVICE int QueryBegin(const Problem& p, int first) const { return Max(0, first - shift - p.right); }
  KX_DEVICE int QueryEnd(const Problem& p, int first, int count) const {
    return Min(q_count, Min(first + count, k_count) - shift + p.left);
  }
  // Whether each of queries [i, i + rows) exists and sees each of keys [j, j + columns), which all exist.
  KX_DEVICE bool AllVisible(const Problem& p, int i, int rows, int j, int columns) const {
    return j >= i + rows - 1 + shift - p.left && j + columns - 1 <= i + shift + p.right &&
           j + columns <= k_count && i + rows <= q_count;
  }
  KX_DEVICE bool Visible(const Problem& p, int i, int j) const {
    return j >= i + shift - p.left && j <= i + shift + p.right && j < k_count && i < q_count;
  }
};

KX_DEVICE Sequence SequenceOf(const Problem& p, int b) {
  Sequence s;
  if (p.cu_q.IsNull()) {
    s.q_begin = static_cast<int64_t>(b) * p.seq_q;
    s.q_count = p.seq_q;
    s.k_begin = static_cast<int64_t>(b) * p.seq_k;
    s.k_count = p.seq_k;
    s.lse_at = s.q_begin * p.heads;
    s.lse_head = p.seq_q;
  } else {
    const int q_begin = p.cu_q.Load(b), k_begin = p.cu_k.Load(b);
    s.q_begin = q_begin;
    s.q_count = p.cu_q.Load(b + 1) - q_begin;
    s.k_begin = k_begin;
    s.k_count = p.cu_k.Load(b + 1) - k_begin;
    s.lse_at = q_begin;
    s.lse_head = p.total_q;
  }
  s.shift = s.k_count - s.q_count;
  return s;
}

// The tiles of Tile::kColumns keys, or queries, that a block walks over: [begin, end), possibly with end
// below begin.
struct Tiles {
  int begin, end;
};

// A block's own rows: queries [first, first + Tile::kRows) of one head.
template <class Tile>
struct QueryBlock {
  int head, kv_head, batch;
  Sequence seq;
  int first;

  // Of a causal job the longest rows come first: the last blocks to run are short.
  KX_DEVICE explicit QueryBlock(const Problem& p)
      : head(static_cast<int>(kx::BlockIdx().y)),
        kv_head(head / (p.heads / p.kv_heads)),
        batch(static_cast<int>(kx::BlockIdx().z)),
        seq(SequenceOf(p, batch)),
        first(static_cast<int>(kx::GridDim().x - 1 - kx::BlockIdx().x) * Tile::kRows) {}

  KX_DEVICE bool IsEmpty() const { return first >= seq.q_count; }
  KX_DEVICE Tiles KeyTiles(const Problem& p) const {
    return {seq.KeyBegin(p, first) / Tile::kColumns,
            (Max(0, seq.KeyEnd(p, first, Tile::kRows)) + Tile::kColumns - 1) / Tile::kColumns};
  }
};

// The same of keys [first, first + Tile::kRows), which `members` heads share.
template <class Tile>
struct KeyBlock {
  int kv_head, members, batch;
  Sequence seq;
  int first;

  // Of a causal job the longest come first as they are.
  KX_DEVICE explicit KeyBlock(const Problem& p)
      : kv_head(static_cast<int>(kx::BlockIdx().y)),
        members(p.heads / p.kv_heads),
        batch(static_cast<int>(kx::BlockIdx().z)),
        seq(SequenceOf(p, batch)),
        first(static_cast<int>(kx::BlockIdx().x) * Tile::kRows) {}

  KX_DEVICE bool IsEmpty() const { return first >= seq.k_count; }
  KX_DEVICE Tiles QueryTiles(const Problem& p) const {
    return {seq.QueryBegin(p, first) / Tile::kColumns,
            (Max(0, seq.QueryEnd(p, first, Tile::kRows)) + Tile::kColumns - 1) / Tile::kColumns};
  }
};

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_PARAMS_H_
