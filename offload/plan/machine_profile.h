// MachineProfile: the speeds that predictions use. They never change a result, only choices and estimates.
//
// Where they come from: offload/calibrate measures them, a machine file states them (a machine that is not
// here), and the defaults below are a guess for tests and for planning before anything is known.
#ifndef OFFLOAD_PLAN_MACHINE_PROFILE_H_
#define OFFLOAD_PLAN_MACHINE_PROFILE_H_

#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace strata {

// A rate depends on the size of the work: between points it is interpolated over the logarithm of the work,
// beyond them it stays as it is.
struct RatePoint {
  double work = 0;  // FLOPs of the matrix products of one block's forward pass
  double rate = 0;  // FLOP/s

  bool operator==(const RatePoint&) const = default;
};
double RateAt(const std::vector<RatePoint>& points, double work);

struct ComputeRates {
  std::vector<RatePoint> forward_gemm = {{1, 400e9}};
  std::vector<RatePoint> backward_gemm = {{1, 400e9}};
  // The same with operands rounded to fp8 first, for the same work.
  std::vector<RatePoint> fp8_forward_gemm = forward_gemm;
  std::vector<RatePoint> fp8_backward_gemm = backward_gemm;
  double attention_flops = 200e9;              // forward
  double attention_backward_flops = 200e9;     // its five products
  double elementwise_bytes_per_second = 30e9;  // norms, activations, residual sums: bytes touched
  double dropout_elements_per_second = 4e9;    // draws, and what they are for

  bool operator==(const ComputeRates&) const = default;
};

struct MachineProfile {
  std::string source = "defaults";
  ComputeRates f32, bf16;

  double h2d_bytes_per_second = 8e9;
  double d2h_bytes_per_second = 8e9;
  // One direction alone, and both at once (added).
  double nvme_read_bytes_per_second = 2e9;
  double nvme_write_bytes_per_second = 1.5e9;
  double nvme_mixed_bytes_per_second = 3e9;
  double nvme_endurance_bytes = 0;  // rated to be written in the drives' life; 0: not known
  // On the cpu lane; on an accelerator's compute lane they run at its elementwise rate.
  double adamw_seconds_per_parameter = 1e-9;
  double adamw8bit_seconds_per_parameter = 1e-9;
  double accumulate_bytes_per_second = 30e9;
  double norm_bytes_per_second = 30e9;
  double per_op_seconds = 20e-6;

  // What lanes share. The CPU device computes on the cores that the optimizer, the copies and the I/O engines
  // use. 0 cores: enough for all.
  bool device_is_cpu = true;
  int cores = 0;
  int threads = 2;                   // of a compute or cpu operation
  double nvme_cores = 0.25;          // busy during a transfer: checksums, the kernel
  double dram_bytes_per_second = 0;  // 0: enough for all

  // Accelerators take fp16 as they take bf16; the CPU computes it in fp32.
  const ComputeRates& rates(DType dtype) const {
    return dtype == DType::kBF16 || (dtype == DType::kF16 && !device_is_cpu) ? bf16 : f32;
  }
  bool operator==(const MachineProfile&) const = default;
};

// A guess at a GPU that was not measured: plans for it have a GPU's shapes, and times that nobody should
// trust.
MachineProfile UnmeasuredGpu();

// The profile of `profile`'s machine for work on `threads` threads: what computes scales with the threads up
// to the number of cores.
MachineProfile WithThreads(MachineProfile profile, int threads);

}  // namespace strata

#endif  // OFFLOAD_PLAN_MACHINE_PROFILE_H_
