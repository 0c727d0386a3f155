#include "offload/plan/machine_profile.h"

#include <algorithm>
#include <cmath>

namespace strata {
namespace {

void Scale(double factor, ComputeRates* rates) {
  for (auto* products :
       {&rates->forward_gemm, &rates->backward_gemm, &rates->fp8_forward_gemm, &rates->fp8_backward_gemm}) {
    for (RatePoint& point : *products) point.rate *= factor;
  }
  rates->attention_flops *= factor;
  rates->attention_backward_flops *= factor;
  rates->elementwise_bytes_per_second *= factor;
  rates->dropout_elements_per_second *= factor;
}

}  // namespace

double RateAt(const std::vector<RatePoint>& points, double work) {
  size_t next = 0;
  while (next < points.size() && points[next].work < work) ++next;
  if (next == points.size()) return points.back().rate;
  if (next == 0) return points.front().rate;
  const RatePoint &a = points[next - 1], &b = points[next];
  const double share = std::log(work / a.work) / std::log(b.work / a.work);
  return a.rate + share * (b.rate - a.rate);
}

MachineProfile UnmeasuredGpu() {
  MachineProfile profile;
  profile.source = "a guess at a GPU that was not measured";
  const auto guess = [](double flops, ComputeRates* rates) {
    rates->forward_gemm.front().rate = rates->backward_gemm.front().rate = flops;
    rates->fp8_forward_gemm = rates->fp8_backward_gemm = rates->forward_gemm;
    rates->attention_flops = rates->attention_backward_flops = flops / 2;
    rates->elementwise_bytes_per_second = 800e9;
    rates->dropout_elements_per_second = 100e9;
  };
  guess(100e12, &profile.bf16);
  guess(30e12, &profile.f32);
  profile.h2d_bytes_per_second = profile.d2h_bytes_per_second = 12e9;
  profile.dram_bytes_per_second = 100e9;
  profile.device_is_cpu = false;
  return profile;
}

MachineProfile WithThreads(MachineProfile profile, int threads) {
  if (!profile.device_is_cpu || threads == profile.threads) return profile;
  const auto useful = [&](int n) { return profile.cores > 0 ? std::min(n, profile.cores) : n; };
  const double factor = static_cast<double>(useful(threads)) / useful(profile.threads);
  Scale(factor, &profile.f32);
  Scale(factor, &profile.bf16);
  profile.adamw_seconds_per_parameter /= factor;
  profile.adamw8bit_seconds_per_parameter /= factor;
  profile.accumulate_bytes_per_second *= factor;
  profile.norm_bytes_per_second *= factor;
  profile.threads = threads;
  return profile;
}

}  // namespace strata
