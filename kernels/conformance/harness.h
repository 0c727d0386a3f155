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
};
Memory& HostMemory();

struct Backend {
  std::string name;
  DType compute;
  std::function<std::unique_ptr<Ops>(int threads)> make;  // nullptr result: this machine cannot run it
  Memory* memory = &HostMemory();
  // GEMM results may depend on the number of threads, others may not.
  std::vector<int> thread_counts = {1, 2, 3};
};

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
};

// Runs the case on the backend with every thread count, twice, and on the references; reports differences
// in value, bits, guards and untouched elements as test failures.
void Check(const Backend& backend, const Case& c);

// An Ops of the backend, made once.
Ops* SharedOps(const Backend& backend, int threads);

}  // namespace strata::conformance

#endif  // KERNELS_CONFORMANCE_HARNESS_H_
