// Harness of the conformance suite: one description of a call runs on any backend, in guarded and poisoned
// memory, and its outputs are compared with the float64 reference.
#ifndef KERNELS_CONFORMANCE_HARNESS_H_
#define KERNELS_CONFORMANCE_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/random.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata::conformance {

// Where a backend's pointers live. Host memory for the CPU; a device backend gives its own.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* Allocate(int64_t bytes) = 0;  // aligned to 64 bytes
  virtual void Free(void* data) = 0;
  virtual void CopyIn(void* device, const void* host, int64_t bytes) = 0;
  // After all work on `stream`.
  virtual void CopyOut(void* host, const void* device, int64_t bytes, Stream* stream) = 0;

  // What a call may do with a tensor.
  enum class Access { kRead, kWrite, kReadWrite };
  // While the result lives, [begin, begin + bytes) is a tensor of the running call: memory that checks
  // accesses holds the call to it.
  virtual std::shared_ptr<void> Expose(const std::string& name, void* begin, int64_t bytes, Access access) {
    return nullptr;
  }
};
Memory& HostMemory();

struct Backend {
  std::string name;
  DType compute;
  // `setting` is one of `settings`. nullptr result: this machine cannot run it.
  std::function<std::unique_ptr<Ops>(int setting)> make;
  Memory* memory = &HostMemory();
  // What results may not depend on (GEMM results may): numbers of threads, or orders of an emulator.
  std::vector<int> settings = {1, 2, 3};
  const char* setting_name = "threads";
  // Whether a call is repeated under each setting (the comparison of settings may be repetition enough).
  bool repeat = true;
  // Runs a call under a setting; null: as it is.
  std::function<absl::Status(int setting, const std::function<absl::Status()>& call)> run;
  // An emulator: calls have fewer rows, attention (which has larger tests of its own) fewer cases; GEMMs are
  // computed by kernels/reference, so large ones tell nothing.
  bool emulated = false;
  // Why there are no attention kernels; null: there are.
  const char* no_attention = nullptr;
  // Why there are no products in fp8, of a backend in bf16; null: there are.
  const char* no_fp8 = nullptr;
  // Head dimensions and leading dimensions of attention are multiples of this.
  int64_t attention_unit = 1;
};

// What the test binary runs the suite on (cpu_backends.cc, emulated_backends.cc).
std::vector<Backend> Backends();

// Values for tests: small state, prints how it was seeded.
class Draw {
 public:
  explicit Draw(uint64_t stream);
  int64_t Int(int64_t low, int64_t high);  // inclusive
  bool Bool() { return Int(0, 1) == 1; }
  int64_t Pick(std::initializer_list<int64_t> values);
  double Normal();
  std::vector<double> Normals(int64_t n, double scale = 1);
  // STRATA_TEST_SEED, or a new one for this process; printed once.
  static uint64_t Seed();

 private:
  CounterRandom random_;
  uint64_t index_ = 0;
};

enum class Kind { kCompute, kAcc, kInt32, kDouble };

// A matrix argument of a call. Input values are rounded to the backend's type before anyone sees them, so
// that all compute on the same numbers. An output without values starts as NaN.
struct Tensor {
  const char* name;
  Kind kind = Kind::kCompute;
  int64_t rows = 1, cols = 1;
  int64_t ld = 0;              // 0: cols
  std::vector<double> values;  // [rows * cols]; empty for a pure output
  bool output = false;
  // Size of terms that cancel in an output: an error of a few roundings of it in the accumulation type is
  // no defect, even where a plain evaluation happens to cancel exactly.
  double cancelling = 0;

  int64_t LeadingDimension() const { return ld == 0 ? cols : ld; }
};

// The call: pointers are in the order of the tensors.
using Call = std::function<absl::Status(Ops& ops, const std::vector<void*>& p, Workspace workspace)>;

struct Case {
  std::string shape;  // for messages
  std::vector<Tensor> tensors;
  std::function<int64_t(DType compute)> workspace_bytes;  // null: none
  Call call;
  bool is_gemm = false;
  // Compare each element with its own size (elementwise functions), not with the tensor's largest.
  bool elementwise = false;
  // All backends of a type give the bits of its plain evaluation.
  bool exact = false;
};

// Runs the case on the backend with every setting and on the references. Differences in value, bits,
// guards and untouched elements, in words.
std::vector<std::string> Differences(const Backend& backend, const Case& c);

// Each difference is a test failure.
void Check(const Backend& backend, const Case& c);

// `a` and `b`, two ways to compute the same in the same tensors, leave the same bits in all of them under
// every setting; anything else is a test failure.
void CheckSameBits(const Backend& backend, const Case& a, const Case& b);

// An Ops of the backend, made once.
Ops* SharedOps(const Backend& backend, int setting);

}  // namespace strata::conformance

#endif  // KERNELS_CONFORMANCE_HARNESS_H_
