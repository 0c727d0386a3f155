#include "proto/machine/machine.h"

#include <sys/stat.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/fd.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/device/paced_math.h"
#include "proto/machine/calibration.h"

namespace strata {
namespace {

constexpr char kSmall[] = R"(name: a machine
device: 24GiB
host: 256GiB
nvme: 4TiB
speeds:
  bf16: {forward_flops: 100e12, elementwise_bytes_per_second: 800e9}
  h2d_bytes_per_second: 25e9
  nvme_read_bytes_per_second: 7e9
  nvme_write_bytes_per_second: 5e9
  dram_bytes_per_second: 140e9
)";

TEST(MachineTest, AMachineFileSaysWhatItHasAndTheRestFollows) {
  const absl::StatusOr<v1::MachineFile> file = ParseMachineFile(kSmall);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->device(), int64_t{24} << 30);
  EXPECT_EQ(file->nvme(), int64_t{4} << 40);
  const MachineProfile profile = FromProto(file->speeds());
  EXPECT_EQ(profile.source, "a machine");
  EXPECT_FALSE(profile.device_is_cpu);
  EXPECT_EQ(RateAt(profile.bf16.backward_gemm, 1e9), 100e12);
  EXPECT_EQ(profile.f32, profile.bf16);
  EXPECT_EQ(profile.bf16.attention_flops, 50e12);
  EXPECT_EQ(profile.bf16.fp8_forward_gemm, profile.bf16.forward_gemm);
  EXPECT_EQ(profile.bf16.fp8_backward_gemm, profile.bf16.backward_gemm);
  EXPECT_EQ(profile.bf16.dropout_elements_per_second, 200e9);
  EXPECT_EQ(profile.d2h_bytes_per_second, 25e9);
  EXPECT_EQ(profile.nvme_mixed_bytes_per_second, 7e9);
  EXPECT_EQ(profile.adamw_seconds_per_parameter, 28 / 140e9);
  EXPECT_EQ(profile.adamw8bit_seconds_per_parameter, 28 / 140e9);
}

TEST(MachineTest, ProductsInFp8AreAsFastBackwardAsForwardUnlessItIsSaid) {
  v1::MachineProfile machine;
  machine.CopyFrom(ParseMachineFile(kSmall)->speeds());
  machine.mutable_bf16()->add_backward_flops(90e12);
  EXPECT_EQ(FromProto(machine).bf16.fp8_backward_gemm[0].rate, 90e12);
  machine.mutable_bf16()->add_fp8_forward_flops(180e12);
  EXPECT_EQ(FromProto(machine).bf16.fp8_forward_gemm[0].rate, 180e12);
  EXPECT_EQ(FromProto(machine).bf16.fp8_backward_gemm[0].rate, 180e12);
  machine.mutable_bf16()->add_fp8_backward_flops(150e12);
  EXPECT_EQ(FromProto(machine).bf16.fp8_backward_gemm[0].rate, 150e12);
}

TEST(MachineTest, WhatIsWrongIsNamed) {
  const auto message = [](std::string text) {
    const absl::Status status = ParseMachineFile(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kSmall;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_TRUE(absl::StrContains(message(with("device:", "devise:")), "line 2: devise: unknown field"));
  EXPECT_TRUE(absl::StrContains(message(with("h2d_bytes_per_second: 25e9", "cores: 1")),
                                "speeds.h2d_bytes_per_second: is missing"));
  EXPECT_TRUE(absl::StrContains(message(with("h2d_bytes_per_second: 25e9", "h2d_bytes_per_second: 0")),
                                "h2d_bytes_per_second: is missing"));
  EXPECT_TRUE(absl::StrContains(message(with("7e9", "-7e9")), "nvme_read_bytes_per_second"));
  EXPECT_TRUE(absl::StrContains(message(with("100e12", "[1e12, 2e12]")), "bf16.forward_flops"));
  EXPECT_TRUE(absl::StrContains(message(with("100e12", "100e12, fp8_forward_flops: [1e12, 2e12]")),
                                "bf16.fp8_forward_flops: one rate for each of 1"));
  EXPECT_TRUE(absl::StrContains(message(with("100e12", "100e12, fp8_backward_flops: 0")),
                                "bf16.fp8_backward_flops: 0 is not a speed"));
  EXPECT_TRUE(absl::StrContains(
      message(with("{forward_flops: 100e12", "{work: [2, 1], forward_flops: [1e12, 2e12]")), "bf16.work"));
}

TEST(MachineTest, EveryFieldSurvivesTheWire) {
  MachineProfile profile;
  profile.source = "here";
  profile.f32.forward_gemm = {{1e9, 1e11}, {1e10, 2e11}};
  profile.f32.backward_gemm = {{1e9, 1.5e11}, {1e10, 2.5e11}};
  profile.f32.fp8_forward_gemm = {{1e9, 3e11}, {1e10, 4e11}};
  profile.f32.fp8_backward_gemm = {{1e9, 3.5e11}, {1e10, 4.5e11}};
  profile.f32.dropout_elements_per_second = 2e3;
  profile.f32.attention_flops = 3e3;
  profile.f32.attention_backward_flops = 4e3;
  profile.bf16.elementwise_bytes_per_second = 5e3;
  double value = 6e3;
  for (double* field :
       {&profile.h2d_bytes_per_second, &profile.d2h_bytes_per_second, &profile.nvme_read_bytes_per_second,
        &profile.nvme_write_bytes_per_second, &profile.nvme_mixed_bytes_per_second,
        &profile.adamw_seconds_per_parameter, &profile.adamw8bit_seconds_per_parameter,
        &profile.accumulate_bytes_per_second, &profile.norm_bytes_per_second, &profile.per_op_seconds,
        &profile.nvme_cores, &profile.dram_bytes_per_second}) {
    *field = value++;
  }
  profile.nvme_endurance_bytes = 600e12;
  profile.cores = 3;
  profile.threads = 5;
  EXPECT_EQ(FromProto(ToProto(profile)), profile);
  profile.device_is_cpu = false;
  EXPECT_EQ(FromProto(ToProto(profile)), profile);
  // A peer's nonsense is no plan's end.
  v1::MachineProfile nonsense = ToProto(profile);
  nonsense.set_dram_bytes_per_second(-1);
  EXPECT_EQ(FromProto(nonsense), MachineProfile());
  for (const double speed : {1e-300, 999.0, 1e300, std::nan("")}) {
    nonsense = ToProto(profile);
    nonsense.set_nvme_read_bytes_per_second(speed);
    EXPECT_FALSE(CheckMachine(nonsense).ok()) << speed;
    nonsense = ToProto(profile);
    nonsense.mutable_bf16()->set_forward_flops(0, speed);
    EXPECT_FALSE(CheckMachine(nonsense).ok()) << speed;
  }
  for (const double endurance : {-1.0, 600.0, 1e300, std::nan("")}) {
    nonsense = ToProto(profile);
    nonsense.set_nvme_endurance_bytes(endurance);
    EXPECT_TRUE(absl::StrContains(CheckMachine(nonsense).message(), "nvme_endurance_bytes")) << endurance;
  }
  v1::MachineProfile wordy = ToProto(profile);
  ASSERT_TRUE(CheckMachine(wordy).ok()) << CheckMachine(wordy);
  wordy.set_source(std::string(100'000, 'x'));
  EXPECT_TRUE(absl::StrContains(CheckMachine(wordy).message(), "source: has 100000 bytes, at most 400"));
  EXPECT_EQ(FromProto(v1::MachineProfile()), MachineProfile());
}

TEST(CalibrationTest, IsKeptForTheSameMachineOnly) {
  const std::string folder = testing::TempDir() + "/calibration";
  mkdir(folder.c_str(), 0700);
  mkdir((folder + "/other").c_str(), 0700);
  const std::string cache = folder + "/calibration.json";
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto first = LoadOrCalibrate(cache, {{folder}}, 1, nullptr, warn);
  ASSERT_TRUE(first.ok()) << first.status();
  // Another measurement would give other numbers.
  const auto text = ReadFile(cache, 1 << 20);
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(
      WriteFileDurably(cache, absl::StrReplaceAll(*text, {{"\"busy\": true", "\"busy\": false"}})).ok());
  const auto again = LoadOrCalibrate(cache, {{folder}}, 1, nullptr, warn);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
  const auto elsewhere =
      LoadOrCalibrate(cache, {{folder + "/other"}}, 1, nullptr, warn);  // on the same device
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_EQ(elsewhere->SerializeAsString(), first->SerializeAsString());
  const auto without = LoadOrCalibrate(cache, {}, 1, nullptr, warn);
  ASSERT_TRUE(without.ok());
  EXPECT_NE(without->SerializeAsString(), first->SerializeAsString());
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  ASSERT_TRUE(WriteFileDurably(cache, "{ not json").ok());
  EXPECT_TRUE(LoadOrCalibrate(cache, {}, 1, nullptr, warn).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(absl::StrContains(warnings[0], cache)) << warnings[0];
  EXPECT_TRUE(absl::StrContains(warnings[0], "not valid JSON")) << warnings[0];
  // Somebody's edit that no machine can live up to.
  const auto sound = ReadFile(cache, 1 << 20);
  ASSERT_TRUE(sound.ok());
  v1::CalibrationCache poisoned;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(*sound, &poisoned).ok());
  poisoned.mutable_profile()->set_dram_bytes_per_second(1e300);
  std::string text_of_it;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(poisoned, &text_of_it).ok());
  ASSERT_TRUE(WriteFileDurably(cache, text_of_it).ok());
  const auto cured = LoadOrCalibrate(cache, {}, 1, nullptr, warn);
  ASSERT_TRUE(cured.ok());
  EXPECT_LT(cured->dram_bytes_per_second(), 1e15);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(absl::StrContains(warnings[1], "dram_bytes_per_second: 1e+300 is not a speed")) << warnings[1];
  const auto kept = ReadFile(cache, 1 << 20);
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(absl::StrContains(*kept, "\"nvme_read_bytes_per_second\""));
  // Nowhere to keep it: measured, and that is all.
  EXPECT_TRUE(LoadOrCalibrate("/nowhere/at/all/calibration.json", {}, 1, nullptr, warn).ok());
}

TEST(CalibrationTest, WhatIsKeptIsTakenUnlessABetterMeasurementCanBeHad) {
  v1::CalibrationCache kept;
  kept.set_memory_bytes(48);
  int asked = 0;
  const auto take = [&](absl::StatusOr<int64_t> memory, bool others_compute) {
    return TakeKept(kept, memory, [&] { return ++asked, others_compute; });
  };
  EXPECT_TRUE(take(24, false));
  EXPECT_TRUE(take(48, false));
  EXPECT_TRUE(take(absl::ResourceExhaustedError("no memory"), false));
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(take(96, false)) << "it was measured in less memory";
  EXPECT_TRUE(take(96, true)) << "an idle machine's speeds in less memory are better than a busy one's";
  kept.set_busy(true);
  EXPECT_FALSE(take(48, false));
  EXPECT_TRUE(take(48, true));
  EXPECT_TRUE(take(absl::ResourceExhaustedError("no memory"), false)) << "and better than a guess";
}

TEST(MachineTest, AGuessSaysThatItIsOneAndWhy) {
  const v1::MachineProfile cpu = GuessedSpeeds(MachineProfile(), "no memory");
  EXPECT_TRUE(cpu.guessed());
  EXPECT_TRUE(cpu.device_is_cpu());
  EXPECT_EQ(cpu.source(), "a guess, not measured: no memory");
  EXPECT_EQ(FromProto(cpu), MachineProfile()) << "the numbers are the defaults";
  const v1::MachineProfile gpu = GuessedSpeeds(UnmeasuredGpu(), std::string(1000, 'x'));
  EXPECT_FALSE(gpu.device_is_cpu());
  EXPECT_TRUE(CheckMachine(gpu).ok()) << CheckMachine(gpu);
}

TEST(CalibrationTest, OfAGpuIsKeptForTheSameCardAndDriver) {
  const std::string folder = testing::TempDir() + "/calibration_gpu";
  mkdir(folder.c_str(), 0700);
  const std::string cache = folder + "/calibration.json";
  const auto measure = [&](const std::string& driver, double flops) {
    FakeCuda cuda(
        {.order = FakeCudaOptions::Order::kEager, .memory_bytes = int64_t{330} << 20, .driver = driver});
    const FakeSpeeds speeds = {.flops = flops};
    const auto gpu =
        *CreateCudaAccelerator(cuda,
                               {.make_ops = [&](DType compute) { return PacedOps(cuda, compute, speeds); },
                                .states = {.make = [&](Workspace) { return PacedStateOps(cuda, speeds); }}},
                               NoCufile);
    const auto profile = LoadOrCalibrate(cache, {}, 1, gpu.get(), [](const std::string&) {});
    EXPECT_TRUE(profile.ok()) << profile.status();
    // Another measurement would follow the speed; one of a busy machine is not kept.
    const auto text = ReadFile(cache, 1 << 20);
    EXPECT_TRUE(
        WriteFileDurably(cache, absl::StrReplaceAll(*text, {{"\"busy\": true", "\"busy\": false"}})).ok());
    EXPECT_EQ(cuda.Complaints(/*with_leaks=*/true), "");
    return profile.value_or(v1::MachineProfile());
  };
  const v1::MachineProfile first = measure("550.54", 4e12);
  EXPECT_FALSE(first.device_is_cpu());
  EXPECT_TRUE(absl::StrContains(first.source(), "Fake GPU, driver 550.54")) << first.source();
  EXPECT_EQ(measure("550.54", 1e12).SerializeAsString(), first.SerializeAsString());
  const v1::MachineProfile updated = measure("580.65", 1e12);
  EXPECT_LT(updated.bf16().forward_flops().rbegin()[0], 1.01e12);
  EXPECT_TRUE(absl::StrContains(updated.source(), "driver 580.65")) << updated.source();
  // The same machine without its GPU.
  const auto cpu = LoadOrCalibrate(cache, {}, 1, nullptr, [](const std::string&) {});
  ASSERT_TRUE(cpu.ok());
  EXPECT_TRUE(cpu->device_is_cpu());
}

TEST(MachineTest, AGpuThatWasNotMeasuredIsStillOne) {
  EXPECT_EQ(FromProto(ToProto(UnmeasuredGpu())), UnmeasuredGpu());
  EXPECT_FALSE(UnmeasuredGpu().device_is_cpu);
}

}  // namespace
}  // namespace strata
