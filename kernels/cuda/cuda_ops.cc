#include "kernels/cuda/cuda_ops.h"

#include <utility>

#include "common/check.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/activation/launch.h"
#include "kernels/columns/launch.h"
#include "kernels/cuda/launch_error.h"
#include "kernels/elementwise/launch.h"
#include "kernels/embedding/launch.h"
#include "kernels/fp8/launch.h"
#include "kernels/loss/launch.h"
#include "kernels/norm/launch.h"
#include "kernels/rope/launch.h"
#include "kernels/validate.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

class CudaOps final : public Ops {
 public:
  CudaOps(DType compute, GemmProvider& gemm, AttentionBackend& attention)
      : compute_(compute), gemm_(gemm), attention_(attention) {}

  DType compute_dtype() const override { return compute_; }
  DType acc_dtype() const override { return DType::kF32; }

  absl::Status Gemm(Stream* stream, const GemmArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return args.fp8 ? Fp8Gemm(stream, args) : gemm_.Gemm(stream, compute_, args);
  }

  absl::Status NormForward(Stream* stream, const NormArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return ToStatus("norm", gpu::NormForward(stream, compute_, args));
  }

  absl::Status NormBackward(Stream* stream, const NormBackwardArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return ToStatus("norm backward", gpu::NormBackward(stream, compute_, args));
  }

  absl::Status Rope(Stream* stream, const RopeArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return ToStatus("rope", gpu::Rope(stream, compute_, args));
  }

  absl::Status AttentionForward(Stream* stream, const AttentionArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return attention_.Forward(stream, compute_, args);
  }

  absl::Status AttentionBackward(Stream* stream, const AttentionBackwardArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return attention_.Backward(stream, compute_, args);
  }

  absl::Status GeluForward(Stream* stream, GeluKind kind, int64_t n, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu", {n}));
    return ToStatus("gelu", gpu::GeluForward(stream, compute_, kind, n, x, y));
  }

  absl::Status GeluBackward(Stream* stream, GeluKind kind, int64_t n, const void* x, const void* dy,
                            void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("gelu backward", {n}));
    return ToStatus("gelu backward", gpu::GeluBackward(stream, compute_, kind, n, x, dy, dx));
  }

  absl::Status SwigluForward(Stream* stream, int64_t rows, int64_t ffn, const void* x, void* y) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu", {rows, ffn}));
    return ToStatus("swiglu", gpu::SwigluForward(stream, compute_, rows, ffn, x, y));
  }

  absl::Status SwigluBackward(Stream* stream, int64_t rows, int64_t ffn, const void* x, const void* dy,
                              void* dx) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("swiglu backward", {rows, ffn}));
    return ToStatus("swiglu backward", gpu::SwigluBackward(stream, compute_, rows, ffn, x, dy, dx));
  }

  absl::Status Add(Stream* stream, int64_t n, const void* a, const void* b, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("add", {n}));
    return ToStatus("add", gpu::Add(stream, compute_, n, a, b, out));
  }

  absl::Status Dropout(Stream* stream, const DropoutArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(args));
    return ToStatus("dropout", gpu::Dropout(stream, compute_, args));
  }

  absl::Status BiasBackward(Stream* stream, int64_t rows, int64_t n, const void* dy, int64_t ldy, void* dbias,
                            Workspace workspace) override {
    STRATA_RETURN_IF_ERROR(ValidateBiasBackward(compute_, rows, n, ldy, workspace));
    return ToStatus("bias backward",
                    gpu::BiasBackward(stream, compute_, rows, n, dy, ldy, dbias, workspace.data));
  }

  absl::Status EmbeddingForward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                const int32_t* tokens, const void* wte, const void* wpe, void* out) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding", {rows, seq, vocab, width}));
    return ToStatus("embedding",
                    gpu::EmbeddingForward(stream, compute_, rows, seq, width, tokens, wte, wpe, out));
  }

  absl::Status EmbeddingBackward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 const int32_t* tokens, const void* dout, void* dwte, void* dwpe,
                                 int64_t seq_max) override {
    STRATA_RETURN_IF_ERROR(ValidatePositive("embedding backward", {rows, seq, vocab, width}));
    if (dwpe != nullptr && seq_max < seq) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding backward: seq ", seq, " is larger than seq_max ", seq_max));
    }
    return ToStatus("embedding backward", gpu::EmbeddingBackward(stream, compute_, rows, seq, vocab, width,
                                                                 tokens, dout, dwte, dwpe, seq_max));
  }

  absl::Status CrossEntropy(Stream* stream, const CrossEntropyArgs& args) override {
    STRATA_RETURN_IF_ERROR(Validate(compute_, args));
    return ToStatus("cross entropy", gpu::CrossEntropy(stream, compute_, args));
  }

  absl::Status Zero(Stream* stream, void* data, int64_t bytes) override {
    return ToStatus("zero", gpu::Clear(stream, data, bytes));
  }

 private:
  // Codes of both operands along k, then their product.
  absl::Status Fp8Gemm(Stream* stream, const GemmArgs& args) {
    char* next = static_cast<char*>(args.workspace.data);
    const auto take = [&](int64_t bytes) {
      return std::exchange(next, next + RoundUp(bytes, kFp8PartAlign));
    };
    auto* const a = reinterpret_cast<uint8_t*>(take(args.m * args.k));
    auto* const b = reinterpret_cast<uint8_t*>(take(args.n * args.k));
    auto* const scales = reinterpret_cast<float*>(take(kFp8SmallBytes));
    static_assert(gpu::kFp8ScratchBytes <= kFp8SmallBytes && kFp8SmallParts == 3);
    // To codes along k of a matrix that has `rows` of them.
    const auto quantize = [&](Fp8 type, const void* x, int64_t ld, int64_t rows, bool transpose,
                              uint8_t* codes, float* scale) {
      gpu::Fp8QuantizeArgs q = {.type = type, .x = x, .rows = rows, .columns = args.k, .ld = ld};
      if (transpose) std::swap(q.rows, q.columns);
      q.transpose = transpose;
      q.codes = codes;
      q.scale = scale;
      q.scratch = reinterpret_cast<uint32_t*>(take(kFp8SmallBytes));
      return ToStatus("fp8 codes", gpu::Fp8Quantize(stream, q));
    };
    STRATA_RETURN_IF_ERROR(quantize(args.a_type, args.a, args.lda, args.m, args.transpose_a, a, scales));
    STRATA_RETURN_IF_ERROR(quantize(args.b_type, args.b, args.ldb, args.n, !args.transpose_b, b, scales + 1));

    Fp8GemmArgs product = {
        .m = args.m, .n = args.n, .k = args.k, .a = a, .lda = args.k, .a_type = args.a_type};
    product.a_scale = scales;
    product.b = b;
    product.ldb = args.k;
    product.b_type = args.b_type;
    product.b_scale = scales + 1;
    product.c = args.c;
    product.ldc = args.ldc;
    product.c_type = args.c_is_acc ? DType::kF32 : compute_;
    product.accumulate = args.accumulate;
    product.bias = args.bias;
    product.workspace = {next, args.workspace.bytes - (next - static_cast<char*>(args.workspace.data))};
    return gemm_.Fp8Gemm(stream, product);
  }

  const DType compute_;
  GemmProvider& gemm_;
  AttentionBackend& attention_;
};

}  // namespace

std::unique_ptr<Ops> MakeCudaOps(DType compute, GemmProvider& gemm, AttentionBackend& attention) {
  STRATA_CHECK(compute == DType::kF32 || compute == DType::kBF16 || compute == DType::kF16);
  return std::make_unique<CudaOps>(compute, gemm, attention);
}

}  // namespace strata
