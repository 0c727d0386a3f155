#include "kernels/kx/conformance_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/kx/conformance.h"
#include "kernels/kx/conformance_hopper.h"
#include "kernels/kx/conformance_util.h"
#include "kernels/kx/launch.h"
#include "kernels/kx/test_memory.h"

namespace strata::kx::conformance {
namespace {

using emu::Buffer;
using emu::RangeKind;

// Exact conversions of small integers, on the host: kx's own are the device's under nvcc.
template <class T>
T FromInteger(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if constexpr (std::is_same_v<T, e4m3>) {
    if (x == 0) return {};
    return {static_cast<uint8_t>((bits >> 24 & 0x80) | ((bits >> 23 & 0xff) - 120) << 3 | (bits >> 20 & 7))};
  } else {
    if constexpr (std::is_same_v<T, bf16>) return {static_cast<uint16_t>(bits >> 16)};
    if (x == 0) return {};
    const uint32_t exponent = (bits >> 23 & 0xff) - 112;
    return {static_cast<uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff))};
  }
}
std::vector<float> Integers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(random() % 17) - 8.f;
  return values;
}
template <class T>
std::vector<T> As(const std::vector<float>& values) {
  std::vector<T> converted;
  for (const float value : values) converted.push_back(FromInteger<T>(value));
  return converted;
}

template <class T>
std::string MmaOf(bool trans) {
  const std::vector<float> a = Integers(256, 1), bt = Integers(128, 2);
  Buffer<T> da("a", As<T>(a), RangeKind::kInput), db("bt", As<T>(bt), RangeKind::kInput);
  Buffer<float> dc("c", std::vector<float>(128), RangeKind::kOutput);
  LaunchStatus status =
      Launch({{}, {32}, 16 * 16 * 2 + 8 * 16 * 2}, MmaTile<T>, da.data(), db.data(), dc.data(), trans);
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float expected = 0;
      for (int k = 0; k < 16; ++k) expected += a[trans ? k * 16 + i : i * 16 + k] * bt[j * 16 + k];
      if (dc[i * 8 + j] != expected) return Differs("c", i * 8 + j, dc[i * 8 + j], expected);
    }
  }
  return "";
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
std::string WgmmaOf() {
  constexpr int kDepth = kWgmmaDepth<T>, kBytes = sizeof(T);
  const std::vector<float> a = Integers(64 * kDepth, 3), b = Integers(kN * kDepth, 4);
  Buffer<T> da("a", As<T>(a), RangeKind::kInput), db("b", As<T>(b), RangeKind::kInput);
  Buffer<float> dc("c", std::vector<float>(64 * kN), RangeKind::kOutput);
  const TensorMap ma = Map(da.data(), kBytes, {kDepth, 64}, {kDepth, 64});
  const TensorMap mb = kB == Major::kK ? Map(db.data(), kBytes, {kDepth, kN}, {kDepth, kN})
                                       : Map(db.data(), kBytes, {kN, 64}, {64, 64});
  const TensorMap mc = Map(dc.data(), 4, {kN, 64}, {32, 64});
  const size_t shared = (64 + kN) * 128 + 64 * kN * 4 + 8;
  LaunchStatus status = Launch({{}, {128}, shared}, WgmmaTile<T, kN, kA, kB, kRs>, ma, mb, mc);
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = 0;
      for (int k = 0; k < kDepth; ++k) {
        expected += (kA == Major::kK ? a[i * kDepth + k] : a[k * 64 + i]) *
                    (kB == Major::kK ? b[j * kDepth + k] : b[k * kN + j]);
      }
      if (dc[i * kN + j] != expected) return Differs("c", i * kN + j, dc[i * kN + j], expected);
    }
  }
  return "";
}

// Of an eight-bit format, written out from its definition: the value of each code, and by search the code
// whose value is nearest.
struct Format8 {
  int fraction_bits, bias, largest;  // the code of the largest number

  double Value(int code) const {
    const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
    return std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
  int Nearest(float x) const {
    if (x != x) return 0x7f;
    const double magnitude = std::fabs(static_cast<double>(x));
    int best = 0;
    for (int code = 1; code <= largest; ++code) {
      const double better = std::fabs(Value(best) - magnitude) - std::fabs(Value(code) - magnitude);
      if (better > 0 || (better == 0 && code % 2 == 0)) best = code;
    }
    if (magnitude > Value(largest)) best = largest;  // far from all: the differences are rounded
    return best | (std::signbit(x) ? 0x80 : 0);
  }
};

// Codes, midpoints between them and the floats beside those; numbers past the largest; every kind of special.
std::vector<float> Samples(const Format8& format) {
  std::vector<float> samples = {INFINITY, NAN, 3e38f, 1e-40f, 0x1p-149f, 0.f};
  for (int code = 0; code <= format.largest; ++code) {
    const auto value = static_cast<float>(format.Value(code));
    const auto middle = static_cast<float>((format.Value(code) + format.Value(code + 1)) / 2);
    for (const float x : {value, middle}) {
      samples.insert(samples.end(), {x, std::nextafter(x, 0.f), std::nextafter(x, INFINITY)});
    }
  }
  const size_t positive = samples.size();
  for (size_t i = 0; i < positive; ++i) samples.push_back(-samples[i]);
  samples.resize((samples.size() + 3) / 4 * 4);
  return samples;
}

template <class T>
std::string Convert8Of(const Format8& format, int infinity) {
  const std::vector<float> samples = Samples(format);
  const size_t n = samples.size();
  Buffer<float> x("x", samples, RangeKind::kInput),
      values("values", std::vector<float>(256), RangeKind::kOutput);
  Buffer<uint8_t> rounded("rounded", std::vector<uint8_t>(n), RangeKind::kOutput);
  Buffer<uint32_t> packed("packed", std::vector<uint32_t>(n / 4), RangeKind::kOutput);
  const auto blocks = static_cast<uint32_t>((n / 4 + 255) / 256);
  LaunchStatus status = Launch({{blocks}, {256}, 0}, Convert8<T>, x.data(), static_cast<int>(n),
                               values.data(), rounded.data(), packed.data());
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code & 0x7f;
    const double value = magnitude <= format.largest ? format.Value(magnitude)
                         : magnitude == infinity     ? static_cast<double>(INFINITY)
                                                     : static_cast<double>(NAN);
    const auto expected = static_cast<float>(code < 128 ? value : -value);
    const float is = values[code];
    if (is != expected && (is == is || expected == expected)) return Differs("values", code, is, expected);
  }
  for (size_t i = 0; i < n; ++i) {
    // The NaN that cvt makes has no sign.
    const auto expected = static_cast<float>(format.Nearest(samples[i]));
    if (rounded[i] != expected) return Differs("rounded", i, rounded[i], expected);
    const auto piece = static_cast<float>(packed[i / 4] >> (8 * (i % 4)) & 0xff);
    if (piece != expected) return Differs("packed", i, piece, expected);
  }
  return "";
}

}  // namespace

std::string CheckConvert8() {
  const std::string wrong = Convert8Of<e4m3>({3, 7, 0x7e}, 0x80);
  return wrong.empty() ? Convert8Of<e5m2>({2, 15, 0x7b}, 0x7c) : wrong;
}

std::string CheckMma() {
  for (const bool trans : {false, true}) {
    for (const std::string& error : {MmaOf<bf16>(trans), MmaOf<f16>(trans)}) {
      if (!error.empty()) return error;
    }
  }
  return "";
}

std::string CheckReduce() {
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
  LaunchStatus status = Launch({{8}, {128}, 512}, Reduce, dx.data(), 1000, partial.data(), counter.data(),
                               out.data(), votes.data());
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  if (out[0] != sum) return Differs("out", 0, out[0], sum);
  if (out[1] != top) return Differs("out", 1, out[1], top);
  return votes[0] == positive ? "" : "wrong count of positive values";
}

std::string CheckWgmma() {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  using Check = std::string (*)();
  for (const Check check : {&WgmmaOf<bf16, 64, kK, kK, false>, &WgmmaOf<f16, 64, kMN, kMN, false>,
                            &WgmmaOf<bf16, 96, kK, kK, true>, &WgmmaOf<bf16, 128, kK, kMN, true>,
                            &WgmmaOf<f16, 128, kMN, kK, false>, &WgmmaOf<bf16, 192, kMN, kMN, false>,
                            &WgmmaOf<f16, 192, kK, kK, true>, &WgmmaOf<bf16, 256, kK, kMN, false>,
                            &WgmmaOf<e4m3, 64, kK, kK, false>, &WgmmaOf<e4m3, 96, kK, kK, true>,
                            &WgmmaOf<e4m3, 128, kK, kK, true>, &WgmmaOf<e4m3, 192, kK, kK, true>,
                            &WgmmaOf<e4m3, 256, kK, kK, false>}) {
    const std::string error = check();
    if (!error.empty()) return error;
  }
  return "";
}

std::string CheckPipeline() {
  constexpr int kTiles = 7;  // the ring of two wraps three times
  const std::vector<float> in = Integers(kTiles * 64 * 64, 5);
  Buffer<bf16> din("in", As<bf16>(in), RangeKind::kInput);
  Buffer<bf16> dout("out", std::vector<bf16>(in.size()), RangeKind::kOutput);
  LaunchStatus status =
      Launch({{}, {256}, 3 * 64 * 64 * 2 + 32}, Pipeline, Map(din.data(), 2, {64, 64, kTiles}, {64, 64, 1}),
             Map(dout.data(), 2, {64, 64, kTiles}, {64, 64, 1}), kTiles);
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (size_t i = 0; i < in.size(); ++i) {
    const bf16 expected = FromInteger<bf16>(2 * in[i]);
    if (dout[i].bits != expected.bits) return Differs("bits of out", i, dout[i].bits, expected.bits);
  }
  return "";
}

}  // namespace strata::kx::conformance
