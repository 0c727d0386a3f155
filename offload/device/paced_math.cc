#include "offload/device/paced_math.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

class Pace {
 public:
  Pace(FakeCuda& cuda, const FakeSpeeds& speeds) : cuda_(cuda), speeds_(speeds) {}

  absl::Status Flops(Stream* stream, double flops, double per_second) {
    return Spend(stream, flops / per_second);
  }
  absl::Status Bytes(Stream* stream, int64_t bytes) {
    return Spend(stream, static_cast<double>(bytes) / speeds_.bytes_per_second);
  }
  const FakeSpeeds& speeds() const { return speeds_; }

 private:
  absl::Status Spend(Stream* stream, double seconds) {
    cuda_.Spend(stream, seconds + speeds_.launch_seconds);
    const int error = cuda_.LaunchHostFunc(
        stream, [](void*) {}, nullptr);
    if (error == kCudaSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("launch: ", cuda_.GetErrorString(error)));
  }

  FakeCuda& cuda_;
  const FakeSpeeds speeds_;
};

class PacedDeviceOps : public Ops {
 public:
  PacedDeviceOps(FakeCuda& cuda, DType compute, const FakeSpeeds& speeds)
      : pace_(cuda, speeds), compute_(compute), size_(SizeOf(compute)) {}

  DType compute_dtype() const override { return compute_; }
  DType acc_dtype() const override { return DType::kF32; }
  absl::Status Gemm(Stream* stream, const GemmArgs& a) override {
    return pace_.Flops(stream, 2.0 * static_cast<double>(a.m * a.n * a.k), Slower(pace_.speeds().flops));
  }
  absl::Status NormForward(Stream* stream, const NormArgs& a) override {
    return pace_.Bytes(stream, 2 * a.rows * a.width * size_);
  }
  absl::Status NormBackward(Stream* stream, const NormBackwardArgs& a) override {
    return pace_.Bytes(stream, 4 * a.rows * a.width * size_);
  }
  absl::Status Rope(Stream* stream, const RopeArgs& a) override {
    return pace_.Bytes(stream, 2 * a.rows * a.heads * a.head_dim * size_);
  }
  absl::Status AttentionForward(Stream* stream, const AttentionArgs& a) override {
    return pace_.Flops(stream, 2 * Product(a), Slower(pace_.speeds().attention_flops));
  }
  absl::Status AttentionBackward(Stream* stream, const AttentionBackwardArgs& a) override {
    return pace_.Flops(stream, 5 * Product(a.forward), Slower(pace_.speeds().attention_flops));
  }
  absl::Status GeluForward(Stream* stream, GeluKind, int64_t n, const void*, void*) override {
    return pace_.Bytes(stream, 2 * n * size_);
  }
  absl::Status GeluBackward(Stream* stream, GeluKind, int64_t n, const void*, const void*, void*) override {
    return pace_.Bytes(stream, 3 * n * size_);
  }
  absl::Status SwigluForward(Stream* stream, int64_t rows, int64_t ffn, const void*, void*) override {
    return pace_.Bytes(stream, 3 * rows * ffn * size_);
  }
  absl::Status SwigluBackward(Stream* stream, int64_t rows, int64_t ffn, const void*, const void*,
                              void*) override {
    return pace_.Bytes(stream, 5 * rows * ffn * size_);
  }
  absl::Status Add(Stream* stream, int64_t n, const void*, const void*, void*) override {
    return pace_.Bytes(stream, 3 * n * size_);
  }
  absl::Status Dropout(Stream* stream, const DropoutArgs& a) override {
    return pace_.Bytes(stream, 2 * a.n * size_);
  }
  absl::Status BiasBackward(Stream* stream, int64_t rows, int64_t n, const void*, int64_t, void*,
                            Workspace) override {
    return pace_.Bytes(stream, rows * n * size_);
  }
  absl::Status EmbeddingForward(Stream* stream, int64_t rows, int64_t, int64_t, int64_t width, const int32_t*,
                                const void*, const void*, void*) override {
    return pace_.Bytes(stream, 2 * rows * width * size_);
  }
  absl::Status EmbeddingBackward(Stream* stream, int64_t rows, int64_t, int64_t, int64_t width,
                                 const int32_t*, const void*, void*, void*, int64_t) override {
    return pace_.Bytes(stream, 2 * rows * width * size_);
  }
  absl::Status CrossEntropy(Stream* stream, const CrossEntropyArgs& a) override {
    return pace_.Bytes(stream, 2 * a.rows * a.vocab * size_);
  }
  absl::Status Zero(Stream* stream, void*, int64_t bytes) override { return pace_.Bytes(stream, bytes); }

 private:
  static double Product(const AttentionArgs& a) {
    return static_cast<double>(a.batch * a.seq * a.seq) * static_cast<double>(a.heads * a.head_dim);
  }
  double Slower(double flops) const { return compute_ == DType::kF32 ? flops / 4 : flops; }

  Pace pace_;
  const DType compute_;
  const int64_t size_;
};

class PacedDeviceStateOps : public StateOps {
 public:
  PacedDeviceStateOps(FakeCuda& cuda, const FakeSpeeds& speeds) : pace_(cuda, speeds) {}

  absl::Status AdamW(Stream* stream, const AdamWStep& step) override {
    return pace_.Bytes(stream, step.n * (28 + SizeOf(step.params_dtype)));
  }
  absl::Status AdamW8(Stream* stream, const AdamWStep& step, const Code8Moments&) override {
    // Gradient, master, two codes with a scale for 64 of each, parameter.
    return pace_.Bytes(stream, step.n * (4 + 8 + 4 + SizeOf(step.params_dtype)) + step.n / 4);
  }
  absl::Status CastParams(Stream* stream, const float*, void*, DType dtype, int64_t n) override {
    return pace_.Bytes(stream, n * (4 + SizeOf(dtype)));
  }
  absl::Status SumSquares(Stream* stream, const float*, int64_t n, double*, int64_t*) override {
    return pace_.Bytes(stream, 4 * n);
  }
  absl::Status Accumulate(Stream* stream, float*, const float*, int64_t n) override {
    return pace_.Bytes(stream, 12 * n);
  }
  absl::Status Checksums(Stream* stream, const void*, int64_t bytes, uint32_t*) override {
    return pace_.Bytes(stream, bytes);
  }

 private:
  Pace pace_;
};

}  // namespace

std::unique_ptr<Ops> PacedOps(FakeCuda& cuda, DType compute, const FakeSpeeds& speeds) {
  return std::make_unique<PacedDeviceOps>(cuda, compute, speeds);
}

std::unique_ptr<StateOps> PacedStateOps(FakeCuda& cuda, const FakeSpeeds& speeds) {
  return std::make_unique<PacedDeviceStateOps>(cuda, speeds);
}

}  // namespace strata
