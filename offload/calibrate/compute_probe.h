// How fast a device computes: its Ops at the sizes of transformer blocks.
#ifndef OFFLOAD_CALIBRATE_COMPUTE_PROBE_H_
#define OFFLOAD_CALIBRATE_COMPUTE_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm_workspace.h"
#include "kernels/ops.h"
#include "offload/plan/machine_profile.h"

namespace strata {

// Hands out parts of the memory that measurements share.
class ProbeMemory {
 public:
  explicit ProbeMemory(std::span<std::byte> memory) : memory_(memory) {}
  // Aligned to 4096 bytes; null when that exceeds what there is, as are all parts after it.
  void* Take(int64_t bytes);

 private:
  const std::span<std::byte> memory_;
  int64_t used_ = 0;
};

// Seconds that the device takes for what a call does or enqueues.
using ProbeTimer = std::function<absl::StatusOr<double>(const std::function<absl::Status()>& call)>;

// A call that is expected to take longer, by the size before it, is not made.
inline constexpr double kProbeLongestSeconds = 0.12;

struct ProbeSeconds {
  double device = 0;
  double wall = 0;  // until the caller knew of it: what measuring costs
};
// Of the fastest of up to five calls after one that does not count (kernels are compiled or loaded, pages
// touched). After the second call none begins that is later than `slice` seconds.
absl::StatusOr<ProbeSeconds> BestSeconds(const ProbeTimer& time, double slice,
                                         const std::function<absl::Status()>& call);

struct ComputeBench {
  struct Products {
    int64_t rows = 0, hidden = 0;
  };
  struct Attention {
    int64_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  };
  struct Elementwise {
    int64_t rows = 0, hidden = 0, ffn = 0;
  };

  Ops* ops = nullptr;
  bool fp8 = false;  // its products take operands rounded to fp8
  Stream* stream = nullptr;
  GemmLibrary gemm_library = GemmLibrary::kCpu;
  std::span<std::byte> memory;  // of the device
  ProbeTimer time;
  // Sizes in rising order, in small steps (what a size costs is told from the one before, whose time may be
  // all latency); at least the first of each fits the memory. One for which the size before it says that it
  // would take too long, or which does not fit, is left out: smaller ones then speak for larger ones.
  std::vector<Products> products;
  std::vector<Attention> attention;
  std::vector<Elementwise> elementwise;
};

// Fills in all of `rates`; of what takes no fp8, products in fp8 are as fast as others. kInternal: the memory
// is too small for the first sizes; other errors are the kernels'.
absl::Status MeasureCompute(const ComputeBench& bench, ComputeRates* rates);

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_COMPUTE_PROBE_H_
