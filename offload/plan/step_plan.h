// StepPlan: one optimizer step as data. The same list of operations is what the planner estimates, the
// verifier proves safe, the executor runs and the trace shows (deploy/docs/step_plan.md).
//
// Shape of a plan
//  - Tier memory is cut into numbered slots: fixed, disjoint byte ranges of the tier's arena. NVMe slots
//    are items of the NVMe store (each with versions of its own); their offsets mean nothing.
//  - Operations stand in *program order*: executed one after another in that order they are a correct
//    step. Each runs on one lane; a lane runs its operations in program order, step after step.
//  - At most two steps are in flight: no operation of step t + 2 starts before COMMIT of step t.
//  - An operation waits for its dependencies: (operation, distance 0) is one of this step, always earlier
//    in program order; (operation, distance 1) is one of the step before. So the earliest unfinished
//    operation can always run, and no plan can deadlock.
//  - No UPDATE starts before COMMIT of the step before has ended: until then every home, in every tier, holds
//    exactly the state of that step, no NVMe item has two uncommitted versions
//    (StoreLayout::write_ahead_items is 0), and what a step publishes (loss, norm) needs two sets of
//    variables, one per parity of the step.
//  - Operands say which bytes of which slot an operation reads and writes, and what those bytes are.
//    Dependencies are exactly the hazards between operands (read after write, write after read, write
//    after write), plus the order that a mode asks for.
//
// All sizes are bytes unless named elements. Plain data: no pointers, no I/O, no clock.
#ifndef OFFLOAD_PLAN_STEP_PLAN_H_
#define OFFLOAD_PLAN_STEP_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "offload/model/moments.h"

namespace strata {

enum class Tier : uint8_t { kDevice, kHost, kNvme };
inline constexpr int kTierCount = 3;
const char* Name(Tier tier);

enum class LaneKind : uint8_t {
  kControl,  // two lanes: 0 brings batches in, 1 runs COMMIT (so the next step's batch never waits for it)
  kNvmeRead,
  kNvmeWrite,
  kH2D,  // index 0: fetches; index 1, where there are any: updated parameters into their device homes
  kD2H,
  kCompute,
  kCpu,
};
const char* Name(LaneKind kind);

enum class OpKind : uint8_t {
  kBatch,        // data source -> host slot: tokens and targets of one micro-batch
  kRead,         // NVMe item -> host slot
  kWrite,        // host slot -> NVMe item
  kReadDirect,   // NVMe item -> device slot
  kWriteDirect,  // device slot -> NVMe item
  kH2D,          // host slot -> device slot
  kD2H,          // device slot -> host slot
  kActOut,       // D2H of what FORWARD made for BACKWARD: activations and saved areas
  kActIn,        // H2D of it
  kForward,
  kRecompute,  // FORWARD again, for what it saves; or only the saved rest, from the saved part
  kLoss,       // the head: forward, loss and (in a training plan) its backward
  kBackward,
  kAccumulate,  // accumulated gradient += gradient
  kNorm,        // leaves of the sum of squares of one unit's final gradient, and the non-finite check
  kClip,        // all leaves -> global norm, clip coefficient, skip decision
  kUpdate,      // optimizer on one chunk
  kHandOver,    // mode delayed: the finished sum becomes the next step's pending gradient
  kCommit,      // all of the step is in its home: flips the NVMe store's versions, publishes the step
};
const char* Name(OpKind kind);
// Whether it brings bytes from NVMe, and whether it moves them between NVMe and the device.
inline bool ReadsStore(OpKind kind) { return kind == OpKind::kRead || kind == OpKind::kReadDirect; }
inline bool IsDirect(OpKind kind) { return kind == OpKind::kReadDirect || kind == OpKind::kWriteDirect; }

// What the bytes of an operand are. Fields that a kind does not use are -1.
enum class ContentKind : uint8_t {
  kBatch,        // {micro_batch}: int32 tokens [rows] then targets [rows]
  kParams,       // {unit, chunk or -1 for the whole unit}: compute dtype
  kGradient,     // {unit, micro_batch}: one block's contribution, acc dtype. `block` says whose.
  kAccumulated,  // {unit, chunk or -1 for the whole unit, contributions}: running sum of gradients, acc dtype
  kPending,      // {unit, chunk or -1}: mode delayed: the complete sum of the step before, acc dtype
  kRecord,       // {unit, chunk}: optimizer record of the chunk's elements (offload/model/moments.h)
  kActivation,   // {block, micro_batch}: the input of block `block`
  kSaved,        // {block, micro_batch}: what FORWARD leaves for BACKWARD, the part that `selective` keeps
  kSavedRest,    // {block, micro_batch}: the part that `selective` computes again
  kActGradient,  // {block, micro_batch}: d(loss)/d(input of block `block`)
  kWorkspace,    // contents do not outlive the operation
};
const char* Name(ContentKind kind);

struct Content {
  ContentKind kind = ContentKind::kWorkspace;
  int16_t block = -1;
  int32_t unit = -1;
  int32_t chunk = -1;
  int32_t micro_batch = -1;
  int32_t contributions = -1;  // kAccumulated: how many gradients are in the sum
  // kParams, kRecord, kPending: updates since the start of this step (0: as the step found it, 1: after
  // UPDATE).
  int8_t updates = 0;

  bool operator==(const Content&) const = default;
};

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

struct Operand {
  int32_t slot = -1;
  int64_t offset = 0;  // in the slot; a multiple of 64
  int64_t bytes = 0;
  Access access = Access::kRead;
  Content content;  // what is there before a read; for kWrite and kReadWrite what is there afterwards.
  Content before;   // kReadWrite only: what is there before
};

struct Dependency {
  int32_t op = -1;
  int32_t distance = 0;  // steps back: 0 or 1

  bool operator==(const Dependency&) const = default;
};

// Operands by kind, in this order ("..." repeats):
//   kBatch       W host batch
//   kRead        R item, W host
//   kWrite       R host, W item
//   kReadDirect  R item, W device
//   kWriteDirect R device, W item
//                (all four: `bytes` is the item's stored size, a multiple of 4096, and so are the offsets:
//                the NVMe store moves whole blocks. Chunk sizes are chosen so that a chunk's offset in a
//                unit's staging slot fits, and the slot has room for the last chunk's rounding.)
//   kH2D kD2H kActOut kActIn   R source, W destination
//   kForward     W saved, W saved rest, R input activation (embedding: R device batch), W output activation,
//                W workspace, R params...
//   kRecompute   as kForward; the output nobody needs, of a segment's last block, is a kWorkspace operand.
//                Of the saved rest alone: R saved, W saved rest, W workspace, R params...
//   kLoss        R device batch, R input activation, W workspace, [W activation gradient, if training],
//                R params..., W gradient... (training; one per unit of the block)
//   kBackward    R saved, R saved rest, R input activation (embedding: R device batch),
//                RW activation gradient (embedding: R), W workspace, R params..., W gradient...
//                (a block that saves nothing has operands of 0 bytes)
//   kAccumulate  RW accumulated, R gradient
//   kNorm        R accumulated
//   kClip, kCommit   none
//   kUpdate      RW record, R accumulated (mode delayed: pending; the chunk's range), W params (the chunk's
//   range) kHandOver    R accumulated, W pending
// An UPDATE before CLIP assumes that the step is neither skipped nor clipped. Where CLIP finds otherwise, the
// operations marked kRedo run: they read the versions that COMMIT of the step before left, which nothing has
// touched, and write this step's again.
enum class Speculation : uint8_t {
  kNone,
  kAssumed,  // runs before CLIP, on versions that a redo can replace
  kRedo,     // does nothing unless CLIP found the assumption wrong; its waits are those of any operation
};

struct Op {
  OpKind kind = OpKind::kCommit;
  Speculation speculation = Speculation::kNone;
  int32_t lane = 0;  // index into StepPlan::lanes
  int32_t block = -1;
  int32_t unit = -1;
  int32_t chunk = -1;
  int32_t micro_batch = -1;
  // A gradient that is the first contribution to its sum is written (or copied) straight into the
  // accumulated buffer: its W operand then has content kAccumulated with contributions == 1.
  std::vector<Operand> operands;
  std::vector<Dependency> dependencies;
  int64_t bytes = 0;  // moved by transfers and I/O, touched by CPU work
  double flops = 0;   // compute
};

struct Slot {
  Tier tier = Tier::kHost;
  int64_t offset = 0;  // in the tier's arena; a multiple of kSlotAlignment (NVMe: 0)
  int64_t bytes = 0;   // a multiple of kSlotAlignment
  std::string name;    // for traces and messages: "layers.params.0", "record.wte.3"
  // Holds a unit's parameters, a record or an accumulated gradient across steps: loaded before the first
  // step. On NVMe: an item with versions, which COMMIT flips; other items (activations, saved areas,
  // gradients) are overwritten in place.
  bool persistent = false;
};

struct Lane {
  LaneKind kind = LaneKind::kControl;
  int32_t index = 0;  // among lanes of one kind
  // Operations in flight at a time, begun and ended in order: at least 1, and 1 but on NVMe lanes. One that
  // touches what one in flight changes waits for its end.
  int32_t window = 1;
  // NVMe lanes: their operations are kReadDirect and kWriteDirect, which no other lane has.
  bool direct = false;
};

// One piece of a unit's flat range: [begin, end) elements. Chunks of a unit are in order and cover it.
struct ChunkInfo {
  int32_t unit = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Where a unit's state lives between steps, per chunk (index into StepPlan::slots; -1: not there).
struct ChunkHome {
  int32_t record_slot = -1;  // device or host slot (whole record), or the NVMe item's slot
  int64_t record_offset = 0;
  int32_t params_slot =
      -1;  // device or host slot of the whole unit (params_offset: this chunk's), or the item's slot
  int64_t params_offset = 0;
};

enum class PlanKind : uint8_t { kTrain, kEval };
enum class Mode : uint8_t { kSync, kOverlap, kForwardOverlap, kSpeculative, kDelayed };
const char* Name(Mode mode);
// Units may be updated before CLIP.
inline bool MayAssume(Mode mode) { return mode == Mode::kOverlap || mode == Mode::kSpeculative; }

struct StepPlan {
  PlanKind kind = PlanKind::kTrain;
  Mode mode = Mode::kSync;
  DType compute_dtype = DType::kBF16;
  Moments moments = Moments::kF32;
  int64_t micro_batches = 0;
  bool clip = false;
  std::vector<Lane> lanes;
  std::vector<Slot> slots;
  std::vector<std::vector<ChunkInfo>> chunks;  // [unit][chunk]
  std::vector<std::vector<ChunkHome>> homes;   // [unit][chunk]
  // By unit: nothing of it is trained. LOSS and BACKWARD leave its gradient in a transient slot, where it
  // ends; it has no sum, no NORM and no UPDATE, and its homes hold what was loaded: contents of it name no
  // updates, and its NVMe items stay of the generation of the load.
  std::vector<bool> frozen;
  // By unit: the slot of its pending gradient, in host or device memory, indexed as the unit's elements.
  // Empty but in mode delayed.
  std::vector<int32_t> pending;
  std::vector<Op> ops;  // program order
  int64_t arena_bytes[kTierCount] = {
      0, 0, 0};  // device and host: end of the last slot = the peak. NVMe: NvmeStore capacity.
};

inline constexpr int64_t kSlotAlignment = 4096;  // O_DIRECT and huge-page friendly

}  // namespace strata

#endif  // OFFLOAD_PLAN_STEP_PLAN_H_
