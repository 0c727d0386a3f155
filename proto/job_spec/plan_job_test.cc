#include "proto/job_spec/plan_job.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_spec/validate.h"
#include "proto/job_spec/yaml.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

v1::JobSpec Example(const std::string& name = "llama3-70b") {
  const absl::StatusOr<JobFile> file = LoadJobFile("deploy/examples/" + name + ".yaml");
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(FormatViolations("", file->violations), "");
  v1::JobSpec spec = file->spec;
  ApplyDefaults(spec);
  EXPECT_EQ(FormatViolations("", Validate(spec)), "");
  return spec;
}

v1::ResourceRequest Machine(const std::string& name = "gpu-24g") {
  const absl::StatusOr<v1::MachineFile> file = LoadMachineFile("deploy/examples/machines/" + name + ".yaml");
  EXPECT_TRUE(file.ok()) << file.status();
  v1::ResourceRequest limits;
  limits.set_device_bytes(file->device());
  limits.set_host_bytes(file->host());
  limits.set_nvme_bytes(file->nvme());
  *limits.mutable_machine() = file->speeds();
  return limits;
}

v1::JobPlan Plan(const v1::JobSpec& spec, const v1::ResourceRequest& limits) {
  const absl::StatusOr<v1::JobPlan> plan = PlanJob(spec, limits);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Everything a person needs to know is there, and agrees with itself.
void ExpectExplained(const v1::JobPlan& plan) {
  ASSERT_TRUE(plan.fits()) << plan.shortfalls(0).remedy();
  for (const v1::TierRow& row : plan.tiers()) {
    EXPECT_LE(row.peak_bytes(), row.budget_bytes()) << row.tier();
    EXPECT_LE(row.minimum_bytes(), row.peak_bytes()) << row.tier();
  }
  const double step_ms =
      static_cast<double>(plan.step_time().seconds()) * 1e3 + plan.step_time().nanos() * 1e-6;
  EXPECT_GE(step_ms, plan.bound_ms() * (1 - 1e-6));
  EXPECT_LE(step_ms, (plan.bound_ms() + plan.fill_drain_ms()) * 1.05);
  EXPECT_LE(plan.exposed_io_ms(), step_ms);
  EXPECT_FALSE(plan.binding_lane().empty());
  EXPECT_NEAR(plan.nvme_written_bytes_per_day(),
              static_cast<double>(plan.tiers(2).written_bytes_per_step()) * 86400e3 / step_ms,
              1e-6 * plan.nvme_written_bytes_per_day());
  EXPECT_EQ(plan.advice_size(), 3);
  int layers = 0;
  for (const v1::BlockRow& row : plan.blocks()) {
    EXPECT_EQ(row.first(), layers);
    layers = row.last() + 1;
  }
  EXPECT_EQ(layers, 80);
  EXPECT_EQ(plan.machine().source(), Machine().machine().source());
}

TEST(PlanJobTest, GpuDirectIsInThePlanOfAJobThatRequiresItAndMissedWhereItCannotBeHad) {
  using ::testing::Contains;
  using ::testing::HasSubstr;
  v1::JobSpec spec = Example();
  spec.mutable_model()->mutable_config()->set_layers(2);
  spec.mutable_memory()->mutable_placement()->set_params(v1::TIER_NVME);
  const v1::JobPlan through = Plan(spec, Machine());
  spec.mutable_memory()->add_require(v1::FEATURE_GPUDIRECT);
  const v1::JobPlan direct = Plan(spec, Machine());
  ASSERT_TRUE(through.fits() && direct.fits());
  EXPECT_THAT(direct.notes(), Contains(HasSubstr("gpudirect: of a step's bytes on nvme the GPU reads ")));
  EXPECT_THAT(through.notes(), Not(Contains(HasSubstr("gpudirect: "))));
  const auto lanes = [](const v1::JobPlan& plan) {
    std::set<std::string> names;
    for (const v1::LaneRow& row : plan.lanes()) names.insert(row.lane());
    return names;
  };
  EXPECT_EQ(lanes(direct).count("nvme-read-direct"), 1u);
  EXPECT_EQ(lanes(through).count("nvme-read-direct"), 0u);
  // Nothing is staged in the host.
  ASSERT_EQ(direct.tiers(1).tier(), "host");
  EXPECT_LT(direct.tiers(1).minimum_bytes(), through.tiers(1).minimum_bytes());
  // The smallest budget is enough, and a block less is not.
  v1::ResourceRequest limits = Machine();
  limits.set_host_bytes(direct.tiers(1).minimum_bytes());
  EXPECT_TRUE(Plan(spec, limits).fits());
  limits.set_host_bytes(direct.tiers(1).minimum_bytes() - 4096);
  EXPECT_FALSE(Plan(spec, limits).fits());

  limits = Machine();
  limits.set_why_no_gpudirect("nvidia-fs is not loaded");
  const v1::JobPlan refused = Plan(spec, limits);
  EXPECT_FALSE(refused.fits());
  ASSERT_EQ(refused.shortfalls_size(), 1);
  EXPECT_EQ(refused.shortfalls(0).resource(), "gpudirect");
  EXPECT_THAT(refused.shortfalls(0).remedy(),
              HasSubstr("nvidia-fs is not loaded; mend that, or take gpudirect"));
  spec.mutable_memory()->clear_require();
  EXPECT_EQ(Plan(spec, limits).SerializeAsString(), through.SerializeAsString());
}

TEST(PlanJobTest, AJobInFp8DoesNotFitWhereTheGpuHasNone) {
  v1::JobSpec spec = Example();
  v1::ResourceRequest limits = Machine();
  limits.set_why_no_fp8("it has compute capability 7.5: use training.precision: bf16");
  EXPECT_TRUE(Plan(spec, limits).fits());
  spec.mutable_training()->set_precision(v1::PRECISION_FP8);
  const v1::JobPlan refused = Plan(spec, limits);
  EXPECT_FALSE(refused.fits());
  ASSERT_EQ(refused.shortfalls_size(), 1);
  EXPECT_EQ(refused.shortfalls(0).resource(), "fp8");
  EXPECT_EQ(refused.shortfalls(0).remedy(), limits.why_no_fp8());
  EXPECT_TRUE(Plan(spec, Machine()).fits());
}

TEST(PlanJobTest, EightBitStatesTakeHalfTheRoomAndTraffic) {
  v1::JobSpec spec = Example();
  const v1::JobPlan floats = Plan(spec, Machine());
  spec.mutable_training()->mutable_optimizer()->set_name("adamw8bit");
  const v1::JobPlan codes = Plan(spec, Machine());
  ExpectExplained(codes);
  const auto bytes = [](const v1::PlacementRow& row) {
    return row.device_bytes() + row.host_bytes() + row.nvme_bytes();
  };
  ASSERT_EQ(codes.placement(2).what(), "optimizer");
  EXPECT_EQ(96 * bytes(codes.placement(2)), 49 * bytes(floats.placement(2)));
  // Gradients and activations are there, too.
  EXPECT_LT(codes.tiers(2).written_bytes_per_step(), 0.8 * floats.tiers(2).written_bytes_per_step());
  EXPECT_LT(codes.bound_ms(), floats.bound_ms());
  const auto says = [](const v1::JobPlan& plan) {
    return std::any_of(plan.notes().begin(), plan.notes().end(), [](const std::string& note) {
      return note ==
             "optimizer adamw8bit: m and v in eight bits, 6.125 bytes of state a parameter instead of 12";
    });
  };
  EXPECT_TRUE(says(codes));
  EXPECT_FALSE(says(floats));
  spec.mutable_training()->mutable_optimizer()->set_name("sgd");
  EXPECT_EQ(ModelLayoutOf(spec, {}).status().message(),
            "training.optimizer.name: 'sgd' is not known: choose one of adamw, adamw8bit");
}

// The coordinator, the client and the trainer know from the machine alone what products are lent on its
// device.
TEST(PlanJobTest, OnAGpuProductsAreLentWhatCublasLtAsksFor) {
  const v1::JobSpec spec = Example();
  v1::ResourceRequest gpu = Machine(), cpu = Machine();
  cpu.mutable_machine()->set_device_is_cpu(true);
  const absl::StatusOr<ModelLayout> on_gpu = ModelLayoutOf(spec, gpu), on_cpu = ModelLayoutOf(spec, cpu),
                                    unknown = ModelLayoutOf(spec, {});
  ASSERT_TRUE(on_gpu.ok() && on_cpu.ok() && unknown.ok());
  EXPECT_EQ(on_gpu->gemm_library, GemmLibrary::kCublasLt);
  EXPECT_EQ(on_cpu->gemm_library, GemmLibrary::kCpu);
  EXPECT_EQ(unknown->gemm_library, GemmLibrary::kCpu);
  // Attention of long sequences may need more than a product; the head has none.
  EXPECT_EQ(on_gpu->blocks.back().forward_workspace_bytes - on_cpu->blocks.back().forward_workspace_bytes,
            28 << 20);
  for (size_t b = 0; b < on_gpu->blocks.size(); ++b)
    EXPECT_GE(on_gpu->blocks[b].backward_workspace_bytes, on_cpu->blocks[b].backward_workspace_bytes);
}

TEST(PlanJobTest, AModelFarBeyondThisMachineIsPlannedFromItsConfigAlone) {
  const v1::ResourceRequest limits = Machine();
  const v1::JobPlan plan = Plan(Example(), limits);
  ExpectExplained(plan);
  EXPECT_NEAR(static_cast<double>(plan.parameters()), 70.6e9, 0.1e9);
  std::printf("step %lld s, bound by %s\n", static_cast<long long>(plan.step_time().seconds()),
              plan.binding_lane().c_str());
  // 256 GiB do not hold the sums of all gradients.
  EXPECT_GT(plan.placement(1).nvme_bytes(), 0);
  // The whole is a function of the request.
  EXPECT_EQ(Plan(Example(), limits).SerializeAsString(), plan.SerializeAsString());
}

// The folder's config.json speaks where the job does not; attention's dropout has to be given up by name.
TEST(PlanJobTest, DropoutIsTheJobsElseTheFolders) {
  const std::string folder = testing::TempDir() + "/gpt2";
  ASSERT_TRUE(MakeDirectories(folder).ok());
  const std::string text =
      R"({"model_type":"gpt2","n_layer":1,"n_embd":8,"n_head":2,"vocab_size":256,"n_positions":16,)"
      R"("embd_pdrop":0.3,"resid_pdrop":0.2,"attn_pdrop":0.1})";
  const auto fd = OpenFile(folder + "/config.json", O_WRONLY | O_CREAT | O_TRUNC);
  ASSERT_TRUE(fd.ok() && WriteAll(*fd, text, folder).ok());
  v1::JobSpec spec;
  spec.mutable_model()->set_from(folder);
  spec.mutable_data()->set_seq_len(16);
  spec.mutable_training()->set_global_batch(1);
  ApplyDefaults(spec);
  const absl::Status refused = ModelLayoutOf(spec, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("set model.dropout.attention to 0"))
      << refused;
  spec.mutable_model()->mutable_dropout()->set_attention(0);
  auto layout = ModelLayoutOf(spec, {});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->config.dropout, (DropoutConfig{.embedding = 0.3, .residual = 0.2}));
  spec.mutable_model()->mutable_dropout()->set_embedding(0);
  spec.mutable_model()->mutable_dropout()->set_residual(0.5);
  layout = ModelLayoutOf(spec, {});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->config.dropout, DropoutConfig{.residual = 0.5});
}

TEST(PlanJobTest, WhatDoesNotFitIsRefusedWithNumbers) {
  v1::JobSpec spec = Example();
  v1::ModelConfig& config = *spec.mutable_model()->mutable_config();
  config.set_layers(126);
  config.set_hidden(16384);
  config.set_heads(128);
  config.set_head_dim(128);
  config.set_ffn(53248);
  const v1::JobPlan plan = Plan(spec, Machine());
  ASSERT_FALSE(plan.fits());
  ASSERT_EQ(plan.shortfalls_size(), 1);
  EXPECT_GT(plan.shortfalls(0).requested(), plan.shortfalls(0).total());
  EXPECT_NE(plan.shortfalls(0).remedy().find("memory."), std::string::npos);
}

TEST(PlanJobTest, APlanSaysThePolicyThatWasAskedFor) {
  v1::JobSpec spec = Example();
  for (const v1::Recompute policy : {v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL, v1::RECOMPUTE_SQRT,
                                     v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_OPTIMAL}) {
    spec.mutable_memory()->set_recompute(policy);
    const v1::JobPlan plan = Plan(spec, Machine());
    ExpectExplained(plan);
    // What was optimal may be what another policy would have been.
    if (policy != v1::RECOMPUTE_OPTIMAL) {
      EXPECT_EQ(plan.recompute(), policy);
    }
    std::printf("%s: step %lld s, %s\n", v1::Recompute_Name(policy).c_str(),
                static_cast<long long>(plan.step_time().seconds()), plan.notes(4).c_str());
  }
}

TEST(PlanJobTest, AFasterMachineIsPredictedToBeFaster) {
  v1::ResourceRequest limits = Machine();
  limits.set_host_bytes(int64_t{320} << 30);
  v1::ResourceRequest faster = limits;
  faster.mutable_machine()->mutable_bf16()->set_forward_flops(0, 480e12);
  faster.mutable_machine()->mutable_bf16()->set_attention_flops(320e12);
  const v1::JobPlan slow = Plan(Example(), limits), fast = Plan(Example(), faster);
  EXPECT_LT(fast.step_time().seconds(), slow.step_time().seconds());
}

// What the example says of itself: no policy for all layers is as fast as the mixture, and the plan shows it.
TEST(PlanJobTest, OptimalMixesWhatLayersKeepWhereThatIsFaster) {
  v1::JobSpec spec = Example("llama3-8b");
  const v1::ResourceRequest machine = Machine("gpu-24g-x8");
  const auto seconds = [](const v1::JobPlan& plan) {
    return static_cast<double>(plan.step_time().seconds()) + plan.step_time().nanos() * 1e-9;
  };
  const v1::JobPlan mixed = Plan(spec, machine);
  ASSERT_TRUE(mixed.fits());
  EXPECT_EQ(mixed.recompute(), v1::RECOMPUTE_OPTIMAL);
  std::set<std::string> kinds;
  for (const v1::BlockRow& row : mixed.blocks()) kinds.insert(row.saved());
  std::string text;
  for (const std::string& kind : kinds) text += " [" + kind + "]";
  std::printf("optimal %.2f s:%s\n", seconds(mixed), text.c_str());
  EXPECT_GT(kinds.count("host") + kinds.count("device"), 0u) << text;
  EXPECT_GT(kinds.count("selective, host") + kinds.count("selective, device"), 0u) << text;
  for (const v1::Recompute policy :
       {v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL, v1::RECOMPUTE_SQRT, v1::RECOMPUTE_SELECTIVE}) {
    spec.mutable_memory()->set_recompute(policy);
    const v1::JobPlan uniform = Plan(spec, machine);
    ASSERT_TRUE(uniform.fits());
    std::printf("%s %.2f s\n", v1::Recompute_Name(policy).c_str(), seconds(uniform));
    EXPECT_GT(seconds(uniform), 1.03 * seconds(mixed)) << v1::Recompute_Name(policy);
  }
}

}  // namespace
}  // namespace strata
