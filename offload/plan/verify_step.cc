// Operands by kind, and the whole step.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/status.h"
#include "offload/plan/plan_text.h"
#include "offload/plan/verifier_util.h"

namespace strata::verifier {
namespace {

class StepCheck {
 public:
  explicit StepCheck(const StepPlan& plan)
      : plan_(plan), train_(plan.kind == PlanKind::kTrain), summed_(plan.chunks.size()) {}

  absl::Status Run() {
    if (plan_.micro_batches < 1) return Wrong(plan_.micro_batches, " micro-batches");
    if (plan_.ops.empty() || plan_.ops.back().kind != OpKind::kCommit)
      return Wrong("the last operation is not COMMIT");
    STRATA_RETURN_IF_ERROR(CollectBlocks());
    for (at_ = 0; at_ < static_cast<int32_t>(plan_.ops.size()); ++at_) {
      next_ = 0;
      STRATA_RETURN_IF_ERROR(CheckLane());
      STRATA_RETURN_IF_ERROR(CheckSpeculation());
      STRATA_RETURN_IF_ERROR(CheckFrozen());
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
    const bool either = op().kind == OpKind::kAccumulate || op().kind == OpKind::kNorm ||
                        op().kind == OpKind::kUpdate || op().kind == OpKind::kHandOver;
    if (either ? lane != LaneKind::kCpu && lane != LaneKind::kCompute : lane != LaneOf(op().kind))
      return Wrong(DescribeOp(plan_, at_), ": the wrong kind of lane");
    if (plan_.lanes[op().lane].direct != IsDirect(op().kind))
      return Wrong(DescribeOp(plan_, at_), ": direct operations and others on one lane");
    return absl::OkStatus();
  }

  // Only an optimizer's traffic can be done again.
  absl::Status CheckSpeculation() {
    const OpKind kind = op().kind;
    const bool can =
        kind == OpKind::kUpdate || IsStoreTransfer(kind) || kind == OpKind::kH2D || kind == OpKind::kD2H;
    if (op().speculation != Speculation::kNone && !can)
      return Wrong(DescribeOp(plan_, at_), " cannot be assumed or done again");
    return absl::OkStatus();
  }

  // Of what is not trained there are parameters, which stay, and gradients, which end where they are made.
  absl::Status CheckFrozen() {
    for (const Operand& operand : op().operands) {
      const Content& content = operand.content;
      if (!IsOfUnit(content.kind) || !plan_.frozen[content.unit]) continue;
      const bool stays = content.kind == ContentKind::kParams && content.updates == 0;
      const bool ends = content.kind == ContentKind::kGradient && IsBlock(op().kind);
      if (!stays && !ends)
        return Wrong(DescribeOp(plan_, at_), ": ", Describe(content), " of unit ", content.unit,
                     ", which is frozen");
    }
    return absl::OkStatus();
  }

  static LaneKind LaneOf(OpKind kind) {
    switch (kind) {
      case OpKind::kBatch:
      case OpKind::kCommit:
        return LaneKind::kControl;
      case OpKind::kRead:
      case OpKind::kReadDirect:
        return LaneKind::kNvmeRead;
      case OpKind::kWrite:
      case OpKind::kWriteDirect:
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
      case OpKind::kHandOver:
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
      case OpKind::kReadDirect:
        return CheckCopy(Tier::kNvme, Tier::kDevice);
      case OpKind::kWriteDirect:
        return CheckCopy(Tier::kDevice, Tier::kNvme);
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
      case OpKind::kHandOver:
        return CheckHandOver();
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
    if (!IsStoreTransfer(op().kind)) return absl::OkStatus();
    const Operand& item = from == Tier::kNvme ? source : destination;
    const Operand& memory = from == Tier::kNvme ? destination : source;
    if (item.offset != 0 || item.bytes != plan_.slots[item.slot].bytes || memory.offset % kBlock != 0)
      return Wrong(DescribeOp(plan_, at_), ": the NVMe store moves whole items to and from whole blocks");
    const ContentKind kind = item.content.kind;
    const bool state = kind == ContentKind::kParams || kind == ContentKind::kRecord;
    if (state != plan_.slots[item.slot].persistent)
      return Wrong(DescribeOp(plan_, at_), ": ", Describe(item.content), " in ",
                   DescribeSlot(plan_, item.slot),
                   state ? ", which has no versions" : ", which has versions of a state");
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
    const bool again = op().kind == OpKind::kRecompute;
    // The saved rest alone is computed from the saved part.
    const bool rest_only = again && !op().operands.empty() && op().operands[0].access == Access::kRead;
    STRATA_RETURN_IF_ERROR(Expect(rest_only ? Access::kRead : Access::kWrite, Tier::kDevice,
                                  Of(ContentKind::kSaved, block, mb)));
    STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice, Of(ContentKind::kSavedRest, block, mb)));
    if (!rest_only) {
      STRATA_RETURN_IF_ERROR(ExpectInput());
      const bool unused = again && next_ < op().operands.size() &&
                          op().operands[next_].content.kind == ContentKind::kWorkspace;
      STRATA_RETURN_IF_ERROR(Expect(Access::kWrite, Tier::kDevice,
                                    unused ? Content() : Of(ContentKind::kActivation, block + 1, mb)));
    }
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
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, Tier::kDevice, Of(ContentKind::kSavedRest, block, mb)));
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
    const bool delayed = plan_.mode == Mode::kDelayed;
    Content pending = before;
    pending.kind = ContentKind::kPending;
    STRATA_RETURN_IF_ERROR(
        Expect(Access::kRead, LaneTier(), delayed ? pending : CompleteSum(op().unit, op().chunk)));
    const Speculation speculation = op().speculation;
    if (delayed && speculation != Speculation::kNone)
      return Wrong(DescribeOp(plan_, at_), " assumes what CLIP of the step before has decided");
    if (!delayed && (clips_ > 0) != (speculation != Speculation::kAssumed))
      return Wrong(DescribeOp(plan_, at_), clips_ > 0 ? " assumes what CLIP has decided" : " is before CLIP");
    std::set<std::pair<int32_t, int32_t>>& done = speculation == Speculation::kRedo ? redone_ : updates_;
    if (!done.insert({op().unit, op().chunk}).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    if (speculation == Speculation::kAssumed) assumed_.insert({op().unit, op().chunk});
    return Expect(Access::kWrite, LaneTier(), params);
  }

  absl::Status CheckHandOver() {
    STRATA_RETURN_IF_ERROR(CheckUnit(false));
    if (!handed_.insert(op().unit).second) return Wrong(DescribeOp(plan_, at_), ": twice");
    STRATA_RETURN_IF_ERROR(Expect(Access::kRead, LaneTier(), CompleteSum(op().unit, -1)));
    Content pending;
    pending.kind = ContentKind::kPending;
    pending.unit = op().unit;
    pending.updates = 1;
    return Expect(Access::kWrite, LaneTier(), pending);
  }

  absl::Status CheckWhole() {
    const size_t mbs = static_cast<size_t>(plan_.micro_batches);
    if (commits_ != 1) return Wrong(commits_, " COMMITs");
    if (forwards_.size() != mbs * head_) return Wrong(forwards_.size(), " FORWARDs, not ", mbs * head_);
    const size_t backwards = train_ ? mbs * (head_ + 1) : mbs;
    if (backwards_.size() != backwards)
      return Wrong(backwards_.size(), " LOSSes and BACKWARDs, not ", backwards);
    if (clips_ != (train_ ? 1 : 0)) return Wrong(clips_, " CLIPs");
    const auto trained = static_cast<size_t>(std::count(plan_.frozen.begin(), plan_.frozen.end(), false));
    if (norms_.size() != (train_ ? trained : 0))
      return Wrong(norms_.size(), " NORMs for ", trained, " units");
    if (handed_.size() != (train_ && !plan_.pending.empty() ? trained : 0))
      return Wrong(handed_.size(), " HAND_OVERs for the pending gradients of ", trained, " units");
    if (assumed_ != redone_)
      return Wrong(assumed_.size(), " UPDATEs before CLIP and ", redone_.size(), " that can replace them");
    size_t chunks = 0;
    for (size_t u = 0; u < plan_.chunks.size(); ++u) chunks += plan_.frozen[u] ? 0 : plan_.chunks[u].size();
    if (updates_.size() != (train_ ? chunks : 0))
      return Wrong(updates_.size(), " UPDATEs for ", chunks, " chunks");
    for (size_t u = 0; u < summed_.size(); ++u) {
      if (train_ && !plan_.frozen[u] && static_cast<int64_t>(summed_[u].size()) != Contributions(u))
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
  std::set<std::pair<int32_t, int32_t>> forwards_, backwards_, updates_, assumed_, redone_;
  std::set<int32_t> norms_, handed_;
  std::vector<std::set<std::pair<int32_t, int32_t>>> summed_;  // by unit
};

}  // namespace

absl::Status CheckStep(const StepPlan& plan) { return StepCheck(plan).Run(); }

}  // namespace strata::verifier
