#include "offload/plan/symbolic_run.h"

#include <vector>

#include "common/checked.h"
#include "common/random.h"

namespace strata {
namespace {

constexpr int64_t kCell = 64;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 29;
  return x;
}

class Run {
 public:
  Run(const StepPlan& plan, RedoSteps redo) : plan_(plan), redo_(redo) {
    for (const Slot& slot : plan.slots) {
      memory_.emplace_back((slot.bytes + kCell - 1) / kCell, 0);
      // Version v of an item is in buffer v & 1: COMMIT comes before the version after next.
      if (slot.tier == Tier::kNvme && slot.persistent) memory_.back().resize(2 * memory_.back().size());
    }
    for (size_t u = 0; u < plan.homes.size(); ++u) {
      for (size_t k = 0; k < plan.homes[u].size(); ++k) {
        if (!plan.pending.empty()) memory_[plan.pending[u]].assign(memory_[plan.pending[u]].size(), 7);
        ForHome(u, k, 0, [&](uint64_t* cell, uint64_t name) { *cell = name; });
      }
    }
  }

  void Execute(int32_t index, int step) {
    const Op& op = plan_.ops[index];
    step_ = step;
    const bool redo = redo_ == RedoSteps::kAll || (redo_ == RedoSteps::kOdd && step % 2 == 1);
    if (op.speculation == Speculation::kRedo && !redo) return;
    if (op.kind == OpKind::kCommit) return Commit(step);
    if (IsCopy(op)) return Copy(op);
    if (op.kind == OpKind::kForward || op.kind == OpKind::kRecompute) return Forward(op);
    if (op.kind == OpKind::kAccumulate) return Accumulate(op);
    uint64_t hash = Mix(Mix(static_cast<uint64_t>(op.kind), op.block), Mix(op.unit, op.micro_batch));
    hash = Mix(hash, op.chunk);
    if (op.speculation == Speculation::kAssumed && redo) hash = Mix(hash, 0xbad);
    if (op.kind == OpKind::kBatch) hash = Mix(hash, step);
    for (const Operand& operand : op.operands) {
      if (operand.access != Access::kWrite) hash = Read(operand, hash);
    }
    uint64_t output = 0;
    for (const Operand& operand : op.operands) {
      if (operand.access != Access::kRead) Write(operand, Mix(hash, Role(operand, &output)));
    }
    if (op.kind == OpKind::kLoss || op.kind == OpKind::kNorm) published_[step & 1] += hash;  // in any order
  }

  uint64_t digest() const { return digest_; }

 private:
  static bool IsCopy(const Op& op) {
    switch (op.kind) {
      case OpKind::kRead:
      case OpKind::kWrite:
      case OpKind::kReadDirect:
      case OpKind::kWriteDirect:
      case OpKind::kH2D:
      case OpKind::kD2H:
      case OpKind::kActIn:
      case OpKind::kActOut:
      case OpKind::kHandOver:
        return true;
      default:
        return false;
    }
  }
  // FORWARD and RECOMPUTE make the same bits from the same inputs: the saved rest from the saved part, so
  // that it can be made alone, all else from the input.
  void Forward(const Op& op) {
    uint64_t hash = Mix(Mix(static_cast<uint64_t>(OpKind::kForward), op.block), op.micro_batch);
    uint64_t rest = Mix(hash, 7);
    for (const Operand& operand : op.operands) {
      if (operand.access != Access::kRead || operand.content.kind == ContentKind::kSaved) continue;
      hash = Read(operand, hash);
      if (operand.content.kind == ContentKind::kParams) rest = Read(operand, rest);
    }
    for (const Operand& operand : op.operands) {
      if (operand.access == Access::kWrite && operand.content.kind != ContentKind::kSavedRest)
        Write(operand, Mix(hash, Role(operand, nullptr)));
    }
    // Operands 0 and 1 are the saved part and the rest, of every form.
    Write(op.operands[1], Read(op.operands[0], rest));
  }

  // Elements by themselves, so that a sum may be cut.
  void Accumulate(const Op& op) {
    for (int64_t i = 0; i < Cells(op.operands[0]); ++i) {
      uint64_t* sum = At(op.operands[0], i);
      *sum = Mix(*sum, *At(op.operands[1], i));
    }
  }

  uint64_t Read(const Operand& operand, uint64_t hash) {
    for (int64_t i = 0; i < Cells(operand); ++i) hash = Mix(hash, *At(operand, i));
    return hash;
  }
  void Write(const Operand& operand, uint64_t hash) {
    for (int64_t i = 0; i < Cells(operand); ++i) *At(operand, i) = Mix(hash, i);
  }

  // Outputs by what they are, so that operations of one kind agree on what they write.
  static uint64_t Role(const Operand& operand, uint64_t* gradients) {
    switch (operand.content.kind) {
      case ContentKind::kSaved:
        return 1;
      case ContentKind::kActivation:
        return 2;
      case ContentKind::kActGradient:
        return 3;
      case ContentKind::kRecord:
        return 4;
      case ContentKind::kParams:
        return 5;
      case ContentKind::kWorkspace:
        return 99;
      case ContentKind::kGradient:
      case ContentKind::kAccumulated:
        return 10 + (*gradients)++;
      default:
        return 6;
    }
  }
  static int64_t Cells(const Operand& operand) { return (operand.bytes + kCell - 1) / kCell; }
  uint64_t* At(const Operand& operand, int64_t i) {
    const bool stays = operand.content.unit >= 0 && plan_.frozen[operand.content.unit];
    return Home(operand.slot, operand.offset, i, stays ? 0 : step_ + operand.content.updates);
  }
  uint64_t* Home(int32_t slot, int64_t offset, int64_t i, int version) {
    const bool versions = plan_.slots[slot].tier == Tier::kNvme && plan_.slots[slot].persistent;
    const size_t half = versions ? memory_[slot].size() / 2 : 0;
    return &memory_[slot][(plan_.kind == PlanKind::kTrain ? version & 1 : 0) * half + offset / kCell + i];
  }

  void Copy(const Op& op) {
    const Operand& from = op.operands[0];
    const Operand& to = op.operands[1];
    for (int64_t i = 0; i < Cells(to); ++i) *At(to, i) = *At(from, i);
  }

  template <typename Visit>
  void ForHome(size_t u, size_t k, int version, const Visit& visit) {
    const ChunkHome& home = plan_.homes[u][k];
    const int64_t n = plan_.chunks[u][k].end - plan_.chunks[u][k].begin;
    const uint64_t name = Mix(u, k);
    for (int64_t i = 0; i < CeilDiv(RecordBytes(plan_.moments, n), kCell); ++i)
      visit(Home(home.record_slot, home.record_offset, i, version), Mix(Mix(name, 1), i));
    for (int64_t i = 0; i < n * SizeOf(plan_.compute_dtype) / kCell; ++i)
      visit(Home(home.params_slot, home.params_offset, i, version), Mix(Mix(name, 2), i));
  }

  void Commit(int step) {
    digest_ = Mix(Mix(digest_, step), published_[step & 1]);
    published_[step & 1] = 0;
    for (size_t u = 0; u < plan_.homes.size(); ++u) {
      for (size_t k = 0; k < plan_.homes[u].size(); ++k)
        ForHome(u, k, plan_.frozen[u] ? 0 : step + 1,
                [&](uint64_t* cell, uint64_t) { digest_ = Mix(digest_, *cell); });
    }
  }

  const StepPlan& plan_;
  const RedoSteps redo_;
  int step_ = 0;
  std::vector<std::vector<uint64_t>> memory_;  // by slot
  uint64_t digest_ = 0;
  uint64_t published_[2] = {0, 0};  // two steps may be in flight
};

// Which operation is next: a lane drawn with weights that stay for the whole run, so that some lanes lag far
// behind others.
class RandomOrder {
 public:
  RandomOrder(const StepPlan& plan, int steps, uint64_t seed)
      : plan_(plan), steps_(steps), random_(seed, 1), lanes_(plan.lanes.size()), done_(plan.ops.size(), -1) {
    for (size_t i = 0; i < plan.ops.size(); ++i)
      lanes_[plan.ops[i].lane].ops.push_back(static_cast<int32_t>(i));
    for (LaneState& lane : lanes_) lane.weight = uint64_t{1} << (2 * random_.Below(draw_++, 6));
  }

  // The operation and its step; false when all is done. A plan with a cycle is done early.
  bool Next(int32_t* op, int* step) {
    uint64_t total = 0;
    for (LaneState& lane : lanes_) total += lane.ready = Ready(lane) ? lane.weight : 0;
    if (total == 0) return false;
    uint64_t at = random_.Below(draw_++, total);
    for (LaneState& lane : lanes_) {
      if (at >= lane.ready) {
        at -= lane.ready;
        continue;
      }
      *op = lane.ops[lane.next];
      *step = lane.step;
      done_[*op] = lane.step;
      if (plan_.ops[*op].kind == OpKind::kCommit) committed_ = lane.step + 1;
      if (++lane.next == lane.ops.size()) {
        lane.next = 0;
        ++lane.step;
      }
      return true;
    }
    return false;
  }

 private:
  struct LaneState {
    std::vector<int32_t> ops;
    size_t next = 0;
    int step = 0;
    uint64_t weight = 1;
    uint64_t ready = 0;
  };

  bool Ready(const LaneState& lane) const {
    if (lane.ops.empty() || lane.step >= steps_ || lane.step > committed_ + 1) return false;
    for (const Dependency& on : plan_.ops[lane.ops[lane.next]].dependencies) {
      if (done_[on.op] < lane.step - on.distance) return false;
    }
    return true;
  }

  const StepPlan& plan_;
  const int steps_;
  const CounterRandom random_;
  uint64_t draw_ = 0;
  std::vector<LaneState> lanes_;
  std::vector<int> done_;
  int committed_ = 0;
};

}  // namespace

uint64_t SymbolicRun(const StepPlan& plan, int steps, std::optional<uint64_t> schedule_seed, RedoSteps redo) {
  Run run(plan, redo);
  if (!schedule_seed.has_value()) {
    for (int step = 0; step < steps; ++step) {
      for (int32_t i = 0; i < static_cast<int32_t>(plan.ops.size()); ++i) run.Execute(i, step);
    }
    return run.digest();
  }
  RandomOrder order(plan, steps, *schedule_seed);
  int32_t op = 0;
  int step = 0;
  while (order.Next(&op, &step)) run.Execute(op, step);
  return run.digest();
}

}  // namespace strata
