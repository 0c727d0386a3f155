// The memory of a plan: every slot of every tier, from the layout and the choices alone.
//
// Sizes come first and operations second: peaks are known without building a plan, which is what makes the
// planner's search cheap, and BuildPlan (builder.h) can only use the slots that stand here.
//
// Slots are of two sorts. *Persistent* ones hold state between steps; they come first, so that the training
// plan and the evaluation plan of one choice share them index by index and byte by byte. *Transient* ones
// belong to pools of equal slots; a pool has
//     max needed at one time + prefetch_depth - 1
// slots, and never more than there are things to hold. So depth 1 is the least memory that works, and each
// further unit of depth lets transfers run one unit further ahead.
//
// Units are grouped by size into classes (transformer units and the others apart, and sizes within a factor
// of two together), so that a norm of a few KiB never takes the slot of an embedding.
#ifndef OFFLOAD_PLAN_SLOT_TABLE_H_
#define OFFLOAD_PLAN_SLOT_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"
#include "offload/plan/step_plan.h"

namespace strata {

// Chunk offsets in a unit's parameters are multiples of 4096 bytes for every compute dtype.
inline constexpr int64_t kChunkMultiple = 2048;

// What of a layout does not depend on choices.
struct LayoutFacts {
  explicit LayoutFacts(const ModelLayout& layout);

  int64_t param_size = 0;  // bytes per element
  int64_t acc_size = 0;
  int head = 0;                 // index of the head block; blocks 1..head-1 are transformers
  std::vector<int> unit_class;  // by unit
  int classes = 0;
  std::vector<int> uses;               // by unit: blocks that read it
  std::vector<int> first_contributor;  // by unit: the block whose gradient comes first
  std::vector<int> first_use_order;    // units in the order in which a forward pass meets them
  std::vector<bool> frozen;            // by unit: nothing of it is trained
};

// kInvalidArgument names what is wrong with the layout (blocks out of order, sizes that are not positive).
absl::Status CheckLayout(const ModelLayout& layout);
// kInvalidArgument names the job file's field of a choice no plan exists for, and the remedy.
absl::Status CheckChoice(const ModelLayout& layout, const PlanChoice& choice);

// kInvalidArgument for chunks or micro-batches that no plan can have: not a multiple of kChunkMultiple, or
// more of them than a plan may hold operations.
absl::Status CheckSizes(const ModelLayout& layout, int64_t chunk_elements, int64_t micro_batches);

// True if the gradient of (block, unit) can be the first of its sum.
bool IsFirstContribution(const LayoutFacts& facts, int block, int unit, int64_t micro_batch);

struct SlotTable {
  std::vector<Slot> slots;
  std::vector<std::vector<ChunkInfo>> chunks;
  std::vector<std::vector<ChunkHome>> homes;
  int64_t arena_bytes[kTierCount] = {0, 0, 0};

  // Persistent, by unit; -1: not there.
  std::vector<int32_t> params_home;  // device or host
  std::vector<int32_t> accumulated;  // device or host; frozen: none
  std::vector<int32_t> pending;      // mode delayed: device or host; else empty

  // Transient. Pools by class: empty where no unit needs one.
  using Pool = std::vector<int32_t>;
  Pool host_batch, device_batch;
  std::vector<Pool> host_params;  // where NVMe parameters land, unless they go to the device at once
  std::vector<Pool> device_params;
  std::vector<Pool> host_grads;  // contributions on their way into a host sum
  // Sums with an NVMe home: by unit and chunk their items (none: another home), and where they grow.
  std::vector<std::vector<int32_t>> sum_items;
  std::vector<Pool> host_sums;
  std::vector<Pool> device_grads;
  // What FORWARD makes for BACKWARD, of one kind. By block; -1: not there.
  struct Held {
    std::vector<int32_t> own;   // a device slot of its own
    std::vector<int32_t> host;  // where it waits outside the device: a host slot
    std::vector<int32_t> item;  // or an NVMe item
    std::vector<bool> again;    // it is not kept, RECOMPUTE makes it again
    // What FORWARD makes last is where it is still when BACKWARD, which goes the other way, wants it: these
    // blocks have no home, but the slot of `device` (or, those that go to NVMe next, of `stage`) in which
    // they were put is theirs until then.
    std::vector<bool> stays, staged;
    Pool device;   // on its way from and to `host` or `item`; or only from one block to the next
    Pool segment;  // device: what RECOMPUTE makes, as much as the longest segment needs at one time
    Pool stage;    // host: between `device` and `item`, unless that is one way
  };
  Held activation;  // the input of the block
  Held saved, saved_rest;
  int32_t activation_gradient = -1;
  int32_t workspace = -1;
  Pool record;             // NVMe records on their way through the optimizer
  Pool params_out;         // new low-precision parameters on their way to NVMe or device
  Pool accumulated_chunk;  // device and NVMe sums on their way to the CPU optimizer
};

// `choice` has passed CheckChoice.
SlotTable MakeSlotTable(const ModelLayout& layout, const LayoutFacts& facts, const PlanChoice& choice,
                        PlanKind kind);

// arena_bytes of the table above, max over both kinds of plan, in O(units + chunks).
std::array<int64_t, kTierCount> PeakBytes(const ModelLayout& layout, const LayoutFacts& facts,
                                          const PlanChoice& choice);

}  // namespace strata

#endif  // OFFLOAD_PLAN_SLOT_TABLE_H_
