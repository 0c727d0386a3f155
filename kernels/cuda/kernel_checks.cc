#include "kernels/cuda/kernel_checks.h"

#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/cuda/device_array.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/optimizer/code8.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "kernels/state/launch.h"

namespace strata {
namespace {

using conformance::Draw;
using kx::emu::RangeKind;

}  // namespace

std::string CheckStates(Draw& draw, int64_t n) {
  std::vector<float> grad(n), master(n), m(n), v(n);
  for (int64_t i = 0; i < n; ++i) {
    grad[i] = static_cast<float>(draw.Normal());
    master[i] = static_cast<float>(draw.Normal());
    m[i] = static_cast<float>(draw.Normal());
    v[i] = std::abs(static_cast<float>(draw.Normal()));
  }
  std::vector<BFloat16> params(n);
  DeviceArray<float> device_grad("grad", grad, RangeKind::kInput),
      device_master("master", master, RangeKind::kInOut), device_m("m", m, RangeKind::kInOut),
      device_v("v", v, RangeKind::kInOut);
  DeviceArray<BFloat16> device_params("params", n, RangeKind::kOutput);
  DeviceArray<char> scratch("scratch", CudaStateScratchBytes(), RangeKind::kOutput);
  DeviceArray<double> device_sum("sum", 1, RangeKind::kOutput);
  DeviceArray<int64_t> device_bad("first_bad", 1, RangeKind::kOutput);
  const auto cuda = MakeCudaStateOps({scratch.data(), CudaStateScratchBytes()});
  const auto cpu = MakeCpuStateOps(1);

  AdamWStep step{.n = n, .grad = grad.data(), .master = master.data(), .m = m.data(), .v = v.data()};
  step.params = params.data();
  step.lr = 1e-2;
  step.step = 3;
  step.grad_scale = 0.7f;
  (void)cpu->AdamW(nullptr, step);
  step.grad = device_grad.data();
  step.master = device_master.data();
  step.m = device_m.data();
  step.v = device_v.data();
  step.params = device_params.data();
  absl::Status status = cuda->AdamW(nullptr, step);
  if (!status.ok()) return status.ToString();
  if (device_master.Values() != master || device_m.Values() != m || device_v.Values() != v) {
    return "AdamW: other bits than the CPU's";
  }
  const std::vector<BFloat16> written = device_params.Values();
  for (int64_t i = 0; i < n; ++i) {
    if (written[i].bits != params[i].bits) return "AdamW: other parameters than the CPU's";
  }
  double sum;
  int64_t first_bad;
  (void)cpu->SumSquares(nullptr, grad.data(), n, &sum, &first_bad);
  status = cuda->SumSquares(nullptr, device_grad.data(), n, device_sum.data(), device_bad.data());
  if (!status.ok()) return status.ToString();
  if (device_sum.Values()[0] != sum || device_bad.Values()[0] != first_bad) {
    return "SumSquares: other bits than the CPU's";
  }
  return "";
}

std::string CheckAdamW8(Draw& draw, DType params_dtype, int64_t n, int64_t offset) {
  const std::string what = absl::StrCat("AdamW8 ", Name(params_dtype), " n=", n, " offset=", offset, ": ");
  const int64_t blocks = (n + kCode8Block - 1) / kCode8Block;
  std::vector<float> grad(n), master(n), m_scale(blocks), v_scale(blocks);
  std::vector<uint8_t> m(n), v(n);
  std::vector<char> params(n * SizeOf(params_dtype));
  for (float& x : master) x = static_cast<float>(draw.Normal());
  DeviceArray<float> device_master("master", master, RangeKind::kInOut, offset),
      device_m_scale("m_scale", m_scale, RangeKind::kInOut),
      device_v_scale("v_scale", v_scale, RangeKind::kInOut);
  DeviceArray<uint8_t> device_m("m", m, RangeKind::kInOut, offset),
      device_v("v", v, RangeKind::kInOut, offset);
  DeviceArray<char> device_params("params", n * SizeOf(params_dtype), RangeKind::kOutput,
                                  offset * SizeOf(params_dtype));
  for (int64_t step = 1; step <= 2; ++step) {
    for (float& x : grad) {
      x = static_cast<float>(
          draw.Int(0, 9) == 0 ? 0 : draw.Normal() * std::ldexp(1, static_cast<int>(draw.Int(-20, 5))));
    }
    const AdamWScalars scalars = MakeAdamWScalars({.lr = 1e-2, .weight_decay = 0.1}, step, 0.9f);
    AdamW8Range range = {.n = n, .grad = grad.data(), .master = master.data(), .m = m.data()};
    range.m_scale = m_scale.data();
    range.v = v.data();
    range.v_scale = v_scale.data();
    range.params = params.data();
    range.params_dtype = params_dtype;
    AdamW8(scalars, range);
    DeviceArray<float> device_grad("grad", grad, RangeKind::kInput, offset);
    range.grad = device_grad.data();
    range.master = device_master.data();
    range.m = device_m.data();
    range.m_scale = device_m_scale.data();
    range.v = device_v.data();
    range.v_scale = device_v_scale.data();
    range.params = device_params.data();
    const kx::LaunchStatus status = gpu::AdamW8(nullptr, scalars, range);
    if (!status.ok()) return what + status.message;
    if (device_master.Values() != master || device_params.Values() != params)
      return what + "other parameters";
    if (device_m.Values() != m || device_v.Values() != v) return what + "other codes";
    if (device_m_scale.Values() != m_scale || device_v_scale.Values() != v_scale)
      return what + "other scales";
  }
  return "";
}

}  // namespace strata
