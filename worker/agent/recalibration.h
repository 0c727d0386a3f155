// Measures a machine again whose speeds were measured while others computed on it, or could not be, once it
// is idle.
#ifndef WORKER_AGENT_RECALIBRATION_H_
#define WORKER_AGENT_RECALIBRATION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/strata/v1/machine.pb.h"

namespace strata {

class Recalibration {
 public:
  using Measure = std::function<absl::StatusOr<v1::MachineProfile>()>;

  // `measure` takes seconds and runs on a thread of its own, as does `done` after it; it may find that others
  // compute still and return speeds that say so.
  Recalibration(Measure measure, std::function<void()> done);
  ~Recalibration();  // Waits for the measurement under way.

  // One thread. The speeds that a measurement has found since the last call, if any. Begins one when `idle`
  // (no task runs), `speeds` were measured while the machine was busy or are a guess, and the last one (or
  // the first call) was long enough ago: half a minute at first, a quarter of an hour at last.
  std::optional<v1::MachineProfile> Poll(bool idle, const v1::MachineProfile& speeds, int64_t now_nanos);

  // One is under way, and has memory that budgets do not know of: no task should begin. `done` follows.
  bool running();

 private:
  void Run();

  const Measure measure_;
  const std::function<void()> done_;
  int64_t next_nanos_ = 0, pause_nanos_ = 0;
  std::string warned_;  // of the measuring thread

  Mutex mu_;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<v1::MachineProfile> found_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace strata

#endif  // WORKER_AGENT_RECALIBRATION_H_
