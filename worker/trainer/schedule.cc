#include "worker/trainer/schedule.h"

#include <algorithm>
#include <cmath>

namespace strata {

double Schedule::LearningRate(int64_t applied) const {
  if (applied < warmup_steps)
    return lr * static_cast<double>(applied + 1) / static_cast<double>(warmup_steps);
  if (name == "constant") return lr;
  const int64_t span = std::max<int64_t>(1, steps - warmup_steps - 1);
  const double progress =
      std::min(1.0, static_cast<double>(applied - warmup_steps) / static_cast<double>(span));
  const double factor = name == "cosine" ? 0.5 * (1 + std::cos(M_PI * progress)) : 1 - progress;
  return min_lr + (lr - min_lr) * factor;
}

}  // namespace strata
