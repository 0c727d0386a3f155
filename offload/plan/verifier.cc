#include "offload/plan/verifier.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checked.h"
#include "common/status.h"
#include "offload/plan/plan_text.h"

namespace strata {
namespace {

constexpr int32_t kSteps = 3;
constexpr int64_t kBlock = 4096;
constexpr int64_t kRecordElementBytes = 12;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InternalError(absl::StrCat("unsafe plan: ", parts...));
}

int64_t AccSize(const StepPlan& plan) { return plan.compute_dtype == DType::kF64 ? 8 : 4; }

bool IsOfUnit(ContentKind kind) {
  return kind == ContentKind::kParams || kind == ContentKind::kGradient ||
         kind == ContentKind::kAccumulated || kind == ContentKind::kRecord;
}

// The bytes that a content of a unit takes: [begin, end) of the unit's buffer of that kind. False for other
// kinds, whose size is the operand's.
bool UnitRange(const StepPlan& plan, const Content& content, int64_t* begin, int64_t* end) {
  if (!IsOfUnit(content.kind)) return false;
  const std::vector<ChunkInfo>& chunks = plan.chunks[content.unit];
  const bool whole = content.chunk < 0;
  int64_t first = whole ? 0 : chunks[content.chunk].begin;
  int64_t last = whole ? chunks.back().end : chunks[content.chunk].end;
  int64_t size = AccSize(plan);
  if (content.kind == ContentKind::kParams) size = SizeOf(plan.compute_dtype);
  if (content.kind == ContentKind::kRecord) {
    size = kRecordElementBytes;
    last -= std::exchange(first, 0);  // Each chunk's record is a buffer of its own.
  }
  *begin = first * size;
  *end = last * size;
  return true;
}

bool IsTransfer(OpKind kind) { return kind == OpKind::kRead || kind == OpKind::kWrite; }

// ---- Structure: everything that later passes may rely on.

absl::Status CheckSlots(const StepPlan& plan) {
  std::vector<int32_t> order;
  for (int32_t s = 0; s < static_cast<int32_t>(plan.slots.size()); ++s) {
    const Slot& slot = plan.slots[s];
    if (static_cast<int>(slot.tier) >= kTierCount) return Wrong("slot ", s, " is in no tier");
    if (slot.bytes <= 0 || slot.bytes % kSlotAlignment != 0)
      return Wrong(DescribeSlot(plan, s), ": ", slot.bytes, " bytes are not whole blocks of ",
                   kSlotAlignment);
    if (slot.tier == Tier::kNvme) {
      if (!slot.persistent) return Wrong(DescribeSlot(plan, s), ": an NVMe item that holds no state");
      continue;
    }
    const int64_t arena = plan.arena_bytes[static_cast<int>(slot.tier)];
    if (slot.offset < 0 || slot.offset % kSlotAlignment != 0 || slot.bytes > arena ||
        slot.offset > arena - slot.bytes)
      return Wrong(DescribeSlot(plan, s), ": [", slot.offset, ", +", slot.bytes,
                   ") is not aligned or not inside the arena of ", arena, " bytes");
    order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tie(plan.slots[a].tier, plan.slots[a].offset) <
           std::tie(plan.slots[b].tier, plan.slots[b].offset);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Slot& before = plan.slots[order[i - 1]];
    const Slot& slot = plan.slots[order[i]];
    if (before.tier == slot.tier && before.offset + before.bytes > slot.offset)
      return Wrong(DescribeSlot(plan, order[i - 1]), " and ", DescribeSlot(plan, order[i]), " overlap");
  }
  int64_t nvme = 0;
  for (const Slot& slot : plan.slots) {
    if (slot.tier == Tier::kNvme) nvme += 2 * slot.bytes;  // the committed version and the next one
  }
  if (plan.arena_bytes[static_cast<int>(Tier::kNvme)] < nvme)
    return Wrong("NVMe capacity of ", plan.arena_bytes[static_cast<int>(Tier::kNvme)],
                 " bytes for two versions of every item, ", nvme, " bytes");
  return absl::OkStatus();
}

absl::Status CheckHome(const StepPlan& plan, size_t unit, size_t chunk, const char* what, int32_t slot,
                       int64_t offset, int64_t bytes) {
  if (slot < 0 || slot >= static_cast<int32_t>(plan.slots.size()))
    return Wrong(what, " of unit ", unit, " chunk ", chunk, " have no home");
  const Slot& home = plan.slots[slot];
  if (!home.persistent)
    return Wrong(what, " of unit ", unit, " chunk ", chunk, ": ", DescribeSlot(plan, slot),
                 " does not persist");
  if (offset < 0 || offset > home.bytes - bytes || (home.tier == Tier::kNvme && offset != 0))
    return Wrong(what, " of unit ", unit, " chunk ", chunk, " do not fit in ", DescribeSlot(plan, slot));
  return absl::OkStatus();
}

absl::Status CheckChunks(const StepPlan& plan) {
  if (plan.homes.size() != plan.chunks.size()) return Wrong("homes and chunks are of different units");
  for (size_t u = 0; u < plan.chunks.size(); ++u) {
    if (plan.chunks[u].empty() || plan.homes[u].size() != plan.chunks[u].size())
      return Wrong("unit ", u, " has ", plan.chunks[u].size(), " chunks and ", plan.homes[u].size(),
                   " homes");
    int64_t at = 0;
    for (size_t k = 0; k < plan.chunks[u].size(); ++k) {
      const ChunkInfo& chunk = plan.chunks[u][k];
      if (chunk.unit != static_cast<int32_t>(u) || chunk.begin != at || chunk.end <= at)
        return Wrong("chunk ", k, " of unit ", u, " does not continue the unit at element ", at);
      at = chunk.end;
      const ChunkHome& home = plan.homes[u][k];
      const int64_t n = chunk.end - chunk.begin;
      STRATA_RETURN_IF_ERROR(CheckHome(plan, u, k, "optimizer records", home.record_slot, home.record_offset,
                                       n * kRecordElementBytes));
      STRATA_RETURN_IF_ERROR(CheckHome(plan, u, k, "parameters", home.params_slot, home.params_offset,
                                       n * SizeOf(plan.compute_dtype)));
    }
  }
  return absl::OkStatus();
}

// Between runs one chunk's record and parameters pass through the host arena behind the persistent slots.
absl::Status CheckStateStaging(const StepPlan& plan) {
  int64_t persistent = 0, staging = 0;
  for (const Slot& slot : plan.slots) {
    if (slot.tier == Tier::kHost && slot.persistent)
      persistent = std::max(persistent, slot.offset + slot.bytes);
  }
  for (const auto& unit : plan.chunks) {
    for (const ChunkInfo& chunk : unit) {
      const int64_t n = chunk.end - chunk.begin;
      staging = std::max(staging, RoundUp(n * kRecordElementBytes, kBlock) +
                                      RoundUp(n * SizeOf(plan.compute_dtype), kBlock));
    }
  }
  const int64_t arena = plan.arena_bytes[static_cast<int>(Tier::kHost)];
  if (arena - persistent < staging)
    return Wrong("a host arena of ", arena, " bytes has no ", staging,
                 " bytes for states behind the persistent ", persistent);
  return absl::OkStatus();
}

absl::Status CheckContent(const StepPlan& plan, int32_t op, const Operand& operand, const Content& content) {
  if (!IsOfUnit(content.kind)) return absl::OkStatus();
  if (content.unit < 0 || content.unit >= static_cast<int32_t>(plan.chunks.size()) ||
      content.chunk >= static_cast<int32_t>(plan.chunks[content.unit].size()) || content.chunk < -1)
    return Wrong(DescribeOp(plan, op), ": ", Describe(content), " does not exist");
  if (content.kind == ContentKind::kRecord && content.chunk < 0)
    return Wrong(DescribeOp(plan, op), ": a record without its chunk");
  int64_t begin = 0, end = 0;
  UnitRange(plan, content, &begin, &end);
  int64_t bytes = end - begin;
  if (IsTransfer(plan.ops[op].kind)) bytes = RoundUp(bytes, kBlock);
  if (operand.bytes != bytes)
    return Wrong(DescribeOp(plan, op), ": ", Describe(content), " is ", bytes, " bytes, not ", operand.bytes);
  return absl::OkStatus();
}

absl::Status CheckOps(const StepPlan& plan) {
  const int32_t ops = static_cast<int32_t>(plan.ops.size());
  for (int32_t i = 0; i < ops; ++i) {
    const Op& op = plan.ops[i];
    if (op.lane < 0 || op.lane >= static_cast<int32_t>(plan.lanes.size()))
      return Wrong(DescribeOp(plan, i), ": no lane ", op.lane);
    for (const Operand& operand : op.operands) {
      if (operand.slot < 0 || operand.slot >= static_cast<int32_t>(plan.slots.size()))
        return Wrong(DescribeOp(plan, i), ": no slot ", operand.slot);
      const int64_t size = plan.slots[operand.slot].bytes;
      if (operand.bytes < 0 || operand.offset < 0 || operand.offset % 64 != 0 || operand.bytes > size ||
          operand.offset > size - operand.bytes)
        return Wrong(DescribeOp(plan, i), ": [", operand.offset, ", +", operand.bytes,
                     ") is not aligned or not inside ", DescribeSlot(plan, operand.slot), " of ", size,
                     " bytes");
      STRATA_RETURN_IF_ERROR(CheckContent(plan, i, operand, operand.content));
      if (operand.access == Access::kReadWrite)
        STRATA_RETURN_IF_ERROR(CheckContent(plan, i, operand, operand.before));
    }
    for (const Dependency& on : op.dependencies) {
      if (on.op < 0 || on.op >= ops || on.distance < 0 || on.distance > 1)
        return Wrong(DescribeOp(plan, i), " waits for op ", on.op, " at distance ", on.distance,
                     ", which does not exist");
      if (on.distance == 0 && on.op >= i)
        return Wrong(DescribeOp(plan, i), " waits for ", DescribeOp(plan, on.op),
                     ", which is not earlier in program order: a cycle");
    }
  }
  return absl::OkStatus();
}

// ---- Operands by kind, and the whole step.

class StepCheck {
 public:
  explicit StepCheck(const StepPlan& plan)
      : plan_(plan), train_(plan.kind == PlanKind::kTrain), summed_(plan.chunks.size()) {}

  absl::Status Run() {
    if (plan_.micro_batches < 1) return Wrong(plan_.micro_batches, " micro-batches");
    if (plan_.mode == Mode::kOverlap && plan_.clip)
      return Wrong("mode overlap updates before the global norm is known, so it cannot clip");
    if (plan_.ops.empty() || plan_.ops.back().kind != OpKind::kCommit)
      return Wrong("the last operation is not COMMIT");
    STRATA_RETURN_IF_ERROR(CollectBlocks());
    for (at_ = 0; at_ < static_cast<int32_t>(plan_.ops.size()); ++at_) {
      next_ = 0;
      STRATA_RETURN_IF_ERROR(CheckLane());
      STRATA_RETURN_IF_ERROR(CheckOp());
      if (next_ != op().operands.size())
        return Wrong(DescribeOp(plan_, at_), ": ", op().operands.size(), " operands, not ", next_);
    }
    return CheckWhole();
  }

  // How many gradients a complete sum of `unit` has.
  int64_t Contributions(int32_t unit) const { return plan_.micro_batches * uses_[unit]; }

 private:
  const Op& op() const { return plan_.ops[at_]; }

  // Which units each block has, from the operations themselves.
  absl::Status CollectBlocks() {
    uses_.assign(plan_.chunks.size(), 0);
    for (int32_t i = 0; i < static_cast<int32_t>(plan_.ops.size()); ++i) {
      const Op& op = plan_.ops[i];
      if (op.kind == OpKind::kLoss) {
        if (op.block < 2 || op.block > static_cast<int64_t>(plan_.ops.size()))
          return Wrong(DescribeOp(plan_, i), ": no such head block");
        if (head_ >= 0 && head_ != op.block) return Wrong(DescribeOp(plan_, i), ": a second head");
        head_ = op.block;
      }
    }
    if (head_ < 0) return Wrong("no LOSS");
    units_.resize(head_ + 1);
    std::vector<bool> known(head_ + 1, false);
    for (int32_t i = 0; i < static_cast<int32_t>(plan_.ops.size()); ++i) {
      const Op& op = plan_.ops[i];
      if (!IsBlock(op.kind)) continue;
      if (op.block < 0 || op.block > head_ || (op.block == head_) != (op.kind == OpKind::kLoss))
        return Wrong(DescribeOp(plan_, i), ": blocks are 0 to ", head_, ", the last is the head");
      if (op.micro_batch < 0 || op.micro_batch >= plan_.micro_batches)
        return Wrong(DescribeOp(plan_, i), ": no such micro-batch");
      std::vector<int32_t> units;
      for (const Operand& operand : op.operands) {
        if (operand.content.kind == ContentKind::kParams) units.push_back(operand.content.unit);
      }
      if (!known[op.block]) {
        known[op.block] = true;
        units_[op.block] = units;
        for (const int32_t unit : units) ++uses_[unit];
      } else if (units_[op.block] != units) {
        return Wrong(DescribeOp(plan_, i), ": other units than the block's first operation");
      }
    }
    for (size_t u = 0; u < uses_.size(); ++u) {
      if (uses_[u] == 0) return Wrong("no block uses unit ", u);
    }
    return absl::OkStatus();
  }

  static bool IsBlock(OpKind kind) {
    return kind == OpKind::kForward || kind == OpKind::kRecompute || kind == OpKind::kBackward ||
           kind == OpKind::kLoss;
  }

  absl::Status CheckLane() {
    const LaneKind lane = plan_.lanes[op().lane].kind;
    const bool either =
        op().kind == OpKind::kAccumulate || op().kind == OpKind::kNorm || op().kind == OpKind::kUpdate;
    if (either ? lane != LaneKind::kCpu && lane != LaneKind::kCompute : lane != LaneOf(op().kind))
      return Wrong(DescribeOp(plan_, at_), ": the wrong kind of lane");
    return absl::OkStatus();
  }

  static LaneKind LaneOf(OpKind kind) {
    switch (kind) {
      case OpKind::kBatch:
      case OpKind::kCommit:
        return LaneKind::kControl;
      case OpKind::kRead:
        return LaneKind::kNvmeRead;
      case OpKind::kWrite:
        return LaneKind::kNvmeWrite;
      case OpKind::kH2D:
      case OpKind::kActIn:
        return LaneKind::kH2D;
      case OpKind::kD2H:
      case OpKind::kActOut:
        return LaneKind::kD2H;
      case OpKind::kForward:
      case OpKind::kRecompute:
      case OpKind::kLoss:
      case OpKind::kBackward:
        return LaneKind::kCompute;
      case OpKind::kAccumulate:
      case OpKind::kNorm:
      case OpKind::kClip:
      case OpKind::kUpdate:
        return LaneKind::kCpu;
    }
    return LaneKind::kControl;
  }

  // The next operand, which must be of this access, tier and content.
  absl::Status Expect(Access access, Tier tier, const Content& content) {
    if (next_ >= op().operands.size())
      return Wrong(DescribeOp(plan_, at_), ": operand ", next_, " is missing, ", Describe(content));
    const Operand& operand = op().operands[next_++];
    if (operand.access != access || plan_.slots[operand.slot].tier != tier || !(operand.content == content))
      return Wrong(DescribeOp(plan_, at_), ": operand ", next_ - 1, " in ", DescribeSlot(plan_, operand.slot),
                   " is ", Describe(operand.content), ", expected ", Describe(content), " on ", Name(tier));
    return absl::OkStatus();
  }

  static Content Of(ContentKind kind, int block, int mb) {
    Content content;
    content.kind = kind;
    content.block = static_cast<int16_t>(block);
    content.micro_batch = mb;
    return content;
  }

  absl::Status CheckOp() {
    switch (op().kind) {
      case OpKind::kBatch:
        return Expect(Access::kWrite, Tier::kHost, Of(ContentKind::kBatch, -1, op().micro_batch));
      case OpKind::kRead:
        return CheckCopy(Tier::kNvme, Tier::kHost);
      case OpKind::kWrite:
        return CheckCopy(Tier::kHost, Tier::kNvme);
      case OpKind::kH2D:
      case OpKind::kActIn:
        return CheckCopy(Tier::kHost, Tier::kDevice);
      case OpKind::kD2H:
      case OpKind::kActOut:
        return CheckCopy(Tier::kDevice, Tier::kHost);
      case OpKind::kForward:
      case OpKind::kRecompute:
        return CheckForward();
      case OpKind::kLoss:
        return CheckLoss();
      case OpKind::kBackward:
        return CheckBackward();
      case OpKind::kAccumulate:
        return CheckAccumulate();
      case OpKind::kNorm:
        return CheckNorm();
      case OpKind::kClip:
        ++clips_;
        return absl::OkStatus();
      case OpKind::kUpdate:
        return CheckUpdate();
      case OpKind::kCommit:
        ++commits_;
        return absl::OkStatus();
    }
    return Wrong(DescribeOp(plan_, at_), ": no such kind");
  }

  absl::Status CheckCopy(Tier from, Tier to) {
    if (op().operands.size() != 2) return Wrong(DescribeOp(plan_, at_), ": a copy has two operands");
    const Operand& source = op().operands[0];
    const Operand& destination = op().operands[1];
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, from, source.content));
    const bool starts_sum = op().kind == OpKind::kD2H && source.content.kind == ContentKind::kGradient &&
                            destination.content.kind == ContentKind::kAccumulated;
    if (starts_sum) {
      STRATA_RETURN_IF_ERROR(StartSum(destination, source.content));
    } else {
      STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, to, source.content));
    }
    if (source.bytes != destination.bytes)
      return Wrong(DescribeOp(plan_, at_), ": copies ", source.bytes, " bytes to ", destination.bytes);
    if (!IsTransfer(op().kind)) return absl::OkStatus();
    const Operand& item = from == Tier::kNvme ? source : destination;
    const Operand& host = from == Tier::kNvme ? destination : source;
    if (item.offset != 0 || item.bytes != plan_.slots[item.slot].bytes || host.offset % kBlock != 0)
      return Wrong(DescribeOp(plan_, at_), ": the NVMe store moves whole items to and from whole blocks");
    return absl::OkStatus();
  }

  // A write that makes `gradient` the first of its unit's sum.
  absl::Status StartSum(const Operand& operand, const Content& gradient) {
    Content sum;
    sum.kind = ContentKind::kAccumulated;
    sum.unit = gradient.unit;
    sum.contributions = 1;
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, plan_.slots[operand.slot].tier, sum));
    return CountGradient(gradient);
  }

  absl::Status CountGradient(const Content& gradient) {
    if (!summed_[gradient.unit].insert({gradient.block, gradient.micro_batch}).second)
      return Wrong(DescribeOp(plan_, at_), ": ", Describe(gradient), " enters the sum twice");
    return absl::OkStatus();
  }

  absl::Status ExpectInput() {
    return op().block == 0
               ? Expect(Access::kRead, Tier::kDevice, Of(ContentKind::kBatch, -1, op().micro_batch))
               : Expect(Access::kRead, Tier::kDevice,
                        Of(ContentKind::kActivation, op().block, op().micro_batch));
  }

  absl::Status ExpectParams() {
    for (const int32_t unit : units_[op().block]) {
      Content content;
      content.kind = ContentKind::kParams;
      content.unit = unit;
      STRATA_RETURN_IF_ERROR(Expect(Access::kRead, Tier::kDevice, content));
    }
    return absl::OkStatus();
  }

  absl::Status ExpectGradients() {
    for (const int32_t unit : units_[op().block]) {
      Content gradient = Of(ContentKind::kGradient, op().block, op().micro_batch);
      gradient.unit = unit;
      const bool starts_sum =
          next_ < op().operands.size() && op().operands[next_].content.kind == ContentKind::kAccumulated;
      if (starts_sum) {
        STRATA_RETURN_IF_ERROR(StartSum(op().operands[next_], gradient));
        if (plan_.slots[op().operands[next_ - 1].slot].tier != Tier::kDevice)
          return Wrong(DescribeOp(plan_, at_), ": writes a gradient outside the device");
      } else {
        STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, gradient));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckForward() {
    const int block = op().block, mb = op().micro_batch;
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Of(ContentKind::kSaved, block, mb)));
    STRATA_RETURN_IF_ERROR(ExpectInput());
    const bool again = op().kind == OpKind::kRecompute;
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice,
                                  again ? Content() : Of(ContentKind::kActivation, block + 1, mb)));
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Content()));
    if (!again && !forwards_.insert({block, mb}).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    return ExpectParams();
  }

  absl::Status CheckLoss() {
    const int block = op().block, mb = op().micro_batch;
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, Tier::kDevice, Of(ContentKind::kBatch, -1, mb)));
    STRATA_RETURN_IF_ERROR(ExpectInput());
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Content()));
    if (train_)
      STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Of(ContentKind::kActGradient, block, mb)));
    if (!backwards_.insert({block, mb}).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    STRATA_RETURN_IF_ERROR(ExpectParams());
    return train_ ? ExpectGradients() : absl::OkStatus();
  }

  absl::Status CheckBackward() {
    const int block = op().block, mb = op().micro_batch;
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, Tier::kDevice, Of(ContentKind::kSaved, block, mb)));
    STRATA_RETURN_IF_ERROR(ExpectInput());
    const Content above = Of(ContentKind::kActGradient, block + 1, mb);
    if (block == 0) {
      STRATA_RETURN_IF_ERROR(Expect(Access::kRead, Tier::kDevice, above));
    } else {
      STRATA_RETURN_IF_ERROR(
          Expect(Access::kReadWrite, Tier::kDevice, Of(ContentKind::kActGradient, block, mb)));
      if (!(op().operands[next_ - 1].before == above))
        return Wrong(DescribeOp(plan_, at_), ": takes ", Describe(op().operands[next_ - 1].before),
                     ", expected ", Describe(above));
    }
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Content()));
    if (!backwards_.insert({block, mb}).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    STRATA_RETURN_IF_ERROR(ExpectParams());
    return ExpectGradients();
  }

  Tier LaneTier() const {
    return plan_.lanes[op().lane].kind == LaneKind::kCompute ? Tier::kDevice : Tier::kHost;
  }

  absl::Status CheckAccumulate() {
    if (op().operands.size() != 2) return Wrong(DescribeOp(plan_, at_), ": a sum and a gradient are needed");
    const Content& before = op().operands[0].before;
    const Content gradient = op().operands[1].content;
    Content after = before;
    ++after.contributions;
    if (before.kind != ContentKind::kAccumulated || before.contributions < 1 || before.chunk != -1 ||
        gradient.kind != ContentKind::kGradient || gradient.chunk != -1 || gradient.unit != before.unit)
      return Wrong(DescribeOp(plan_, at_), ": adds ", Describe(gradient), " to ", Describe(before));
    STRATA_RETURN_IF_ERROR(Expect(Access::kReadWrite, LaneTier(), after));
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, LaneTier(), gradient));
    return CountGradient(gradient);
  }

  Content CompleteSum(int32_t unit, int32_t chunk) const {
    Content sum;
    sum.kind = ContentKind::kAccumulated;
    sum.unit = unit;
    sum.chunk = chunk;
    sum.contributions = static_cast<int32_t>(Contributions(unit));
    return sum;
  }

  absl::Status CheckUnit(bool with_chunk) {
    const int32_t units = static_cast<int32_t>(plan_.chunks.size());
    if (op().unit < 0 || op().unit >= units ||
        (with_chunk &&
         (op().chunk < 0 || op().chunk >= static_cast<int32_t>(plan_.chunks[op().unit].size()))))
      return Wrong(DescribeOp(plan_, at_), ": no such unit or chunk");
    return absl::OkStatus();
  }

  absl::Status CheckNorm() {
    STRATA_RETURN_IF_ERROR(CheckUnit(false));
    if (clips_ > 0) return Wrong(DescribeOp(plan_, at_), " after CLIP");
    if (!norms_.insert(op().unit).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    return Expect(Access::kRead, LaneTier(), CompleteSum(op().unit, -1));
  }

  absl::Status CheckUpdate() {
    STRATA_RETURN_IF_ERROR(CheckUnit(true));
    Content record;
    record.kind = ContentKind::kRecord;
    record.unit = op().unit;
    record.chunk = op().chunk;
    Content before = record;
    record.updates = 1;
    Content params = record;
    params.kind = ContentKind::kParams;
    STRATA_RETURN_IF_ERROR(Expect(Access::kReadWrite, LaneTier(), record));
    if (!(op().operands[0].before == before))
      return Wrong(DescribeOp(plan_, at_), ": updates ", Describe(op().operands[0].before), ", expected ",
                   Describe(before));
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, LaneTier(), CompleteSum(op().unit, op().chunk)));
    if (!updates_.insert({op().unit, op().chunk}).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    return Expect(Access::kWrite, LaneTier(), params);
  }

  absl::Status CheckWhole() {
    const size_t mbs = static_cast<size_t>(plan_.micro_batches);
    if (commits_ != 1) return Wrong(commits_, " COMMITs");
    if (forwards_.size() != mbs * head_) return Wrong(forwards_.size(), " FORWARDs, not ", mbs * head_);
    const size_t backwards = train_ ? mbs * (head_ + 1) : mbs;
    if (backwards_.size() != backwards)
      return Wrong(backwards_.size(), " LOSSes and BACKWARDs, not ", backwards);
    if (clips_ != (train_ ? 1 : 0)) return Wrong(clips_, " CLIPs");
    if (norms_.size() != (train_ ? plan_.chunks.size() : 0)) return Wrong(norms_.size(), " NORMs");
    size_t chunks = 0;
    for (const auto& unit : plan_.chunks) chunks += unit.size();
    if (updates_.size() != (train_ ? chunks : 0))
      return Wrong(updates_.size(), " UPDATEs for ", chunks, " chunks");
    for (size_t u = 0; u < summed_.size(); ++u) {
      if (train_ && static_cast<int64_t>(summed_[u].size()) != Contributions(u))
        return Wrong("unit ", u, ": ", summed_[u].size(), " gradients enter the sum, not ", Contributions(u));
    }
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const bool train_;
  int head_ = -1;
  std::vector<std::vector<int32_t>> units_;  // by block
  std::vector<int64_t> uses_;                // by unit: blocks
  int32_t at_ = 0;
  size_t next_ = 0;  // operand
  int64_t clips_ = 0, commits_ = 0;
  std::set<std::pair<int32_t, int32_t>> forwards_, backwards_, updates_;
  std::set<int32_t> norms_;
  std::vector<std::set<std::pair<int32_t, int32_t>>> summed_;  // by unit
};

// ---- Happens-before, and what every byte holds.

// Operations of all steps are numbered `step * ops + index`.
class RunCheck {
 public:
  explicit RunCheck(const StepPlan& plan)
      : plan_(plan),
        train_(plan.kind == PlanKind::kTrain),
        ops_(static_cast<int32_t>(plan.ops.size())),
        lanes_(plan.lanes.size()),
        clocks_(static_cast<size_t>(kSteps) * ops_ * lanes_, -1),
        last_on_lane_(lanes_, -1) {}

  absl::Status Run() {
    LoadHomes();
    for (int32_t step = 0; step < kSteps; ++step) {
      for (int32_t i = 0; i < ops_; ++i) {
        step_ = step;
        at_ = i;
        Advance();
        for (const Operand& operand : op().operands) {
          if (operand.bytes > 0) STRATA_RETURN_IF_ERROR(Access_(operand));
        }
        STRATA_RETURN_IF_ERROR(CheckOrder());
      }
    }
    return absl::OkStatus();
  }

 private:
  // What a byte range holds. `version`: optimizer steps done for parameters and records, else the step.
  // `shift`: where the content's first byte would lie in the slot.
  struct Cell {
    Content content;
    int64_t version = -1;
    int64_t shift = 0;
    bool defined = false;

    bool operator==(const Cell&) const = default;
  };
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    Cell cell;
    int32_t writer = -1;
    std::vector<std::pair<int32_t, int32_t>> readers;  // (lane, last number)
  };

  const Op& op() const { return plan_.ops[at_]; }
  int32_t number() const { return step_ * ops_ + at_; }
  int32_t* ClockOf(int32_t number) { return clocks_.data() + static_cast<size_t>(number) * lanes_; }
  bool Before(int32_t earlier, int32_t later) {
    return ClockOf(later)[plan_.ops[earlier % ops_].lane] >= earlier;
  }

  // The clock of an operation: the latest of each lane that is over when it starts.
  void Advance() {
    int32_t* clock = ClockOf(number());
    const auto join = [&](int32_t other) {
      const int32_t* theirs = ClockOf(other);
      for (size_t l = 0; l < lanes_; ++l) clock[l] = std::max(clock[l], theirs[l]);
      int32_t& own = clock[plan_.ops[other % ops_].lane];
      own = std::max(own, other);
    };
    if (last_on_lane_[op().lane] >= 0) join(last_on_lane_[op().lane]);
    last_on_lane_[op().lane] = number();
    for (const Dependency& on : op().dependencies) {
      if (step_ >= on.distance) join((step_ - on.distance) * ops_ + on.op);
    }
  }

  Cell CellOf(const Content& content, const Operand& operand) const {
    Cell cell;
    cell.defined = true;
    cell.content = content;
    cell.version = train_ ? step_ : 0;
    cell.shift = operand.offset;
    int64_t begin = 0, end = 0;
    if (UnitRange(plan_, content, &begin, &end)) cell.shift -= begin;
    if (content.kind != ContentKind::kRecord) cell.content.chunk = -1;
    const bool state = content.kind == ContentKind::kParams || content.kind == ContentKind::kRecord;
    cell.version = state ? (train_ ? step_ : 0) + content.updates : step_;
    cell.content.updates = 0;
    return cell;
  }

  void LoadHomes() {
    segments_.resize(plan_.slots.size());
    for (size_t s = 0; s < segments_.size(); ++s) {
      segments_[s].resize(1);
      segments_[s][0].end = plan_.slots[s].bytes;
    }
    for (size_t u = 0; u < plan_.homes.size(); ++u) {
      for (size_t k = 0; k < plan_.homes[u].size(); ++k) {
        for (const Operand& home : Homes(u, k, 0)) {
          for (Segment* segment : Range(home.slot, home.offset, home.bytes))
            segment->cell = CellOf(home.content, home);
        }
      }
    }
  }

  // The chunk's record and parameters in their homes, as operands.
  std::array<Operand, 2> Homes(size_t u, size_t k, int8_t updates) const {
    const ChunkHome& home = plan_.homes[u][k];
    std::array<Operand, 2> operands;
    operands[0].slot = home.record_slot;
    operands[0].offset = home.record_offset;
    operands[0].content.kind = ContentKind::kRecord;
    operands[1].slot = home.params_slot;
    operands[1].offset = home.params_offset;
    operands[1].content.kind = ContentKind::kParams;
    for (Operand& operand : operands) {
      operand.content.unit = static_cast<int32_t>(u);
      operand.content.chunk = static_cast<int32_t>(k);
      operand.content.updates = updates;
      int64_t begin = 0, end = 0;
      UnitRange(plan_, operand.content, &begin, &end);
      operand.bytes = end - begin;
    }
    return operands;
  }

  // The segments of [offset, offset + bytes), cut to it. Valid until the next call.
  std::vector<Segment*>& Range(int32_t slot, int64_t offset, int64_t bytes) {
    std::vector<Segment>& all = segments_[slot];
    Cut(&all, offset);
    Cut(&all, offset + bytes);
    range_.clear();
    auto segment = std::lower_bound(all.begin(), all.end(), offset,
                                    [](const Segment& s, int64_t at) { return s.begin < at; });
    for (; segment != all.end() && segment->begin < offset + bytes; ++segment) range_.push_back(&*segment);
    return range_;
  }

  static void Cut(std::vector<Segment>* all, int64_t at) {
    auto segment =
        std::upper_bound(all->begin(), all->end(), at, [](int64_t a, const Segment& s) { return a < s.end; });
    if (segment == all->end() || segment->begin >= at) return;
    Segment rest = *segment;
    segment->end = at;
    rest.begin = at;
    all->insert(segment + 1, std::move(rest));
  }

  // Bytes of the operand that the content fills; a transfer's rounding is beyond them.
  int64_t ContentBytes(const Operand& operand) const {
    int64_t begin = 0, end = 0;
    return UnitRange(plan_, operand.content, &begin, &end) ? end - begin : operand.bytes;
  }

  absl::Status Access_(const Operand& operand) {
    const int64_t content_bytes = ContentBytes(operand);
    STRATA_RETURN_IF_ERROR(AccessRange(operand, operand.offset, content_bytes, true));
    if (operand.bytes == content_bytes) return absl::OkStatus();
    return AccessRange(operand, operand.offset + content_bytes, operand.bytes - content_bytes, false);
  }

  absl::Status AccessRange(const Operand& operand, int64_t offset, int64_t bytes, bool content) {
    const bool reads = operand.access != Access::kWrite;
    const bool writes = operand.access != Access::kRead;
    Cell expected, written;
    if (content && reads)
      expected = CellOf(operand.access == Access::kRead ? operand.content : operand.before, operand);
    if (content && writes) written = CellOf(operand.content, operand);
    for (Segment* segment : Range(operand.slot, offset, bytes)) {
      if (segment->writer >= 0 && segment->writer != number() && !Before(segment->writer, number()))
        return Race(operand, segment->writer);
      if (content && reads && !(segment->cell == expected)) return WrongContent(operand, expected, *segment);
      if (!writes) {
        NoteReader(segment);
        continue;
      }
      for (const auto& [lane, reader] : segment->readers) {
        if (reader != number() && !Before(reader, number())) return Race(operand, reader);
      }
      segment->readers.clear();
      segment->writer = number();
      segment->cell = written;
    }
    return absl::OkStatus();
  }

  void NoteReader(Segment* segment) {
    for (auto& [lane, last] : segment->readers) {
      if (lane == op().lane) {
        last = number();
        return;
      }
    }
    segment->readers.emplace_back(op().lane, number());
  }

  absl::Status Race(const Operand& operand, int32_t other) const {
    return Wrong(DescribeOp(plan_, at_), " may use ", DescribeSlot(plan_, operand.slot), " for ",
                 Describe(operand.content), " while ", DescribeOp(plan_, other % ops_),
                 other / ops_ == step_ ? "" : " of the step before", " still does: nothing orders them");
  }

  absl::Status WrongContent(const Operand& operand, const Cell& expected, const Segment& segment) const {
    const auto text = [](const Cell& cell) {
      if (!cell.defined) return std::string("nothing");
      return absl::StrCat(Describe(cell.content), " of step ", cell.version, " at ", cell.shift);
    };
    return Wrong(DescribeOp(plan_, at_), " of step ", step_, " reads ", DescribeSlot(plan_, operand.slot),
                 " [", segment.begin, ", ", segment.end, "): expects ", text(expected), ", finds ",
                 text(segment.cell),
                 segment.writer >= 0 ? absl::StrCat(" from ", DescribeOp(plan_, segment.writer % ops_)) : "");
  }

  // Order that no operand shows.
  absl::Status CheckOrder() {
    switch (op().kind) {
      case OpKind::kNorm:
        norms_.push_back(number());
        if (step_ > 0 && !Before(clip_, number()))
          return Wrong(DescribeOp(plan_, at_),
                       " may overwrite norms that CLIP of the step before still reads");
        break;
      case OpKind::kLoss:
        losses_.push_back(number());
        break;
      case OpKind::kClip:
        clip_ = number();
        if (step_ > 0 && !Before(commit_, number()))
          return Wrong(DescribeOp(plan_, at_), " does not wait for COMMIT of the step before");
        STRATA_RETURN_IF_ERROR(After(norms_));
        STRATA_RETURN_IF_ERROR(After(losses_));
        norms_.clear();
        break;
      case OpKind::kUpdate:
        if (plan_.mode != Mode::kOverlap && (clip_ / ops_ != step_ || clip_ < 0 || !Before(clip_, number())))
          return Wrong(DescribeOp(plan_, at_), " does not wait for CLIP");
        break;
      case OpKind::kCommit:
        return CheckCommit();
      default:
        break;
    }
    if (step_ > 0 && (ChangesState() || plan_.mode == Mode::kSync) && !Before(commit_, number()))
      return Wrong(DescribeOp(plan_, at_), " does not wait for COMMIT of the step before");
    return absl::OkStatus();
  }

  bool ChangesState() const {
    for (const Operand& operand : op().operands) {
      if (operand.access != Access::kRead && operand.content.updates > 0) return true;
    }
    return false;
  }

  absl::Status After(const std::vector<int32_t>& all) {
    for (const int32_t other : all) {
      if (!Before(other, number()))
        return Wrong(DescribeOp(plan_, at_), " does not wait for ", DescribeOp(plan_, other % ops_));
    }
    return absl::OkStatus();
  }

  absl::Status CheckCommit() {
    commit_ = number();
    losses_.clear();
    for (int32_t i = 0; i < at_; ++i) {
      if (!Before(step_ * ops_ + i, number()))
        return Wrong(DescribeOp(plan_, i), " may outlive COMMIT of its step");
    }
    for (size_t u = 0; u < plan_.homes.size(); ++u) {
      for (size_t k = 0; k < plan_.homes[u].size(); ++k) {
        for (const Operand& home : Homes(u, k, train_ ? 1 : 0)) {
          const Cell expected = CellOf(home.content, home);
          for (const Segment* segment : Range(home.slot, home.offset, home.bytes)) {
            if (!(segment->cell == expected)) return WrongContent(home, expected, *segment);
          }
        }
      }
    }
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const bool train_;
  const int32_t ops_;
  const size_t lanes_;
  std::vector<int32_t> clocks_;
  std::vector<int32_t> last_on_lane_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<Segment*> range_;
  int32_t step_ = 0;
  int32_t at_ = 0;
  int32_t clip_ = -1, commit_ = -1;
  std::vector<int32_t> norms_, losses_;  // of this step
};

}  // namespace

absl::Status VerifyPlan(const StepPlan& plan) {
  STRATA_RETURN_IF_ERROR(CheckSlots(plan));
  STRATA_RETURN_IF_ERROR(CheckChunks(plan));
  STRATA_RETURN_IF_ERROR(CheckStateStaging(plan));
  STRATA_RETURN_IF_ERROR(CheckOps(plan));
  STRATA_RETURN_IF_ERROR(StepCheck(plan).Run());
  return RunCheck(plan).Run();
}

absl::Status VerifyPlan(const StepPlan& plan, const std::array<int64_t, kTierCount>& budget) {
  for (int t = 0; t < kTierCount; ++t) {
    if (plan.arena_bytes[t] > budget[t])
      return absl::ResourceExhaustedError(absl::StrCat("the plan takes ", plan.arena_bytes[t], " bytes of ",
                                                       Name(static_cast<Tier>(t)), " memory, the budget is ",
                                                       budget[t]));
  }
  return VerifyPlan(plan);
}

}  // namespace strata
