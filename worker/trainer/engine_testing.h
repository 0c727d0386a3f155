// What tests of the engine share: small real models, their data, and settings under which results must be the
// same.
#ifndef WORKER_TRAINER_ENGINE_TESTING_H_
#define WORKER_TRAINER_ENGINE_TESTING_H_

#include <unistd.h>

#include <bit>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/random.h"
#include "common/status.h"
#include "gtest/gtest.h"
#include "offload/checkpoint/checkpoint_writer.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"
#include "worker/trainer/engine.h"

namespace strata {

inline constexpr int64_t kMiB = int64_t{1} << 20;

inline v1::JobSpec SmallLlama() {
  v1::JobSpec spec;
  spec.set_name("engine-test");
  v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
  model.set_architecture(v1::ARCHITECTURE_LLAMA);
  model.set_layers(3);
  model.set_hidden(48);
  model.set_heads(4);
  model.set_kv_heads(2);
  model.set_ffn(80);
  model.set_vocab(256);
  model.set_max_seq(32);
  spec.mutable_data()->add_train("unused");
  spec.mutable_data()->set_seq_len(24);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_steps(5);
  training.set_global_batch(6);
  training.set_micro_batch(2);
  training.mutable_optimizer()->set_lr(3e-3);
  training.set_grad_clip(1.0);
  training.set_seed(7);
  spec.mutable_memory()->set_device(64 * kMiB);
  spec.mutable_memory()->set_host(64 * kMiB);
  spec.mutable_memory()->set_nvme(256 * kMiB);
  spec.mutable_memory()->set_chunk(32 * 1024);
#ifdef STRATA_SANITIZE
  // ThreadSanitizer does not see the barriers of libgomp, which is not built for it.
  training.set_compute_threads(1);
#endif
  ApplyDefaults(spec);
  return spec;
}

inline v1::JobSpec SmallGpt2() {
  v1::JobSpec spec = SmallLlama();
  v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_kv_heads(4);
  model.clear_tied_head();
  model.set_activation(v1::ACTIVATION_GELU_TANH);
  ApplyDefaults(spec);
  return spec;
}

inline v1::JobSpec WithOptimizer(v1::JobSpec spec, const char* name) {
  spec.mutable_training()->mutable_optimizer()->set_name(name);
  return spec;
}

inline v1::JobSpec SmallDroppingGpt2() {
  v1::JobSpec spec = SmallGpt2();
  spec.mutable_model()->mutable_dropout()->set_embedding(0.1);
  spec.mutable_model()->mutable_dropout()->set_residual(0.2);
  return spec;
}

// All sizes are multiples of 16.
inline v1::JobSpec SmallFp8Llama() {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_model()->mutable_config()->set_hidden(64);
  spec.mutable_model()->mutable_config()->set_head_dim(16);
  spec.mutable_training()->set_precision(v1::PRECISION_FP8);
  return spec;
}

// Random tokens as a function of (step, micro-batch), so that every setting sees the same data.
class RandomTokens : public StepSource {
 public:
  explicit RandomTokens(const v1::JobSpec& spec) : spec_(spec) {}
  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const CounterRandom random(11, static_cast<uint64_t>((same_batch_ ? 0 : step) * 1000 + micro_batch));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(random.Below(i, 256));
      targets[i] = static_cast<int32_t>(random.Below(i + 1, 256));
    }
    if (step == poison_step_) targets[0] = poison_target_;
    return absl::OkStatus();
  }
  double GradientScale(int64_t step) override {
    if (step == infinite_step_) return std::numeric_limits<double>::infinity();
    return scale_ / (spec_.training().global_batch() * spec_.data().seq_len());
  }
  // Every group has its own.
  AdamWHyper Hyper(int64_t applied, int group) const override {
    return {.lr = 3e-3 / static_cast<double>(1 + applied + group),
            .beta1 = 0.9 - 0.01 * group,
            .weight_decay = group == kPlainGroup ? 0 : 0.1};
  }
  bool OnStep(const StepResult& result) override {
    results.push_back(result);
    return true;
  }

  std::vector<StepResult> results;
  double scale_ = 1;
  bool same_batch_ = false;  // of every step, so that the loss falls
  int64_t infinite_step_ = -1;
  int64_t poison_step_ = -1;
  int32_t poison_target_ = -1;

 private:
  const v1::JobSpec& spec_;
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/engine_test_" + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }

  using WrapModel = std::function<std::unique_ptr<BlockCompute>(std::unique_ptr<BlockCompute>)>;

  absl::StatusOr<std::unique_ptr<Engine>> Make(v1::JobSpec spec, WrapModel wrap_model = nullptr) {
    std::vector<NvmePath> paths;
    for (size_t i = 0; i < path_weights_.size(); ++i) {
      paths.push_back({folder_ + "/nvme" + std::to_string(i), path_weights_[i]});
      STRATA_RETURN_IF_ERROR(MakeDirectories(paths.back().path));
    }
    EngineOptions options{.spec = spec,
                          .budget = BudgetOf(spec, {}),
                          .nvme = paths,
                          .owner = "job",
                          .wrap_model = std::move(wrap_model)};
    Adjust(options);
    return Engine::Create(options);
  }
  virtual void Adjust(EngineOptions& options) {}

  // A checkpoint of what the engine holds, in `folder`: its path.
  std::string Save(Engine& engine, const std::string& folder, const TrainerCounters& at) {
    CheckpointDescription description{.job_uid = "job", .step = at.iterations};
    description.state.pending_scale = at.pending_scale;
    description.state.moments = engine.layout().moments;
    const auto writer =
        CheckpointWriter::Create(FileOps::Real(), folder, std::move(description), engine.Tensors());
    EXPECT_TRUE(writer.ok()) << writer.status();
    if (!writer.ok()) return "";
    const absl::Status saved = engine.SaveTo(**writer, at.iterations);
    EXPECT_TRUE(saved.ok()) << saved;
    const auto written = (*writer)->Commit();
    EXPECT_TRUE(written.ok()) << written.status();
    return written.ok() ? written->path : "";
  }

  // Losses, norms and the state hash after each step, as one comparable text.
  std::string Bits(const v1::JobSpec& spec, bool hash_each_step = true) {
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return engine.status().ToString();
    EXPECT_TRUE((*engine)->Initialize(spec.training().seed()).ok());
    RandomTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    std::string bits;
    const int64_t steps = spec.training().steps();
    for (int64_t i = 0; i < (hash_each_step ? steps : 1); ++i) {
      const absl::Status ran = (*engine)->train().Run(source, hash_each_step ? 1 : steps, counters);
      EXPECT_TRUE(ran.ok()) << ran;
      if (!ran.ok()) return ran.ToString();
      if (hash_each_step) {
        const auto hash = (*engine)->StateHash(counters.iterations);
        EXPECT_TRUE(hash.ok()) << hash.status();
        if (hash.ok()) bits += *hash + "\n";
      }
    }
    final_hash_ = (*engine)->StateHash(counters.iterations).value_or("?");
    losses_.clear();
    redone_ = 0;
    skipped_ = 0;
    for (const StepResult& result : source.results) {
      redone_ += result.redone;
      skipped_ += result.skipped;
    }
    for (const StepResult& result : source.results)
      losses_ += std::to_string(std::bit_cast<uint32_t>(result.loss)) + " ";
    EXPECT_EQ(source.results.size(), static_cast<size_t>(steps));
    // The plan is the run: the highest byte that was handed out is the highest byte of the plan.
    for (int tier = 0; tier < kTierCount; ++tier) {
      EXPECT_EQ((*engine)->HighWaterBytes(source.results.back())[tier],
                (*engine)->planned().train.arena_bytes[tier])
          << Name(static_cast<Tier>(tier));
    }
    // So is the simulation of it: steps touch what it says, and move the bytes that it says (speculative ones
    // where nothing had to be done again).
    const Simulation& simulation = (*engine)->planned().simulation;
    const bool as_planned = (*engine)->planned().choice.mode != Mode::kSpeculative;
    if (as_planned) {
      EXPECT_EQ(source.results.back().high_water_bytes, simulation.peak_bytes);
      for (size_t lane = 0; lane < simulation.lanes.size(); ++lane)
        EXPECT_EQ(source.results.back().lanes[lane].bytes, simulation.lanes[lane].bytes) << lane;
    }
    EXPECT_TRUE((*engine)->Close().ok());
    return bits + losses_;
  }

  std::string folder_;
  std::vector<double> path_weights_ = {1};
  std::string losses_;
  std::string final_hash_;
  int redone_ = 0, skipped_ = 0;  // steps of the last Bits()
};

struct Setting {
  const char* name;
  std::function<void(v1::MemorySpec&)> set;
};

inline void Place(v1::MemorySpec& memory, v1::Tier params, v1::Tier gradients, v1::Tier optimizer,
                  v1::Tier activations) {
  memory.mutable_placement()->set_params(params);
  memory.mutable_placement()->set_gradients(gradients);
  memory.mutable_placement()->set_optimizer(optimizer);
  memory.mutable_placement()->set_activations(activations);
}

inline const Setting kSettings[] = {
    {"all in device memory",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE); }},
    {"all in host memory",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_HOST); }},
    {"parameters and optimizer on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST); }},
    {"parameters on the device, optimizer on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_DEVICE); }},
    {"gradients on the device, optimizer in the host",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_HOST, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_DEVICE); }},
    {"mixed: NVMe parameters, host optimizer",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_DEVICE); }},
    {"mode sync", [](v1::MemorySpec& m) { m.set_mode(v1::MODE_SYNC); }},
    {"mode sync on NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_mode(v1::MODE_SYNC);
     }},
    {"recompute full", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_FULL); }},
    {"recompute none", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_NONE); }},
    {"recompute sqrt",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_recompute(v1::RECOMPUTE_SQRT);
     }},
    {"recompute selective", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_SELECTIVE); }},
    {"recompute optimal", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_OPTIMAL); }},
    {"prefetch 1, one I/O thread, NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(1);
       m.set_io_threads(1);
     }},
    {"prefetch 2, two I/O threads, NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(2);
       m.set_io_threads(2);
     }},
    {"prefetch 4, four I/O threads, chunks of another size",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(4);
       m.set_io_threads(4);
       m.set_chunk(100'000);
     }},
    {"threads, buffered, one request at a time, NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.mutable_io()->set_backend(v1::IO_BACKEND_THREADS);
       m.mutable_io()->set_direct(v1::DIRECT_IO_OFF);
       m.mutable_io()->set_read_depth(1);
       m.mutable_io()->set_write_depth(1);
     }},
    {"activations on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_NVME); }},
    {"activations on NVMe, prefetch 1, one I/O thread",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_HOST, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_NVME);
       m.set_prefetch_depth(1);
       m.set_io_threads(1);
     }},
    {"gradients on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_NVME, v1::TIER_NVME, v1::TIER_NVME); }},
    {"one chunk per unit", [](v1::MemorySpec& m) { m.set_chunk(8 * kMiB); }},
};

inline const Setting& SettingNamed(const std::string& name) {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return setting;
  }
  ADD_FAILURE() << "there is no setting " << name;
  return kSettings[0];
}

}  // namespace strata

#endif  // WORKER_TRAINER_ENGINE_TESTING_H_
