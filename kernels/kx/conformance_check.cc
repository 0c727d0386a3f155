#include "kernels/kx/conformance_check.h"

#include <algorithm>
#include <random>

#include "kernels/kx/conformance.h"
#include "kernels/kx/conformance_hopper.h"
#include "kernels/kx/launch.h"
#include "kernels/kx/test_memory.h"

namespace strata::kx::conformance {
namespace {

using emu::Buffer;
using emu::RangeKind;

template <class T>
std::vector<T> Integers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(n);
  for (T& value : values) value = FromFloat<T>(static_cast<float>(random() % 17) - 8.f);
  return values;
}

std::string Differs(const char* what, size_t i, float is, float expected) {
  return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(is) + ", not " +
         std::to_string(expected);
}

template <class T>
std::string MmaOf(const emu::Options& options, bool trans) {
  const emu::Session session(options);
  const std::vector<T> a = Integers<T>(256, 1), bt = Integers<T>(128, 2);
  Buffer<T> da("a", a, RangeKind::kInput), db("bt", bt, RangeKind::kInput);
  Buffer<float> dc("c", std::vector<float>(128), RangeKind::kOutput);
  const LaunchStatus status =
      Launch({{}, {32}, 16 * 16 * 2 + 8 * 16 * 2}, MmaTile<T>, da.data(), db.data(), dc.data(), trans);
  if (!status.ok()) return status.message;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float expected = 0;
      for (int k = 0; k < 16; ++k)
        expected += ToFloat(a[trans ? k * 16 + i : i * 16 + k]) * ToFloat(bt[j * 16 + k]);
      if (dc[i * 8 + j] != expected) return Differs("c", i * 8 + j, dc[i * 8 + j], expected);
    }
  }
  return session.report().stats.mma == 1 ? "" : "not one mma";
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
  TensorMap map = {};
  (void)EncodeTensorMap(spec, &map);  // one that could not be encoded is refused by the kernel's first use
  return map;
}

template <class T, int kN, Major kA, Major kB, bool kRs>
std::string WgmmaOf(const emu::Options& options) {
  const emu::Session session(options);
  const std::vector<T> a = Integers<T>(64 * 64, 3), b = Integers<T>(64 * kN, 4);
  Buffer<T> da("a", a, RangeKind::kInput), db("b", b, RangeKind::kInput);
  Buffer<float> dc("c", std::vector<float>(64 * kN), RangeKind::kOutput);
  const TensorMap ma = Map(da.data(), 2, {64, 64}, {64, 64});
  const TensorMap mb =
      kB == Major::kK ? Map(db.data(), 2, {64, kN}, {64, kN}) : Map(db.data(), 2, {kN, 64}, {64, 64});
  const TensorMap mc = Map(dc.data(), 4, {kN, 64}, {32, 64});
  const size_t shared = (64 * 64 + 64 * kN) * 2 + 64 * kN * 4 + 8;
  const LaunchStatus status = Launch({{}, {128}, shared}, WgmmaTile<T, kN, kA, kB, kRs>, ma, mb, mc);
  if (!status.ok()) return status.message;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = 0;
      for (int k = 0; k < 64; ++k) {
        expected += ToFloat(kA == Major::kK ? a[i * 64 + k] : a[k * 64 + i]) *
                    ToFloat(kB == Major::kK ? b[j * 64 + k] : b[k * kN + j]);
      }
      if (dc[i * kN + j] != expected) return Differs("c", i * kN + j, dc[i * kN + j], expected);
    }
  }
  return "";
}

}  // namespace

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

std::string CheckMma(const emu::Options& options) {
  for (const bool trans : {false, true}) {
    for (const std::string& error : {MmaOf<bf16>(options, trans), MmaOf<f16>(options, trans)}) {
      if (!error.empty()) return error;
    }
  }
  return "";
}

std::string CheckReduce(const emu::Options& options) {
  const emu::Session session(options);
  std::vector<float> x(1000);
  float sum = 0, top = -INFINITY;
  uint32_t positive = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
    sum += x[i];
    top = std::max(top, x[i]);
    positive += x[i] > 0;
  }
  Buffer<float> dx("x", x, RangeKind::kInput), partial("partial", std::vector<float>(16), RangeKind::kOutput);
  Buffer<float> out("out", std::vector<float>(2), RangeKind::kOutput);
  Buffer<uint32_t> counter("counter", {0}, RangeKind::kInOut), votes("positive", {0}, RangeKind::kInOut);
  const LaunchStatus status = Launch({{8}, {128}, 512}, Reduce, dx.data(), 1000, partial.data(),
                                     counter.data(), out.data(), votes.data());
  if (!status.ok()) return status.message;
  if (out[0] != sum) return Differs("out", 0, out[0], sum);
  if (out[1] != top) return Differs("out", 1, out[1], top);
  return votes[0] == positive ? "" : "wrong count of positive values";
}

std::string CheckWgmma(const emu::Options& options) {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  using Check = std::string (*)(const emu::Options&);
  for (const Check check : {&WgmmaOf<bf16, 64, kK, kK, false>, &WgmmaOf<f16, 64, kMN, kMN, false>,
                            &WgmmaOf<bf16, 96, kK, kK, true>, &WgmmaOf<bf16, 128, kK, kMN, true>,
                            &WgmmaOf<f16, 128, kMN, kK, false>, &WgmmaOf<bf16, 192, kMN, kMN, false>,
                            &WgmmaOf<f16, 192, kK, kK, true>}) {
    const std::string error = check(options);
    if (!error.empty()) return error;
  }
  return "";
}

std::string CheckPipeline(const emu::Options& options) {
  const emu::Session session(options);
  constexpr int kTiles = 7;  // the ring of two wraps three times
  const std::vector<bf16> in = Integers<bf16>(kTiles * 64 * 64, 5);
  Buffer<bf16> din("in", in, RangeKind::kInput);
  Buffer<bf16> dout("out", std::vector<bf16>(in.size()), RangeKind::kOutput);
  const LaunchStatus status =
      Launch({{}, {256}, 3 * 64 * 64 * 2 + 32}, Pipeline, Map(din.data(), 2, {64, 64, kTiles}, {64, 64, 1}),
             Map(dout.data(), 2, {64, 64, kTiles}, {64, 64, 1}), kTiles);
  if (!status.ok()) return status.message;
  for (size_t i = 0; i < in.size(); ++i) {
    if (ToFloat(dout[i]) != 2 * ToFloat(in[i]))
      return Differs("out", i, ToFloat(dout[i]), 2 * ToFloat(in[i]));
  }
  const emu::Stats& stats = session.report().stats;
  return stats.ldmatrix == stats.ldmatrix_wavefronts ? "" : "bank conflicts";
}

}  // namespace strata::kx::conformance
