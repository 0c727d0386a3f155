#include "kernels/cpu/gemm.h"

#include <dnnl_debug.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/checked.h"
#include "common/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/fp8/fp8_format.h"
#include "kernels/workspace.h"

namespace strata::cpu {
namespace {

// oneDNN reads the calling thread's OpenMP setting when it makes a primitive and again when it runs one; both
// must see the same.
class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
    changed_ = before_ != threads;
  }
  ~ScopedThreads() {
    if (changed_) omp_set_num_threads(before_);
  }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int before_;
  bool changed_ = false;
};

// Sides of the blocks that RunConverted turns into float: A, B and C blocks of at most 384, 384 and 256 KiB.
constexpr int64_t kBlockM = 256, kBlockN = 256, kBlockK = 384;

// RunTransposed: blocks of A^T of at most 1024 x 512, rows a little apart from a power of two, where the
// cache's sets would collide. The rest of the workspace is oneDNN's.
constexpr int64_t kTransposeM = 1024, kTransposeK = 512, kTransposeGap = 32;

int64_t TransposedBytes(const GemmArgs& args) {
  return RoundUp<int64_t>(
      std::min(kTransposeM, args.m) * (kTransposeK + kTransposeGap) * SizeOf(DType::kBF16), 64);
}

// Weight gradients of enough size. oneDNN 2.6.3 runs products with a transposed A at half the speed of others
// (AMX: 600 instead of 1200 GFLOP/s per core, worse where rows are a multiple of 4 KiB).
bool WantsTransposed(const GemmArgs& args, int64_t workspace_bytes) {
  return args.transpose_a && !args.transpose_b && args.c_is_acc && !args.bias && args.m >= 64 &&
         args.n >= 64 && args.k >= kTransposeK && workspace_bytes - TransposedBytes(args) >= 2 << 20;
}

}  // namespace

struct Gemm::Key {
  int64_t m, n, k, lda, ldb, ldc, scratch_limit;
  DType type;
  bool transpose_a, transpose_b, c_is_acc, accumulate, bias;

  bool operator==(const Key&) const = default;
};

struct Gemm::KeyHash {
  size_t operator()(const Key& key) const {
    size_t hash = 0;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29; };
    for (const int64_t value : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc}) mix(value);
    mix(static_cast<uint64_t>(key.type) | key.transpose_a << 8 | key.transpose_b << 9 | key.c_is_acc << 10 |
        key.accumulate << 11 | key.bias << 12);
    return hash;
  }
};

// A primitive with memory objects whose pointers are set before every run.
struct Gemm::Entry {
  int threads = 1;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;
};

class Gemm::Cache {
 public:
  Cache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  // The entry of `key`; nullptr when oneDNN has no implementation of it on this CPU.
  absl::StatusOr<Entry*> Get(const Key& key, int threads) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) return &found->second;
    for (int n = threads;; n /= 2) {
      const ScopedThreads scoped(n);
      int64_t scratch_bytes = 0;
      STRATA_ASSIGN_OR_RETURN(std::optional<Entry> entry, Make(key, &scratch_bytes));
      if (!entry) return nullptr;
      if (scratch_bytes <= key.scratch_limit) {
        entry->threads = n;
        return &entries_.emplace(key, *std::move(entry)).first->second;
      }
      if (n == 1) {
        return absl::InternalError(absl::StrCat("oneDNN asks for ", scratch_bytes,
                                                " bytes of scratch for m=", key.m, " n=", key.n, " k=", key.k,
                                                " on one thread; the workspace has ", key.scratch_limit));
      }
    }
  }

  absl::Status Execute(Entry& entry, const GemmArgs& args, void* scratch) {
    const ScopedThreads scoped(entry.threads);
    dnnl_exec_arg_t list[5];
    int count = 0;
    const auto bind = [&](int which, dnnl::memory& memory, const void* data) {
      list[count++] = {which, memory.get()};
      return dnnl_memory_set_data_handle_v2(memory.get(), const_cast<void*>(data), stream_.get());
    };
    dnnl_status_t status = bind(DNNL_ARG_SRC, entry.a, args.a);
    if (status == dnnl_success) status = bind(DNNL_ARG_WEIGHTS, entry.b, args.b);
    if (status == dnnl_success) status = bind(DNNL_ARG_DST, entry.c, args.c);
    if (status == dnnl_success) status = bind(DNNL_ARG_SCRATCHPAD, entry.scratch, scratch);
    if (status == dnnl_success && args.bias) status = bind(DNNL_ARG_BIAS, entry.bias, args.bias);
    if (status == dnnl_success)
      status = dnnl_primitive_execute(entry.primitive.get(), stream_.get(), count, list);
    if (status == dnnl_success) status = dnnl_stream_wait(stream_.get());
    if (status == dnnl_success) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("oneDNN matmul m=", args.m, " n=", args.n, " k=", args.k,
                                            " failed: ", dnnl_status2str(status)));
  }

 private:
  absl::StatusOr<std::optional<Entry>> Make(const Key& key, int64_t* scratch_bytes) {
    using dnnl::memory;
    const auto type = key.type == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const auto type_c = key.c_is_acc ? memory::data_type::f32 : type;
    const auto strides = [](bool transpose, int64_t ld) {
      return transpose ? memory::dims{1, ld} : memory::dims{ld, 1};
    };
    try {
      const memory::desc a({key.m, key.k}, type, strides(key.transpose_a, key.lda));
      const memory::desc b({key.k, key.n}, type, strides(key.transpose_b, key.ldb));
      const memory::desc c({key.m, key.n}, type_c, strides(false, key.ldc));
      const memory::desc bias({1, key.n}, type, memory::dims{key.n, 1});
      dnnl::primitive_attr attr;
      attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      if (key.accumulate) {
        dnnl::post_ops ops;
        ops.append_sum(1.0f);
        attr.set_post_ops(ops);
      }
      const dnnl::matmul::desc op =
          key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
      const dnnl::matmul::primitive_desc description(op, attr, engine_);
      *scratch_bytes = static_cast<int64_t>(description.scratchpad_desc().get_size());
      Entry entry;
      entry.primitive = dnnl::matmul(description);
      entry.a = memory(a, engine_, nullptr);
      entry.b = memory(b, engine_, nullptr);
      entry.c = memory(c, engine_, nullptr);
      if (key.bias) entry.bias = memory(bias, engine_, nullptr);
      entry.scratch = memory(description.scratchpad_desc(), engine_, nullptr);
      return std::optional<Entry>(std::move(entry));
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return std::optional<Entry>();
      return absl::InternalError(absl::StrCat("oneDNN cannot make a matmul m=", key.m, " n=", key.n,
                                              " k=", key.k, ": ", error.what()));
    }
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
};

Gemm::Gemm(DType compute, int threads, const KernelTable& kernels, bool native_bf16)
    : compute_(compute),
      threads_(threads),
      kernels_(kernels),
      native_bf16_(native_bf16),
      cache_(std::make_unique<Cache>()) {}

Gemm::~Gemm() = default;

absl::Status Gemm::RunPrimitive(DType type, const GemmArgs& args, int64_t scratch_limit, bool* unsupported) {
  const Key key{.m = args.m,
                .n = args.n,
                .k = args.k,
                .lda = args.lda,
                .ldb = args.ldb,
                .ldc = args.ldc,
                .scratch_limit = scratch_limit,
                .type = type,
                .transpose_a = args.transpose_a,
                .transpose_b = args.transpose_b,
                .c_is_acc = args.c_is_acc,
                .accumulate = args.accumulate,
                .bias = args.bias != nullptr};
  STRATA_ASSIGN_OR_RETURN(Entry* const entry, cache_->Get(key, threads_));
  *unsupported = entry == nullptr;
  if (*unsupported) return absl::OkStatus();
  return cache_->Execute(*entry, args, args.workspace.data);
}

absl::Status Gemm::Run(const GemmArgs& args) {
  // The promise, not what was lent: a larger workspace must not change which primitive is made.
  const int64_t limit = GemmWorkspaceBytes(compute_, args.m, args.n, args.k);
  if (args.fp8) return RunConverted(args);
  if (compute_ == DType::kF32 || (compute_ == DType::kBF16 && native_bf16_)) {
    bool unsupported = false;
    if (compute_ == DType::kBF16 && WantsTransposed(args, limit)) {
      STRATA_RETURN_IF_ERROR(RunTransposed(args, limit, &unsupported));
    } else {
      STRATA_RETURN_IF_ERROR(RunPrimitive(compute_, args, limit, &unsupported));
    }
    if (!unsupported) return absl::OkStatus();
    if (compute_ != DType::kBF16) return absl::InternalError("oneDNN has no float matmul on this CPU");
    native_bf16_ = false;
  }
  return RunConverted(args);
}

absl::Status Gemm::RunTransposed(const GemmArgs& args, int64_t workspace_bytes, bool* unsupported) {
  constexpr int64_t kPiece = 64;  // rows of A per piece of the parallel transpose
  const int64_t used = TransposedBytes(args), ld = kTransposeK + kTransposeGap;
  char* transposed = static_cast<char*>(args.workspace.data);
  for (int64_t m = 0; m < args.m; m += kTransposeM) {
    const int64_t rows = std::min(kTransposeM, args.m - m);
    for (int64_t k = 0; k < args.k; k += kTransposeK) {
      const int64_t depth = std::min(kTransposeK, args.k - k);
      const char* a = static_cast<const char*>(args.a) + (k * args.lda + m) * SizeOf(DType::kBF16);
      ParallelFor(threads_, CeilDiv(depth, kPiece), [&](int64_t piece, int) {
        const int64_t first = piece * kPiece, count = std::min(kPiece, depth - first);
        kernels_.transpose_bf16(count, rows, a + first * args.lda * SizeOf(DType::kBF16), args.lda,
                                transposed + first * SizeOf(DType::kBF16), ld);
      });
      GemmArgs block{.m = rows, .n = args.n, .k = depth, .a = transposed, .lda = ld};
      block.b = static_cast<const char*>(args.b) + k * args.ldb * SizeOf(DType::kBF16);
      block.ldb = args.ldb;
      block.c = static_cast<float*>(args.c) + m * args.ldc;
      block.ldc = args.ldc;
      block.c_is_acc = true;
      block.accumulate = args.accumulate || k > 0;
      block.workspace = {transposed + used, workspace_bytes - used};
      STRATA_RETURN_IF_ERROR(RunPrimitive(DType::kBF16, block, workspace_bytes - used, unsupported));
      if (*unsupported) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status Gemm::RunConverted(const GemmArgs& args) {
  const int64_t block_m = std::min(kBlockM, args.m), block_n = std::min(kBlockN, args.n);
  const int64_t block_k = std::min(kBlockK, args.k);
  float* a = static_cast<float*>(args.workspace.data);
  float* b = a + RoundUp<int64_t>(block_m * block_k, 16);
  float* c = b + RoundUp<int64_t>(block_k * block_n, 16);
  float* scratch = c + RoundUp<int64_t>(block_m * block_n, 16);
  const int64_t used = (scratch - a) * static_cast<int64_t>(sizeof(float));
  const int64_t scratch_bytes = GemmWorkspaceBytes(compute_, args.m, args.n, args.k) - used;
  const int64_t size = SizeOf(compute_);
  const auto element = [size](const void* data, int64_t at) {
    return static_cast<const char*>(data) + at * size;
  };
  // To floats, with fp8 to those of the codes: the sums are then the tensor cores' but for their order.
  const auto converter = [&](Fp8 type, const void* x, int64_t x_rows, int64_t x_columns, int64_t ld) {
    const int e = args.fp8 ? Fp8ScaleExponent(type, kernels_.largest_bits(x_rows, x_columns, x, ld)) : 0;
    return [=, this, fp8 = args.fp8](int64_t rows, int64_t columns, int64_t at, float* out) {
      if (fp8) return kernels_.to_fp8(type, e, rows, columns, element(x, at), ld, out, columns);
      kernels_.to_float(rows, columns, element(x, at), ld, out, columns);
    };
  };
  const auto convert_a = converter(args.a_type, args.a, args.transpose_a ? args.k : args.m,
                                   args.transpose_a ? args.m : args.k, args.lda);
  const auto convert_b = converter(args.b_type, args.b, args.transpose_b ? args.n : args.k,
                                   args.transpose_b ? args.k : args.n, args.ldb);
  for (int64_t m = 0; m < args.m; m += block_m) {
    const int64_t rows = std::min(block_m, args.m - m);
    for (int64_t n = 0; n < args.n; n += block_n) {
      const int64_t cols = std::min(block_n, args.n - n);
      for (int64_t k = 0; k < args.k; k += block_k) {
        const int64_t depth = std::min(block_k, args.k - k);
        GemmArgs block{.m = rows, .n = cols, .k = depth, .a = a, .transpose_a = args.transpose_a, .b = b};
        block.transpose_b = args.transpose_b;
        block.lda = args.transpose_a ? rows : depth;
        block.ldb = args.transpose_b ? depth : cols;
        block.c = c;
        block.ldc = cols;
        block.accumulate = k > 0;
        block.workspace = {scratch, scratch_bytes};
        convert_a(args.transpose_a ? depth : rows, block.lda,
                  args.transpose_a ? k * args.lda + m : m * args.lda + k, a);
        convert_b(args.transpose_b ? cols : depth, block.ldb,
                  args.transpose_b ? n * args.ldb + k : k * args.ldb + n, b);
        bool unsupported = false;
        STRATA_RETURN_IF_ERROR(RunPrimitive(DType::kF32, block, scratch_bytes, &unsupported));
        if (unsupported) return absl::InternalError("oneDNN has no float matmul on this CPU");
      }
      const int64_t at = (m * args.ldc + n) * (args.c_is_acc ? SizeOf(DType::kF32) : size);
      kernels_.gemm_epilogue(rows, cols, c, cols, args.bias ? element(args.bias, n) : nullptr,
                             args.accumulate, args.c_is_acc, static_cast<char*>(args.c) + at, args.ldc);
    }
  }
  return absl::OkStatus();
}

}  // namespace strata::cpu
