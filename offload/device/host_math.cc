#include "offload/device/host_math.h"

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/checked.h"
#include "common/mutex.h"
#include "common/status.h"
#include "kernels/checksum/pieces.h"
#include "kernels/optimizer/code8.h"

namespace strata {
namespace {

// Owns what is enqueued until it has run; what an error kept from running goes with the object.
class HostWork {
 public:
  explicit HostWork(FakeCuda& cuda) : cuda_(cuda) {}

  FakeCuda& cuda() { return cuda_; }

  absl::Status Enqueue(Stream* stream, std::function<absl::Status()> body) {
    Item* item;
    {
      MutexLock lock(mu_);
      item = &items_.emplace_back();
      *item = {this, std::move(body), std::prev(items_.end())};
    }
    const int error = cuda_.LaunchHostFunc(stream, &Run, item);
    if (error == kCudaSuccess) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("launch: ", cuda_.GetErrorString(error), " (CUDA error ", error, ")"));
  }

 private:
  struct Item {
    HostWork* owner = nullptr;
    std::function<absl::Status()> body;
    std::list<Item>::iterator self;
  };

  // A kernel has no status: an argument that it cannot take was the caller's to refuse.
  static void Run(void* argument) {
    Item* const item = static_cast<Item*>(argument);
    STRATA_CHECK(item->body().ok());
    HostWork* const owner = item->owner;
    MutexLock lock(owner->mu_);
    owner->items_.erase(item->self);
  }

  FakeCuda& cuda_;
  Mutex mu_;
  std::list<Item> items_ ABSL_GUARDED_BY(mu_);
};

class HostOps : public Ops {
 public:
  HostOps(FakeCuda& cuda, std::unique_ptr<Ops> inner) : inner_(std::move(inner)), work_(cuda) {}

  DType compute_dtype() const override { return inner_->compute_dtype(); }
  DType acc_dtype() const override { return inner_->acc_dtype(); }

  absl::Status Gemm(Stream* stream, const GemmArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->Gemm(nullptr, args); });
  }
  absl::Status NormForward(Stream* stream, const NormArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->NormForward(nullptr, args); });
  }
  absl::Status NormBackward(Stream* stream, const NormBackwardArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->NormBackward(nullptr, args); });
  }
  absl::Status Rope(Stream* stream, const RopeArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->Rope(nullptr, args); });
  }
  absl::Status AttentionForward(Stream* stream, const AttentionArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->AttentionForward(nullptr, args); });
  }
  absl::Status AttentionBackward(Stream* stream, const AttentionBackwardArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->AttentionBackward(nullptr, args); });
  }
  absl::Status GeluForward(Stream* stream, GeluKind kind, int64_t n, const void* x, void* y) override {
    return Enqueue(stream, [=, this] { return inner_->GeluForward(nullptr, kind, n, x, y); });
  }
  absl::Status GeluBackward(Stream* stream, GeluKind kind, int64_t n, const void* x, const void* dy,
                            void* dx) override {
    return Enqueue(stream, [=, this] { return inner_->GeluBackward(nullptr, kind, n, x, dy, dx); });
  }
  absl::Status SwigluForward(Stream* stream, int64_t rows, int64_t ffn, const void* x, void* y) override {
    return Enqueue(stream, [=, this] { return inner_->SwigluForward(nullptr, rows, ffn, x, y); });
  }
  absl::Status SwigluBackward(Stream* stream, int64_t rows, int64_t ffn, const void* x, const void* dy,
                              void* dx) override {
    return Enqueue(stream, [=, this] { return inner_->SwigluBackward(nullptr, rows, ffn, x, dy, dx); });
  }
  absl::Status Add(Stream* stream, int64_t n, const void* a, const void* b, void* out) override {
    return Enqueue(stream, [=, this] { return inner_->Add(nullptr, n, a, b, out); });
  }
  absl::Status Dropout(Stream* stream, const DropoutArgs& args) override {
    return Enqueue(stream, [this, args] { return inner_->Dropout(nullptr, args); });
  }
  absl::Status BiasBackward(Stream* stream, int64_t rows, int64_t n, const void* dy, int64_t ldy, void* dbias,
                            Workspace workspace) override {
    return Enqueue(stream,
                   [=, this] { return inner_->BiasBackward(nullptr, rows, n, dy, ldy, dbias, workspace); });
  }
  absl::Status EmbeddingForward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                const int32_t* tokens, const void* wte, const void* wpe, void* out) override {
    return Enqueue(stream, [=, this] {
      return inner_->EmbeddingForward(nullptr, rows, seq, vocab, width, tokens, wte, wpe, out);
    });
  }
  absl::Status EmbeddingBackward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 const int32_t* tokens, const void* dout, void* dwte, void* dwpe,
                                 int64_t seq_max) override {
    return Enqueue(stream, [=, this] {
      return inner_->EmbeddingBackward(nullptr, rows, seq, vocab, width, tokens, dout, dwte, dwpe, seq_max);
    });
  }
  absl::Status CrossEntropy(Stream* stream, const CrossEntropyArgs& args) override {
    work_.cuda().Declare(stream, "a loss", {{args.loss, 2 * sizeof(double), true}});
    return Enqueue(stream, [this, args] { return inner_->CrossEntropy(nullptr, args); });
  }
  absl::Status Zero(Stream* stream, void* data, int64_t bytes) override {
    return Enqueue(stream, [=, this] { return inner_->Zero(nullptr, data, bytes); });
  }

 private:
  absl::Status Enqueue(Stream* stream, std::function<absl::Status()> body) {
    return work_.Enqueue(stream, std::move(body));
  }

  const std::unique_ptr<Ops> inner_;
  HostWork work_;
};

using Accesses = std::vector<MemoryAccess>;

Accesses AccessesOf(const AdamWStep& step) {
  const int64_t bytes = step.n * static_cast<int64_t>(sizeof(float));
  return {{step.grad, bytes, false},
          {step.master, bytes, true},
          {step.m, bytes, true},
          {step.v, bytes, true},
          {step.params, step.n * SizeOf(step.params_dtype), true}};
}
Accesses AccessesOf(const AdamWStep& step, const Code8Moments& moments) {
  const int64_t bytes = step.n * static_cast<int64_t>(sizeof(float));
  const int64_t scales = CeilDiv<int64_t>(step.n, kCode8Block) * static_cast<int64_t>(sizeof(float));
  return {{step.grad, bytes, false},
          {step.master, bytes, true},
          {moments.m, step.n, true},
          {moments.v, step.n, true},
          {moments.m_scale, scales, true},
          {moments.v_scale, scales, true},
          {step.params, step.n * SizeOf(step.params_dtype), true}};
}
Accesses AccessesOfCast(const float* master, void* params, DType dtype, int64_t n) {
  return {{master, n * static_cast<int64_t>(sizeof(float)), false}, {params, n * SizeOf(dtype), true}};
}
Accesses AccessesOfSum(const float* x, int64_t n, double* sum, int64_t* first_bad) {
  return {{x, n * static_cast<int64_t>(sizeof(float)), false},
          {sum, sizeof(double), true},
          {first_bad, sizeof(int64_t), true}};
}
Accesses AccessesOfAccumulate(float* acc, const float* x, int64_t n) {
  const int64_t bytes = n * static_cast<int64_t>(sizeof(float));
  return {{acc, bytes, true}, {x, bytes, false}};
}

Accesses AccessesOfChecksums(const void* data, int64_t bytes, uint32_t* crcs) {
  return {{data, bytes, false}, {crcs, ChecksumPieces(bytes) * static_cast<int64_t>(sizeof(uint32_t)), true}};
}

class DeviceStateOps : public StateOps {
 public:
  DeviceStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner) : inner_(std::move(inner)), work_(cuda) {}

  absl::Status AdamW(Stream* stream, const AdamWStep& step) override {
    return Enqueue(stream, "AdamW", AccessesOf(step), [this, step] { return inner_->AdamW(nullptr, step); });
  }
  absl::Status AdamW8(Stream* stream, const AdamWStep& step, const Code8Moments& moments) override {
    return Enqueue(stream, "AdamW8", AccessesOf(step, moments),
                   [this, step, moments] { return inner_->AdamW8(nullptr, step, moments); });
  }
  absl::Status CastParams(Stream* stream, const float* master, void* params, DType dtype,
                          int64_t n) override {
    return Enqueue(stream, "CastParams", AccessesOfCast(master, params, dtype, n),
                   [=, this] { return inner_->CastParams(nullptr, master, params, dtype, n); });
  }
  absl::Status SumSquares(Stream* stream, const float* x, int64_t n, double* sum,
                          int64_t* first_bad) override {
    return Enqueue(stream, "SumSquares", AccessesOfSum(x, n, sum, first_bad),
                   [=, this] { return inner_->SumSquares(nullptr, x, n, sum, first_bad); });
  }
  absl::Status Accumulate(Stream* stream, float* acc, const float* x, int64_t n) override {
    return Enqueue(stream, "Accumulate", AccessesOfAccumulate(acc, x, n),
                   [=, this] { return inner_->Accumulate(nullptr, acc, x, n); });
  }
  absl::Status Checksums(Stream* stream, const void* data, int64_t bytes, uint32_t* crcs) override {
    return Enqueue(stream, "Checksums", AccessesOfChecksums(data, bytes, crcs),
                   [=, this] { return inner_->Checksums(nullptr, data, bytes, crcs); });
  }

 private:
  absl::Status Enqueue(Stream* stream, const std::string& what, Accesses accesses,
                       std::function<absl::Status()> body) {
    work_.cuda().Declare(stream, what, std::move(accesses));
    return work_.Enqueue(stream, std::move(body));
  }

  const std::unique_ptr<StateOps> inner_;
  HostWork work_;
};

class HostStateOps : public StateOps {
 public:
  HostStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner) : cuda_(cuda), inner_(std::move(inner)) {}

  absl::Status AdamW(Stream*, const AdamWStep& step) override {
    return During("AdamW on the host", AccessesOf(step), [&] { return inner_->AdamW(nullptr, step); });
  }
  absl::Status AdamW8(Stream*, const AdamWStep& step, const Code8Moments& moments) override {
    return During("AdamW8 on the host", AccessesOf(step, moments),
                  [&] { return inner_->AdamW8(nullptr, step, moments); });
  }
  absl::Status CastParams(Stream*, const float* master, void* params, DType dtype, int64_t n) override {
    return During("CastParams on the host", AccessesOfCast(master, params, dtype, n),
                  [&] { return inner_->CastParams(nullptr, master, params, dtype, n); });
  }
  absl::Status SumSquares(Stream*, const float* x, int64_t n, double* sum, int64_t* first_bad) override {
    return During("SumSquares on the host", AccessesOfSum(x, n, sum, first_bad),
                  [&] { return inner_->SumSquares(nullptr, x, n, sum, first_bad); });
  }
  absl::Status Accumulate(Stream*, float* acc, const float* x, int64_t n) override {
    return During("Accumulate on the host", AccessesOfAccumulate(acc, x, n),
                  [&] { return inner_->Accumulate(nullptr, acc, x, n); });
  }
  absl::Status Checksums(Stream*, const void* data, int64_t bytes, uint32_t* crcs) override {
    return During("Checksums on the host", AccessesOfChecksums(data, bytes, crcs),
                  [&] { return inner_->Checksums(nullptr, data, bytes, crcs); });
  }

 private:
  template <typename Body>
  absl::Status During(const std::string& what, Accesses accesses, Body body) {
    const int64_t access = cuda_.BeginHostAccess(what, std::move(accesses));
    const absl::Status status = body();
    cuda_.EndHostAccess(access);
    return status;
  }

  FakeCuda& cuda_;
  const std::unique_ptr<StateOps> inner_;
};

}  // namespace

std::unique_ptr<Ops> EnqueuedOps(FakeCuda& cuda, std::unique_ptr<Ops> inner) {
  return std::make_unique<HostOps>(cuda, std::move(inner));
}

std::unique_ptr<StateOps> EnqueuedStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner) {
  return std::make_unique<DeviceStateOps>(cuda, std::move(inner));
}

std::unique_ptr<StateOps> AnnouncedStateOps(FakeCuda& cuda, std::unique_ptr<StateOps> inner) {
  return std::make_unique<HostStateOps>(cuda, std::move(inner));
}

}  // namespace strata
