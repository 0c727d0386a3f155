// Happens-before, and what every byte holds.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/status.h"
#include "offload/plan/plan_text.h"
#include "offload/plan/verifier_util.h"

namespace strata::verifier {
namespace {

constexpr int32_t kSteps = 3;

// Operations of all steps are numbered `step * ops + index`. `redo`: CLIP of every step finds what was
// assumed wrong, so what assumed operations have made of the state must be replaced; else redo operations do
// nothing. Every step leaves the same contents either way, so steps of both sorts may follow each other.
class RunCheck {
 public:
  // `read`: by operation, whether what it writes is ever read; added to.
  RunCheck(const StepPlan& plan, bool redo, std::vector<bool>* read)
      : plan_(plan),
        redo_(redo),
        read_(*read),
        train_(plan.kind == PlanKind::kTrain),
        sizes_(plan),
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
          if (operand.bytes > 0 && (redo_ || op().speculation != Speculation::kRedo))
            STRATA_RETURN_IF_ERROR(Access_(operand));
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
    bool assumed = false;  // of an UPDATE whose assumption proves wrong

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
    const bool state = content.kind == ContentKind::kParams || content.kind == ContentKind::kRecord ||
                       content.kind == ContentKind::kPending;
    const bool stays = !train_ || (state && plan_.frozen[content.unit]);
    cell.version = state ? (stays ? 0 : step_) + content.updates : step_;
    cell.content.updates = 0;
    cell.assumed = redo_ && state && content.updates > 0 && op().speculation == Speculation::kAssumed;
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
    KeepVersions();
  }

  // An item with versions still has the one of this step's start when it has been written.
  void KeepVersions() {
    start_.resize(plan_.slots.size());
    for (size_t s = 0; s < start_.size(); ++s) {
      if (plan_.slots[s].tier == Tier::kNvme && plan_.slots[s].persistent) start_[s] = segments_[s][0].cell;
    }
  }

  // The chunk's record, parameters and, in mode delayed, pending gradient in their homes, as operands.
  absl::InlinedVector<Operand, 3> Homes(size_t u, size_t k, int8_t updates) const {
    const ChunkHome& home = plan_.homes[u][k];
    absl::InlinedVector<Operand, 3> operands(plan_.pending.empty() ? 2 : 3);
    operands[0].slot = home.record_slot;
    operands[0].offset = home.record_offset;
    operands[0].content.kind = ContentKind::kRecord;
    operands[1].slot = home.params_slot;
    operands[1].offset = home.params_offset;
    operands[1].content.kind = ContentKind::kParams;
    if (!plan_.pending.empty()) {
      operands[2].slot = plan_.pending[u];
      operands[2].offset = plan_.chunks[u][k].begin * AccSize(plan_);
      operands[2].content.kind = ContentKind::kPending;
    }
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
    if (UnitRange(plan_, operand.content, &begin, &end)) return end - begin;
    return IsOfBlock(operand.content.kind) ? sizes_.Of(operand.content) : operand.bytes;
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
      if (content && reads && !(segment->cell == expected) && !(start_[operand.slot] == expected))
        return WrongContent(operand, expected, *segment);
      if (content && reads && segment->cell == expected) NoteRead(*segment);
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

  void NoteRead(const Segment& segment) {
    if (segment.writer >= 0) read_[segment.writer % ops_] = true;
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
        if (plan_.kind == PlanKind::kTrain && plan_.compute_dtype == DType::kF16 && step_ > 0 &&
            !Before(clip_, number()))
          return Wrong(DescribeOp(plan_, at_),
                       " does not wait for CLIP of the step before, which decides the loss scale");
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
        if (op().speculation == Speculation::kNone && plan_.mode != Mode::kDelayed && !AfterClip())
          return Wrong(DescribeOp(plan_, at_), " does not wait for CLIP");
        break;
      case OpKind::kCommit:
        return CheckCommit();
      default:
        break;
    }
    if (op().speculation == Speculation::kRedo && !AfterClip())
      return Wrong(DescribeOp(plan_, at_), " does not wait for CLIP, which decides whether it runs");
    if (step_ > 0 && (ChangesState() || plan_.mode == Mode::kSync) && !Before(commit_, number()))
      return Wrong(DescribeOp(plan_, at_), " does not wait for COMMIT of the step before");
    return absl::OkStatus();
  }

  bool AfterClip() { return clip_ >= 0 && clip_ / ops_ == step_ && Before(clip_, number()); }

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
        for (const Operand& home : Homes(u, k, train_ && !plan_.frozen[u] ? 1 : 0)) {
          const Cell expected = CellOf(home.content, home);
          for (const Segment* segment : Range(home.slot, home.offset, home.bytes)) {
            if (!(segment->cell == expected)) return WrongContent(home, expected, *segment);
            NoteRead(*segment);
          }
        }
      }
    }
    KeepVersions();
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const bool redo_;
  std::vector<bool>& read_;
  const bool train_;
  const BlockSizes sizes_;
  const int32_t ops_;
  const size_t lanes_;
  std::vector<int32_t> clocks_;
  std::vector<int32_t> last_on_lane_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<Segment*> range_;
  std::vector<Cell> start_;  // by slot: NVMe items with versions, as this step found them
  int32_t step_ = 0;
  int32_t at_ = 0;
  int32_t clip_ = -1, commit_ = -1;
  std::vector<int32_t> norms_, losses_;  // of this step
};

}  // namespace

absl::Status CheckRuns(const StepPlan& plan) {
  std::vector<bool> read(plan.ops.size(), false);
  STRATA_RETURN_IF_ERROR(RunCheck(plan, /*redo=*/false, &read).Run());
  const bool speculates = std::any_of(plan.ops.begin(), plan.ops.end(),
                                      [](const Op& op) { return op.speculation != Speculation::kNone; });
  if (speculates) STRATA_RETURN_IF_ERROR(RunCheck(plan, /*redo=*/true, &read).Run());
  for (int32_t i = 0; i < static_cast<int32_t>(plan.ops.size()); ++i) {
    if (IsTransfer(plan.ops[i].kind) && !read[i])
      return absl::InternalError(absl::StrCat(
          "wasteful plan: ", DescribeOp(plan, i), " moves ", plan.ops[i].bytes, " bytes to ",
          DescribeSlot(plan, plan.ops[i].operands[1].slot), " in every step, and nobody reads them there"));
  }
  return absl::OkStatus();
}

}  // namespace strata::verifier
