#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel.h"
#include "kernels/validate.h"
#include "kernels/workspace.h"

namespace strata {
namespace cpu {

const KernelTable& KernelsFor(DType compute, CpuIsa isa) {
  const CpuIsa best = std::min(isa, DetectCpuIsa());
  switch (best) {
    case CpuIsa::kBase:
      return base::Table(compute, false);
    case CpuIsa::kAvx2:
      return avx2::Table(compute, false);
    case CpuIsa::kAvx512:
      return avx512::Table(compute, false);
    case CpuIsa::kAvx512Bf16:
    case CpuIsa::kAmx:
      return avx512bf16::Table(compute, best == CpuIsa::kAmx);
  }
  return base::Table(compute, false);
}

namespace {

// Elements per piece of an elementwise loop: a few microseconds of work.
constexpr int64_t kPieceElements = 16 * 1024;

class CpuOps final : public Ops {
 public:
  CpuOps(DType compute, int threads, CpuIsa isa)
      : compute_(compute),
        threads_(threads),
        kernels_(KernelsFor(compute, isa)),
        gemm_(compute, threads, kernels_, isa >= CpuIsa::kAvx512Bf16),
        scratch_(threads) {}

  DType compute_dtype() const override { return compute_; }
  DType acc_dtype() const override { return DType::kF32; }

  absl::Status Gemm(Stream*, const GemmArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return gemm_.Run(args);
  }

  absl::Status NormForward(Stream*, const NormArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    ParallelRanges(threads_, args.rows, RowsPerPiece(args.width),
                   [&](int64_t begin, int64_t end) { kernels_.norm_forward(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status NormBackward(Stream*, const NormBackwardArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    const int64_t block = ReductionBlockRows(args.rows), blocks = ReductionBlocks(args.rows);
    float* dweight = static_cast<float*>(args.workspace.data);
    float* dbias = dweight + blocks * args.width;
    ParallelFor(threads_, blocks, [&](int64_t b, int) {
      kernels_.norm_backward(args, b * block, std::min(args.rows, (b + 1) * block), dweight + b * args.width,
                             dbias + b * args.width);
    });
    SumTree(blocks, args.width, dweight, static_cast<float*>(args.dweight));
    if (args.kind == NormKind::kLayerNorm)
      SumTree(blocks, args.width, dbias, static_cast<float*>(args.dbias));
    return absl::OkStatus();
  }

  absl::Status Rope(Stream*, const RopeArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    const float* table = RopeTable(args.seq, args.head_dim, args.theta);
    ParallelRanges(threads_, args.rows, RowsPerPiece(args.heads * args.head_dim),
                   [&](int64_t begin, int64_t end) { kernels_.rope(args, table, begin, end); });
    return absl::OkStatus();
  }

  absl::Status AttentionForward(Stream*, const AttentionArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    Reserve(kernels_.attention_scratch(args.head_dim).forward_bytes);
    PackKeys(args, /*backward=*/false);
    const int64_t tiles = CeilDiv(args.seq, kAttentionTile), heads = args.batch * args.heads;
    // The last tile of queries has the most keys, so it starts first.
    ParallelFor(threads_, heads * tiles, [&](int64_t i, int thread) {
      const int64_t tile = tiles - 1 - i / heads, head = i % heads;
      kernels_.attention_forward(args, head / args.heads, head % args.heads, tile, scratch_[thread].get());
    });
    return absl::OkStatus();
  }

  absl::Status AttentionBackward(Stream*, const AttentionBackwardArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    const AttentionArgs& f = args.forward;
    Reserve(kernels_.attention_scratch(f.head_dim).backward_bytes);
    PackKeys(f, /*backward=*/true);
    const int64_t tiles = CeilDiv(f.seq, kAttentionTile), heads = f.batch * f.kv_heads;
    const int64_t splits = AttentionBackwardSplits(f.batch, f.seq, f.kv_heads);
    ParallelFor(threads_, heads * splits, [&](int64_t i, int thread) {
      const int64_t head = i % heads;
      kernels_.attention_backward(args, head / f.kv_heads, head % f.kv_heads, i / heads,
                                  scratch_[thread].get());
    });
    ParallelFor(threads_, heads * tiles, [&](int64_t i, int) {
      const int64_t head = i / tiles;
      kernels_.attention_reduce(args, head / f.kv_heads, head % f.kv_heads, i % tiles);
    });
    return absl::OkStatus();
  }

  absl::Status GeluForward(Stream*, GeluKind kind, int64_t n, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu", {n}));
    ParallelRanges(threads_, n, kPieceElements, [&](int64_t begin, int64_t end) {
      kernels_.gelu_forward(kind, end - begin, At(x, begin), At(y, begin));
    });
    return absl::OkStatus();
  }

  absl::Status GeluBackward(Stream*, GeluKind kind, int64_t n, const void* x, const void* dy,
                            void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu backward", {n}));
    ParallelRanges(threads_, n, kPieceElements, [&](int64_t begin, int64_t end) {
      kernels_.gelu_backward(kind, end - begin, At(x, begin), At(dy, begin), At(dx, begin));
    });
    return absl::OkStatus();
  }

  absl::Status SwigluForward(Stream*, int64_t rows, int64_t ffn, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu", {rows, ffn}));
    ParallelRanges(threads_, rows, RowsPerPiece(ffn), [&](int64_t begin, int64_t end) {
      kernels_.swiglu_forward(end - begin, ffn, At(x, begin * 2 * ffn), At(y, begin * ffn));
    });
    return absl::OkStatus();
  }

  absl::Status SwigluBackward(Stream*, int64_t rows, int64_t ffn, const void* x, const void* dy,
                              void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu backward", {rows, ffn}));
    ParallelRanges(threads_, rows, RowsPerPiece(ffn), [&](int64_t begin, int64_t end) {
      kernels_.swiglu_backward(end - begin, ffn, At(x, begin * 2 * ffn), At(dy, begin * ffn),
                               At(dx, begin * 2 * ffn));
    });
    return absl::OkStatus();
  }

  absl::Status Add(Stream*, int64_t n, const void* a, const void* b, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("add", {n}));
    ParallelRanges(threads_, n, kPieceElements, [&](int64_t begin, int64_t end) {
      kernels_.add(end - begin, At(a, begin), At(b, begin), At(out, begin));
    });
    return absl::OkStatus();
  }

  absl::Status Dropout(Stream*, const DropoutArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(args));
    ParallelRanges(threads_, args.n, kPieceElements,
                   [&](int64_t begin, int64_t end) { kernels_.dropout(args, begin, end); });
    return absl::OkStatus();
  }

  absl::Status BiasBackward(Stream*, int64_t rows, int64_t n, const void* dy, int64_t ldy, void* dbias,
                            Workspace workspace) override {
    STRATA_RETURN_IF_ERROR(ValidateBiasBackward(compute_, rows, n, ldy, workspace));
    const int64_t block = ReductionBlockRows(rows), blocks = ReductionBlocks(rows);
    float* sums = static_cast<float*>(workspace.data);
    ParallelFor(threads_, blocks, [&](int64_t b, int) {
      const int64_t begin = b * block, end = std::min(rows, begin + block);
      kernels_.sum_rows(end - begin, n, At(dy, begin * ldy), ldy, sums + b * n);
    });
    SumTree(blocks, n, sums, static_cast<float*>(dbias));
    return absl::OkStatus();
  }

  absl::Status EmbeddingForward(Stream*, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                const int32_t* tokens, const void* wte, const void* wpe, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding", {rows, seq, vocab, width}));
    ParallelRanges(threads_, rows, RowsPerPiece(width), [&](int64_t begin, int64_t end) {
      kernels_.embedding_forward(begin, end, seq, width, tokens, wte, wpe, out);
    });
    return absl::OkStatus();
  }

  absl::Status EmbeddingBackward(Stream*, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 const int32_t* tokens, const void* dout, void* dwte, void* dwpe,
                                 int64_t seq_max) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding backward", {rows, seq, vocab, width}));
    if (dwpe && seq_max < seq) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding backward: seq ", seq, " is larger than seq_max ", seq_max));
    }
    STRATA_RETURN_IF_ERROR(Zero(nullptr, dwte, vocab * width * 4));
    if (dwpe) STRATA_RETURN_IF_ERROR(Zero(nullptr, dwpe, seq_max * width * 4));
    // Two rows may be the same token, so threads share columns, not rows.
    const int64_t piece = std::max<int64_t>(64, RoundUp<int64_t>(CeilDiv<int64_t>(width, threads_), 16));
    ParallelRanges(threads_, width, piece, [&](int64_t begin, int64_t end) {
      kernels_.embedding_backward(rows, seq, width, tokens, dout, static_cast<float*>(dwte),
                                  static_cast<float*>(dwpe), begin, end);
    });
    return absl::OkStatus();
  }

  absl::Status CrossEntropy(Stream*, const CrossEntropyArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    double* row_loss = static_cast<double*>(args.workspace.data);
    ParallelRanges(threads_, args.rows, RowsPerPiece(args.vocab),
                   [&](int64_t begin, int64_t end) { kernels_.cross_entropy(args, begin, end, row_loss); });
    int64_t unmasked = 0;
    for (int64_t r = 0; r < args.rows; ++r) unmasked += args.targets[r] >= 0;
    for (int64_t stride = 1; stride < args.rows; stride *= 2) {
      for (int64_t r = 0; r + stride < args.rows; r += 2 * stride) row_loss[r] += row_loss[r + stride];
    }
    args.loss[0] += row_loss[0];
    args.loss[1] += static_cast<double>(unmasked);
    return absl::OkStatus();
  }

  absl::Status Zero(Stream*, void* data, int64_t bytes) override {
    ParallelRanges(threads_, bytes, int64_t{256} * 1024, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(data) + begin, 0, end - begin);
    });
    return absl::OkStatus();
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };

  static int64_t RowsPerPiece(int64_t width) { return std::max<int64_t>(1, kPieceElements / width); }

  const void* At(const void* data, int64_t element) const {
    return static_cast<const char*>(data) + element * SizeOf(compute_);
  }
  void* At(void* data, int64_t element) const {
    return static_cast<char*>(data) + element * SizeOf(compute_);
  }

  void PackKeys(const AttentionArgs& args, bool backward) {
    const int64_t tiles = CeilDiv(args.seq, kAttentionTile), heads = args.batch * args.kv_heads;
    ParallelFor(threads_, heads * tiles, [&](int64_t i, int) {
      const int64_t head = i / tiles;
      kernels_.attention_pack(args, backward, head / args.kv_heads, head % args.kv_heads, i % tiles);
    });
  }

  void SumTree(int64_t blocks, int64_t n, float* sums, float* out) {
    ParallelRanges(threads_, n, std::max<int64_t>(64, RoundUp<int64_t>(kPieceElements / blocks, 16)),
                   [&](int64_t begin, int64_t end) {
                     kernels_.sum_tree(blocks, end - begin, sums + begin, n, out + begin);
                   });
  }

  // Grows every thread's scratch to `bytes`.
  void Reserve(int64_t bytes) {
    if (bytes <= scratch_bytes_) return;
    for (auto& scratch : scratch_) {
      scratch.reset(std::aligned_alloc(64, static_cast<size_t>(RoundUp<int64_t>(bytes, 64))));
      STRATA_CHECK(scratch != nullptr);
    }
    scratch_bytes_ = bytes;
  }

  const float* RopeTable(int64_t seq, int64_t head_dim, double theta) {
    std::vector<float>& table = rope_tables_[{seq, head_dim, theta}];
    if (!table.empty()) return table.data();
    const int64_t half = head_dim / 2;
    table.resize(seq * head_dim);
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      for (int64_t p = 0; p < seq; ++p) {
        const double angle = static_cast<double>(p) * frequency;
        table[p * head_dim + i] = static_cast<float>(std::cos(angle));
        table[p * head_dim + half + i] = static_cast<float>(std::sin(angle));
      }
    }
    return table.data();
  }

  const DType compute_;
  const int threads_;
  const KernelTable& kernels_;
  cpu::Gemm gemm_;
  std::vector<std::unique_ptr<void, Free>> scratch_;  // per thread
  int64_t scratch_bytes_ = 0;
  std::map<std::tuple<int64_t, int64_t, double>, std::vector<float>> rope_tables_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Ops> MakeCpuOps(DType compute, int threads, CpuIsa isa_max) {
  STRATA_CHECK(compute == DType::kF32 || compute == DType::kBF16 || compute == DType::kF16);
  STRATA_CHECK(threads >= 1);
  return std::make_unique<cpu::CpuOps>(compute, threads, std::min(isa_max, DetectCpuIsa()));
}

}  // namespace strata
