// Simulator: a StepPlan run by a clock instead of a machine. The planner chooses by it, `strata plan` shows
// it, tests hold it against runs.
//
// Rules are the executor's: a lane runs its operations in program order, an operation starts when its lane is
// free and its dependencies have ended, and a lane begins step t only when every lane has finished step
// t - 2. What takes time is the machine's (MachineProfile): an operation alone takes OpCost::seconds, and
// operations that run at the same time slow each other down where they share the NVMe device, cores or DRAM.
// A resource that is asked for more than it has is divided fairly: who asks for less than an equal part (of
// cores: for each of its threads) gets that, the others divide the rest. An operation that is slowed down
// by one resource asks for as much less of the others.
//
// What follows (simulator_test):
//  - no step is faster than its busiest lane or resource, the *bound*;
//  - something always runs, so a step takes at most the sum of all operations alone;
//  - without shared resources delays only ever add up, so steps in a row take no longer each than one alone:
//    the bound, and what it takes to fill the lanes and to drain them.
#ifndef OFFLOAD_PLAN_SIMULATOR_H_
#define OFFLOAD_PLAN_SIMULATOR_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/model/model_layout.h"
#include "offload/plan/machine_profile.h"
#include "offload/plan/step_plan.h"

namespace strata {

enum class SharedResource : uint8_t { kNvmeReads, kNvmeWrites, kNvmeDevice, kCores, kDram };
inline constexpr int kSharedResourceCount = 5;
const char* Name(SharedResource resource);

// One operation alone on the machine.
struct OpCost {
  double seconds = 0;
  std::array<double, kSharedResourceCount> share{};  // of each resource while it runs: 0..1
  double threads = 1;                                // that ask for cores
};
// A block's passes, and of the forward pass what makes its second saved area again.
double ForwardSeconds(const Block& block, const ComputeRates& rates);
double BackwardSeconds(const Block& block, const ComputeRates& rates);
double RestSeconds(const Block& block, const ComputeRates& rates);
// The optimizer's work for a parameter on the cpu lane.
double UpdateSeconds(Moments moments, const MachineProfile& profile);
OpCost CostOf(const ModelLayout& layout, const StepPlan& plan, const Op& op, const MachineProfile& profile);

struct LaneEstimate {
  Lane lane;
  int64_t operations = 0;  // per step, like everything here
  int64_t bytes = 0;
  double alone_seconds = 0;  // operations, each alone on the machine
  double busy_seconds = 0;   // operations, beside what else runs: what a run would measure
};

struct Simulation {
  double step_seconds = 0;          // from COMMIT to COMMIT once the lanes have filled
  std::vector<LaneEstimate> lanes;  // by lane of the plan
  int binding_lane = 0;             // the busiest alone
  std::array<double, kSharedResourceCount> resource_seconds{};  // at full use
  double bound_seconds = 0;  // the busiest lane or resource: no step is faster
  std::string binding;       // what that is, as people call it: "compute", "nvme read and write together"
  // The compute lane waits while a transfer is under way.
  double exposed_io_seconds = 0;
  // One step alone, from its first operation to COMMIT.
  double single_step_seconds = 0;
  double fill_seconds = 0;   // of it, until the binding lane starts (0 where a shared resource binds)
  double drain_seconds = 0;  // from the end of the binding lane's last operation
  // End of the highest slot that an operation touches; NVMe: the store's capacity.
  std::array<int64_t, kTierCount> peak_bytes{};
};

// kInternal when the plan can never finish (the verifier refuses such plans).
absl::StatusOr<Simulation> Simulate(const ModelLayout& layout, const StepPlan& plan,
                                    const MachineProfile& profile);

// Simulation::step_seconds alone, from fewer steps: for comparing many plans.
absl::StatusOr<double> StepSeconds(const ModelLayout& layout, const StepPlan& plan,
                                   const MachineProfile& profile);

}  // namespace strata

#endif  // OFFLOAD_PLAN_SIMULATOR_H_
