#include "offload/plan/simulator.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "offload/plan/plan_text.h"

namespace strata {
namespace {

// Steps in a row: the first fills the lanes, the last has none behind it; those between count.
constexpr int kSteps = 5;
constexpr int kFirstCounted = 2, kCounted = 2;

double& Share(OpCost& cost, SharedResource resource) { return cost.share[static_cast<size_t>(resource)]; }

bool IsTransfer(LaneKind kind) {
  return kind == LaneKind::kNvmeRead || kind == LaneKind::kNvmeWrite || kind == LaneKind::kH2D ||
         kind == LaneKind::kD2H;
}

double ForwardProductRate(const Block& block, const ComputeRates& rates) {
  return RateAt(block.fp8 ? rates.fp8_forward_gemm : rates.forward_gemm,
                block.forward_flops - block.forward_attention_flops);
}

double BackwardProductRate(const Block& block, const ComputeRates& rates) {
  return RateAt(block.fp8 ? rates.fp8_backward_gemm : rates.backward_gemm,
                block.forward_flops - block.forward_attention_flops);
}

double ComputeSeconds(const Block& block, OpKind kind, const ComputeRates& rates) {
  const bool forward = kind == OpKind::kForward || kind == OpKind::kRecompute;
  const double flops = forward ? block.forward_flops : block.backward_flops;
  const double attention = forward ? block.forward_attention_flops : block.backward_attention_flops;
  double seconds = (forward ? block.forward_touched_bytes : block.backward_touched_bytes) /
                   rates.elementwise_bytes_per_second;
  seconds += block.dropout_elements / rates.dropout_elements_per_second;
  if (flops > attention)
    seconds += (flops - attention) /
               (forward ? ForwardProductRate(block, rates) : BackwardProductRate(block, rates));
  if (attention > 0)
    seconds += attention / (forward ? rates.attention_flops : rates.attention_backward_flops);
  return seconds;
}

// Math on states: the same kernels on the CPU and on a CPU device. An accelerator's go by its memory.
double StateSeconds(const ModelLayout& layout, const StepPlan& plan, const Op& op,
                    const MachineProfile& profile) {
  const double bytes = static_cast<double>(op.bytes);
  if (plan.lanes[op.lane].kind == LaneKind::kCompute && !profile.device_is_cpu)
    return bytes / profile.rates(plan.compute_dtype).elementwise_bytes_per_second;
  switch (op.kind) {
    case OpKind::kUpdate: {
      const ChunkInfo& chunk = plan.chunks[op.unit][op.chunk];
      return static_cast<double>(chunk.end - chunk.begin) * UpdateSeconds(layout.moments, profile);
    }
    case OpKind::kNorm:
      return bytes / profile.norm_bytes_per_second;
    default:
      return bytes / profile.accumulate_bytes_per_second;
  }
}

class Run {
 public:
  Run(const ModelLayout& layout, const StepPlan& plan, const MachineProfile& profile)
      : plan_(plan), lanes_(plan.lanes.size()), done_(plan.ops.size(), -1) {
    costs_.reserve(plan.ops.size());
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      costs_.push_back(CostOf(layout, plan, plan.ops[i], profile));
      lanes_[plan.ops[i].lane].ops.push_back(static_cast<int32_t>(i));
    }
  }

  const std::vector<OpCost>& costs() const { return costs_; }

  // What happened, over all steps and by step.
  struct Record {
    std::vector<double> commit;                 // [step]: when
    std::vector<std::vector<double>> busy;      // [step][lane]
    std::vector<double> exposed;                // [steps committed]: exposed I/O until the next commit
    std::vector<double> first_start, last_end;  // [lane], of the last step
  };

  absl::StatusOr<Record> Steps(int steps) {
    record_.commit.clear();
    record_.busy.assign(steps, std::vector<double>(lanes_.size(), 0));
    record_.exposed.assign(steps + 1, 0);
    record_.first_start.assign(lanes_.size(), -1);
    record_.last_end.assign(lanes_.size(), 0);
    std::fill(done_.begin(), done_.end(), -1);
    for (LaneRun& lane : lanes_) {
      const std::vector<int32_t> ops = std::move(lane.ops);
      lane = LaneRun();
      lane.ops = ops;
      if (lane.ops.empty()) lane.step = steps;
    }
    now_ = 0;
    steps_ = steps;
    while (true) {
      for (size_t l = 0; l < lanes_.size(); ++l) Start(l);
      if (!Advance()) break;
    }
    for (const LaneRun& lane : lanes_) {
      if (lane.step == steps) continue;
      const int32_t op = lane.ops[lane.next];
      return absl::InternalError(absl::StrCat("the plan never finishes: ", DescribeOp(plan_, op),
                                              " waits for ever in step ", lane.step));
    }
    return record_;
  }

 private:
  struct LaneRun {
    std::vector<int32_t> ops;  // program order
    int step = 0;
    size_t next = 0;     // into ops
    size_t waiting = 0;  // dependencies of ops[next] that have ended
    bool running = false;
    double left = 0;  // of the running operation: seconds alone
    double speed = 1;
    bool satisfied = false;  // DivideFairly: gets what it asks for
  };

  void Start(size_t l) {
    LaneRun& lane = lanes_[l];
    if (lane.running || lane.step == steps_) return;
    if (lane.next == 0) {
      for (const LaneRun& other : lanes_) {
        if (other.step < lane.step - 1) return;  // it has not finished step - 2
      }
    }
    const Op& op = plan_.ops[lane.ops[lane.next]];
    for (; lane.waiting < op.dependencies.size(); ++lane.waiting) {
      const Dependency& on = op.dependencies[lane.waiting];
      if (done_[on.op] < lane.step - on.distance) return;
    }
    lane.running = true;
    lane.left = costs_[lane.ops[lane.next]].seconds;
    if (lane.step == steps_ - 1 && record_.first_start[l] < 0) record_.first_start[l] = now_;
  }

  const OpCost& CostOfRunning(const LaneRun& lane) const { return costs_[lane.ops[lane.next]]; }

  // Lowers speeds until what runs asks for no more of the resource than there is.
  void DivideFairly(int resource) {
    double load = 0;
    for (LaneRun& lane : lanes_) {
      lane.satisfied = false;
      if (lane.running) load += CostOfRunning(lane).share[resource] * lane.speed;
    }
    if (load <= 1) return;
    const bool by_thread = resource == static_cast<int>(SharedResource::kCores);
    const auto weight = [&](const LaneRun& lane) { return by_thread ? CostOfRunning(lane).threads : 1.0; };
    // The level rises as those who ask for less than it are left alone, until nobody else is.
    double level = 0;
    for (bool settled = false; !settled;) {
      settled = true;
      double left = 1, weights = 0;
      for (const LaneRun& lane : lanes_) {
        if (!lane.running) continue;
        const double share = CostOfRunning(lane).share[resource];
        if (share <= 0) continue;
        if (lane.satisfied) {
          left -= share * lane.speed;
        } else {
          weights += weight(lane);
        }
      }
      if (weights <= 0) return;  // rounding: all ask for exactly their parts
      level = left / weights;
      for (LaneRun& lane : lanes_) {
        if (!lane.running || lane.satisfied) continue;
        const double share = CostOfRunning(lane).share[resource];
        if (share <= 0 || share * lane.speed > level * weight(lane)) continue;
        lane.satisfied = true;
        settled = false;
      }
    }
    for (LaneRun& lane : lanes_) {
      if (!lane.running || lane.satisfied) continue;
      const double share = CostOfRunning(lane).share[resource];
      if (share > 0) lane.speed = level * weight(lane) / share;
    }
  }

  // To the next end of an operation. False: nothing runs.
  bool Advance() {
    bool any = false;
    for (LaneRun& lane : lanes_) {
      any |= lane.running;
      lane.speed = 1;
    }
    if (!any) return false;
    for (int r = 0; r < kSharedResourceCount; ++r) DivideFairly(r);
    double step = std::numeric_limits<double>::infinity();
    bool computing = false, transferring = false;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      const LaneRun& lane = lanes_[l];
      if (!lane.running) continue;
      step = std::min(step, lane.left / lane.speed);
      computing |= plan_.lanes[l].kind == LaneKind::kCompute;
      transferring |= IsTransfer(plan_.lanes[l].kind);
    }
    now_ += step;
    if (transferring && !computing) record_.exposed[record_.commit.size()] += step;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      LaneRun& lane = lanes_[l];
      if (!lane.running) continue;
      record_.busy[lane.step][l] += step;
      const double left = lane.left - step * lane.speed;
      lane.left = left;
      if (left <= 1e-9 * costs_[lane.ops[lane.next]].seconds) End(l);
    }
    return true;
  }

  void End(size_t l) {
    LaneRun& lane = lanes_[l];
    const int32_t op = lane.ops[lane.next];
    done_[op] = lane.step;
    if (lane.step == steps_ - 1) record_.last_end[l] = now_;
    if (plan_.ops[op].kind == OpKind::kCommit) record_.commit.push_back(now_);
    lane.running = false;
    lane.waiting = 0;
    if (++lane.next == lane.ops.size()) {
      lane.next = 0;
      ++lane.step;
    }
  }

  const StepPlan& plan_;
  std::vector<OpCost> costs_;
  std::vector<LaneRun> lanes_;
  std::vector<int> done_;  // last step in which the operation has ended
  Record record_;
  double now_ = 0;
  int steps_ = 0;
};

void FillBound(Simulation* simulation) {
  const LaneEstimate* busiest = nullptr;
  for (size_t i = 0; i < simulation->lanes.size(); ++i) {
    if (simulation->lanes[i].alone_seconds > simulation->lanes[simulation->binding_lane].alone_seconds)
      simulation->binding_lane = static_cast<int>(i);
  }
  if (!simulation->lanes.empty()) busiest = &simulation->lanes[simulation->binding_lane];
  if (busiest == nullptr) return;
  simulation->bound_seconds = busiest->alone_seconds;
  simulation->binding = absl::StrCat(Name(busiest->lane.kind), busiest->lane.direct ? "-direct" : "");
  if (busiest->lane.index > 0) absl::StrAppend(&simulation->binding, "-", busiest->lane.index + 1);
  for (int r = 0; r < kSharedResourceCount; ++r) {
    // By more than rounding: a single lane that uses all of a resource is named as the lane.
    if (simulation->resource_seconds[r] <= simulation->bound_seconds * (1 + 1e-9)) continue;
    simulation->bound_seconds = simulation->resource_seconds[r];
    simulation->binding = Name(static_cast<SharedResource>(r));
  }
}

void FillPeaks(const StepPlan& plan, Simulation* simulation) {
  std::vector<bool> touched(plan.slots.size(), false);
  for (const Op& op : plan.ops) {
    for (const Operand& operand : op.operands) touched[operand.slot] = true;
  }
  for (size_t s = 0; s < plan.slots.size(); ++s) {
    const Slot& slot = plan.slots[s];
    if (!touched[s] || slot.tier == Tier::kNvme) continue;
    int64_t& peak = simulation->peak_bytes[static_cast<int>(slot.tier)];
    peak = std::max(peak, slot.offset + slot.bytes);
  }
  simulation->peak_bytes[static_cast<int>(Tier::kNvme)] = plan.arena_bytes[static_cast<int>(Tier::kNvme)];
}

}  // namespace

const char* Name(SharedResource resource) {
  switch (resource) {
    case SharedResource::kNvmeReads:
      return "nvme reads";
    case SharedResource::kNvmeWrites:
      return "nvme writes";
    case SharedResource::kNvmeDevice:
      return "nvme reads and writes together";
    case SharedResource::kCores:
      return "cores";
    case SharedResource::kDram:
      return "memory bandwidth";
  }
  return "?";
}

double ForwardSeconds(const Block& block, const ComputeRates& rates) {
  return ComputeSeconds(block, OpKind::kForward, rates);
}

double BackwardSeconds(const Block& block, const ComputeRates& rates) {
  return ComputeSeconds(block, OpKind::kBackward, rates);
}

double RestSeconds(const Block& block, const ComputeRates& rates) {
  return block.rest_flops / ForwardProductRate(block, rates);
}

double UpdateSeconds(Moments moments, const MachineProfile& profile) {
  return moments == Moments::kCode8 ? profile.adamw8bit_seconds_per_parameter
                                    : profile.adamw_seconds_per_parameter;
}

OpCost CostOf(const ModelLayout& layout, const StepPlan& plan, const Op& op, const MachineProfile& profile) {
  OpCost cost;
  // A redo does nothing unless an assumption was wrong.
  if (op.speculation == Speculation::kRedo) return cost;
  double work = 0;        // seconds without the overhead
  double touched = 0;     // bytes of host DRAM
  double cores = 0;       // while `work` is done
  double drive_part = 0;  // of the drive's speed, the same
  const double bytes = static_cast<double>(op.bytes);
  const LaneKind lane = plan.lanes[op.lane].kind;
  const bool on_cpu = lane == LaneKind::kCpu || profile.device_is_cpu;
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kLoss:
    case OpKind::kBackward: {
      const Block& block = layout.blocks[op.block];
      // Of the saved rest alone: what RestSeconds says.
      const bool rest_only = op.kind == OpKind::kRecompute && op.operands[0].access == Access::kRead;
      cores = profile.threads;
      cost.threads = profile.threads;
      if (rest_only) {
        work = RestSeconds(block, profile.rates(plan.compute_dtype));
        touched = static_cast<double>(block.saved_bytes + block.saved_rest_bytes);
        break;
      }
      work = ComputeSeconds(block, op.kind, profile.rates(plan.compute_dtype));
      touched = op.kind == OpKind::kForward || op.kind == OpKind::kRecompute ? block.forward_touched_bytes
                                                                             : block.backward_touched_bytes;
      touched += 2 * block.dropout_elements * static_cast<double>(SizeOf(plan.compute_dtype));
      break;
    }
    case OpKind::kAccumulate:
    case OpKind::kNorm:
    case OpKind::kUpdate:
      work = StateSeconds(layout, plan, op, profile);
      touched = bytes;
      cores = profile.threads;
      cost.threads = profile.threads;
      break;
    case OpKind::kBatch:
    case OpKind::kClip:
    case OpKind::kCommit:
      break;
    default: {
      double rate = profile.d2h_bytes_per_second;
      touched = profile.device_is_cpu ? 2 * bytes : bytes;
      cores = profile.device_is_cpu ? 1 : 0;
      if (lane == LaneKind::kH2D) rate = profile.h2d_bytes_per_second;
      if (lane == LaneKind::kNvmeRead || lane == LaneKind::kNvmeWrite) {
        const bool read = lane == LaneKind::kNvmeRead;
        const double drive = read ? profile.nvme_read_bytes_per_second : profile.nvme_write_bytes_per_second;
        rate = drive;
        touched = 2 * bytes;  // the transfer and the checksum
        cores = profile.nvme_cores;
        if (plan.lanes[op.lane].direct) {
          // As fast as the slower of the drive and the link; the host has no part in it.
          rate = std::min(drive, read ? profile.h2d_bytes_per_second : profile.d2h_bytes_per_second);
          touched = cores = 0;
        }
        drive_part = rate / drive;
      }
      work = bytes / rate;
      break;
    }
  }
  cost.seconds = profile.per_op_seconds + work;
  if (cost.seconds <= 0) return cost;
  const double part = work / cost.seconds;
  if (lane == LaneKind::kNvmeRead || lane == LaneKind::kNvmeWrite) {
    const double both = (profile.nvme_read_bytes_per_second + profile.nvme_write_bytes_per_second) /
                        (2 * profile.nvme_mixed_bytes_per_second);
    Share(cost, lane == LaneKind::kNvmeRead ? SharedResource::kNvmeReads : SharedResource::kNvmeWrites) =
        part * drive_part;
    Share(cost, SharedResource::kNvmeDevice) = part * drive_part * std::clamp(both, 0.5, 1.0);
  }
  const bool host_work = on_cpu || IsTransfer(lane);
  if (profile.cores > 0 && host_work)
    Share(cost, SharedResource::kCores) = part * std::min(1.0, cores / profile.cores);
  if (profile.dram_bytes_per_second > 0 && host_work)
    Share(cost, SharedResource::kDram) =
        std::min(1.0, touched / profile.dram_bytes_per_second / cost.seconds);
  return cost;
}

absl::StatusOr<Simulation> Simulate(const ModelLayout& layout, const StepPlan& plan,
                                    const MachineProfile& profile) {
  Simulation simulation;
  for (const Lane& lane : plan.lanes) simulation.lanes.push_back(LaneEstimate{lane});
  Run run(layout, plan, profile);
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    LaneEstimate& lane = simulation.lanes[plan.ops[i].lane];
    const OpCost& cost = run.costs()[i];
    ++lane.operations;
    if (plan.ops[i].speculation != Speculation::kRedo) lane.bytes += plan.ops[i].bytes;
    lane.alone_seconds += cost.seconds;
    for (int r = 0; r < kSharedResourceCount; ++r)
      simulation.resource_seconds[r] += cost.share[r] * cost.seconds;
  }
  FillBound(&simulation);
  FillPeaks(plan, &simulation);
  if (plan.ops.empty()) return simulation;

  absl::StatusOr<Run::Record> many = run.Steps(kSteps);
  if (!many.ok()) return many.status();
  simulation.step_seconds =
      (many->commit[kFirstCounted + kCounted - 1] - many->commit[kFirstCounted - 1]) / kCounted;
  for (int step = kFirstCounted; step < kFirstCounted + kCounted; ++step) {
    for (size_t l = 0; l < simulation.lanes.size(); ++l)
      simulation.lanes[l].busy_seconds += many->busy[step][l] / kCounted;
    simulation.exposed_io_seconds += many->exposed[step] / kCounted;
  }
  absl::StatusOr<Run::Record> one = run.Steps(1);
  if (!one.ok()) return one.status();
  simulation.single_step_seconds = one->commit[0];
  const LaneEstimate& binding = simulation.lanes[simulation.binding_lane];
  if (simulation.bound_seconds <= binding.alone_seconds) {
    simulation.fill_seconds = one->first_start[simulation.binding_lane];
    simulation.drain_seconds = one->commit[0] - one->last_end[simulation.binding_lane];
  }
  return simulation;
}

absl::StatusOr<double> StepSeconds(const ModelLayout& layout, const StepPlan& plan,
                                   const MachineProfile& profile) {
  Run run(layout, plan, profile);
  absl::StatusOr<Run::Record> steps = run.Steps(3);
  if (!steps.ok()) return steps.status();
  return steps->commit[1] - steps->commit[0];
}

}  // namespace strata
