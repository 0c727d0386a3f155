#include "client/cli/bench_options.h"

#include <cmath>
#include <functional>

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(ParseCountTest, ThousandsAsParametersAreCounted) {
  EXPECT_EQ(ParseCount("1B").value(), 1'000'000'000);
  EXPECT_EQ(ParseCount("1.5B").value(), 1'500'000'000);
  EXPECT_EQ(ParseCount("350M").value(), 350'000'000);
  EXPECT_EQ(ParseCount("20k").value(), 20'000);
  EXPECT_EQ(ParseCount("4096").value(), 4096);
  for (const char* text : {"", "B", "1.5", "-3", "1T", "nan", "inf", "1e300", "12 M x"}) {
    EXPECT_FALSE(ParseCount(text).ok()) << text;
  }
}

TEST(BenchOptionsTest, DefaultsWork) {
  const auto options = BenchOptionsOf({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->shape.parameters, 100'000'000);
  EXPECT_FALSE(options->request.mode.has_value());
  EXPECT_EQ(options->request.chunk_elements, 0);
  for (const int64_t budget : options->request.budget) EXPECT_GT(budget, 0);
}

TEST(BenchOptionsTest, EveryFlagArrives) {
  BenchOffloadFlags flags;
  flags.params = "1M";
  flags.mode = "sync";
  flags.chunk = "4MiB";
  flags.device = "1GiB";
  flags.host = "2GiB";
  flags.nvme = "3GiB";
  flags.optimizer_home = "nvme";
  flags.isa = "scalar";
  flags.precision = "fp32";
  flags.optimizer = "adamw8bit";
  flags.compute_delay = "busy:5ms";
  flags.inject = "-inf:3:layers.0.qkv";
  flags.io_backend = "threads";
  flags.direct_io = false;
  flags.nvme_paths = {"a", "b"};
  flags.nvme_weights = {3, 1};
  const auto options = BenchOptionsOf(flags);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->request.mode, Mode::kSync);
  EXPECT_EQ(options->request.chunk_elements, 1 << 20);
  EXPECT_EQ(options->request.budget, (std::array<int64_t, 3>{1 << 30, int64_t{2} << 30, int64_t{3} << 30}));
  EXPECT_EQ(options->request.optimizer, Tier::kNvme);
  EXPECT_FALSE(options->request.params.has_value());
  EXPECT_EQ(options->isa, Isa::kScalar);
  EXPECT_EQ(options->shape.compute_dtype, DType::kF32);
  EXPECT_EQ(options->shape.moments, Moments::kCode8);
  EXPECT_EQ(options->shape.compute_delay, absl::Milliseconds(5));
  EXPECT_TRUE(options->compute_busy);
  ASSERT_TRUE(options->injection.has_value());
  EXPECT_EQ(options->injection->value, -INFINITY);
  EXPECT_EQ(options->injection->step, 3);
  EXPECT_EQ(options->injection->tensor, "layers.0.qkv");
  EXPECT_EQ(options->engine.io_backend, IoBackend::kThreads);
  EXPECT_EQ(options->engine.store.direct, DirectIo::kBuffered);
  ASSERT_EQ(options->engine.store.paths.size(), 2u);
  EXPECT_EQ(options->engine.store.paths[1].path, "b");
  EXPECT_EQ(options->engine.store.paths[0].weight, 3);
}

TEST(BenchOptionsTest, WhatIsWrongIsNamedWithItsFlag) {
  const std::pair<const char*, std::function<void(BenchOffloadFlags&)>> cases[] = {
      {"--params", [](auto& f) { f.params = "many"; }},
      {"--mode", [](auto& f) { f.mode = "fast"; }},
      {"--chunk", [](auto& f) { f.chunk = "4 apples"; }},
      {"--device", [](auto& f) { f.device = "0"; }},
      {"--optimizer-home", [](auto& f) { f.optimizer_home = "disk"; }},
      {"--isa", [](auto& f) { f.isa = "sse"; }},
      {"--precision", [](auto& f) { f.precision = "int8"; }},
      {"--optimizer", [](auto& f) { f.optimizer = "sgd"; }},
      {"--compute-delay", [](auto& f) { f.compute_delay = "5"; }},
      {"--compute-delay", [](auto& f) { f.compute_delay = "-1ms"; }},
      {"--inject", [](auto& f) { f.inject = "inf:first"; }},
      {"--inject", [](auto& f) { f.inject = "big:1:first"; }},
      {"--nvme-weight",
       [](auto& f) {
         f.nvme_weights = {1, 2};
       }},
      {"--nvme-weight", [](auto& f) { f.nvme_weights = {std::nan("")}; }},
      {"--nvme-weight", [](auto& f) { f.nvme_weights = {1e300}; }},
      {"--clip", [](auto& f) { f.clip = std::nan(""); }},
      {"--clip", [](auto& f) { f.clip = 1e300; }},
      {"--clip", [](auto& f) { f.clip = 1e-300; }},
      {"--clip", [](auto& f) { f.clip = -1; }},
      {"--io-backend", [](auto& f) { f.io_backend = "spdk"; }},
  };
  for (const auto& [flag, set] : cases) {
    BenchOffloadFlags flags;
    set(flags);
    const absl::Status status = BenchOptionsOf(flags).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag << ": " << status;
    EXPECT_NE(status.message().find(flag), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace strata
