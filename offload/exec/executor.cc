#include "offload/exec/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr std::chrono::seconds kWaitSlice(60);
// Whether two operations touch the same bytes, and one of them changes them.
bool Conflict(const Op& a, const Op& b) {
  for (const Operand& x : a.operands) {
    for (const Operand& y : b.operands) {
      if (x.slot != y.slot || (x.access == Access::kRead && y.access == Access::kRead)) continue;
      if (x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes) return true;
    }
  }
  return false;
}

bool MovesBytes(LaneKind kind) {
  return kind == LaneKind::kNvmeRead || kind == LaneKind::kNvmeWrite || kind == LaneKind::kH2D ||
         kind == LaneKind::kD2H;
}

}  // namespace

Executor::Executor(const StepPlan& plan, const ExecutorResources& resources, const ExecutorOptions& options)
    : plan_(plan),
      speculates_(std::any_of(plan.ops.begin(), plan.ops.end(),
                              [](const Op& op) { return op.speculation != Speculation::kNone; })),
      resources_(resources),
      options_(options),
      lanes_(plan.lanes.size()),
      slot_touched_(plan.slots.size()),
      done_(plan.ops.size(), -1),
      finished_(plan.lanes.size(), -1) {}

Executor::~Executor() = default;

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const StepPlan& plan,
                                                           const ExecutorResources& resources,
                                                           const ExecutorOptions& options) {
  auto executor = std::unique_ptr<Executor>(new Executor(plan, resources, options));
  STRATA_RETURN_IF_ERROR(executor->Prepare());
  return executor;
}

absl::Status Executor::Prepare() {
  const int64_t device = plan_.arena_bytes[static_cast<int>(Tier::kDevice)];
  const int64_t host = plan_.arena_bytes[static_cast<int>(Tier::kHost)];
  if (device > resources_.device->arena_bytes()) {
    return absl::InternalError(absl::StrCat("the plan needs ", device, " device bytes, the arena has ",
                                            resources_.device->arena_bytes()));
  }
  if (host > static_cast<int64_t>(resources_.host->size())) {
    return absl::InternalError(
        absl::StrCat("the plan needs ", host, " host bytes, the arena has ", resources_.host->size()));
  }
  for (size_t u = 0; u < resources_.layout->units.size(); ++u) {
    if (plan_.frozen.size() <= u || plan_.frozen[u] != resources_.layout->units[u].frozen())
      return absl::InternalError(
          absl::StrCat("the plan and the layout disagree on whether unit ", u, " is frozen"));
  }
  if (plan_.arena_bytes[static_cast<int>(Tier::kNvme)] > 0 && resources_.store == nullptr) {
    return absl::InternalError("the plan has states on NVMe but there is no store");
  }
  if (plan_.kind == PlanKind::kTrain && plan_.compute_dtype == DType::kF16 && !options_.loss_scale) {
    return absl::InternalError("a training plan in fp16 needs a rule for the loss scale");
  }
  for (int32_t op = 0; op < static_cast<int32_t>(plan_.ops.size()); ++op) {
    lanes_[plan_.ops[op].lane].ops.push_back(op);
    std::vector<StallCause>& causes = stall_causes_.emplace_back();
    for (const Dependency& dependency : plan_.ops[op].dependencies)
      causes.push_back(StallCauseOf(plan_, plan_.ops[op], dependency));
  }
  events_.resize(2 * plan_.ops.size());
  begin_events_.resize(2 * plan_.ops.size());
  end_nanos_.resize(3 * plan_.ops.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = lanes_[i];
    const LaneKind kind = plan_.lanes[i].kind;
    traces_.emplace_back(options_.trace_capacity);
    if (IsDeviceLane(plan_.lanes[i])) {
      STRATA_ASSIGN_OR_RETURN(lane.stream, resources_.device->CreateStream());
      STRATA_ASSIGN_OR_RETURN(lane.drained, resources_.device->CreateEvent());
      for (int32_t op : lane.ops) {
        STRATA_ASSIGN_OR_RETURN(events_[2 * op], resources_.device->CreateEvent());
        STRATA_ASSIGN_OR_RETURN(events_[2 * op + 1], resources_.device->CreateEvent());
        if (lane.stream == nullptr) continue;
        STRATA_ASSIGN_OR_RETURN(begin_events_[2 * op], resources_.device->CreateEvent());
        STRATA_ASSIGN_OR_RETURN(begin_events_[2 * op + 1], resources_.device->CreateEvent());
      }
    }
    if (kind == LaneKind::kNvmeRead || kind == LaneKind::kNvmeWrite)
      STRATA_RETURN_IF_ERROR(PrepareIo(static_cast<int>(i)), "I/O engine of lane ", LaneName(plan_.lanes[i]));
  }
  MakeRanges();
  return PrepareResults();
}

absl::Status Executor::PrepareIo(int index) {
  LaneState& lane = lanes_[index];
  const Lane& planned = plan_.lanes[index];
  STRATA_ASSIGN_OR_RETURN(
      auto engine, planned.direct ? resources_.make_direct_engine()
                                  : resources_.make_engine(
                                        planned.kind == LaneKind::kNvmeRead ? IoOp::kRead : IoOp::kWrite));
  lane.engine = std::make_unique<MeteredIoEngine>(std::move(engine), *resources_.clock);
  if (planned.direct) {
    STRATA_RETURN_IF_ERROR(resources_.store->RegisterWith(*lane.engine));
    int64_t largest = 0;
    for (const int32_t op : lane.ops) largest = std::max(largest, plan_.ops[op].bytes);
    STRATA_ASSIGN_OR_RETURN(lane.checksum, DeviceChecksum::Create(*resources_.device, largest));
    return absl::OkStatus();
  }
  // Registrations are optional: what could not be had is in the engine's report.
  (void)lane.engine->RegisterBuffer(resources_.host->span());
  (void)resources_.store->RegisterWith(*lane.engine);
  io_reports_.push_back(lane.engine->report());
  return absl::OkStatus();
}

// Two sets, by parity of the step.
absl::Status Executor::PrepareResults() {
  const int64_t losses = plan_.micro_batches, norms = static_cast<int64_t>(norm_ranges_.size());
  const int64_t loss_bytes = losses * static_cast<int64_t>(sizeof(std::array<double, 2>));
  const int64_t set_bytes = loss_bytes + norms * static_cast<int64_t>(sizeof(double) + sizeof(int64_t));
  STRATA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                          resources_.device->AllocateResults(2 * set_bytes));
  for (int parity = 0; parity < 2; ++parity) {
    std::byte* const set = memory.data() + parity * set_bytes;
    std::byte* const sums = set + loss_bytes;
    StepState& step = states_[parity];
    step.results = {set, static_cast<size_t>(set_bytes)};
    step.loss = {reinterpret_cast<std::array<double, 2>*>(set), static_cast<size_t>(losses)};
    step.sum_squares = {reinterpret_cast<double*>(sums), static_cast<size_t>(norms)};
    step.first_bad = {reinterpret_cast<int64_t*>(sums + norms * static_cast<int64_t>(sizeof(double))),
                      static_cast<size_t>(norms)};
  }
  return absl::OkStatus();
}

// Padding belongs to the tensor before it: its gradient is zero, so an update leaves it zero.
void Executor::MakeRanges() {
  const std::vector<ParamUnit>& units = resources_.layout->units;
  for (size_t u = 0; u < units.size(); ++u) {
    std::vector<UpdateRange> ranges;
    first_norm_range_.push_back(norm_ranges_.size());
    for (size_t i = 0; i < units[u].tensors.size(); ++i) {
      const TensorInfo& tensor = units[u].tensors[i];
      const int64_t end =
          i + 1 < units[u].tensors.size() ? units[u].tensors[i + 1].offset : units[u].elements;
      if (!ranges.empty() && ranges.back().frozen == tensor.frozen && ranges.back().group == tensor.group) {
        ranges.back().end = end;
      } else {
        ranges.push_back({tensor.offset, end, tensor.group, tensor.frozen});
      }
      if (tensor.frozen) continue;
      const bool follows = norm_ranges_.size() > first_norm_range_.back();
      if (follows && norm_ranges_.back().end == tensor.offset) {
        norm_ranges_.back().end = end;
      } else {
        norm_ranges_.push_back({static_cast<int>(u), tensor.offset, end});
      }
    }
    update_ranges_.push_back(std::move(ranges));
  }
  first_norm_range_.push_back(norm_ranges_.size());
}

bool Executor::IsDeviceLane(const Lane& lane) const {
  return lane.kind == LaneKind::kCompute || lane.kind == LaneKind::kH2D || lane.kind == LaneKind::kD2H;
}

absl::Status Executor::Run(StepSource& source, int64_t steps, TrainerCounters& counters) {
  if (steps <= 0) return absl::OkStatus();
  const int64_t first = plan_.kind == PlanKind::kTrain ? counters.iterations : 0;
  eval_generation_ = counters.iterations;
  {
    MutexLock lock(mu_);
    STRATA_RETURN_IF_ERROR(failure_, "an earlier run failed");
    std::fill(done_.begin(), done_.end(), first - 1);
    stop_at_ = first + steps;
    max_begun_ = first - 1;
    committed_ = first;
    // A lane without operations is never waited for.
    for (size_t i = 0; i < lanes_.size(); ++i) {
      finished_[i] = lanes_[i].ops.empty() ? std::numeric_limits<int64_t>::max() : first - 1;
    }
  }
  first_step_ = first;
  applied_ = counters.applied_steps;
  pending_scale_ = counters.pending_scale;
  loss_scale_ = counters.loss_scale;
  last_commit_nanos_ = resources_.clock->MonotonicNanos();
  for (LaneState& lane : lanes_) lane.free_nanos = last_commit_nanos_;

  std::vector<Thread> threads;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    threads.emplace_back(LaneName(plan_.lanes[i]),
                         [this, i, &source, first] { LaneBody(static_cast<int>(i), source, first); });
  }
  for (Thread& thread : threads) thread.Join();

  MutexLock lock(mu_);
  if (plan_.kind == PlanKind::kTrain) {
    counters.iterations = committed_;
    counters.applied_steps = applied_;
    counters.pending_scale = pending_scale_;
    counters.loss_scale = loss_scale_;
  }
  return failure_;
}

void Executor::LaneBody(int lane, StepSource& source, int64_t first_step) {
  LaneState& self = lanes_[lane];
  if (self.ops.empty()) return;
  if (absl::Status status = RunLaneSteps(lane, source, first_step); !status.ok()) Fail(std::move(status));
  if (self.stream == nullptr) return;
  if (absl::Status status = Drain(self); !status.ok()) Fail(std::move(status));
}

absl::Status Executor::RunLaneSteps(int lane, StepSource& source, int64_t first_step) {
  for (int64_t step = first_step; BeginStep(step); ++step) {
    bool stopped = false;
    STRATA_RETURN_IF_ERROR(RunLaneStep(lane, source, step, stopped));
    if (stopped) return absl::OkStatus();
    MutexLock lock(mu_);
    finished_[lane] = step;
    window_.SignalAll();
  }
  return absl::OkStatus();
}

// Whoever comes after a run finds its memory idle: the next run's first operations wait for no event, and the
// caller of a run that failed may free what it lent.
absl::Status Executor::Drain(LaneState& lane) {
  STRATA_RETURN_IF_ERROR(resources_.device->Record(lane.stream, lane.drained.get()));
  return resources_.device->Synchronize(lane.drained.get());
}

// A lane may begin step t only when every lane has finished step t - 2, so no one looks at its results any
// more. The lane that gets furthest decides how many steps a stop still has to finish.
bool Executor::BeginStep(int64_t step) {
  MutexLock lock(mu_);
  while (true) {
    if (!failure_.ok() || step >= stop_at_) return false;
    if (*std::min_element(finished_.begin(), finished_.end()) >= step - 2) break;
    window_.WaitFor(mu_, kWaitSlice);
  }
  if (step > max_begun_) {
    max_begun_ = step;
    StepState& fresh = state(step);
    fresh = {.results = fresh.results,
             .loss = fresh.loss,
             .sum_squares = fresh.sum_squares,
             .first_bad = fresh.first_bad};
    resources_.device->HostUsesResults(fresh.results, /*write=*/true);
    std::fill(fresh.loss.begin(), fresh.loss.end(), std::array<double, 2>{});
    std::fill(fresh.sum_squares.begin(), fresh.sum_squares.end(), 0.0);
    std::fill(fresh.first_bad.begin(), fresh.first_bad.end(), -1);
    fresh.lanes.resize(lanes_.size());
  }
  return true;
}

absl::Status Executor::RunLaneStep(int lane, StepSource& source, int64_t step, bool& stopped) {
  LaneState& self = lanes_[lane];
  if (self.engine != nullptr) return RunNvmeLaneStep(lane, step, stopped);
  LaneStats& stats = state(step).lanes[lane];
  Clock& clock = *resources_.clock;
  for (const int32_t index : self.ops) {
    const Op& op = plan_.ops[index];
    Span span{.op = index, .step = step, .wait_begin_nanos = clock.MonotonicNanos()};
    STRATA_ASSIGN_OR_RETURN(const bool ready, WaitFor(lane, index, step, stats));
    if (!ready) {
      stopped = true;
      return absl::OkStatus();
    }
    span.begin_nanos = clock.MonotonicNanos();
    if (op.speculation != Speculation::kRedo || state(step).redo) {
      // Behind the waits for what it needs.
      if (self.stream != nullptr) {
        STRATA_RETURN_IF_ERROR(
            resources_.device->Record(self.stream, begin_events_[2 * index + (step & 1)].get()), "step ",
            step, ", ", Describe(plan_, op));
      }
      absl::Status ran = RunOp(lane, op, step, source);
      // Of an accelerator's library or launch: one that failed is not told from a broken GPU; one that does
      // not take the job's shapes is the job's.
      if (self.stream != nullptr && absl::IsInternal(ran)) ran = WithCause(ran, kCauseDeviceFault);
      if (self.stream != nullptr && absl::IsUnimplemented(ran)) ran = WithCause(ran, kCauseUser);
      STRATA_RETURN_IF_ERROR(ran, "step ", step, ", ", Describe(plan_, op));
      span.end_nanos = clock.MonotonicNanos();
      if (self.stream == nullptr) Account(lane, span, stats);
    }
    if (IsDeviceLane(plan_.lanes[lane])) {
      STRATA_RETURN_IF_ERROR(resources_.device->Record(self.stream, events_[2 * index + (step & 1)].get()),
                             "step ", step, ", ", Describe(plan_, op));
    }
    Finish(index, step);
  }
  return absl::OkStatus();
}

void Executor::Account(int lane, const Span& span, LaneStats& stats) {
  const Op& op = plan_.ops[span.op];
  stats.busy_nanos += span.end_nanos - span.begin_nanos;
  ++stats.operations;
  stats.bytes += op.bytes;
  if (MovesBytes(plan_.lanes[lane].kind))
    stats.traffic_bytes[static_cast<int>(TrafficClassOf(op))] += op.bytes;
  traces_[lane].Add(span);
}

absl::Status Executor::AccountDeviceLanes(int64_t step) {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].stream == nullptr) continue;
    for (const int32_t op : lanes_[lane].ops) {
      STRATA_ASSIGN_OR_RETURN(EndNanos(op, step),
                              resources_.device->PassedNanos(events_[2 * op + (step & 1)].get()));
    }
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].stream != nullptr)
      STRATA_RETURN_IF_ERROR(AccountDeviceLane(static_cast<int>(lane), step));
  }
  return absl::OkStatus();
}

// From the end of the operation before it an operation waits for its dependencies one after the other, as a
// lane of the host does. What is left until it begins is the way from the host to the device: nobody's.
absl::Status Executor::AccountDeviceLane(int lane, int64_t step) {
  LaneState& self = lanes_[lane];
  LaneStats& stats = state(step).lanes[lane];
  for (const int32_t index : self.ops) {
    const Op& op = plan_.ops[index];
    const int64_t end = EndNanos(index, step);
    if (op.speculation == Speculation::kRedo && !state(step).redo) continue;
    STRATA_ASSIGN_OR_RETURN(const int64_t begin,
                            resources_.device->PassedNanos(begin_events_[2 * index + (step & 1)].get()));
    int64_t at = std::min(self.free_nanos, begin);
    Account(lane, {.op = index, .step = step, .wait_begin_nanos = at, .begin_nanos = begin, .end_nanos = end},
            stats);
    self.free_nanos = end;
    for (size_t i = 0; i < op.dependencies.size(); ++i) {
      const Dependency& dependency = op.dependencies[i];
      if (step - dependency.distance < first_step_) continue;
      const int64_t until = std::min(begin, EndNanos(dependency.op, step - dependency.distance));
      if (until <= at) continue;
      const LaneKind producer = plan_.lanes[plan_.ops[dependency.op].lane].kind;
      stats.wait_nanos[static_cast<int>(producer)] += until - at;
      stats.stall_nanos[static_cast<int>(stall_causes_[index][i])] += until - at;
      at = until;
    }
  }
  return absl::OkStatus();
}

// Several operations are in flight, so that the disk has work while this thread checks what has arrived. They
// begin and end in order. The plan takes lane order for granted: an operation that touches the bytes of one
// in flight waits for its end; all other order is in the dependencies.
absl::Status Executor::RunNvmeLaneStep(int lane, int64_t step, bool& stopped) {
  LaneState& self = lanes_[lane];
  LaneStats& stats = state(step).lanes[lane];
  Clock& clock = *resources_.clock;
  // Drains, however this function is left.
  NvmeLane transfers(*resources_.store, *self.engine, self.checksum.get());
  std::deque<Span> in_flight;
  int64_t last_end = 0;
  for (size_t next = 0; next < self.ops.size() || !in_flight.empty();) {
    if (next < self.ops.size() && MayBegin(self.ops[next], step, in_flight)) {
      const int32_t index = self.ops[next++];
      const Op& op = plan_.ops[index];
      Span span{.op = index, .step = step, .wait_begin_nanos = clock.MonotonicNanos()};
      STRATA_ASSIGN_OR_RETURN(const bool ready, WaitFor(lane, index, step, stats));
      if (!ready) {
        stopped = true;
        return absl::OkStatus();
      }
      if (op.speculation == Speculation::kRedo && !state(step).redo) {
        Finish(index, step);
        continue;
      }
      span.begin_nanos = clock.MonotonicNanos();
      STRATA_RETURN_IF_ERROR(StartIo(transfers, op, step), "step ", step, ", ", Describe(plan_, op));
      in_flight.push_back(span);
      continue;
    }
    if (!transfers.Advance()) continue;
    Span span = in_flight.front();
    in_flight.pop_front();
    const Op& op = plan_.ops[span.op];
    STRATA_RETURN_IF_ERROR(transfers.Finish(), "step ", step, ", ", Describe(plan_, op));
    // An operation's time on the lane begins when the one before it has ended.
    span.begin_nanos = std::max(span.begin_nanos, last_end);
    span.wait_begin_nanos = std::max(span.wait_begin_nanos, last_end);
    span.end_nanos = last_end = clock.MonotonicNanos();
    Account(lane, span, stats);
    self.engine->TakeInto(stats.io);
    transfers.TakePathBytes(stats.path_bytes);
    Finish(span.op, step);
  }
  return absl::OkStatus();
}

bool Executor::MayBegin(int32_t index, int64_t step, const std::deque<Span>& in_flight) {
  if (in_flight.empty()) return true;
  const Op& op = plan_.ops[index];
  if (std::ssize(in_flight) == plan_.lanes[op.lane].window || op.speculation == Speculation::kRedo)
    return false;
  for (const Span& span : in_flight) {
    if (Conflict(op, plan_.ops[span.op])) return false;
  }
  MutexLock lock(mu_);
  if (!failure_.ok()) return false;
  for (const Dependency& dependency : op.dependencies) {
    if (done_[dependency.op] < step - dependency.distance) return false;
  }
  return true;
}

absl::StatusOr<bool> Executor::WaitFor(int lane, int32_t index, int64_t step, LaneStats& stats) {
  LaneState& self = lanes_[lane];
  const Op& op = plan_.ops[index];
  const bool device_lane = IsDeviceLane(plan_.lanes[lane]);
  for (size_t i = 0; i < op.dependencies.size(); ++i) {
    const Dependency& dependency = op.dependencies[i];
    const int64_t needed = step - dependency.distance;
    const Lane& producer = plan_.lanes[plan_.ops[dependency.op].lane];
    // A lane with a stream waits on the device: AccountDeviceLane.
    const auto waited_since = [&](int64_t begin) {
      if (self.stream != nullptr) return;
      const int64_t waited = resources_.clock->MonotonicNanos() - begin;
      stats.wait_nanos[static_cast<int>(producer.kind)] += waited;
      stats.stall_nanos[static_cast<int>(stall_causes_[index][i])] += waited;
    };
    {
      MutexLock lock(mu_);
      if (done_[dependency.op] < needed && failure_.ok()) {
        const int64_t begin = resources_.clock->MonotonicNanos();
        self.waiting_op = dependency.op;
        while (done_[dependency.op] < needed && failure_.ok()) self.wake.WaitFor(mu_, kWaitSlice);
        self.waiting_op = -1;
        waited_since(begin);
      }
      if (!failure_.ok()) return false;
    }
    // What a device lane "finished" is enqueued; its event says when it is done. Nothing precedes the first
    // step.
    if (!IsDeviceLane(producer) || needed < first_step_) continue;
    DeviceEvent* event = events_[2 * dependency.op + (needed & 1)].get();
    if (device_lane) {
      STRATA_RETURN_IF_ERROR(resources_.device->Wait(self.stream, event));
    } else {
      const int64_t begin = resources_.clock->MonotonicNanos();
      STRATA_RETURN_IF_ERROR(resources_.device->Synchronize(event), "waiting for ",
                             Describe(plan_, plan_.ops[dependency.op]));
      if (lanes_[plan_.ops[dependency.op].lane].stream != nullptr) waited_since(begin);
    }
  }
  return true;
}

void Executor::Finish(int32_t op, int64_t step) {
  // Before anyone hears of it. On a stream it has not ended: AccountDeviceLanes writes that.
  if (lanes_[plan_.ops[op].lane].stream == nullptr) EndNanos(op, step) = resources_.clock->MonotonicNanos();
  MutexLock lock(mu_);
  done_[op] = step;
  for (LaneState& lane : lanes_) {
    if (lane.waiting_op == op) lane.wake.Signal();
  }
}

void Executor::Fail(absl::Status status) {
  MutexLock lock(mu_);
  if (failure_.ok()) failure_ = std::move(status);
  for (LaneState& lane : lanes_) lane.wake.SignalAll();
  window_.SignalAll();
}

absl::Status Executor::RunCommit(int64_t step, StepSource& source) {
  if (plan_.kind == PlanKind::kTrain && resources_.store != nullptr) {
    STRATA_RETURN_IF_ERROR(resources_.store->Commit(static_cast<Generation>(step + 1)));
  }
  STRATA_RETURN_IF_ERROR(AccountDeviceLanes(step), "the times of step ", step);
  const StepState& done = state(step);
  StepResult result;
  result.step = step;
  result.skipped = done.skip;
  result.bad_tensor = done.bad_tensor;
  const std::optional<float> scale = done.skip ? std::nullopt : std::optional(done.grad_scale);
  const bool delayed = plan_.mode == Mode::kDelayed;
  const bool updated = (delayed ? std::exchange(pending_scale_, scale) : scale).has_value();
  if (plan_.kind == PlanKind::kTrain && updated) ++applied_;
  result.applied_steps = applied_;
  result.redone = done.redo;
  UseResults(done.loss);
  for (const auto& [sum, tokens] : done.loss) {
    result.loss_sum += sum;
    result.tokens += tokens;
  }
  result.loss = static_cast<float>(result.tokens > 0 ? result.loss_sum / result.tokens : 0);
  result.grad_norm = done.grad_norm;
  result.loss_scale = done.loss_scale;
  result.lr = source.Hyper(result.applied_steps - (updated ? 1 : 0), 0).lr;
  const int64_t now = resources_.clock->MonotonicNanos();
  result.wall_nanos = now - std::exchange(last_commit_nanos_, now);
  result.lanes = done.lanes;
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const Slot& slot = plan_.slots[i];
    if (!slot_touched_[i] || slot.tier == Tier::kNvme) continue;
    int64_t& high = result.high_water_bytes[static_cast<int>(slot.tier)];
    high = std::max(high, slot.offset + slot.bytes);
  }
  if (resources_.store != nullptr) {
    result.high_water_bytes[static_cast<int>(Tier::kNvme)] =
        static_cast<int64_t>(resources_.store->report().capacity_bytes);
    const NvmeStoreCounters counters = resources_.store->counters();
    result.store = {.written_bytes = static_cast<int64_t>(counters.written_bytes),
                    .retries = static_cast<int64_t>(counters.retries),
                    .checksum_errors = static_cast<int64_t>(counters.checksum_errors)};
    result.path_bytes.resize(counters.paths.size());
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const int64_t bytes = done.lanes[i].bytes;
    const std::vector<int64_t>& by_path = done.lanes[i].path_bytes;
    for (size_t path = 0; path < by_path.size(); ++path) {
      PathBytes& moved = result.path_bytes[path];
      (plan_.lanes[i].kind == LaneKind::kNvmeRead ? moved.read : moved.written) += by_path[path];
    }
    const bool direct = plan_.lanes[i].direct;
    switch (plan_.lanes[i].kind) {
      case LaneKind::kNvmeRead:
        result.read_bytes[static_cast<int>(Tier::kNvme)] += bytes;
        if (direct) result.written_bytes[static_cast<int>(Tier::kDevice)] += bytes;
        break;
      case LaneKind::kNvmeWrite:
        result.written_bytes[static_cast<int>(Tier::kNvme)] += bytes;
        if (direct) result.read_bytes[static_cast<int>(Tier::kDevice)] += bytes;
        break;
      case LaneKind::kH2D:
        result.written_bytes[static_cast<int>(Tier::kDevice)] += bytes;
        break;
      case LaneKind::kD2H:
        result.read_bytes[static_cast<int>(Tier::kDevice)] += bytes;
        break;
      default:
        break;
    }
  }
  const bool more = source.OnStep(result);
  MutexLock lock(mu_);
  committed_ = step + 1;
  if (!more) stop_at_ = std::min(stop_at_, max_begun_ + 1);
  return absl::OkStatus();
}

}  // namespace strata
