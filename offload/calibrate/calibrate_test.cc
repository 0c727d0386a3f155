#include "offload/calibrate/calibrate.h"

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "gtest/gtest.h"

namespace strata {
namespace {

class CalibrateInTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(CalibrateInTest, EverySpeedIsMeasuredAndNothingIsLeftBehind) {
  const std::string path = testing::TempDir() + "/calibrate";
  std::filesystem::create_directories(path);
  const absl::StatusOr<MachineProfile> profile =
      Calibrate({.nvme_paths = {{path}}, .threads = 2, .memory_bytes = GetParam()});
  ASSERT_TRUE(profile.ok()) << profile.status();
  const MachineProfile guess;
  const auto measured = [](const char* what, double value, double guessed) {
    std::printf("%-24s %.4g\n", what, value);
    EXPECT_TRUE(std::isfinite(value) && value > 0) << what;
    EXPECT_NE(value, guessed) << what;
  };
  for (const auto& [name, rates] : {std::pair{"bf16", &profile->bf16}, std::pair{"f32", &profile->f32}}) {
    std::printf("%s\n", name);
    ASSERT_EQ(rates->forward_gemm.size(), rates->backward_gemm.size());
    ASSERT_EQ(rates->forward_gemm.size(), rates->fp8_forward_gemm.size());
    ASSERT_EQ(rates->forward_gemm.size(), rates->fp8_backward_gemm.size());
    for (size_t i = 0; i < rates->forward_gemm.size(); ++i) {
      measured("forward gemm", rates->forward_gemm[i].rate, 400e9);
      measured("backward gemm", rates->backward_gemm[i].rate, 400e9);
      measured("fp8 forward gemm", rates->fp8_forward_gemm[i].rate, 400e9);
      measured("fp8 backward gemm", rates->fp8_backward_gemm[i].rate, 400e9);
      EXPECT_EQ(rates->fp8_forward_gemm[i].work, rates->forward_gemm[i].work);
      if (i == 0) continue;
      EXPECT_GT(rates->forward_gemm[i].work, rates->forward_gemm[i - 1].work);
    }
    measured("attention", rates->attention_flops, guess.f32.attention_flops);
    measured("attention backward", rates->attention_backward_flops, guess.f32.attention_backward_flops);
    measured("elementwise", rates->elementwise_bytes_per_second, guess.f32.elementwise_bytes_per_second);
    measured("dropout", rates->dropout_elements_per_second, guess.f32.dropout_elements_per_second);
  }
  EXPECT_NE(profile->bf16.fp8_forward_gemm, profile->bf16.forward_gemm);
  EXPECT_EQ(profile->f32.fp8_forward_gemm, profile->f32.forward_gemm);
  measured("h2d", profile->h2d_bytes_per_second, guess.h2d_bytes_per_second);
  measured("nvme read", profile->nvme_read_bytes_per_second, guess.nvme_read_bytes_per_second);
  measured("nvme write", profile->nvme_write_bytes_per_second, guess.nvme_write_bytes_per_second);
  measured("nvme mixed", profile->nvme_mixed_bytes_per_second, guess.nvme_mixed_bytes_per_second);
  measured("nvme cores", profile->nvme_cores, guess.nvme_cores);
  measured("adamw", profile->adamw_seconds_per_parameter, guess.adamw_seconds_per_parameter);
  measured("adamw8bit", profile->adamw8bit_seconds_per_parameter, guess.adamw8bit_seconds_per_parameter);
  measured("accumulate", profile->accumulate_bytes_per_second, guess.accumulate_bytes_per_second);
  measured("norm", profile->norm_bytes_per_second, guess.norm_bytes_per_second);
  measured("dram", profile->dram_bytes_per_second, guess.dram_bytes_per_second);
  measured("per op", profile->per_op_seconds, guess.per_op_seconds);
  EXPECT_EQ(profile->cores, AvailableCpus());
  EXPECT_NE(profile->source.find(CpuModel()), std::string::npos);
  EXPECT_EQ(profile->source.find(" of memory instead of 96 MiB") != std::string::npos,
            GetParam() < kCalibrationBytes)
      << profile->source;
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

INSTANTIATE_TEST_SUITE_P(AllThatThereMayBe, CalibrateInTest,
                         ::testing::Values(kCalibrationBytes, kCalibrationBytes / 2, kCalibrationBytes / 4,
                                           kCalibrationLeastBytes));

TEST(CalibrateTest, MemoryIsAsMuchAsHasRoom) {
  constexpr int64_t kMiB = 1 << 20;
  const auto memory = [](int64_t available, bool files_in_memory = false) {
    return CalibrationMemory({available, "what is free below memory.max of the control group /a"},
                             files_in_memory);
  };
  int64_t last = 0;
  for (int64_t available = 0; available <= 512 * kMiB; available += kMiB / 2) {
    const auto bytes = memory(available), with_files = memory(available, true);
    if (!bytes.ok()) {
      EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(last, 0) << "more memory is never worse";
      EXPECT_FALSE(with_files.ok());
      continue;
    }
    EXPECT_GE(*bytes, last);
    EXPECT_GE(available, *bytes + 16 * kMiB);
    if (with_files.ok()) {
      EXPECT_GE(available, *with_files * 7 / 2 + 16 * kMiB);
    }
    last = *bytes;
  }
  EXPECT_EQ(*memory(512 * kMiB, true), kCalibrationBytes);
  EXPECT_EQ(
      memory(10 * kMiB).status().message(),
      "measuring how fast this machine is takes 28 MiB of memory, 10 MiB are what is free below memory.max "
      "of the control group /a: raise the limit, or free memory");
}

TEST(CalibrateTest, APathThatIsNotThereIsNamed) {
  const absl::StatusOr<MachineProfile> profile =
      Calibrate({.nvme_paths = {{"/nowhere/at/all"}}, .threads = 1});
  ASSERT_FALSE(profile.ok());
  EXPECT_NE(profile.status().message().find("/nowhere/at/all"), std::string::npos) << profile.status();
}

}  // namespace
}  // namespace strata
