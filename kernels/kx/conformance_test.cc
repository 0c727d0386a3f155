// The conformance kernels on the emulator, in every order and accumulation, against plain loops.
#include "kernels/kx/conformance.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/kx/conformance_hopper.h"
#include "kernels/kx/launch.h"

namespace strata::kx {
namespace {

using conformance::MmaTile;
using conformance::Pipeline;
using conformance::WgmmaTile;
using emu::RangeKind;

// Device memory of a test: checked, outputs poisoned.
template <class T>
struct Buffer {
  Buffer(const char* name, std::vector<T> init, RangeKind kind)
      : storage(init.size() * sizeof(T) + 1024),
        data(Aligned(storage.data())),
        count(init.size()),
        range(name, data, init.size() * sizeof(T), kind) {
    if (kind == RangeKind::kOutput) {
      memset(data, 0xff, count * sizeof(T));
    } else {
      memcpy(data, init.data(), count * sizeof(T));
    }
  }
  static T* Aligned(unsigned char* p) {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + 255) / 256 * 256);
  }
  std::vector<unsigned char> storage;
  T* data;
  size_t count;
  emu::GlobalRange range;
};

// Small integers: every product and sum is exact in every accumulation.
template <class T>
std::vector<T> Integers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(n);
  for (T& value : values) value = FromFloat<T>(static_cast<float>(random() % 17) - 8.f);
  return values;
}

std::vector<emu::Options> EveryWay() {
  std::vector<emu::Options> ways;
  for (const emu::Order order : emu::kAllOrders) {
    emu::Options options;
    options.order = order;
    options.seed = 7 + static_cast<uint64_t>(order);
    options.accumulate = static_cast<emu::Accumulate>(static_cast<int>(order) % 3);
    options.only_registered = true;
    ways.push_back(options);
  }
  return ways;
}

template <class T>
void TestMma(bool trans) {
  const std::vector<T> a = Integers<T>(256, 1), bt = Integers<T>(128, 2);
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    Buffer<T> da("a", a, RangeKind::kInput), db("bt", bt, RangeKind::kInput);
    Buffer<float> dc("c", std::vector<float>(128), RangeKind::kOutput);
    const LaunchStatus status =
        Launch({{}, {32}, 16 * 16 * 2 + 8 * 16 * 2}, MmaTile<T>, da.data, db.data, dc.data, trans);
    ASSERT_TRUE(status.ok()) << status.message;
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float expected = 0;
        for (int k = 0; k < 16; ++k)
          expected += ToFloat(a[trans ? k * 16 + i : i * 16 + k]) * ToFloat(bt[j * 16 + k]);
        EXPECT_EQ(dc.data[i * 8 + j], expected) << i << " " << j;
      }
    }
    EXPECT_EQ(session.report().stats.mma, 1u);
  }
}
TEST(Conformance, MmaOfBf16AndF16WithPlainAndTransposedLoads) {
  TestMma<bf16>(false);
  TestMma<bf16>(true);
  TestMma<f16>(false);
  TestMma<f16>(true);
}

TEST(Conformance, ReduceAcrossBlocksIsOrderedByAcqRel) {
  std::vector<float> x(1000);
  float sum = 0, top = -INFINITY;
  uint32_t positive = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
    sum += x[i];
    top = std::max(top, x[i]);
    positive += x[i] > 0;
  }
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    Buffer<float> dx("x", x, RangeKind::kInput),
        partial("partial", std::vector<float>(16), RangeKind::kOutput);
    Buffer<float> out("out", std::vector<float>(2), RangeKind::kOutput);
    Buffer<uint32_t> counter("counter", {0}, RangeKind::kInOut), votes("positive", {0}, RangeKind::kInOut);
    const LaunchStatus status = Launch({{8}, {128}, 512}, conformance::Reduce, dx.data, 1000, partial.data,
                                       counter.data, out.data, votes.data);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(out.data[0], sum);
    EXPECT_EQ(out.data[1], top);
    EXPECT_EQ(votes.data[0], positive);
  }
}

TensorMap Map(const void* base, int element_bytes, std::vector<uint64_t> extent, std::vector<uint32_t> box) {
  TensorMapSpec spec;
  spec.base = base;
  spec.rank = static_cast<int>(extent.size());
  spec.element_bytes = element_bytes;
  uint64_t stride = element_bytes;
  for (int i = 0; i < spec.rank; ++i) {
    spec.extent[i] = extent[i];
    spec.box[i] = box[i];
    if (i > 0) spec.stride_bytes[i - 1] = stride;
    stride *= extent[i];
  }
  TensorMap map;
  const LaunchStatus status = EncodeTensorMap(spec, &map);
  EXPECT_TRUE(status.ok()) << status.message;
  return map;
}

template <class T, int kN, Major kA, Major kB, bool kRs>
void TestWgmma(const emu::Options& options) {
  const emu::Session session(options);
  const std::vector<T> a = Integers<T>(64 * 64, 3), b = Integers<T>(64 * kN, 4);
  Buffer<T> da("a", a, RangeKind::kInput), db("b", b, RangeKind::kInput);
  Buffer<float> dc("c", std::vector<float>(64 * kN), RangeKind::kOutput);
  const TensorMap ma = Map(da.data, 2, {64, 64}, {64, 64});
  const TensorMap mb =
      kB == Major::kK ? Map(db.data, 2, {64, kN}, {64, kN}) : Map(db.data, 2, {kN, 64}, {64, 64});
  const TensorMap mc = Map(dc.data, 4, {kN, 64}, {32, 64});
  const size_t shared = (64 * 64 + 64 * kN) * 2 + 64 * kN * 4 + 8;
  const LaunchStatus status = Launch({{}, {128}, shared}, WgmmaTile<T, kN, kA, kB, kRs>, ma, mb, mc);
  ASSERT_TRUE(status.ok()) << status.message;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = 0;
      for (int k = 0; k < 64; ++k) {
        expected += ToFloat(kA == Major::kK ? a[i * 64 + k] : a[k * 64 + i]) *
                    ToFloat(kB == Major::kK ? b[j * 64 + k] : b[k * kN + j]);
      }
      ASSERT_EQ(dc.data[i * kN + j], expected) << i << " " << j;
    }
  }
}
TEST(Conformance, WgmmaOfEveryShapeAndMajor) {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  for (const emu::Options& options : EveryWay()) {
    TestWgmma<bf16, 64, kK, kK, false>(options);
    TestWgmma<f16, 64, kMN, kMN, false>(options);
    TestWgmma<bf16, 96, kK, kK, true>(options);
    TestWgmma<bf16, 128, kK, kMN, true>(options);
    TestWgmma<f16, 128, kMN, kK, false>(options);
    TestWgmma<bf16, 192, kMN, kMN, false>(options);
    TestWgmma<f16, 192, kK, kK, true>(options);
  }
}

TEST(Conformance, PipelineWrapsItsRingAndLeavesOutsideUntouched) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    constexpr int kTiles = 7;
    const std::vector<bf16> in = Integers<bf16>(kTiles * 64 * 64, 5);
    Buffer<bf16> din("in", in, RangeKind::kInput);
    Buffer<bf16> dout("out", std::vector<bf16>(in.size()), RangeKind::kOutput);
    const LaunchStatus status =
        Launch({{}, {256}, 3 * 64 * 64 * 2 + 32}, Pipeline, Map(din.data, 2, {64, 64, kTiles}, {64, 64, 1}),
               Map(dout.data, 2, {64, 64, kTiles}, {64, 64, 1}), kTiles);
    ASSERT_TRUE(status.ok()) << status.message;
    for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(ToFloat(dout.data[i]), 2 * ToFloat(in[i])) << i;
    EXPECT_EQ(session.report().stats.ldmatrix, session.report().stats.ldmatrix_wavefronts);
  }
}

}  // namespace
}  // namespace strata::kx
