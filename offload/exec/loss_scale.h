// Dynamic loss scaling (Micikevicius et al. 2018; torch.cuda.amp.GradScaler): the loss gradient is multiplied
// by a power of two and gradients are divided by it, which is exact but for fp16's own range. The scale of a
// step is decided by the gradients of the steps before it.
#ifndef OFFLOAD_EXEC_LOSS_SCALE_H_
#define OFFLOAD_EXEC_LOSS_SCALE_H_

#include <algorithm>
#include <cstdint>

namespace strata {

struct LossScaleRule {
  int64_t growth_interval = 2000;
  double min = 1, max = 0x1p24;  // powers of two
};

struct LossScale {
  double scale = 1;        // a power of two
  int64_t good_steps = 0;  // in a row since the scale last changed

  bool operator==(const LossScale&) const = default;
};

// After a step: a gradient that was not finite halves the scale, growth_interval good steps in a row double
// it.
inline LossScale AfterStep(LossScale now, const LossScaleRule& rule, bool finite) {
  if (!finite) return {std::max(rule.min, now.scale / 2), 0};
  if (now.good_steps + 1 < rule.growth_interval) return {now.scale, now.good_steps + 1};
  return {std::min(rule.max, now.scale * 2), 0};
}

}  // namespace strata

#endif  // OFFLOAD_EXEC_LOSS_SCALE_H_
