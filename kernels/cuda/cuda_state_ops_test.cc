// The CUDA StateOps on the emulator give the CPU's bits, in every wake order.
#include "kernels/cuda/cuda_state_ops.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/checksum/pieces.h"
#include "kernels/conformance/harness.h"
#include "kernels/cuda/device_array.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "kernels/optimizer/reduce.h"
#include "kernels/state/launch.h"

namespace strata {
namespace {

using conformance::Draw;
using kx::emu::RangeKind;

kx::emu::Options Strict(kx::emu::Order order) {
  kx::emu::Options options;
  options.order = order;
  options.seed = Draw::Seed();
  options.only_registered = true;
  return options;
}

// Values of every size, zeros and denormals among them.
std::vector<float> Values(Draw& draw, int64_t n, bool positive = false) {
  std::vector<float> values(n);
  for (float& v : values) {
    const double scale = std::ldexp(1, static_cast<int>(draw.Pick({-130, -60, -20, -3, 0, 0, 4, 30})));
    v = static_cast<float>(draw.Int(0, 19) == 0 ? 0 : draw.Normal() * scale);
    if (positive) v = std::abs(v);
  }
  return values;
}

// Equal bits; any NaN equals any NaN.
template <class T, class F>
void ExpectSame(const std::vector<T>& got, const std::vector<T>& want, F&& is_nan, const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0 || (is_nan(got[i]) && is_nan(want[i]))) continue;
    FAIL() << what << ": other bits at element " << i << " of " << got.size();
  }
}
void ExpectSame(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ExpectSame(
      got, want, [](float x) { return std::isnan(x); }, what);
}

bool IsNan16(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? (bits & 0x7fff) > 0x7f80 : (bits & 0x7fff) > 0x7c00;
}

class CudaStateOpsTest : public ::testing::TestWithParam<kx::emu::Order> {
 protected:
  CudaStateOpsTest()
      : session_(Strict(GetParam())), scratch_("scratch", CudaStateScratchBytes(), RangeKind::kOutput) {
    ops_ = MakeCudaStateOps({scratch_.data(), CudaStateScratchBytes()});
  }
  ~CudaStateOpsTest() override { EXPECT_TRUE(session_.report().ok()) << session_.report().FirstError(); }

  const kx::emu::Session session_;
  DeviceArray<char> scratch_;
  std::unique_ptr<StateOps> ops_;
  const std::unique_ptr<StateOps> cpu_ = MakeCpuStateOps(1);
};

// P: uint16_t or float, the bits of the parameters.
template <class P>
void CheckAdamW(StateOps& ops, StateOps& cpu, Draw& draw, int64_t n, int64_t offset, DType dtype) {
  const std::vector<float> grad = Values(draw, n);
  std::vector<float> master = Values(draw, n), m = Values(draw, n), v = Values(draw, n, true);
  std::vector<P> params(n);
  DeviceArray<float> device_grad("grad", grad, RangeKind::kInput, offset),
      device_master("master", master, RangeKind::kInOut, offset), device_m("m", m, RangeKind::kInOut, offset),
      device_v("v", v, RangeKind::kInOut, offset);
  DeviceArray<P> device_params("params", n, RangeKind::kOutput, offset);
  AdamWStep step{.n = n, .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  step.step = draw.Int(1, 2000);
  step.grad_scale = static_cast<float>(draw.Bool() ? 1 : 0.37);
  step.params_dtype = dtype;
  AdamWStep host = step;
  host.grad = grad.data();
  host.master = master.data();
  host.m = m.data();
  host.v = v.data();
  host.params = params.data();
  ASSERT_TRUE(cpu.AdamW(nullptr, host).ok());
  step.grad = device_grad.data();
  step.master = device_master.data();
  step.m = device_m.data();
  step.v = device_v.data();
  step.params = device_params.data();
  const absl::Status status = ops.AdamW(nullptr, step);
  ASSERT_TRUE(status.ok()) << status;
  const std::string what = std::string("AdamW ") + Name(dtype) + " n=" + std::to_string(n);
  ExpectSame(device_master.Values(), master, what + " master");
  ExpectSame(device_m.Values(), m, what + " m");
  ExpectSame(device_v.Values(), v, what + " v");
  const auto is_nan = [&](P p) {
    if constexpr (std::is_same_v<P, float>) return std::isnan(p);
    return IsNan16(dtype, static_cast<uint16_t>(p));
  };
  ExpectSame(device_params.Values(), params, is_nan, what + " params");
}

TEST_P(CudaStateOpsTest, AdamWHasTheCpusBits) {
  Draw draw(101);
  for (const int64_t n :
       {int64_t{1}, int64_t{3}, int64_t{4}, draw.Int(5, 70), draw.Int(1020, 1030), int64_t{2500}}) {
    const int64_t offset = draw.Pick({0, 0, 1, 2});
    CheckAdamW<uint16_t>(*ops_, *cpu_, draw, n, offset, DType::kBF16);
    CheckAdamW<uint16_t>(*ops_, *cpu_, draw, n, offset, DType::kF16);
    CheckAdamW<float>(*ops_, *cpu_, draw, n, offset, DType::kF32);
  }
}

TEST_P(CudaStateOpsTest, EightBitStatesHaveTheCpusBits) {
  Draw draw(105);
  for (const int64_t n : {int64_t{1}, int64_t{64}, draw.Int(65, 300), int64_t{1300}}) {
    const std::vector<float> grad = Values(draw, n);
    const int64_t blocks = (n + 63) / 64, offset = draw.Pick({0, 1});
    std::vector<float> master = Values(draw, n), m_scale(blocks), v_scale(blocks);
    std::vector<uint8_t> m(n), v(n);
    std::vector<uint16_t> params(n);
    DeviceArray<float> device_grad("grad", grad, RangeKind::kInput, offset),
        device_master("master", master, RangeKind::kInOut, offset),
        device_m_scale("m_scale", m_scale, RangeKind::kInOut),
        device_v_scale("v_scale", v_scale, RangeKind::kInOut);
    DeviceArray<uint8_t> device_m("m", m, RangeKind::kInOut, offset), device_v("v", v, RangeKind::kInOut);
    DeviceArray<uint16_t> device_params("params", n, RangeKind::kOutput, offset);
    for (int64_t number = 1; number <= 3; ++number) {
      AdamWStep step{.n = n, .lr = 3e-4, .weight_decay = 0.1, .step = number};
      AdamWStep host = step;
      host.grad = grad.data();
      host.master = master.data();
      host.params = params.data();
      ASSERT_TRUE(cpu_->AdamW8(nullptr, host, {m.data(), v.data(), m_scale.data(), v_scale.data()}).ok());
      step.grad = device_grad.data();
      step.master = device_master.data();
      step.params = device_params.data();
      const absl::Status status = ops_->AdamW8(
          nullptr, step, {device_m.data(), device_v.data(), device_m_scale.data(), device_v_scale.data()});
      ASSERT_TRUE(status.ok()) << status;
      const std::string what = "AdamW8 n=" + std::to_string(n);
      ExpectSame(device_master.Values(), master, what + " master");
      ExpectSame(device_m_scale.Values(), m_scale, what + " m_scale");
      ExpectSame(device_v_scale.Values(), v_scale, what + " v_scale");
      EXPECT_EQ(device_m.Values(), m) << what;
      EXPECT_EQ(device_v.Values(), v) << what;
      EXPECT_EQ(device_params.Values(), params) << what;
    }
  }
}

TEST_P(CudaStateOpsTest, CastsAndSumsHaveTheCpusBits) {
  Draw draw(102);
  for (const int64_t n : {int64_t{1}, int64_t{7}, draw.Int(8, 70), int64_t{1031}}) {
    const int64_t offset = draw.Pick({0, 1});
    const std::vector<float> x = Values(draw, n);
    DeviceArray<float> device_x("x", x, RangeKind::kInput, offset);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      std::vector<uint16_t> params(n);
      DeviceArray<uint16_t> device_params("params", n, RangeKind::kOutput, offset);
      ASSERT_TRUE(cpu_->CastParams(nullptr, x.data(), params.data(), dtype, n).ok());
      const absl::Status status = ops_->CastParams(nullptr, device_x.data(), device_params.data(), dtype, n);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(device_params.Values(), params) << Name(dtype) << " n=" << n;
    }
    std::vector<float> acc = Values(draw, n);
    DeviceArray<float> device_acc("acc", acc, RangeKind::kInOut, offset);
    ASSERT_TRUE(cpu_->Accumulate(nullptr, acc.data(), x.data(), n).ok());
    const absl::Status status = ops_->Accumulate(nullptr, device_acc.data(), device_x.data(), n);
    ASSERT_TRUE(status.ok()) << status;
    ExpectSame(device_acc.Values(), acc, "accumulate");
  }
}

TEST_P(CudaStateOpsTest, SumOfSquaresHasTheFixedTree) {
  Draw draw(103);
  constexpr int64_t kLeaf = kReductionLeaf;
  for (const int64_t n : {int64_t{0}, int64_t{1}, draw.Int(2, 100), kLeaf - 1, kLeaf, kLeaf + 1,
                          draw.Int(2 * kLeaf, 9 * kLeaf), 33 * kLeaf + draw.Int(1, 99)}) {
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(draw.Normal());
    for (const bool bad : {false, true}) {
      if (bad && n == 0) continue;
      if (bad) {
        x[draw.Int(0, n - 1)] = std::numeric_limits<float>::quiet_NaN();
        x[draw.Int(0, n - 1)] = -std::numeric_limits<float>::infinity();
      }
      const SumSquaresResult want = SumSquares(x.data(), n);
      DeviceArray<float> device_x("x", x, RangeKind::kInput, draw.Int(0, 1));
      DeviceArray<double> sum("sum", 1, RangeKind::kOutput);
      DeviceArray<int64_t> first_bad("first_bad", 1, RangeKind::kOutput);
      const absl::Status status = ops_->SumSquares(nullptr, device_x.data(), n, sum.data(), first_bad.data());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(first_bad.Values()[0], want.first_bad) << "n=" << n;
      if (!bad) {
        EXPECT_EQ(sum.Values()[0], want.sum) << "n=" << n;
      } else {
        EXPECT_FALSE(std::isfinite(sum.Values()[0])) << "n=" << n;
      }
    }
  }
}

TEST_P(CudaStateOpsTest, BatchesOfALongRangeJoinTheSameTree) {
  Draw draw(104);
  constexpr int64_t kBatch = 32 * kReductionLeaf;
  if (GetParam() != kx::emu::Order::kShuffle) GTEST_SKIP() << "one order of a long range is enough";
  for (const int64_t batches : {3, 6}) {
    const int64_t n = batches * kBatch - draw.Pick({0, 5, 3 * kReductionLeaf + 1});
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(draw.Int(-4000, 4000)) * 1e-3f;
    DeviceArray<float> device_x("x", x, RangeKind::kInput);
    DeviceArray<double> sum("sum", 1, RangeKind::kOutput);
    DeviceArray<int64_t> first_bad("first_bad", 1, RangeKind::kOutput);
    const kx::LaunchStatus status =
        gpu::SumSquares(nullptr, device_x.data(), n, sum.data(), first_bad.data(), scratch_.data(), 1);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(sum.Values()[0], SumSquares(x.data(), n).sum) << "n=" << n;
    EXPECT_EQ(first_bad.Values()[0], -1);
  }
}

TEST_P(CudaStateOpsTest, ChecksumsAreTheHosts) {
  Draw draw(106);
  for (const int64_t bytes : {int64_t{0}, kChecksumBlockBytes, 3 * kChecksumBlockBytes, kChecksumPieceBytes,
                              kChecksumPieceBytes + 2 * kChecksumBlockBytes}) {
    std::vector<uint32_t> words(bytes / 4);
    for (uint32_t& word : words) word = static_cast<uint32_t>(draw.Int(0, 0xffffffff));
    std::vector<uint32_t> expected(ChecksumPieces(bytes));
    ASSERT_TRUE(cpu_->Checksums(nullptr, words.data(), bytes, expected.data()).ok());
    DeviceArray<uint32_t> device_words("data", words, RangeKind::kInput, 4 * draw.Int(0, 1));
    DeviceArray<uint32_t> crcs("crcs", static_cast<int64_t>(expected.size()), RangeKind::kOutput);
    const absl::Status status = ops_->Checksums(nullptr, device_words.data(), bytes, crcs.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(crcs.Values(), expected) << bytes;
  }
}

TEST_P(CudaStateOpsTest, RefusesWhatCannotBe) {
  EXPECT_EQ(ops_->Checksums(nullptr, nullptr, 4095, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops_->Checksums(nullptr, reinterpret_cast<void*>(8), 4096, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops_->AdamW(nullptr, {.n = 0, .step = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops_->AdamW(nullptr, {.n = -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops_->AdamW8(nullptr, {.n = 0, .step = 0}, {}).message(), "AdamW8: steps count from 1, not 0");
  EXPECT_EQ(ops_->CastParams(nullptr, nullptr, nullptr, DType::kF64, 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ops_->CastParams(nullptr, nullptr, nullptr, DType::kBF16, 0).ok());
  DeviceArray<double> sum("sum", 1, RangeKind::kOutput);
  DeviceArray<int64_t> first_bad("first_bad", 1, RangeKind::kOutput);
  for (int stream = 0; stream <= kCudaStateStreamsMax; ++stream) {
    const absl::Status status = ops_->SumSquares(reinterpret_cast<Stream*>(uintptr_t(stream + 1)), nullptr, 0,
                                                 sum.data(), first_bad.data());
    EXPECT_EQ(status.code(),
              stream < kCudaStateStreamsMax ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
        << status;
  }
  EXPECT_EQ(sum.Values()[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaStateOpsTest, ::testing::ValuesIn(kx::emu::kAllOrders),
                         [](const auto& param) { return std::to_string(static_cast<int>(param.param)); });

}  // namespace
}  // namespace strata
