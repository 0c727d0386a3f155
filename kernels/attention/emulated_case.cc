#include "kernels/attention/emulated_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>

#include "kernels/attention/fp8_decode.h"
#include "kernels/attention/ref.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::attention {
namespace {

using kx::emu::GlobalRange;
using kx::emu::RangeKind;

constexpr int kPadding = 8;  // elements between rows

// Device memory of one argument. Outputs start as 0xff bytes, which are NaNs; so do the gaps between rows of
// inputs.
class Buffer {
 public:
  Buffer(const char* name, int64_t bytes, RangeKind kind) : storage_(bytes + 256, 0xff) {
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + ((at + 127) / 128 * 128 - at);
    bytes_ = bytes;
    range_ = std::make_unique<GlobalRange>(name, data_, bytes, kind);
  }
  unsigned char* data() { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::vector<unsigned char> storage_;
  unsigned char* data_;
  int64_t bytes_;
  std::unique_ptr<GlobalRange> range_;
};

template <class T>
struct Matrix {
  Matrix(const char* name, int64_t rows, int64_t width, RangeKind kind)
      : rows(rows), width(width), ld(width + kPadding), buffer(name, rows * ld * 2, kind), name(name) {}

  // The first `count` rows; the others stay NaNs.
  void Fill(const std::vector<double>& values, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < width; ++c)
        at(r, c) = kx::FromFloat<T>(static_cast<float>(values[r * width + c]));
    }
  }
  T& at(int64_t r, int64_t c) { return buffer.template as<T>()[r * ld + c]; }
  // "" or where something was written outside the first `count` rows or between rows.
  std::string Untouched(int64_t count) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = r < count ? width : 0; c < ld; ++c) {
        if (at(r, c).bits != 0xffff)
          return std::string(name) + ": written outside at row " + std::to_string(r);
      }
    }
    return "";
  }
  // Zeros for the tail, as the reference has them.
  std::vector<double> Values(int64_t count) {
    std::vector<double> values(rows * width);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < width; ++c) values[r * width + c] = kx::ToFloat(at(r, c));
    }
    return values;
  }

  int64_t rows, width, ld;
  Buffer buffer;
  const char* name;
};

// The largest and the root mean square difference to `exact`; infinities and NaNs must agree.
struct Difference {
  double largest = 0, rms = 0;
  bool nan = false;
};
Difference Compare(const std::vector<double>& got, const std::vector<double>& exact) {
  Difference d;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == exact[i]) continue;  // also -inf
    const double error = std::abs(got[i] - exact[i]);
    if (!(error < 1e300)) d.nan = true;
    d.largest = std::max(d.largest, error);
    d.rms += error * error;
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(std::max<size_t>(got.size(), 1)));
  return d;
}

std::string TwoReferences(const char* name, const std::vector<double>& got, const std::vector<double>& exact,
                          const std::vector<ReferenceResult>& rounded,
                          std::vector<double> ReferenceResult::*member, double unit) {
  const Difference mine = Compare(got, exact);
  Difference theirs;
  for (const ReferenceResult& r : rounded) {
    const Difference d = Compare(r.*member, exact);
    theirs.largest = std::max(theirs.largest, d.largest);
    theirs.rms = std::max(theirs.rms, d.rms);
  }
  double top = 0, mean = 0;
  for (double x : exact) {
    if (!std::isfinite(x)) continue;
    top = std::max(top, std::abs(x));
    mean += x * x;
  }
  mean = std::sqrt(mean / static_cast<double>(std::max<size_t>(exact.size(), 1)));
  // Unfused arithmetic can be exact (one visible key) or lucky (three), where float sums still round and one
  // rounding to the type may go the other way: that much of the largest and of the mean value is granted.
  const double granted = unit + 1e-4;
  if (!mine.nan && mine.largest <= 2 * theirs.largest + 1e-4 + granted * top &&
      mine.rms <= 2 * theirs.rms + 1e-4 + granted * mean) {
    return "";
  }
  char text[200];
  snprintf(text, sizeof text, "%s: largest error %.3g (unfused %.3g), rms %.3g (unfused %.3g)%s", name,
           mine.largest, theirs.largest, mine.rms, theirs.rms, mine.nan ? ", not a number" : "");
  return text;
}

// Whether codes stand for what they were made of: V element by element, Q and K (which may have been
// transformed together) by the lengths of their rows and products of pairs that take every row in.
std::string CheckCodes(const ReferenceInputs& in, const ReferenceInputs& codes, bool incoherent) {
  // Half a unit of three bits of fraction, and of the smallest number where the largest is `top`.
  const auto wrong = [](const char* name, int64_t at, double is, double should) {
    return std::string("codes of ") + name + " at " + std::to_string(at) + " stand for " +
           std::to_string(is) + ", not " + std::to_string(should);
  };
  constexpr double kHalfUnit = 0x1p-4;
  const int64_t d = in.shape.head_dim, wide = codes.shape.head_dim;
  const auto elements = [&](const char* name, const std::vector<double>& x, const std::vector<double>& got,
                            int64_t count) {
    double top = 0;
    for (const double value : x) top = std::max(top, std::abs(value));
    for (int64_t i = 0; i < count; ++i) {
      const double is = got[i / d * wide + i % d];
      if (!(std::abs(is - x[i]) <= std::abs(x[i]) * kHalfUnit + top / kx::kE4m3Max * 0x1p-9))
        return wrong(name, i, is, x[i]);
    }
    return std::string();
  };
  const int64_t q_count = in.cu_q.back() * in.shape.heads, k_count = in.cu_k.back() * in.shape.kv_heads;
  std::string said = elements("v", in.v, codes.v, k_count * d);
  if (!incoherent && said.empty()) said = elements("q", in.q, codes.q, q_count * d);
  if (!incoherent && said.empty()) said = elements("k", in.k, codes.k, k_count * d);
  const auto dot = [](const double* a, const double* b, int64_t n) {
    return std::inner_product(a, a + n, b, 0.);
  };
  const int64_t pairs = q_count > 0 && k_count > 0 ? std::max(q_count, k_count) : 0;
  for (int64_t t = 0; t < pairs && said.empty(); ++t) {
    const double *q = &in.q[t % q_count * d], *k = &in.k[t % k_count * d];
    const double *q8 = &codes.q[t % q_count * wide], *k8 = &codes.k[t % k_count * wide];
    const double lengths = std::sqrt(dot(q, q, d) * dot(k, k, d)), is = dot(q8, k8, wide);
    // By Cauchy and Schwarz; what is below the smallest number is little of a row.
    if (!(std::abs(is - dot(q, k, d)) <= 2.5 * kHalfUnit * lengths))
      said = wrong("q and k", t, is, dot(q, k, d));
  }
  return said;
}

// The results of an fp8 run on `in`, whose kernels multiplied `rounded`. `exact`: out of `in`.
template <class T>
std::string CheckFp8(const ReferenceInputs& in, const ReferenceInputs& rounded,
                     const std::vector<double>& out, const std::vector<double>& lse,
                     const std::vector<double>& exact, kx::emu::Accumulate accumulate) {
  const auto same = [](double x) { return x; };
  // Columns past the head's dimension fall away.
  const auto narrow = [&](ReferenceResult r) {
    std::vector<double> kept(in.q.size());
    const int64_t d = in.shape.head_dim, wide = rounded.shape.head_dim;
    for (size_t i = 0; i < kept.size(); ++i) kept[i] = r.out[i / d * wide + i % d];
    r.out = kept;
    return r;
  };
  const ReferenceResult precise = narrow(ReferenceAttention(rounded, same));
  // A weight's place in the binade depends on the maximum at its time: three places.
  std::vector<ReferenceResult> unfused;
  for (const double place : {256., 200., 150.}) {
    unfused.push_back(narrow(ReferenceAttention(rounded, same, [place](double x) {
      return kx::ToFloat(kx::FromFloat<kx::e4m3>(static_cast<float>(x * place))) / place;
    })));
    for (double& x : unfused.back().out) x = kx::ToFloat(kx::FromFloat<T>(static_cast<float>(x)));
  }
  // Sums that keep 13 bits of their largest addend add their share.
  const double chopped = accumulate == kx::emu::Accumulate::kTruncate ? 0x1p-10 : 0;
  const double spacing = std::is_same_v<T, kx::bf16> ? 0x1p-8 : 0x1p-11;
  std::string wrong = TwoReferences("lse", lse, precise.lse, unfused, &ReferenceResult::lse, chopped);
  if (wrong.empty()) {
    wrong = TwoReferences("out", out, precise.out, unfused, &ReferenceResult::out, spacing + 4 * chopped);
  }
  if (wrong.empty()) {
    wrong =
        TwoReferences("out of the inputs as they were", out, exact, unfused, &ReferenceResult::out, spacing);
  }
  return wrong;
}

template <class T>
std::string Run(Family family, DType dtype, const EmulatedCase& c, bool backward, uint64_t seed,
                const kx::emu::Options& options, std::string* bits, kx::emu::Stats* stats, Errors* errors) {
  ReferenceInputs in;
  in.packed = c.packed;
  for (const auto& [lengths, cu] : {std::pair{&c.q_lengths, &in.cu_q}, std::pair{&c.k_lengths, &in.cu_k}}) {
    cu->push_back(0);
    for (int length : *lengths) cu->push_back(cu->back() + length);
  }
  Shape& s = in.shape;
  s.batch = static_cast<int32_t>(c.q_lengths.size());
  s.heads = c.heads;
  s.kv_heads = c.kv_heads;
  s.head_dim = c.head_dim;
  s.seq_q = *std::max_element(c.q_lengths.begin(), c.q_lengths.end());
  s.seq_k = *std::max_element(c.k_lengths.begin(), c.k_lengths.end());
  s.total_q = in.cu_q.back() + c.tail;
  s.total_k = in.cu_k.back() + c.tail;
  s.left = c.left;
  s.right = c.right;
  s.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));

  const int64_t q_width = static_cast<int64_t>(s.heads) * s.head_dim;
  const int64_t k_width = static_cast<int64_t>(s.kv_heads) * s.head_dim;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  const auto fill = [&](std::vector<double>& values, int64_t count, double magnitude) {
    values.resize(count);
    for (double& x : values) {
      const double top = c.outliers > 0 && uniform(random) < c.outliers ? 10 * normal(random) : 0;
      x = kx::ToFloat(kx::FromFloat<T>(static_cast<float>(normal(random) * magnitude + top)));
    }
  };
  fill(in.q, s.total_q * q_width, c.magnitude);
  fill(in.k, s.total_k * k_width, c.magnitude);
  fill(in.v, s.total_k * k_width, 1);
  if (backward) fill(in.dout, s.total_q * q_width, 1);

  Matrix<T> q("q", s.total_q, q_width, RangeKind::kInput), k("k", s.total_k, k_width, RangeKind::kInput);
  Matrix<T> v("v", s.total_k, k_width, RangeKind::kInput),
      dout("dout", s.total_q, q_width, RangeKind::kInput);
  Matrix<T> out("out", s.total_q, q_width, RangeKind::kOutput),
      dq("dq", s.total_q, q_width, RangeKind::kOutput);
  Matrix<T> dk("dk", s.total_k, k_width, RangeKind::kOutput),
      dv("dv", s.total_k, k_width, RangeKind::kOutput);
  const int64_t lse_bytes = static_cast<int64_t>(s.total_q) * s.heads * 4;
  Buffer lse("lse", lse_bytes, RangeKind::kOutput), delta("delta", lse_bytes, RangeKind::kOutput);
  Buffer cu_q("cu_q", (s.batch + 1) * 4, RangeKind::kInput),
      cu_k("cu_k", (s.batch + 1) * 4, RangeKind::kInput);
  memcpy(cu_q.data(), in.cu_q.data(), cu_q.bytes());
  memcpy(cu_k.data(), in.cu_k.data(), cu_k.bytes());
  const int64_t q_rows = in.cu_q.back(), k_rows = in.cu_k.back();
  q.Fill(in.q, q_rows);
  k.Fill(in.k, k_rows);
  v.Fill(in.v, k_rows);
  if (backward) dout.Fill(in.dout, q_rows);

  BackwardCall call;
  ForwardCall& forward = call.forward;
  forward.shape = s;
  if (c.packed) {
    forward.cu_q = cu_q.as<int32_t>();
    forward.cu_k = cu_k.as<int32_t>();
  }
  forward.q = q.buffer.data();
  forward.k = k.buffer.data();
  forward.v = v.buffer.data();
  forward.out = out.buffer.data();
  forward.lse = lse.as<float>();
  forward.ldq = q.ld;
  forward.ldk = k.ld;
  forward.ldv = v.ld;
  forward.ldo = out.ld;
  const bool fp8 = family == Family::kFa3Fp8;
  Buffer workspace("workspace", fp8 ? Fp8WorkspaceBytes(s, c.packed) : 1, RangeKind::kOutput);
  if (fp8) {
    forward.workspace = workspace.data();
    forward.workspace_bytes = workspace.bytes();
    forward.incoherent = c.incoherent;
  }
  call.dout = dout.buffer.data();
  call.delta = delta.as<float>();
  call.dq = dq.buffer.data();
  call.dk = dk.buffer.data();
  call.dv = dv.buffer.data();
  call.lddo = dout.ld;
  call.lddq = dq.ld;
  call.lddk = dk.ld;
  call.lddv = dv.ld;
  {
    const kx::emu::Session session(options);
    kx::LaunchStatus status = Forward(nullptr, family, dtype, forward);
    if (status.ok() && backward) status = Backward(nullptr, family, dtype, call);
    if (stats != nullptr) *stats = session.report().stats;
    if (!status.ok()) return status.message;
  }

  std::vector<Matrix<T>*> outputs = {&out};
  if (backward) outputs.insert(outputs.end(), {&dq, &dk, &dv});
  for (Matrix<T>* m : outputs) {
    const std::string wrong = m->Untouched(m == &dk || m == &dv ? k_rows : q_rows);
    if (!wrong.empty()) return wrong;
    if (bits != nullptr) bits->append(reinterpret_cast<char*>(m->buffer.data()), m->buffer.bytes());
  }
  if (bits != nullptr) bits->append(reinterpret_cast<char*>(lse.data()), lse.bytes());

  const ReferenceResult exact = ReferenceAttention(in, [](double x) { return x; });
  std::vector<double> got_lse(lse.as<float>(), lse.as<float>() + lse_bytes / 4);
  for (int h = 0; c.tail > 0 && h < s.heads; ++h) {
    for (int64_t r = q_rows; r < s.total_q; ++r) {
      double& x = got_lse[h * s.total_q + r];
      if (!std::isnan(x)) return "lse: written outside at row " + std::to_string(r);
      x = -std::numeric_limits<double>::infinity();
    }
  }
  if (errors != nullptr) {
    *errors = {Compare(out.Values(q_rows), exact.out).rms, Compare(got_lse, exact.lse).rms};
  }
  if (fp8) {
    const ReferenceInputs multiplied = DecodeFp8(in, workspace.data());
    const std::string wrong = CheckCodes(in, multiplied, c.incoherent);
    if (!wrong.empty()) return wrong;
    return CheckFp8<T>(in, multiplied, out.Values(q_rows), got_lse, exact.out, options.accumulate);
  }
  // To the nearest; where a few rows are the whole sample, also up or down at random, so that the yardstick
  // is not one lucky draw.
  std::vector<ReferenceResult> rounded;
  const auto to_type = [](double x) {
    return static_cast<double>(kx::ToFloat(kx::FromFloat<T>(static_cast<float>(x))));
  };
  const double spacing = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  rounded.push_back(ReferenceAttention(in, to_type));
  if (static_cast<int64_t>(s.total_q) * s.heads <= 32) {
    std::uniform_real_distribution<double> dither(-spacing, spacing);
    for (int i = 0; i < 4; ++i) {
      rounded.push_back(ReferenceAttention(in, [&](double x) { return to_type(x * (1 + dither(random))); }));
    }
  }
  std::string wrong = TwoReferences("lse", got_lse, exact.lse, rounded, &ReferenceResult::lse, 0);
  if (wrong.empty())
    wrong = TwoReferences("out", out.Values(q_rows), exact.out, rounded, &ReferenceResult::out, spacing);
  if (backward) {
    if (wrong.empty())
      wrong = TwoReferences("dq", dq.Values(q_rows), exact.dq, rounded, &ReferenceResult::dq, spacing);
    if (wrong.empty())
      wrong = TwoReferences("dk", dk.Values(k_rows), exact.dk, rounded, &ReferenceResult::dk, spacing);
    if (wrong.empty())
      wrong = TwoReferences("dv", dv.Values(k_rows), exact.dv, rounded, &ReferenceResult::dv, spacing);
  }
  return wrong;
}

}  // namespace

std::string EmulatedCase::Describe() const {
  std::ostringstream text;
  text << "heads " << heads << "/" << kv_heads << " dim " << head_dim << (packed ? " packed" : " batched");
  for (size_t i = 0; i < q_lengths.size(); ++i) text << " " << q_lengths[i] << "x" << k_lengths[i];
  if (tail > 0) text << " tail " << tail;
  if (left != kUnbounded) text << " left " << left;
  if (right != kUnbounded) text << " right " << right;
  return text.str();
}

EmulatedCase RandomCase(std::mt19937_64& random, const std::vector<int>& head_dims, int length_max) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  EmulatedCase c;
  c.head_dim = head_dims[below(static_cast<int>(head_dims.size()))];
  const int groups[] = {1, 1, 2, 4, 8};
  c.kv_heads = 1 + below(2);
  c.heads = c.kv_heads * groups[below(5)];
  if (c.heads > 8) c.kv_heads = 1, c.heads = 8;
  c.packed = below(3) == 0;
  if (c.packed && below(2) == 0) c.tail = 1 + below(40);
  // Fewer rows where there are many heads: an emulated case takes about a second.
  const int longest = std::max(1, length_max / std::max(1, c.heads / 2));
  const auto length = [&] { return below(6) == 0 ? 1 : 1 + below(longest); };
  const int sequences = c.packed ? 1 + below(4) : 1 + below(2);
  for (int i = 0; i < sequences; ++i) {
    if (i > 0 && !c.packed) {
      c.q_lengths.push_back(c.q_lengths[0]);
      c.k_lengths.push_back(c.k_lengths[0]);
      continue;
    }
    const int q = length();
    c.q_lengths.push_back(q);
    c.k_lengths.push_back(below(3) == 0 ? q : length());
    if (c.packed && i > 0 && below(5) == 0) (below(2) == 0 ? c.q_lengths : c.k_lengths).back() = 0;
  }
  if (below(3) != 0) c.right = below(4) == 0 ? below(20) : 0;
  if (below(3) == 0) c.left = below(2) == 0 ? below(8) : below(length_max);
  c.magnitude = below(3) == 0 ? 2.5 : 1;
  return c;
}

std::string RunEmulated(Family family, DType dtype, const EmulatedCase& c, bool backward, uint64_t seed,
                        kx::emu::Options options, std::string* bits, kx::emu::Stats* stats, Errors* errors) {
  options.only_registered = true;
  return dtype == DType::kBF16 ? Run<kx::bf16>(family, dtype, c, backward, seed, options, bits, stats, errors)
                               : Run<kx::f16>(family, dtype, c, backward, seed, options, bits, stats, errors);
}

std::string RunEveryWay(Family family, const EmulatedCase& c, bool backward) {
  using kx::emu::Order;
  for (const auto& [order, seed] : {std::pair{Order::kForward, 1},
                                    {Order::kAhead, 1},
                                    {Order::kShuffle, 1},
                                    {Order::kShuffle, 2},
                                    {Order::kShuffle, 3}}) {
    kx::emu::Options options;
    options.order = order;
    options.seed = static_cast<uint64_t>(seed);
    const std::string wrong = RunEmulated(family, DType::kBF16, c, backward, 1, options);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace strata::attention
