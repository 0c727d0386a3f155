// Learning-rate schedules: pure functions of the number of updates applied.
#ifndef WORKER_TRAINER_SCHEDULE_H_
#define WORKER_TRAINER_SCHEDULE_H_

#include <cstdint>
#include <string>

namespace strata {

struct Schedule {
  std::string name = "constant";  // "constant", "cosine", "linear"
  double lr = 0;
  double min_lr = 0;
  int64_t warmup_steps = 0;
  int64_t steps = 0;  // of the whole run

  // For the update that makes `applied` updates `applied + 1`. Rises linearly over the first warmup_steps
  // updates to lr, then falls to min_lr at the last one (cosine: half a period; Loshchilov and Hutter 2017).
  double LearningRate(int64_t applied) const;
};

}  // namespace strata

#endif  // WORKER_TRAINER_SCHEDULE_H_
