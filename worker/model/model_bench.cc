// Tokens per second of a model's forward, loss and backward without optimizer or offload: the compute lane
// alone. Shapes: the README's main job, and GPT-2 124 M.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bfloat16.h"
#include "common/checked.h"
#include "common/random.h"
#include "kernels/cpu/cpu_ops.h"
#include "offload/arena/pinned_arena.h"
#include "worker/model/model.h"

namespace strata {
namespace {

constexpr int64_t kSeq = 256;
constexpr int64_t kPage = 4096;

ModelConfig MainJob() {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.layers = 6;
  c.hidden = 384;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.ffn = 1024;
  c.vocab = 256;
  c.max_seq = kSeq;
  return c;
}

ModelConfig Gpt2Small() {
  ModelConfig c;
  c.architecture = Architecture::kGpt2;
  c.layers = 12;
  c.hidden = 768;
  c.heads = c.kv_heads = 12;
  c.head_dim = 64;
  c.ffn = 3072;
  c.vocab = 50257;
  c.max_seq = 1024;
  c.activation = Activation::kGeluTanh;
  c.tied_head = true;
  return c;
}

template <typename T>
T OrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

void OrExit(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// All units share one buffer of weights, and all gradients of one place in a block another: the arithmetic is
// that of a step, the memory much less.
class Step {
 public:
  Step(const ModelConfig& config, DType dtype, int64_t micro_batch, int threads)
      : layout_(OrExit(BuildModelLayout(config, dtype, micro_batch, kSeq))),
        ops_(MakeCpuOps(dtype, threads)),
        model_(MakeModel(layout_, *ops_)) {
    int64_t elements = 0, rest_bytes = 0;
    for (const ParamUnit& unit : layout_.units) elements = std::max(elements, unit.elements);
    for (const Block& block : layout_.blocks) {
      rest_at_ = std::max(rest_at_, RoundUp(block.saved_bytes, kPage));
      rest_bytes = std::max(rest_bytes, RoundUp(block.saved_rest_bytes, kPage));
      workspace_bytes_ = std::max(
          {workspace_bytes_, block.forward_workspace_bytes, RoundUp(block.backward_workspace_bytes, kPage)});
    }
    saved_bytes_ = rest_at_ + rest_bytes;
    activation_bytes_ = RoundUp(layout_.activation_bytes, kPage);
    const int64_t blocks = static_cast<int64_t>(layout_.blocks.size());
    const int64_t params_bytes = RoundUp(elements * SizeOf(dtype), kPage);
    const int64_t grad_bytes = RoundUp(elements * SizeOf(layout_.acc_dtype()), kPage);
    const int64_t bytes = params_bytes + 2 * grad_bytes + blocks * (saved_bytes_ + activation_bytes_) +
                          activation_bytes_ + RoundUp(workspace_bytes_, kPage);
    arena_ = OrExit(PinnedArena::Create({.bytes = static_cast<uint64_t>(bytes)}));
    std::byte* next = arena_->data();
    const auto take = [&next](int64_t size) { return std::exchange(next, next + size); };
    params_.assign(2, take(params_bytes));
    grads_ = {take(grad_bytes), take(grad_bytes)};
    saved_ = take(blocks * saved_bytes_);
    activations_ = take(blocks * activation_bytes_);
    act_grad_ = take(activation_bytes_);
    workspace_ = take(RoundUp(workspace_bytes_, kPage));

    const CounterRandom random(1, 1);
    for (int64_t i = 0; i < micro_batch * kSeq; ++i) {
      tokens_.push_back(static_cast<int32_t>(random.Below(i, config.vocab)));
    }
    for (int64_t i = 0; i < elements; ++i) {
      const float value = static_cast<float>(0.02 * random.Normal(i));
      void* const base = const_cast<void*>(params_[0]);
      if (dtype == DType::kF32) static_cast<float*>(base)[i] = value;
      if (dtype == DType::kBF16) static_cast<BFloat16*>(base)[i] = ToBFloat16(value);
    }
  }

  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }

  void Run() {
    const int head = static_cast<int>(layout_.blocks.size()) - 1;
    for (int i = 0; i < head; ++i) {
      BlockArgs args = Args(i);
      args.output = activations_ + i * activation_bytes_;
      OrExit(model_->Forward(nullptr, args));
    }
    double loss[2] = {};
    for (int i = head; i >= 0; --i) {
      BlockArgs args = Args(i);
      args.grads = std::span(grads_).first(layout_.blocks[i].units.size());
      args.grad = act_grad_;
      args.loss = loss;
      args.gradient_scale = 1.0 / static_cast<double>(tokens());
      OrExit(i == head ? model_->Loss(nullptr, args) : model_->Backward(nullptr, args));
    }
  }

 private:
  BlockArgs Args(int block) {
    BlockArgs args;
    args.block = block;
    args.params = std::span(params_).first(layout_.blocks[block].units.size());
    args.tokens = args.targets = tokens_.data();
    if (block > 0) args.input = activations_ + (block - 1) * activation_bytes_;
    args.saved = saved_ + block * saved_bytes_;
    args.saved_rest = saved_ + block * saved_bytes_ + rest_at_;
    args.workspace = {workspace_, workspace_bytes_};
    return args;
  }

  const ModelLayout layout_;
  const std::unique_ptr<Ops> ops_;
  const std::unique_ptr<BlockCompute> model_;
  std::unique_ptr<PinnedArena> arena_;
  int64_t saved_bytes_ = 0, rest_at_ = 0, workspace_bytes_ = 0, activation_bytes_ = 0;
  std::vector<const void*> params_;
  std::vector<void*> grads_;
  std::byte* saved_ = nullptr;
  std::byte* activations_ = nullptr;
  std::byte* act_grad_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::vector<int32_t> tokens_;
};

void BM_Step(benchmark::State& state, const ModelConfig& config, DType dtype, int64_t micro_batch) {
  Step step(config, dtype, micro_batch, static_cast<int>(state.range(0)));
  step.Run();  // libraries compile their kernels, caches of shapes fill
  for (auto _ : state) step.Run();
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(step.tokens()), benchmark::Counter::kIsIterationInvariantRate);
}

#define STRATA_STEP_BENCH(name, config, dtype, micro_batch)    \
  BENCHMARK_CAPTURE(BM_Step, name, config, dtype, micro_batch) \
      ->Arg(1)                                                 \
      ->Arg(2)                                                 \
      ->UseRealTime()                                          \
      ->Unit(benchmark::kMillisecond)

STRATA_STEP_BENCH(main_job_bf16, MainJob(), DType::kBF16, 8);
STRATA_STEP_BENCH(main_job_f32, MainJob(), DType::kF32, 8);
STRATA_STEP_BENCH(gpt2_124m_bf16, Gpt2Small(), DType::kBF16, 4);
STRATA_STEP_BENCH(gpt2_124m_f32, Gpt2Small(), DType::kF32, 4);

}  // namespace
}  // namespace strata

BENCHMARK_MAIN();
