#include "offload/model/moments.h"

#include "common/check.h"
#include "kernels/optimizer/code8.h"

namespace strata {

const char* OptimizerName(Moments moments) { return moments == Moments::kCode8 ? "adamw8bit" : "adamw"; }

std::optional<Moments> MomentsOfOptimizer(absl::string_view name) {
  for (const Moments moments : {Moments::kF32, Moments::kCode8}) {
    if (name == OptimizerName(moments)) return moments;
  }
  return std::nullopt;
}

int64_t RecordBytes(Moments moments, int64_t n) {
  STRATA_CHECK(n % kCode8Block == 0);
  constexpr int64_t kFloat = sizeof(float);
  if (moments == Moments::kF32) return 3 * kFloat * n;
  return kFloat * n + 2 * (n + kFloat * (n / kCode8Block));
}

}  // namespace strata
