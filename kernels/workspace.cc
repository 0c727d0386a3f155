#include "kernels/workspace.h"

#include <algorithm>

#include "common/checked.h"

namespace strata {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kMiB = 1 << 20;

int64_t AccBytes(DType compute) { return compute == DType::kF64 ? 8 : 4; }

int64_t PaddedHeadElements(int64_t seq, int64_t head_dim) {
  return RoundUp<int64_t>(seq, kAttentionTile) * RoundUp<int64_t>(head_dim, kAttentionDimUnit);
}

}  // namespace

int64_t ReductionBlockRows(int64_t rows) { return std::max<int64_t>(32, CeilDiv<int64_t>(rows, 64)); }

int64_t ReductionBlocks(int64_t rows) {
  return CeilDiv(std::max<int64_t>(rows, 1), ReductionBlockRows(rows));
}

int64_t AttentionBackwardSplits(int64_t batch, int64_t seq, int64_t kv_heads) {
  const int64_t tiles = CeilDiv<int64_t>(seq, kAttentionTile);
  return std::clamp<int64_t>(CeilDiv<int64_t>(16, batch * kv_heads), 1, tiles);
}

int64_t GemmWorkspaceBytes(DType compute, int64_t m, int64_t n, int64_t k) {
  // Libraries pack per thread at most one padded copy of each operand and one tile of sums, and far less
  // for large shapes: 0.6-0.9 MiB per thread measured with oneDNN 2.6.3. Four threads' worth; a backend
  // with more threads uses fewer of them for a shape that would need more.
  const int64_t mp = RoundUp<int64_t>(std::min<int64_t>(m, 4096), 64);
  const int64_t np = RoundUp<int64_t>(std::min<int64_t>(n, 4096), 64);
  const int64_t kp = RoundUp<int64_t>(std::min<int64_t>(k, 4096), 64);
  const int64_t whole = 4 * (mp * kp + kp * np + mp * np) * 4 + 64 * 1024;
  return std::min(whole, 4 * kMiB);
}

int64_t Fp8GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k) {
  return RoundUp(m * k, kFp8PartAlign) + RoundUp(n * k, kFp8PartAlign) + kFp8SmallParts * kFp8SmallBytes +
         GemmWorkspaceBytes(DType::kBF16, m, n, k);
}

int64_t NormBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t width) {
  return RoundUp(2 * ReductionBlocks(rows) * width * AccBytes(compute), kAlign);
}

int64_t AttentionForwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads,
                                       int64_t kv_heads, int64_t head_dim) {
  // K and V of every kv head, repacked for the tile kernels (fp32 where the CPU has no bf16 dot product).
  return 2 * batch * kv_heads * PaddedHeadElements(seq, head_dim) * 4;
}

int64_t AttentionBackwardWorkspaceBytes(DType compute, int64_t batch, int64_t seq, int64_t heads,
                                        int64_t kv_heads, int64_t head_dim) {
  // K, V and K transposed, repacked; sums of dK and dV in fp32 for every split.
  const int64_t splits = AttentionBackwardSplits(batch, seq, kv_heads);
  return (3 * 4 + splits * 2 * 4) * batch * kv_heads * PaddedHeadElements(seq, head_dim);
}

int64_t BiasBackwardWorkspaceBytes(DType compute, int64_t rows, int64_t n) {
  return RoundUp(ReductionBlocks(rows) * n * AccBytes(compute), kAlign);
}

int64_t CrossEntropyWorkspaceBytes(DType compute, int64_t rows, int64_t vocab) {
  return RoundUp<int64_t>(rows * static_cast<int64_t>(sizeof(double)), kAlign);
}

}  // namespace strata
