#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/kx/conformance_check.h"
#include "kernels/kx/conformance_primitives.h"
#include "kernels/kx/conformance_util.h"
#include "kernels/kx/launch.h"
#include "kernels/kx/test_memory.h"

namespace strata::kx::conformance {
namespace {

using emu::Buffer;
using emu::RangeKind;

bool Same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

template <class T>
std::vector<T> Correct(T x, T y) {
  const volatile T product = x * y;  // rounded, whatever the compiler contracts
  return {product, product + y, x - y, x / y, std::sqrt(x), std::fma(x, y, -y)};
}

// Approximations see subnormals as zeros and give zeros for them.
float Flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }

// What the approximations come near to, and how far off they may be relative to it or in any case.
struct Approximated {
  double exact, relative, absolute;
};
std::vector<Approximated> Approximations(float x) {
  constexpr double kRelative = 0x1p-21, kFlush = 0x1p-126;
  const double f = Flushed(x);
  const bool near_one = f > 0.5 && f < 2;
  return {{std::exp2(f), kRelative, kFlush},
          {std::log2(f), near_one ? 0 : kRelative, near_one ? 0x1p-21 : 0},
          {1 / std::sqrt(f), kRelative, 0},
          {1 / f, kRelative, kFlush}};
}
bool Near(float is, const Approximated& to) {
  if (!std::isfinite(to.exact) || std::fabs(to.exact) >= 0x1p128)
    return Same(is, static_cast<float>(to.exact));
  return std::fabs(is - to.exact) <= to.relative * std::fabs(to.exact) + to.absolute;
}

// The nearest number of a format of 16 bits, ties to even, from its definition.
uint32_t Rounded(float x, int fraction, int bias) {
  const uint32_t infinity = ((1u << (15 - fraction)) - 1) << fraction;
  if (std::isnan(x)) return 0x7fff;
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isinf(x)) return sign | infinity;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, fraction - exponent));
  const auto code = static_cast<uint32_t>(((exponent + bias - 1) << fraction) + static_cast<int>(units));
  return sign | std::min(code, infinity);
}
double ValueOf(uint32_t code, int fraction, int bias) {
  const int exponent = static_cast<int>(code & 0x7fff) >> fraction;
  const int part = static_cast<int>(code & ((1u << fraction) - 1));
  double value = std::ldexp(part + (exponent == 0 ? 0 : 1 << fraction),
                            (exponent == 0 ? 1 : exponent) - bias - fraction);
  if (exponent == (1 << (15 - fraction)) - 1) value = part == 0 ? INFINITY : NAN;
  return (code & 0x8000) != 0 ? -value : value;
}

// Every exponent, ties of both formats, and all kinds of specials; each beside another.
std::vector<float> Numbers(uint64_t seed) {
  std::vector<float> numbers = {0.f,     -0.f,     INFINITY, -INFINITY, NAN,    1.f,     -1.f,      65519.f,
                                65520.f, 3.39e38f, 3.4e38f,  0x1p-140f, 3e-41f, -3e-41f, 0x1p-126f, 0x1p-127f,
                                0.5f,    2.f,      0.75f,    1.000001f, 127.5f, 128.f,   -126.f,    -149.f};
  std::mt19937_64 random(seed);
  for (int exponent = -148; exponent < 128; ++exponent) {
    const auto bits = static_cast<uint32_t>(random());
    const auto any = static_cast<float>(1 + (bits & 0x7fffff) * 0x1p-23);
    const float tie = 1.f + static_cast<float>(bits >> 23 & 0x7f) * 0x1p-7f + 0x1p-8f;
    const float tie_of_half = 1.f + static_cast<float>(bits & 0x3ff) * 0x1p-10f + 0x1p-11f;
    for (const float x : {any, -any, tie, tie_of_half}) numbers.push_back(std::ldexp(x, exponent));
  }
  std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

std::string CheckHalves(Buffer<uint32_t>& halves, size_t i, float x, float y) {
  const uint32_t b16 = Rounded(x, 7, 127) | Rounded(y, 7, 127) << 16;
  const uint32_t h16 = Rounded(x, 10, 15) | Rounded(y, 10, 15) << 16;
  const uint32_t expected[4] = {b16, h16, b16, h16};
  for (int j = 0; j < 4; ++j) {
    const uint32_t is = halves[i * kHalves + j];
    if (is != expected[j]) return Differs("halves", i * kHalves + j, is, expected[j]);
  }
  const double values[2] = {ValueOf(b16 & 0xffff, 7, 127), ValueOf(h16 & 0xffff, 10, 15)};
  for (int j = 0; j < 2; ++j) {
    float is;
    memcpy(&is, &halves[i * kHalves + 4 + j], 4);
    if (!Same(is, values[j])) return Differs("halves", i * kHalves + 4 + j, is, values[j]);
  }
  return "";
}

// A tensor of bytes, and the box that goes through shared memory.
struct BoxCase {
  int element_bytes;
  bool swizzle;
  std::vector<int> extent, stride_bytes, box, at;
};
std::string BoxOf(const BoxCase& c) {
  const int rank = static_cast<int>(c.extent.size());
  const auto tensor_bytes = static_cast<size_t>(c.extent.back()) * c.stride_bytes.back();
  std::vector<uint8_t> bytes(tensor_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(1 + i * 37 % 251);
  Buffer<uint8_t> in("in", bytes, RangeKind::kInput), out("out", bytes, RangeKind::kOutput);
  TensorMapSpec spec;
  spec.rank = rank;
  spec.element_bytes = c.element_bytes;
  spec.swizzle128 = c.swizzle;
  BoxPlace place = {rank, {}};
  int box_bytes = c.element_bytes;
  for (int d = 0; d < rank; ++d) {
    spec.extent[d] = static_cast<uint64_t>(c.extent[d]);
    spec.box[d] = static_cast<uint32_t>(c.box[d]);
    if (d > 0) spec.stride_bytes[d - 1] = static_cast<uint64_t>(c.stride_bytes[d - 1]);
    place.at[d] = c.at[d];
    box_bytes *= c.box[d];
  }
  Buffer<uint32_t> seen("seen", std::vector<uint32_t>(box_bytes / 4), RangeKind::kOutput);
  TensorMap maps[2];
  spec.base = in.data();
  LaunchStatus status = EncodeTensorMap(spec, &maps[0]);
  spec.base = out.data();
  if (status.ok()) status = EncodeTensorMap(spec, &maps[1]);
  if (status.ok()) {
    status = Launch({{}, {128}, static_cast<size_t>(box_bytes) + 8}, Boxes, maps[0], maps[1], place,
                    box_bytes, seen.data());
  }
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;

  std::vector<uint8_t> expected_out(tensor_bytes, 0xff), expected_box(box_bytes);
  for (int i = 0; i < box_bytes; ++i) {
    int rest = i / c.element_bytes;
    size_t from = i % c.element_bytes;
    bool inside = true;
    for (int d = 0; d < rank; ++d) {
      const int at = c.at[d] + rest % c.box[d];
      rest /= c.box[d];
      inside = inside && at >= 0 && at < c.extent[d];
      from += static_cast<size_t>(at) * (d == 0 ? c.element_bytes : c.stride_bytes[d - 1]);
    }
    if (!inside) continue;
    expected_out[from] = bytes[from];
    expected_box[c.swizzle ? Swizzle128(static_cast<uint32_t>(i)) : i] = bytes[from];
  }
  const auto* const box = reinterpret_cast<const uint8_t*>(seen.data());
  for (int i = 0; i < box_bytes; ++i) {
    if (box[i] != expected_box[i]) return Differs("byte in shared memory", i, box[i], expected_box[i]);
  }
  for (size_t i = 0; i < tensor_bytes; ++i) {
    if (out[i] != expected_out[i]) return Differs("byte of out", i, out[i], expected_out[i]);
  }
  return "";
}

}  // namespace

std::string CheckArithmetic() {
  const std::vector<float> x = Numbers(1), y = Numbers(2);
  const size_t n = x.size();
  Buffer<float> dx("x", x, RangeKind::kInput), dy("y", y, RangeKind::kInput);
  Buffer<float> results("results", std::vector<float>(n * kArithmetic), RangeKind::kOutput);
  Buffer<double> results64("results64", std::vector<double>(n * kArithmetic64), RangeKind::kOutput);
  Buffer<uint32_t> halves("halves", std::vector<uint32_t>(n * kHalves), RangeKind::kOutput);
  LaunchStatus status =
      Launch({{static_cast<uint32_t>((n + 127) / 128)}, {128}}, Arithmetic, dx.data(), dy.data(),
             static_cast<int>(n), results.data(), results64.data(), halves.data());
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (size_t i = 0; i < n; ++i) {
    const std::vector<float> correct = Correct(x[i], y[i]);
    const std::vector<double> correct64 = Correct<double>(x[i], y[i]);
    for (size_t j = 0; j < correct.size(); ++j) {
      const size_t at = i * kArithmetic + j, at64 = i * kArithmetic64 + j;
      if (!Same(results[at], correct[j])) return Differs("results", at, results[at], correct[j]);
      if (!Same(results64[at64], correct64[j])) {
        return Differs("results64", at64, results64[at64], correct64[j]);
      }
    }
    const std::vector<Approximated> approximations = Approximations(x[i]);
    for (size_t j = 0; j < approximations.size(); ++j) {
      const size_t at = i * kArithmetic + correct.size() + j;
      if (!Near(results[at], approximations[j])) {
        return Differs("results", at, results[at], approximations[j].exact) + " or near it, of " +
               std::to_string(x[i]);
      }
    }
    const std::string wrong = CheckHalves(halves, i, x[i], y[i]);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string CheckGather() {
  constexpr int kThreads = 128;
  Buffer<uint32_t> words("words", {0, 1000, 0, 0, 0, 1}, RangeKind::kInOut);
  Buffer<uint64_t> wide("wide", {0, 0}, RangeKind::kInOut);
  Buffer<uint64_t> seen("seen", std::vector<uint64_t>(kThreads * 6), RangeKind::kOutput);
  LaunchStatus status = Launch({{2}, {64}}, Gather, words.data(), wide.data(), seen.data());
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  const auto sum = static_cast<float>(kThreads * (kThreads - 1) / 2);
  uint32_t sum_bits;
  memcpy(&sum_bits, &sum, 4);
  const uint32_t expected[6] = {kThreads + 4, 5,        static_cast<uint32_t>(1 - kThreads),
                                0xffffffffu,  sum_bits, 1 + kThreads};
  for (int i = 0; i < 6; ++i) {
    if (words[i] != expected[i]) return Differs("words", i, words[i], expected[i]);
  }
  const uint64_t wides[2] = {uint64_t{kThreads * (kThreads - 1) / 2} << 32, uint64_t{kThreads - 1} << 32};
  for (int i = 0; i < 2; ++i) {
    if (wide[i] != wides[i]) return "wide[" + std::to_string(i) + "] is " + std::to_string(wide[i]);
  }
  for (int t = 0; t < kThreads; ++t) {
    const int lane = t % 32, first = t - lane;
    const auto high = [&](int of) { return static_cast<uint64_t>(first + of) << 32; };
    const uint64_t correct[6] = {high(lane / 2), high(lane ^ 5), high(lane + 3 < 32 ? lane + 3 : lane), 2, 2,
                                 0x49249249};
    for (int j = 0; j < 6; ++j) {
      if (seen[t * 6 + j] != correct[j]) {
        return "seen[" + std::to_string(t * 6 + j) + "] is " + std::to_string(seen[t * 6 + j]) + ", not " +
               std::to_string(correct[j]);
      }
    }
  }
  return "";
}

std::string CheckMatrices() {
  Buffer<uint32_t> seen("seen", std::vector<uint32_t>(4 * 32 * 8), RangeKind::kOutput);
  LaunchStatus status = Launch({{}, {64}, 4 * 256 * 2}, Matrices, seen.data());
  if (status.ok()) status = Finish();
  if (!status.ok()) return status.message;
  for (int form = 0; form < 4; ++form) {
    // What stands in row r, column c of matrix q: rows are memory's.
    const auto element = [&](int q, int r, int c) {
      const bool transposed = form % 2 == 1;
      const int major = transposed ? c : r, minor = transposed ? r : c;
      return static_cast<uint32_t>(1000 * (form + 1) + 100 * q + 4 * major + minor / 2 + 32 * (minor % 2));
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int a = lane / 4, b = lane % 4 * 2;
      for (int j = 0; j < 8; ++j) {
        const int q = j % 4 % (j < 4 ? 4 : 2);
        uint32_t expected = j < 6 ? element(q, a, b) | element(q, a, b + 1) << 16
                                  : element(q, b, a) | element(q, b + 1, a) << 16;
        if (j < 4 && form >= 2) expected = 0;
        const size_t at = (form * 32 + lane) * 8 + j;
        if (seen[at] != expected) return Differs("seen", at, seen[at], expected);
      }
    }
  }
  return "";
}

std::string CheckBoxes() {
  const BoxCase cases[] = {
      {4, false, {20, 9}, {96}, {16, 8}, {12, -3}},
      {4, true, {40, 9}, {160}, {32, 8}, {-8, 4}},
      {2, true, {72, 10, 3}, {144, 1440}, {64, 8, 2}, {40, 5, 2}},
      {2, true, {72, 10, 3}, {144, 1440}, {64, 8, 2}, {-64, 0, 0}},  // wholly outside
      // Heads beside each other in the rows of a matrix: the third stride is the smallest.
      {2, true, {80, 11, 2, 2}, {336, 160, 3696}, {64, 8, 1, 1}, {64, 6, 1, 0}},
      {1, true, {160, 5, 2, 2}, {160, 800, 1600}, {128, 4, 1, 1}, {48, -2, 0, 1}},
  };
  for (const BoxCase& c : cases) {
    const std::string wrong = BoxOf(c);
    if (!wrong.empty()) return "case " + std::to_string(&c - cases) + ": " + wrong;
  }
  return "";
}

std::string CheckFreshThread() {
  Buffer<uint8_t> tensor("tensor", std::vector<uint8_t>(4096), RangeKind::kInput);
  TensorMapSpec spec;
  spec.base = tensor.data();
  spec.extent[0] = spec.box[0] = 64;
  spec.extent[1] = spec.box[1] = 32;
  spec.stride_bytes[0] = 128;
  LaunchStatus status;
  std::thread fresh([&] {
    TensorMap map;
    status = EncodeTensorMap(spec, &map);
  });
  fresh.join();
  return status.message;
}

}  // namespace strata::kx::conformance
