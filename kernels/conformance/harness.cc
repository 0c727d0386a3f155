#include "kernels/conformance/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_ops.h"

namespace strata::conformance {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr char kGuard = '\xA5';
constexpr char kPoison = '\xFF';  // NaN in every floating type

class HostMemoryImpl final : public Memory {
 public:
  void* Allocate(int64_t bytes) override { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
  void Free(void* data) override { std::free(data); }
  void CopyIn(void* device, const void* host, int64_t bytes) override { std::memcpy(device, host, bytes); }
  void CopyOut(void* host, const void* device, int64_t bytes, Stream*) override {
    std::memcpy(host, device, bytes);
  }
};

DType TypeOf(Kind kind, const Ops& ops) {
  switch (kind) {
    case Kind::kCompute:
      return ops.compute_dtype();
    case Kind::kAcc:
      return ops.acc_dtype();
    case Kind::kInt32:
      return DType::kI32;
    case Kind::kDouble:
      return DType::kF64;
  }
  return DType::kF64;
}

double Get(DType type, const char* p) {
  switch (type) {
    case DType::kF64: {
      double v;
      std::memcpy(&v, p, 8);
      return v;
    }
    case DType::kF32: {
      float v;
      std::memcpy(&v, p, 4);
      return v;
    }
    case DType::kBF16: {
      BFloat16 v;
      std::memcpy(&v.bits, p, 2);
      return ToFloat(v);
    }
    case DType::kF16: {
      Float16 v;
      std::memcpy(&v.bits, p, 2);
      return ToFloat(v);
    }
    case DType::kI32: {
      int32_t v;
      std::memcpy(&v, p, 4);
      return v;
    }
  }
  return 0;
}

void Put(DType type, char* p, double value) {
  switch (type) {
    case DType::kF64:
      std::memcpy(p, &value, 8);
      return;
    case DType::kF32: {
      const float v = static_cast<float>(value);
      std::memcpy(p, &v, 4);
      return;
    }
    case DType::kBF16: {
      const BFloat16 v = ToBFloat16(static_cast<float>(value));
      std::memcpy(p, &v.bits, 2);
      return;
    }
    case DType::kF16: {
      const Float16 v = ToFloat16(static_cast<float>(value));
      std::memcpy(p, &v.bits, 2);
      return;
    }
    case DType::kI32: {
      const int32_t v = static_cast<int32_t>(value);
      std::memcpy(p, &v, 4);
      return;
    }
  }
}

double RoundTo(DType type, double value) {
  char bytes[8];
  Put(type, bytes, value);
  return Get(type, bytes);
}

using Complaints = std::vector<std::string>;

// Device memory with guard bytes on both sides and a host image of its first state.
class Buffer {
 public:
  Buffer(Memory& memory, const std::string& name, std::vector<char> image, Memory::Access access)
      : memory_(memory), image_(std::move(image)) {
    const int64_t total = Total();
    std::vector<char> all(total, kGuard);
    std::copy(image_.begin(), image_.end(), all.begin() + kGuardBytes);
    base_ = static_cast<char*>(memory_.Allocate(total));
    STRATA_CHECK(base_ != nullptr);
    memory_.CopyIn(base_, all.data(), total);
    exposed_ = memory_.Expose(name, data(), static_cast<int64_t>(image_.size()), access);
  }
  ~Buffer() {
    exposed_.reset();
    memory_.Free(base_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() { return base_ + kGuardBytes; }
  const std::vector<char>& image() const { return image_; }

  // The content after the call; a write into a guard is a complaint.
  std::vector<char> Read(const std::string& what, Complaints& complaints) {
    std::vector<char> all(Total());
    memory_.CopyOut(all.data(), base_, Total(), nullptr);
    const int64_t end = kGuardBytes + static_cast<int64_t>(image_.size());
    for (int64_t i = 0; i < Total(); ++i) {
      if (i >= kGuardBytes && i < end) continue;
      if (all[i] == kGuard) continue;
      complaints.push_back(
          absl::StrCat(what, ": wrote outside, at byte ", i - kGuardBytes, " of ", image_.size()));
      break;
    }
    return std::vector<char>(all.begin() + kGuardBytes, all.begin() + end);
  }

 private:
  int64_t Total() const { return 2 * kGuardBytes + static_cast<int64_t>(image_.size()); }

  Memory& memory_;
  std::vector<char> image_;
  char* base_;
  std::shared_ptr<void> exposed_;
};

std::vector<char> Image(const Tensor& t, DType type, DType rounded_to) {
  const int64_t ld = t.LeadingDimension(), size = SizeOf(type);
  std::vector<char> image(((t.rows - 1) * ld + t.cols) * size, kPoison);
  for (int64_t i = 0; i < static_cast<int64_t>(t.values.size()); ++i) {
    Put(type, image.data() + (i / t.cols * ld + i % t.cols) * size, RoundTo(rounded_to, t.values[i]));
  }
  return image;
}

struct Result {
  std::vector<std::vector<char>> bytes;      // of every tensor
  std::vector<std::vector<double>> outputs;  // of the output tensors, in order
};

Memory::Access AccessOf(const Tensor& t) {
  if (!t.output) return Memory::Access::kRead;
  return t.values.empty() ? Memory::Access::kWrite : Memory::Access::kReadWrite;
}

// A backend of the references.
Backend PlainBackend(const char* name, DType compute) {
  Backend backend = {name, compute, [=](int) { return MakeReferenceOps(compute); }};
  backend.settings = {1};
  return backend;
}

// `rounding` gives the types inputs are rounded to: those of the backend under test.
Result RunOnce(const Backend& backend, int setting, const Case& c, const Ops& rounding,
               Complaints& complaints) {
  Ops& ops = *SharedOps(backend, setting);
  Memory& memory = *backend.memory;
  const std::string who = absl::StrCat(backend.name, " ", backend.setting_name, "=", setting, " ", c.shape);
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<void*> pointers;
  for (const Tensor& t : c.tensors) {
    buffers.push_back(std::make_unique<Buffer>(
        memory, t.name, Image(t, TypeOf(t.kind, ops), TypeOf(t.kind, rounding)), AccessOf(t)));
    pointers.push_back(buffers.back()->data());
  }
  const int64_t workspace_bytes = c.workspace_bytes ? c.workspace_bytes(ops.compute_dtype()) : 0;
  Buffer workspace(memory, "workspace", std::vector<char>(workspace_bytes, kPoison), Memory::Access::kWrite);
  const auto call = [&] { return c.call(ops, pointers, {workspace.data(), workspace_bytes}); };
  const absl::Status status = backend.run ? backend.run(setting, call) : call();
  if (!status.ok()) complaints.push_back(absl::StrCat(who, ": ", status.ToString()));
  workspace.Read(who + " workspace", complaints);
  Result result;
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    const Tensor& t = c.tensors[i];
    const std::string what = absl::StrCat(who, " ", t.name);
    result.bytes.push_back(buffers[i]->Read(what, complaints));
    const std::vector<char>& after = result.bytes.back();
    const DType type = TypeOf(t.kind, ops);
    const int64_t size = SizeOf(type), ld = t.LeadingDimension();
    if (t.output) result.outputs.emplace_back();
    for (int64_t r = 0; r < t.rows; ++r) {
      const int64_t row = r * ld * size, row_end = std::min<int64_t>(row + ld * size, after.size());
      const int64_t kept = t.output ? row + t.cols * size : row;
      if (std::memcmp(after.data() + kept, buffers[i]->image().data() + kept, row_end - kept) != 0) {
        complaints.push_back(
            absl::StrCat(what, ": changed ", t.output ? "the gap behind" : "input", " row ", r));
      }
      for (int64_t j = 0; t.output && j < t.cols; ++j) {
        result.outputs.back().push_back(Get(type, after.data() + row + j * size));
      }
    }
  }
  return result;
}

double Epsilon(DType type) {
  switch (type) {
    case DType::kF64:
      return std::ldexp(1, -53);
    case DType::kF32:
      return std::ldexp(1, -24);
    case DType::kF16:
      return std::ldexp(1, -12);
    default:
      return std::ldexp(1, -9);
  }
}

// Half of the smallest denormal: no result of the type need be nearer to the truth than this.
double Tiny(DType type) { return type == DType::kF16 ? std::ldexp(1, -25) : 0; }

struct Error {
  double max = 0, rms = 0, scale = 0;
};

Error ErrorOf(const std::vector<double>& x, const std::vector<double>& truth) {
  Error e;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(x[i] - truth[i]);
    // A NaN, or a difference to an infinite truth, is an infinite error.
    const bool same = x[i] == truth[i];
    const double finite = same ? 0 : std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
    e.max = std::max(e.max, finite);
    e.rms += finite * finite;
    e.scale = std::max(e.scale, std::abs(truth[i]));
  }
  e.rms = std::sqrt(e.rms / static_cast<double>(std::max<size_t>(1, x.size())));
  return e;
}

// The two-reference tolerance: at most twice the error of a plain evaluation in the same types, plus one
// rounding of the largest value (two results may round to different sides). That floor is for single
// elements; over many, a quarter of it is what their root mean square may have. Of a few, one alone may use
// it up.
void Compare(const std::string& what, DType type, double cancelling, const std::vector<double>& x,
             const std::vector<double>& naive, const std::vector<double>& truth, Complaints& complaints) {
  const Error mine = ErrorOf(x, truth), plain = ErrorOf(naive, truth);
  const double floor =
      2 * Epsilon(type) * plain.scale + 8 * Epsilon(DType::kF32) * cancelling + 2 * Tiny(type);
  if (!(mine.max <= 2 * plain.max + floor)) {
    complaints.push_back(absl::StrCat(what, ": largest error ", mine.max, ", plain evaluation has ",
                                      plain.max, ", floor ", floor));
  }
  const double rms_floor = floor / std::sqrt(std::clamp<double>(static_cast<double>(x.size()), 1, 16));
  if (!(mine.rms <= 2 * plain.rms + rms_floor)) {
    complaints.push_back(absl::StrCat(what, ": rms error ", mine.rms, ", plain evaluation has ", plain.rms,
                                      ", floor ", rms_floor));
  }
}

// Each element within twice the error of the plain evaluation, or a few roundings of itself where that one
// was lucky (for an exponential small value: of its exponent too; bf16 and fp16 round the final value only);
// results that small that float loses digits count as zero.
void CompareElements(const std::string& what, DType type, double cancelling, const std::vector<double>& x,
                     const std::vector<double>& naive, const std::vector<double>& truth,
                     Complaints& complaints) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == truth[i] || (std::isnan(x[i]) && std::isnan(truth[i]))) continue;
    const double size = std::abs(truth[i]);
    const bool half = type == DType::kBF16 || type == DType::kF16;
    const double roundings = half ? 2 : 16 + 4 * std::abs(std::log(std::max(size, 1e-37)));
    const double bound = 2 * std::abs(naive[i] - truth[i]) + roundings * Epsilon(type) * size +
                         8 * Epsilon(DType::kF32) * cancelling + 2 * Tiny(type) + 1e-35;
    if (std::abs(x[i] - truth[i]) <= bound) continue;
    complaints.push_back(absl::StrCat(what, "[", i, "] = ", x[i], ", exactly ", truth[i], ", bound ", bound));
    return;
  }
}

}  // namespace

Memory& HostMemory() {
  static HostMemoryImpl memory;
  return memory;
}

uint64_t Draw::Seed() {
  static const uint64_t seed = [] {
    const char* set = std::getenv("STRATA_TEST_SEED");
    const uint64_t value = set ? std::strtoull(set, nullptr, 10) : std::random_device{}();
    std::cout << "seed " << value << " (repeat with STRATA_TEST_SEED=" << value << ")" << std::endl;
    return value;
  }();
  return seed;
}

Draw::Draw(uint64_t stream) : random_(Seed(), stream) {}
int64_t Draw::Int(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_.Below(index_++, static_cast<uint64_t>(high - low + 1)));
}
int64_t Draw::Pick(std::initializer_list<int64_t> values) {
  return values.begin()[Int(0, static_cast<int64_t>(values.size()) - 1)];
}
double Draw::Normal() { return random_.Normal(index_++); }
std::vector<double> Draw::Normals(int64_t n, double scale) {
  std::vector<double> values(n);
  for (double& v : values) v = Normal() * scale;
  return values;
}

Ops* SharedOps(const Backend& backend, int setting) {
  static std::map<std::pair<std::string, int>, std::unique_ptr<Ops>> made;
  const auto key = std::make_pair(backend.name, setting);
  const auto found = made.find(key);
  if (found != made.end()) return found->second.get();
  return made.emplace(key, backend.make(setting)).first->second.get();
}

std::vector<std::string> Differences(const Backend& backend, const Case& c) {
  Complaints complaints;
  const Ops& rounding = *SharedOps(backend, backend.settings[0]);
  const Backend truth_backend = PlainBackend("float64 reference", DType::kF64);
  const Backend naive_backend = PlainBackend(backend.compute == DType::kF32    ? "plain f32 reference"
                                             : backend.compute == DType::kBF16 ? "plain bf16 reference"
                                                                               : "plain f16 reference",
                                             backend.compute);
  const Result truth = RunOnce(truth_backend, 1, c, rounding, complaints);
  const Result naive = RunOnce(naive_backend, 1, c, rounding, complaints);
  Result first;
  for (const int setting : backend.settings) {
    const std::string who = absl::StrCat(backend.name, " ", backend.setting_name, "=", setting, " ", c.shape);
    const Result result = RunOnce(backend, setting, c, rounding, complaints);
    const bool again = backend.repeat || c.is_gemm;
    if (again && RunOnce(backend, setting, c, rounding, complaints).bytes != result.bytes) {
      complaints.push_back(who + ": a repeated call gives other bits");
    }
    if (setting == backend.settings[0]) {
      first = result;
    } else if (!c.is_gemm && result.bytes != first.bytes) {
      complaints.push_back(absl::StrCat(who, ": bits depend on ", backend.setting_name));
    }
    if (c.exact && result.bytes != naive.bytes)
      complaints.push_back(who + ": other bits than the plain evaluation");
    size_t output = 0;
    for (const Tensor& t : c.tensors) {
      if (!t.output) continue;
      const auto compare = c.elementwise ? CompareElements : Compare;
      // A double holds sums of what was computed in the accumulation type.
      const DType type = t.kind == Kind::kDouble ? rounding.acc_dtype() : TypeOf(t.kind, rounding);
      compare(absl::StrCat(who, " ", t.name), type, t.cancelling, result.outputs[output],
              naive.outputs[output], truth.outputs[output], complaints);
      ++output;
    }
  }
  return complaints;
}

void Check(const Backend& backend, const Case& c) {
  for (const std::string& complaint : Differences(backend, c)) ADD_FAILURE() << complaint;
}

void CheckSameBits(const Backend& backend, const Case& a, const Case& b) {
  const Ops& rounding = *SharedOps(backend, backend.settings[0]);
  for (const int setting : backend.settings) {
    Complaints complaints;
    const Result one = RunOnce(backend, setting, a, rounding, complaints);
    const Result other = RunOnce(backend, setting, b, rounding, complaints);
    for (size_t i = 0; i < a.tensors.size(); ++i) {
      if (one.bytes[i] == other.bytes[i]) continue;
      complaints.push_back(absl::StrCat(backend.name, " ", backend.setting_name, "=", setting, ": ", a.shape,
                                        " and ", b.shape, " differ in ", a.tensors[i].name));
    }
    for (const std::string& complaint : complaints) ADD_FAILURE() << complaint;
  }
}

}  // namespace strata::conformance
