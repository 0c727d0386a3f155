#include "offload/plan/dependencies.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// Operations are numbered over both copies: `copy * ops + index`. A clock holds, per lane, one more than the
// largest number on that lane that has happened.
class Analysis {
 public:
  explicit Analysis(const std::vector<ExplicitOrder>& orders, StepPlan* plan)
      : plan_(*plan),
        ops_(static_cast<int32_t>(plan->ops.size())),
        lanes_(plan->lanes.size()),
        slots_(plan->slots.size()),
        clocks_(2 * plan->ops.size() * lanes_, 0),
        last_on_lane_(lanes_, -1),
        orders_(plan->ops.size()) {
    for (size_t s = 0; s < slots_.size(); ++s)
      slots_[s].push_back(Segment{0, plan->slots[s].bytes, -1, std::vector<int32_t>(lanes_, -1)});
    for (const ExplicitOrder& order : orders) orders_[order.op].push_back(order.on);
  }

  void Run() {
    for (int32_t copy = 0; copy < 2; ++copy) {
      for (int32_t i = 0; i < ops_; ++i) Visit(copy, i);
    }
  }

 private:
  struct Segment {
    int64_t begin;
    int64_t end;
    int32_t writer;                // last, or -1
    std::vector<int32_t> readers;  // since then, the last of each lane; -1: none
  };

  int32_t* ClockOf(int32_t number) { return clocks_.data() + static_cast<size_t>(number) * lanes_; }

  void Visit(int32_t copy, int32_t i) {
    const int32_t number = copy * ops_ + i;
    Op& op = plan_.ops[i];
    waits_.clear();
    for (const Operand& operand : op.operands) {
      if (operand.bytes > 0) Access(operand, number, op.lane);
    }
    for (const Dependency& on : orders_[i]) {
      if (copy >= on.distance) waits_.push_back((copy - on.distance) * ops_ + on.op);
    }
    Reduce(number, op);
    if (copy == 0) return;
    op.dependencies.clear();
    for (const int32_t wait : kept_)
      op.dependencies.push_back(wait >= ops_ ? Dependency{wait - ops_, 0} : Dependency{wait, 1});
  }

  void Access(const Operand& operand, int32_t number, int32_t lane) {
    std::vector<Segment>& segments = slots_[operand.slot];
    SplitAt(&segments, operand.offset);
    SplitAt(&segments, operand.offset + operand.bytes);
    const bool writes = operand.access != Access::kRead;
    auto segment = std::lower_bound(segments.begin(), segments.end(), operand.offset,
                                    [](const Segment& s, int64_t at) { return s.begin < at; });
    for (; segment != segments.end() && segment->begin < operand.offset + operand.bytes; ++segment) {
      if (segment->writer >= 0 && segment->writer != number) waits_.push_back(segment->writer);
      if (!writes) {
        segment->readers[lane] = number;
        continue;
      }
      for (int32_t& reader : segment->readers) {
        if (reader >= 0 && reader != number) waits_.push_back(reader);
        reader = -1;
      }
      segment->writer = number;
    }
  }

  static void SplitAt(std::vector<Segment>* segments, int64_t at) {
    auto segment = std::lower_bound(segments->begin(), segments->end(), at,
                                    [](const Segment& s, int64_t a) { return s.end <= a; });
    if (segment == segments->end() || segment->begin >= at) return;
    Segment rest = *segment;
    segment->end = at;
    rest.begin = at;
    segments->insert(segment + 1, std::move(rest));
  }

  // Latest first: only a later operation can imply an earlier one, so what is not implied yet is needed.
  void Reduce(int32_t number, const Op& op) {
    int32_t* clock = ClockOf(number);
    if (const int32_t before = last_on_lane_[op.lane]; before >= 0) Happened(before, op.lane, clock);
    last_on_lane_[op.lane] = number;
    std::sort(waits_.begin(), waits_.end(), std::greater<>());
    kept_.clear();
    for (const int32_t wait : waits_) {
      const int32_t lane = plan_.ops[wait % ops_].lane;
      if (clock[lane] > wait) continue;
      kept_.push_back(wait);
      Happened(wait, lane, clock);
    }
  }

  void Happened(int32_t other, int32_t lane, int32_t* clock) {
    const int32_t* theirs = ClockOf(other);
    for (size_t l = 0; l < lanes_; ++l) clock[l] = std::max(clock[l], theirs[l]);
    clock[lane] = std::max(clock[lane], other + 1);
  }

  StepPlan& plan_;
  const int32_t ops_;
  const size_t lanes_;
  std::vector<std::vector<Segment>> slots_;
  std::vector<int32_t> clocks_;
  std::vector<int32_t> last_on_lane_;
  std::vector<std::vector<Dependency>> orders_;
  std::vector<int32_t> waits_, kept_;
};

}  // namespace

void DeriveDependencies(const std::vector<ExplicitOrder>& orders, StepPlan* plan) {
  Analysis(orders, plan).Run();
}

}  // namespace strata
