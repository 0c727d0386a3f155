// Planner: from a model's layout, budgets and wishes to a StepPlan, or to the shortfall and a change that
// fits.
//
// Pure: the same request gives the same plan on every machine. The coordinator calls it to admit a job, the
// CLI to explain one, the trainer to run it.
#ifndef OFFLOAD_PLAN_PLANNER_H_
#define OFFLOAD_PLAN_PLANNER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/model/model_layout.h"
#include "offload/plan/machine_profile.h"
#include "offload/plan/simulator.h"
#include "offload/plan/step_plan.h"

namespace strata {

enum class Recompute : uint8_t {
  kNone,
  kFull,
  kSqrt,       // of L blocks about every sqrt(L)th keeps its input (Chen et al. 2016)
  kSelective,  // kept but for what is cheap to compute again (Korthikanti et al. 2022)
  kOptimal,    // by block (recompute_search.h)
};

inline constexpr int64_t kAdviceBytes = int64_t{1} << 30;

struct PlanRequest {
  const ModelLayout* layout = nullptr;
  int64_t micro_batches = 1;
  bool clip = false;  // global-norm clipping: updates wait for the norm
  // Hard budgets in bytes by Tier; a plan's arena_bytes never exceed them.
  std::array<int64_t, kTierCount> budget = {0, 0, 0};
  // Absent: the planner chooses.
  std::optional<Tier> params, gradients, optimizer, activations;
  std::optional<Recompute> recompute;
  std::optional<Mode> mode;
  int prefetch_depth = 0;      // units fetched ahead; 0: chosen
  int64_t chunk_elements = 0;  // 0: AutoChunkElements
  int io_threads = 0;          // 0: 2; with 1, parameters and records share one read lane and one write lane
  bool direct = false;         // as PlanChoice::direct
  MachineProfile profile;
  // Only what is decided and predicted: `train` and `eval` of the result stay empty, nothing is verified. The
  // choice is the same.
  bool predict_only = false;
  bool advise = false;  // fill in PlannedJob::advice_seconds (three more predictions)
};

// 4 Mi elements, or as many more (a power of two) as keep a model at 8192 chunks: a plan has some operations
// for each, and what a large model runs on can stage large chunks.
int64_t AutoChunkElements(const ModelLayout& layout);

// Every decision of a plan; BuildPlans turns it into operations without further choices.
struct PlanChoice {
  Mode mode = Mode::kSync;
  bool clip = false;
  int64_t micro_batches = 1;
  int64_t chunk_elements = 4 << 20;
  int prefetch_depth = 1;
  int io_threads = 2;
  // What the device and NVMe exchange (parameters that are fetched, what is held from FORWARD to BACKWARD)
  // goes straight from one to the other. Optimizer records and sums of gradients are the host's.
  bool direct = false;
  struct UnitHome {
    Tier params = Tier::kNvme;
    Tier gradients = Tier::kHost;  // accumulated gradients
    Tier record = Tier::kNvme;
  };
  std::vector<UnitHome> units;
  // How BACKWARD gets what FORWARD saved.
  enum class Saved : uint8_t {
    kKeep,       // all of it is kept, in `saved_home`
    kSelective,  // ContentKind::kSaved is kept in `saved_home`, kSavedRest is computed again
    kRecompute,  // all of it is computed again
  };
  // Transformer blocks only; the embedding and the head keep nothing.
  struct BlockChoice {
    Saved saved = Saved::kRecompute;
    Tier saved_home = Tier::kDevice;
    Tier activation = Tier::kHost;  // home of the block's input between FORWARD and BACKWARD
    // False: the input is not kept at all. BACKWARD of the segment's last block runs RECOMPUTE from the
    // nearest block below with a checkpoint (block 1 always has one) upwards, and keeps what these save on
    // the device until it is used. All blocks of a segment of more than one block are kRecompute.
    bool checkpoint = true;
  };
  std::vector<BlockChoice> blocks;
};

struct PlannedJob {
  PlanChoice choice;
  StepPlan train;
  StepPlan eval;  // forward and loss only; persistent slots are those of `train`, index by index
  // Bytes by tier held between steps, by class: params, gradients, optimizer, activations (activations:
  // during the step).
  std::array<std::array<int64_t, kTierCount>, 4> placement{};
  std::array<int64_t, kTierCount> peak_bytes{};  // max over both plans
  std::array<int64_t, kTierCount>
      minimum_bytes{};  // smallest budget of one tier, the others and the wishes as given
  std::array<int64_t, kTierCount> read_bytes{}, written_bytes{};  // per training step
  // Of NVMe's, what goes straight to and from the device.
  int64_t direct_read_bytes = 0, direct_written_bytes = 0;
  int64_t operations = 0;  // of `train`
  Simulation simulation;   // of `train` on the request's machine
  // What more of one tier would buy, by tier: seconds saved of a step with kAdviceBytes more than the budget.
  // At least: other orders of filling it are not tried.
  std::array<double, kTierCount> advice_seconds{};
  std::vector<std::string> notes;  // why: what is where, what binds, what the next step up would need
};

// Why no plan fits: the binding tier, what the smallest plan needs there, and a change that would fit.
struct PlanShortfall {
  Tier tier = Tier::kDevice;
  int64_t needed_bytes = 0;
  int64_t budget_bytes = 0;
  std::string remedy;
};

// kInvalidArgument: a request no budget could satisfy (placement combinations that do not exist; they are
// named with the job file's field path, such as memory.placement.optimizer). A budget that is too small is a
// PlanShortfall.
absl::StatusOr<std::variant<PlannedJob, PlanShortfall>> MakePlan(const PlanRequest& request);

struct BuiltPlans {
  StepPlan train;
  StepPlan eval;
};

// The operations of `choice`; both plans are verified (offload/plan/verifier.h) before they are returned.
absl::StatusOr<BuiltPlans> BuildPlans(const ModelLayout& layout, const PlanChoice& choice);

}  // namespace strata

#endif  // OFFLOAD_PLAN_PLANNER_H_
