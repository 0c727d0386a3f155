#include "offload/plan/mode_order.h"

#include <utility>

namespace strata {
namespace {

class Orders {
 public:
  Orders(const StepPlan& plan, const StepMarks& marks) : plan_(plan), marks_(marks) {}

  std::vector<ExplicitOrder> Make() {
    EndWithCommit();
    if (plan_.kind == PlanKind::kTrain) {
      AroundClip();
      AroundUpdates();
    }
    if (plan_.mode == Mode::kSync) StartAfterCommit();
    return std::move(orders_);
  }

 private:
  void Order(int32_t op, int32_t on, int32_t distance = 0) {
    orders_.push_back(ExplicitOrder{op, Dependency{on, distance}});
  }

  // A step is over when all of it is: lanes are FIFO, so the last operation of each stands for the others.
  void EndWithCommit() {
    std::vector<int32_t> last(plan_.lanes.size(), -1);
    for (int32_t i = 0; i < marks_.commit; ++i) last[plan_.ops[i].lane] = i;
    for (const int32_t op : last) {
      if (op >= 0) Order(marks_.commit, op);
    }
  }

  void AroundClip() {
    Order(marks_.clip, marks_.commit, 1);  // CLIP decides what the step before has already published.
    for (const int32_t op : marks_.norms) Order(marks_.clip, op);
    for (const int32_t op : marks_.losses) {
      Order(marks_.clip, op);
      // The loss scale of a step is decided by the gradients of the step before.
      if (plan_.compute_dtype == DType::kF16) Order(op, marks_.clip, 1);
    }
    // The leaves of the norm are written by NORM and read by CLIP but stand in no slot.
    for (const int32_t op : marks_.norms) Order(op, marks_.clip, 1);
  }

  void AroundUpdates() {
    for (const int32_t op : marks_.updates) {
      // State changes only after the step before is committed: so a step is atomic, COMMIT sees exactly
      // its own step in every tier, and no NVMe item ever needs a third version.
      Order(op, marks_.commit, 1);
      if (plan_.ops[op].speculation == Speculation::kAssumed || plan_.mode == Mode::kDelayed) continue;
      Order(op, marks_.clip);
      Order(op, marks_.last_backward);
    }
    for (const int32_t op : marks_.hand_overs) Order(op, marks_.commit, 1);
    for (int32_t op = marks_.clip; op < marks_.commit; ++op) {
      if (plan_.ops[op].speculation == Speculation::kRedo) Order(op, marks_.clip);
    }
  }

  void StartAfterCommit() {
    std::vector<bool> seen(plan_.lanes.size(), false);
    for (int32_t i = 0; i < static_cast<int32_t>(plan_.ops.size()); ++i) {
      if (seen[plan_.ops[i].lane]) continue;
      seen[plan_.ops[i].lane] = true;
      Order(i, marks_.commit, 1);
    }
  }

  const StepPlan& plan_;
  const StepMarks& marks_;
  std::vector<ExplicitOrder> orders_;
};

}  // namespace

std::vector<ExplicitOrder> OrderByMode(const StepPlan& plan, const StepMarks& marks) {
  return Orders(plan, marks).Make();
}

}  // namespace strata
