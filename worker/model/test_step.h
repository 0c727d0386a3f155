// Test support: one forward and backward pass of a whole model in host memory, block by block, as the engine
// would run it, in buffers that have exactly the sizes of the layout, are poisoned before each use, stand
// between guard bytes, and of which those that an operation may only read are compared afterwards.
#ifndef WORKER_MODEL_TEST_STEP_H_
#define WORKER_MODEL_TEST_STEP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"

namespace strata {

// Memory of exactly `bytes`, aligned as slots of an arena are, between guards.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t bytes);

  void* data() { return storage_.get() + kGuard; }
  const void* data() const { return storage_.get() + kGuard; }
  int64_t bytes() const { return bytes_; }
  // All bits set: a NaN in every floating type, and an index outside everything.
  void Poison();
  // Whether the guards are whole.
  bool Intact() const;
  uint32_t Crc() const;

 private:
  static constexpr int64_t kGuard = 4096;
  struct Free {
    void operator()(std::byte* p) const;
  };
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> storage_;
};

// Reading and writing arrays of any floating type as double.
double GetValue(const void* base, DType dtype, int64_t index);
void SetValue(void* base, DType dtype, int64_t index, double value);

class TestStep {
 public:
  // `seed`: of dropout.
  TestStep(const ModelLayout& layout, Ops& ops, uint64_t seed = 0);

  const ModelLayout& layout() const { return layout_; }
  BlockCompute& model() { return *model_; }

  // Element of a unit's parameters, rounded to the compute type.
  void SetParam(int unit, int64_t element, double value);
  double GetParam(int unit, int64_t element) const;
  // Parameters of every tensor: normal with the given deviation (norm weights around one); padding zero.
  void RandomParams(uint64_t seed, double deviation);
  std::vector<const void*> params() const;

  // What passes drop: nothing at first, as in evaluation.
  void SetDraw(std::optional<DrawKey> draw) { draw_ = draw; }

  // Off: no poison, no guards, no comparing, for the many evaluations of a finite difference. On at first.
  void SetChecks(bool on) { checks_ = on; }

  // loss: {sum, unmasked rows}.
  absl::Status LossOnly(std::span<const int32_t> tokens, std::span<const int32_t> targets, double* loss);
  // Gradients of gradient_scale * (sum of losses) for every unit, added over the blocks that share it. With
  // `recompute`, every block's forward runs a second time before its backward, into poisoned buffers, and
  // must give the same bits; then what can be made from the saved part alone is, once more.
  absl::Status Run(std::span<const int32_t> tokens, std::span<const int32_t> targets, double gradient_scale,
                   bool recompute, double* loss);
  double Grad(int unit, int64_t element) const { return grads_[unit][element]; }
  const std::vector<std::vector<double>>& grads() const { return grads_; }

 private:
  enum class Call { kForward, kRecomputeRest, kBackward, kLoss };

  absl::Status Forward(std::span<const int32_t> tokens);
  // The block's forward again, then its rest from its saved part.
  absl::Status Recompute(int block, BlockArgs args, std::vector<const GuardedBuffer*> inputs);
  // Runs one operation with poisoned workspace and, if it writes gradients, poisoned gradient buffers; checks
  // guards and read-only buffers.
  absl::Status RunBlock(Call call, int block, BlockArgs args, std::vector<const GuardedBuffer*> read_only);
  GuardedBuffer& Scratch(int64_t bytes, int use);
  absl::Status CheckGuards(const std::string& where) const;

  const ModelLayout layout_;
  std::unique_ptr<BlockCompute> model_;
  std::vector<std::unique_ptr<GuardedBuffer>> params_;
  std::vector<std::unique_ptr<GuardedBuffer>> activations_;  // [i]: output of block i
  std::vector<std::unique_ptr<GuardedBuffer>> saved_, saved_rest_;
  GuardedBuffer act_grad_;
  // Workspaces and gradients: one of each size and use, since a fresh page costs more than the tests'
  // arithmetic.
  std::map<std::pair<int64_t, int>, std::unique_ptr<GuardedBuffer>> scratch_;
  std::optional<DrawKey> draw_;
  bool checks_ = true;
  std::vector<std::vector<double>> grads_;
};

}  // namespace strata

#endif  // WORKER_MODEL_TEST_STEP_H_
