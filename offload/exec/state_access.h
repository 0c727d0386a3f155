// StateAccess: loads the states of a plan into their homes before the first step and reads them back
// between runs, wherever they live: for initialisation, checkpoints and the state hash.
//
// Only while no executor of the plan runs. It needs no memory of its own: staging is the part of the host
// arena that steps use for transient slots.
#ifndef OFFLOAD_EXEC_STATE_ACCESS_H_
#define OFFLOAD_EXEC_STATE_ACCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "offload/checkpoint/manifest.h"
#include "offload/exec/executor.h"

namespace strata {

class StateAccess {
 public:
  // Fills `out` with items of a class (StateItemOf), from that of element `begin` of a unit's flat range on
  // (padding included: zero). `begin` is where an item begins.
  using Fill =
      std::function<absl::Status(int unit, StateClass state, int64_t begin, std::span<std::byte> out)>;
  // Sees them.
  using Visit = std::function<absl::Status(int unit, StateClass state, int64_t begin,
                                           std::span<const std::byte> items)>;
  // The low-precision parameters of [begin, begin + bytes.size() / element size).
  using VisitParams = std::function<absl::Status(int unit, int64_t begin, std::span<const std::byte> bytes)>;

  // kInternal when the host arena has no room to stage one chunk.
  static absl::StatusOr<std::unique_ptr<StateAccess>> Create(const StepPlan& plan,
                                                             const ExecutorResources& resources);

  // Every record, pending gradient (mode delayed) and low-precision parameter, as generation `iterations` of
  // the NVMe store.
  absl::Status Load(int64_t iterations, const Fill& fill);

  // The chunks of `unit` that overlap elements [begin, end), in order; each is visited whole for the classes
  // of its record and, in mode delayed, the pending gradient (clipped to the range, which begins with a
  // tensor), then for the low-precision parameters when `params` is given.
  absl::Status Read(int unit, int64_t begin, int64_t end, int64_t iterations, const Visit& visit,
                    const VisitParams& params);

  // End of the staging memory in the host arena: what it takes of the tier, beside what steps take.
  int64_t host_high_water_bytes() const;

 private:
  StateAccess(const StepPlan& plan, const ExecutorResources& resources)
      : plan_(plan), resources_(resources) {}

  absl::Status LoadChunk(int unit, int chunk, int64_t iterations, const Fill& fill);
  absl::Status LoadPending(int unit, int chunk, const Fill& fill);
  // Where the host can look at `bytes` of a slot: in place, or brought to `staging`.
  absl::StatusOr<const std::byte*> Fetch(int32_t slot, int64_t offset, int64_t bytes, Generation generation,
                                         std::span<std::byte> staging);
  absl::Status StoreParams(int unit, int chunk, int64_t iterations, const float* master);

  const StepPlan& plan_;
  const ExecutorResources resources_;
  std::unique_ptr<IoEngine> engine_;
  std::span<std::byte> record_;  // staging of one chunk's record, rounded to the store's blocks
  std::span<std::byte> params_;  // staging of one chunk's parameters
};

}  // namespace strata

#endif  // OFFLOAD_EXEC_STATE_ACCESS_H_
