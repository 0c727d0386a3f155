#include "offload/plan/builder.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/plan/dependencies.h"
#include "offload/plan/lane_set.h"
#include "offload/plan/mode_order.h"
#include "offload/plan/operands.h"
#include "offload/plan/slot_pool.h"
#include "offload/plan/slot_table.h"
#include "offload/plan/update_order.h"
#include "offload/store/store_layout.h"

namespace strata {
namespace {

using operands::Accumulated;
using operands::Batch;
using operands::Gradient;
using operands::OfBlock;
using operands::Params;
using operands::Pending;
using operands::R;
using operands::Record;
using operands::RW;
using operands::W;

// Emits operations in program order. Each method emits the part of the step it is named after.
class Builder {
 public:
  Builder(const ModelLayout& layout, const PlanChoice& choice, PlanKind kind)
      : layout_(layout),
        facts_(layout),
        choice_(choice),
        train_(kind == PlanKind::kTrain),
        table_(MakeSlotTable(layout, facts_, choice, kind)),
        host_batch_(table_.host_batch),
        device_batch_(table_.device_batch),
        host_params_(table_.host_params.begin(), table_.host_params.end()),
        device_params_(table_.device_params.begin(), table_.device_params.end()),
        host_grads_(table_.host_grads.begin(), table_.host_grads.end()),
        host_sums_(table_.host_sums.begin(), table_.host_sums.end()),
        device_grads_(table_.device_grads.begin(), table_.device_grads.end()),
        activation_(table_.activation, ContentKind::kActivation),
        saved_(table_.saved, ContentKind::kSaved),
        saved_rest_(table_.saved_rest, ContentKind::kSavedRest),
        record_(table_.record),
        params_out_(table_.params_out),
        accumulated_chunk_(table_.accumulated_chunk),
        contributions_(layout.units.size(), 0),
        assumed_(train_ ? UpdatedBeforeClip(layout, facts_.first_use_order, choice)
                        : std::vector<bool>(layout.units.size())) {
    plan_.kind = kind;
    plan_.mode = choice.mode;
    plan_.compute_dtype = layout.compute_dtype;
    plan_.moments = layout.moments;
    plan_.micro_batches = train_ ? choice.micro_batches : 1;
    plan_.clip = choice.clip;
    plan_.frozen = facts_.frozen;
    const bool redoes = std::find(assumed_.begin(), assumed_.end(), true) != assumed_.end();
    lanes_ = MakeLanes(choice, facts_.frozen, table_, kind, redoes, &plan_.lanes);
  }

  StepPlan Build() {
    for (int mb = 0; mb < plan_.micro_batches; ++mb) MicroBatch(mb);
    if (train_) {
      Clip();
      // What redoes nothing must not stand between those that do something: it waits for their slots.
      for (const int u : facts_.first_use_order) {
        if (assumed_[u]) Update(u, Speculation::kRedo);
      }
      // Forward order, so that the next step's first blocks can start first.
      for (const int u : facts_.first_use_order) {
        if (!assumed_[u] && !facts_.frozen[u] && plan_.mode != Mode::kDelayed) Update(u, Speculation::kNone);
      }
    }
    Commit();
    const std::vector<ExplicitOrder> orders = OrderByMode(plan_, marks_);
    plan_.slots = std::move(table_.slots);
    plan_.chunks = std::move(table_.chunks);
    plan_.homes = std::move(table_.homes);
    plan_.pending = std::move(table_.pending);
    std::copy(std::begin(table_.arena_bytes), std::end(table_.arena_bytes), plan_.arena_bytes);
    DeriveDependencies(orders, &plan_);
    return std::move(plan_);
  }

 private:
  // ---- Operations and operands

  int32_t Emit(OpKind kind, int32_t lane, std::vector<Operand> operands, int block = -1, int unit = -1,
               int chunk = -1, int mb = -1) {
    Op op;
    op.kind = kind;
    op.lane = lane;
    op.block = block;
    op.unit = unit;
    op.chunk = chunk;
    op.micro_batch = mb;
    op.operands = std::move(operands);
    plan_.ops.push_back(std::move(op));
    return static_cast<int32_t>(plan_.ops.size() - 1);
  }

  // From one slot to another; what is moved changes its name only where a gradient starts a sum.
  int32_t EmitCopy(OpKind kind, int32_t lane, Operand from, Operand to, int block, int unit, int chunk,
                   int mb) {
    const int64_t bytes = to.bytes;
    const int32_t op = Emit(kind, lane, {from, to}, block, unit, chunk, mb);
    plan_.ops[op].bytes = bytes;
    return op;
  }

  Operand Workspace(int64_t bytes) const { return W(table_.workspace, 0, bytes, Content()); }
  int64_t ParamBytes(int unit) const { return layout_.units[unit].elements * facts_.param_size; }
  int64_t AccBytes(int unit) const { return layout_.units[unit].elements * facts_.acc_size; }
  int64_t ChunkElements(int unit, int chunk) const {
    const ChunkInfo& info = table_.chunks[unit][chunk];
    return info.end - info.begin;
  }
  static int64_t Stored(int64_t bytes) { return static_cast<int64_t>(StoredBytes(bytes)); }
  int64_t ActKey(int block, int mb) const { return static_cast<int64_t>(mb) * (facts_.head + 1) + block; }

  // ---- The step

  void MicroBatch(int mb) {
    const int32_t host = host_batch_.Acquire(mb);
    Emit(OpKind::kBatch, lanes_.batch, {W(host, 0, layout_.token_bytes, Batch(mb))}, -1, -1, -1, mb);
    plan_.ops.back().bytes = layout_.token_bytes;
    batch_slot_ = device_batch_.Acquire(mb);
    EmitCopy(OpKind::kH2D, lanes_.h2d, R(host, 0, layout_.token_bytes, Batch(mb)),
             W(batch_slot_, 0, layout_.token_bytes, Batch(mb)), -1, -1, -1, mb);
    host_batch_.Release(host, false);
    for (int b = 0; b < facts_.head; ++b) Forward(OpKind::kForward, b, mb);
    Loss(mb);
    if (train_) {
      for (int b = facts_.head - 1; b >= 0; --b) Backward(b, mb);
    }
    device_batch_.Release(batch_slot_, false);
  }

  // Device slots of the block's parameters, in the order of its units. What is still there is kept from
  // being taken away before the rest is fetched.
  std::vector<Operand> FetchParams(int block, int mb) {
    const std::vector<int>& units = layout_.blocks[block].units;
    std::vector<int32_t> slots(units.size(), -1);
    for (size_t i = 0; i < units.size(); ++i) {
      const int u = units[i];
      slots[i] = choice_.units[u].params == Tier::kDevice ? table_.params_home[u]
                                                          : device_params_[facts_.unit_class[u]].Find(u);
    }
    std::vector<Operand> operands;
    for (size_t i = 0; i < units.size(); ++i) {
      const int u = units[i];
      if (slots[i] < 0) slots[i] = FetchUnit(u, block, mb);
      operands.push_back(R(slots[i], 0, ParamBytes(u), Params(u, -1, 0)));
    }
    return operands;
  }

  int32_t FetchUnit(int u, int block, int mb) {
    const int c = facts_.unit_class[u];
    int32_t source = table_.params_home[u];
    if (source < 0 && choice_.direct) {
      const int32_t slot = device_params_[c].Acquire(u);
      ReadParams(OpKind::kReadDirect, slot, u, block, mb);
      return slot;
    }
    if (source < 0) {
      source = host_params_[c].Acquire(u);
      ReadParams(OpKind::kRead, source, u, block, mb);
    }
    const int32_t slot = device_params_[c].Acquire(u);
    EmitCopy(OpKind::kH2D, lanes_.h2d, R(source, 0, ParamBytes(u), Params(u, -1, 0)),
             W(slot, 0, ParamBytes(u), Params(u, -1, 0)), block, u, -1, mb);
    if (table_.params_home[u] < 0) host_params_[c].Release(source, false);
    return slot;
  }

  void ReadParams(OpKind kind, int32_t slot, int u, int block, int mb) {
    for (int k = 0; k < static_cast<int>(table_.chunks[u].size()); ++k) {
      const int64_t bytes = Stored(ChunkElements(u, k) * facts_.param_size);
      const int64_t offset = table_.chunks[u][k].begin * facts_.param_size;
      EmitCopy(kind, lanes_.params.read, R(table_.homes[u][k].params_slot, 0, bytes, Params(u, k, 0)),
               W(slot, offset, bytes, Params(u, k, 0)), block, u, k, mb);
    }
  }

  void ReleaseParams(int block, const std::vector<Operand>& operands) {
    const std::vector<int>& units = layout_.blocks[block].units;
    for (size_t i = 0; i < units.size(); ++i) {
      if (choice_.units[units[i]].params != Tier::kDevice)
        device_params_[facts_.unit_class[units[i]]].Release(operands[i].slot, true);
    }
  }

  // ---- What is held from FORWARD to BACKWARD

  struct Held {
    Held(const SlotTable::Held& at, ContentKind kind)
        : at(at), kind(kind), device(at.device), segment(at.segment), stage(at.stage) {}

    SlotPool& PoolOf(int block) { return at.again[block] ? segment : device; }

    const SlotTable::Held& at;
    const ContentKind kind;
    SlotPool device, segment, stage;
  };

  int64_t HeldBytes(const Held& held, int block) const {
    switch (held.kind) {
      case ContentKind::kSaved:
        return layout_.blocks[block].saved_bytes;
      case ContentKind::kSavedRest:
        return layout_.blocks[block].saved_rest_bytes;
      default:
        return layout_.activation_bytes;
    }
  }

  // What the operation that is emitted next makes.
  Operand NewHeld(Held* held, int block, int mb) {
    const int64_t bytes = HeldBytes(*held, block);
    int32_t slot = bytes > 0 ? held->at.own[block] : table_.workspace;
    if (slot < 0) slot = held->PoolOf(block).Acquire(ActKey(block, mb));
    return W(slot, 0, bytes, OfBlock(held->kind, block, mb));
  }

  // Where it is on the device; slot -1: it is not there.
  Operand FindHeld(Held* held, int block, int mb) {
    const int64_t bytes = HeldBytes(*held, block);
    int32_t slot = bytes > 0 ? held->at.own[block] : table_.workspace;
    if (slot < 0) slot = held->PoolOf(block).Find(ActKey(block, mb));
    return R(slot, 0, bytes, OfBlock(held->kind, block, mb));
  }

  bool HasHeld(Held* held, int block, int mb) {
    return HeldBytes(*held, block) == 0 || held->at.own[block] >= 0 ||
           held->PoolOf(block).Holds(ActKey(block, mb));
  }

  // On the device, brought back if it has left.
  Operand GetHeld(Held* held, int block, int mb) {
    Operand there = FindHeld(held, block, mb);
    if (there.slot >= 0) return there;
    const int64_t key = ActKey(block, mb);
    there.slot = held->device.Acquire(key);
    if (choice_.direct && held->at.item[block] >= 0) {
      const int64_t bytes = Stored(there.bytes);
      EmitCopy(OpKind::kReadDirect, lanes_.held.read, R(held->at.item[block], 0, bytes, there.content),
               W(there.slot, 0, bytes, there.content), block, -1, -1, mb);
      return there;
    }
    Operand source = there;
    source.slot = held->at.host[block];
    if (source.slot < 0) source.slot = held->stage.Find(key);
    if (source.slot < 0) {
      source.slot = held->stage.Acquire(key);
      const int64_t bytes = Stored(there.bytes);
      EmitCopy(OpKind::kRead, lanes_.held.read, R(held->at.item[block], 0, bytes, there.content),
               W(source.slot, 0, bytes, there.content), block, -1, -1, mb);
    }
    EmitCopy(OpKind::kActIn, lanes_.h2d, source, W(there.slot, 0, there.bytes, there.content), block, -1, -1,
             mb);
    held->stage.Release(source.slot, true);
    return there;
  }

  // What FORWARD has just made waits for BACKWARD: where it is, or where it is taken now.
  void SendHeld(Held* held, Operand made, int block, int mb) {
    if (held->at.stays[block]) return;
    ReleaseHeld(held, made, true);
    const int32_t host = held->at.host[block], item = held->at.item[block];
    if (host < 0 && item < 0 && !held->at.staged[block]) return;
    made.access = Access::kRead;
    const int64_t bytes = Stored(made.bytes);
    if (choice_.direct && item >= 0) {
      EmitCopy(OpKind::kWriteDirect, lanes_.held.write, R(made.slot, 0, bytes, made.content),
               W(item, 0, bytes, made.content), block, -1, -1, mb);
      return;
    }
    const int32_t to = host >= 0 ? host : held->stage.Acquire(ActKey(block, mb));
    EmitCopy(OpKind::kActOut, lanes_.d2h, made, W(to, 0, made.bytes, made.content), block, -1, -1, mb);
    if (item < 0) return;  // in the host, or it stays in its slot of the stage
    EmitCopy(OpKind::kWrite, lanes_.held.write, R(to, 0, bytes, made.content),
             W(item, 0, bytes, made.content), block, -1, -1, mb);
    held->stage.Release(to, true);
  }

  static void ReleaseHeld(Held* held, const Operand& operand, bool keep) {
    held->device.Release(operand.slot, keep);
    held->segment.Release(operand.slot, keep);
  }

  // BACKWARD has used it.
  void EndHeld(Held* held, const Operand& operand, int block, int mb) {
    ReleaseHeld(held, operand, false);
    if (held->at.stays[block]) held->device.Release(operand.slot, false);
    if (held->at.staged[block]) held->stage.Drop(ActKey(block, mb));
  }

  Operand Tokens(int mb) const { return R(batch_slot_, 0, layout_.token_bytes, Batch(mb)); }

  static void Append(const std::vector<Operand>& more, std::vector<Operand>* operands) {
    operands->insert(operands->end(), more.begin(), more.end());
  }

  Operand Input(int block, int mb) { return block == 0 ? Tokens(mb) : GetHeld(&activation_, block, mb); }

  // FORWARD or RECOMPUTE.
  void EmitForward(OpKind kind, int b, int mb, std::vector<Operand> operands,
                   const std::vector<Operand>& params) {
    operands.push_back(Workspace(layout_.blocks[b].forward_workspace_bytes));
    Append(params, &operands);
    Emit(kind, lanes_.compute, std::move(operands), b, -1, -1, mb);
    plan_.ops.back().flops = layout_.blocks[b].forward_flops;
  }

  // FORWARD, or RECOMPUTE of a block whose output is needed again too. What is made is kept as long as its
  // slots are not needed for something else.
  void Forward(OpKind kind, int b, int mb) {
    const std::vector<Operand> params = FetchParams(b, mb);
    const Operand input = Input(b, mb);
    const Operand output = NewHeld(&activation_, b + 1, mb);
    const Operand saved = NewHeld(&saved_, b, mb), rest = NewHeld(&saved_rest_, b, mb);
    EmitForward(kind, b, mb, {saved, rest, input, output}, params);
    ReleaseParams(b, params);
    if (b > 0) ReleaseHeld(&activation_, input, true);
    if (kind == OpKind::kRecompute) {
      ReleaseHeld(&activation_, output, true);
      ReleaseHeld(&saved_, saved, true);
      ReleaseHeld(&saved_rest_, rest, true);
      return;
    }
    SendHeld(&activation_, output, b + 1, mb);  // FORWARD or LOSS of the next block takes it at once.
    SendHeld(&saved_, saved, b, mb);
    SendHeld(&saved_rest_, rest, b, mb);
  }

  void Loss(int mb) {
    const int b = facts_.head;
    const Block& block = layout_.blocks[b];
    const std::vector<Operand> params = FetchParams(b, mb);
    const Operand input = Input(b, mb);
    std::vector<Operand> operands = {Tokens(mb), input, Workspace(block.backward_workspace_bytes)};
    if (train_) {
      operands.push_back(W(table_.activation_gradient, 0, layout_.activation_bytes,
                           OfBlock(ContentKind::kActGradient, b, mb)));
    }
    Append(params, &operands);
    const std::vector<Operand> grads = train_ ? NewGradients(b, mb) : std::vector<Operand>();
    Append(grads, &operands);
    marks_.losses.push_back(Emit(OpKind::kLoss, lanes_.compute, std::move(operands), b, -1, -1, mb));
    plan_.ops.back().flops = block.forward_flops + (train_ ? block.backward_flops : 0);
    ReleaseParams(b, params);
    ReleaseHeld(&activation_, input, false);
    SendGradients(b, mb, grads);
  }

  // The blocks below `b` of its segment are computed again, from the checkpoint upwards, unless all that
  // BACKWARD needs of them is still there: it is since FORWARD for the topmost segment, and since BACKWARD of
  // the segment's last block for the blocks below that one.
  void RecomputeSegment(int b, int mb) {
    int first = b;
    while (activation_.at.again[first]) --first;
    bool there = true;
    for (int block = first; block <= b; ++block) {
      there = there && (block == first || HasHeld(&activation_, block, mb)) && HasHeld(&saved_, block, mb) &&
              HasHeld(&saved_rest_, block, mb);
    }
    if (there || first == b) return;
    for (int block = first; block <= b; ++block) {
      for (Held* held : {&activation_, &saved_, &saved_rest_}) {
        if (held->at.again[block]) held->segment.Forget(ActKey(block, mb));
      }
    }
    for (int block = first; block < b; ++block) Forward(OpKind::kRecompute, block, mb);
  }

  // What FORWARD saved: found, brought back or computed again.
  std::array<Operand, 2> GetSaved(int b, int mb, const Operand& input, const std::vector<Operand>& params) {
    Operand saved = FindHeld(&saved_, b, mb), rest = FindHeld(&saved_rest_, b, mb);
    if (saved_.at.again[b] && (saved.slot < 0 || rest.slot < 0)) {
      const int32_t output = activation_.device.Acquire(SlotPool::kNothing);
      if (saved.slot < 0) saved = NewHeld(&saved_, b, mb);
      if (rest.slot < 0) rest = NewHeld(&saved_rest_, b, mb);
      saved.access = rest.access = Access::kWrite;
      EmitForward(OpKind::kRecompute, b, mb,
                  {saved, rest, input, W(output, 0, layout_.activation_bytes, Content())}, params);
      activation_.device.Release(output, false);
    }
    if (saved.slot < 0) saved = GetHeld(&saved_, b, mb);
    saved.access = Access::kRead;
    if (rest.slot < 0 && saved_rest_.at.again[b]) {
      rest = NewHeld(&saved_rest_, b, mb);
      EmitForward(OpKind::kRecompute, b, mb, {saved, rest}, params);
      plan_.ops.back().flops = layout_.blocks[b].rest_flops;
    }
    if (rest.slot < 0) rest = GetHeld(&saved_rest_, b, mb);
    rest.access = Access::kRead;
    return {saved, rest};
  }

  void Backward(int b, int mb) {
    const Block& block = layout_.blocks[b];
    RecomputeSegment(b, mb);
    const std::vector<Operand> params = FetchParams(b, mb);
    const Operand input = Input(b, mb);
    const auto [saved, rest] = GetSaved(b, mb, input, params);
    const Content above = OfBlock(ContentKind::kActGradient, b + 1, mb);
    const Operand gradient = b == 0 ? R(table_.activation_gradient, 0, layout_.activation_bytes, above)
                                    : RW(table_.activation_gradient, 0, layout_.activation_bytes, above,
                                         OfBlock(ContentKind::kActGradient, b, mb));
    std::vector<Operand> operands = {saved, rest, input, gradient, Workspace(block.backward_workspace_bytes)};
    Append(params, &operands);
    const std::vector<Operand> grads = NewGradients(b, mb);
    Append(grads, &operands);
    marks_.last_backward = Emit(OpKind::kBackward, lanes_.compute, std::move(operands), b, -1, -1, mb);
    plan_.ops.back().flops = block.backward_flops;
    ReleaseParams(b, params);
    if (b > 0) EndHeld(&activation_, input, b, mb);
    EndHeld(&saved_, saved, b, mb);
    EndHeld(&saved_rest_, rest, b, mb);
    SendGradients(b, mb, grads);
  }

  // ---- Gradients

  // Where LOSS or BACKWARD writes them. The first of a sum with a device home starts it in place.
  std::vector<Operand> NewGradients(int block, int mb) {
    std::vector<Operand> operands;
    for (const int u : layout_.blocks[block].units) {
      if (choice_.units[u].gradients == Tier::kDevice && contributions_[u] == 0 && !facts_.frozen[u]) {
        operands.push_back(W(table_.accumulated[u], 0, AccBytes(u), Accumulated(u, -1, 1)));
      } else {
        const int32_t slot = device_grads_[facts_.unit_class[u]].Acquire(SlotPool::kNothing);
        operands.push_back(W(slot, 0, AccBytes(u), Gradient(block, u, mb)));
      }
    }
    return operands;
  }

  void SendGradients(int block, int mb, const std::vector<Operand>& grads) {
    for (size_t i = 0; i < grads.size(); ++i) {
      const int u = layout_.blocks[block].units[i];
      if (facts_.frozen[u]) {
        device_grads_[facts_.unit_class[u]].Release(grads[i].slot, false);
        continue;
      }
      const bool last = contributions_[u] + 1 == plan_.micro_batches * facts_.uses[u];
      // The step has no further use of the parameters, and the gradient of the step before is long there.
      if (last && plan_.mode == Mode::kDelayed) Update(u, Speculation::kNone);
      if (choice_.units[u].gradients == Tier::kDevice) {
        if (contributions_[u] > 0) {
          Accumulate(u, lanes_.compute, table_.accumulated[u], grads[i], block, mb);
          device_grads_[facts_.unit_class[u]].Release(grads[i].slot, false);
        }
      } else {
        SendToHost(u, grads[i], block, mb);
      }
      ++contributions_[u];
      if (last) Norm(u);
    }
  }

  void SendToHost(int u, const Operand& gradient, int block, int mb) {
    const int c = facts_.unit_class[u];
    const int32_t sum = HostSum(u, block, mb);
    Operand source = gradient;
    source.access = Access::kRead;
    Operand destination = W(sum, 0, AccBytes(u), Accumulated(u, -1, 1));
    if (contributions_[u] > 0) {
      destination.slot = host_grads_[c].Acquire(SlotPool::kNothing);
      destination.content = gradient.content;
    }
    EmitCopy(OpKind::kD2H, lanes_.d2h, source, destination, block, u, -1, mb);
    device_grads_[c].Release(gradient.slot, false);
    if (contributions_[u] > 0) {
      Accumulate(u, lanes_.cpu, sum, destination, block, mb);
      host_grads_[c].Release(destination.slot, false);
    }
    host_sums_[c].Release(sum, true);
  }

  // Where the sum so far is in host memory; from NVMe it is brought there, if it is not there still. What has
  // to make room for it is written only now: what is used before its slot is needed is never written.
  int32_t HostSum(int u, int block, int mb) {
    if (choice_.units[u].gradients != Tier::kNvme) return table_.accumulated[u];
    SlotPool& pool = host_sums_[facts_.unit_class[u]];
    int32_t slot = pool.Find(u);
    if (slot >= 0) return slot;
    int64_t evicted = SlotPool::kNothing;
    slot = pool.Acquire(u, &evicted);
    if (evicted >= 0) WriteSum(static_cast<int>(evicted), slot, block, mb);
    if (contributions_[u] == 0) return slot;
    for (int k = 0; k < static_cast<int>(table_.chunks[u].size()); ++k)
      ReadSum(u, k, slot, table_.chunks[u][k].begin * facts_.acc_size, block, mb);
    return slot;
  }

  void WriteSum(int u, int32_t slot, int block, int mb) {
    for (int k = 0; k < static_cast<int>(table_.chunks[u].size()); ++k) {
      const Content content = Accumulated(u, k, contributions_[u]);
      const int64_t bytes = SumChunkBytes(u, k);
      EmitCopy(OpKind::kWrite, lanes_.sums.write,
               R(slot, table_.chunks[u][k].begin * facts_.acc_size, bytes, content),
               W(table_.sum_items[u][k], 0, bytes, content), block, u, k, mb);
    }
  }

  void ReadSum(int u, int k, int32_t slot, int64_t offset, int block, int mb) {
    const Content content = Accumulated(u, k, contributions_[u]);
    const int64_t bytes = SumChunkBytes(u, k);
    EmitCopy(OpKind::kRead, lanes_.sums.read, R(table_.sum_items[u][k], 0, bytes, content),
             W(slot, offset, bytes, content), block, u, k, mb);
  }

  int64_t SumChunkBytes(int u, int k) const { return Stored(ChunkElements(u, k) * facts_.acc_size); }

  void Accumulate(int u, int32_t lane, int32_t sum, Operand gradient, int block, int mb) {
    gradient.access = Access::kRead;
    const int64_t n = contributions_[u];
    Emit(OpKind::kAccumulate, lane,
         {RW(sum, 0, AccBytes(u), Accumulated(u, -1, n), Accumulated(u, -1, n + 1)), gradient}, block, u, -1,
         mb);
    plan_.ops.back().bytes = 3 * AccBytes(u);
  }

  void Norm(int u) {
    const int32_t lane = choice_.units[u].gradients == Tier::kDevice ? lanes_.compute : lanes_.cpu;
    const int32_t sum = HostSum(u, -1, -1);  // of a device sum: its home
    marks_.norms.push_back(
        Emit(OpKind::kNorm, lane, {R(sum, 0, AccBytes(u), Accumulated(u, -1, contributions_[u]))}, -1, u));
    plan_.ops.back().bytes = AccBytes(u);
    host_sums_[facts_.unit_class[u]].Release(sum, true);
    if (assumed_[u]) Update(u, Speculation::kAssumed);
    if (plan_.mode == Mode::kDelayed) HandOver(u, lane);
  }

  void HandOver(int u, int32_t lane) {
    marks_.hand_overs.push_back(
        Emit(OpKind::kHandOver, lane,
             {R(table_.accumulated[u], 0, AccBytes(u), Accumulated(u, -1, contributions_[u])),
              W(table_.pending[u], 0, AccBytes(u), Pending(u, -1, 1))},
             -1, u));
    plan_.ops.back().bytes = 2 * AccBytes(u);
  }

  void Clip() { marks_.clip = Emit(OpKind::kClip, lanes_.cpu, {}); }

  // ---- Optimizer

  void Update(int u, Speculation speculation) {
    const size_t first = plan_.ops.size();
    for (int k = 0; k < static_cast<int>(table_.chunks[u].size()); ++k)
      UpdateChunk(u, k, speculation == Speculation::kRedo);
    for (size_t i = first; i < plan_.ops.size(); ++i) plan_.ops[i].speculation = speculation;
  }

  void UpdateChunk(int u, int k, bool redo) {
    const PlanChoice::UnitHome& at = choice_.units[u];
    const ChunkHome& home = table_.homes[u][k];
    const bool on_device = at.record == Tier::kDevice;
    const int64_t n = ChunkElements(u, k);
    const int64_t record_bytes = RecordBytes(layout_.moments, n);
    const int64_t params_bytes = n * facts_.param_size;

    // All that is done again uses one slot in turn, the last to be free: what comes after it has the others.
    const auto acquire = [redo](SlotPool* pool) {
      return redo ? pool->AcquireNewest() : pool->Acquire(SlotPool::kNothing);
    };
    int32_t record_slot = home.record_slot;
    NvmeLanes lanes = lanes_.redo;
    if (at.record == Tier::kNvme) {
      if (!redo) lanes = lanes_.records[records_++ % lanes_.records.size()];
      record_slot = acquire(&record_);
      EmitCopy(OpKind::kRead, lanes.read, R(home.record_slot, 0, Stored(record_bytes), Record(u, k, 0)),
               W(record_slot, 0, Stored(record_bytes), Record(u, k, 0)), -1, u, k, -1);
    }
    const Operand gradient = GradientOfChunk(u, k, on_device);
    const bool staged = !on_device && at.params != Tier::kHost;
    const int32_t params_slot = staged ? acquire(&params_out_) : home.params_slot;
    const Operand params = W(params_slot, staged ? 0 : home.params_offset, params_bytes, Params(u, k, 1));
    marks_.updates.push_back(Emit(
        OpKind::kUpdate, on_device ? lanes_.compute : lanes_.cpu,
        {RW(record_slot, 0, record_bytes, Record(u, k, 0), Record(u, k, 1)), gradient, params}, -1, u, k));
    plan_.ops.back().bytes = 2 * record_bytes + n * (4 + facts_.param_size);
    accumulated_chunk_.Release(gradient.slot, false);
    host_sums_[facts_.unit_class[u]].Release(gradient.slot, true);

    if (at.record == Tier::kNvme) {
      EmitCopy(OpKind::kWrite, lanes.write, R(record_slot, 0, Stored(record_bytes), Record(u, k, 1)),
               W(home.record_slot, 0, Stored(record_bytes), Record(u, k, 1)), -1, u, k, -1);
      record_.Release(record_slot, false);
    }
    if (!staged) return;
    if (at.params == Tier::kNvme) {
      EmitCopy(OpKind::kWrite, redo ? lanes_.redo.write : lanes_.params.write,
               R(params_slot, 0, Stored(params_bytes), Params(u, k, 1)),
               W(home.params_slot, 0, Stored(params_bytes), Params(u, k, 1)), -1, u, k, -1);
    } else {
      EmitCopy(OpKind::kH2D, lanes_.home, R(params_slot, 0, params_bytes, Params(u, k, 1)),
               W(home.params_slot, home.params_offset, params_bytes, Params(u, k, 1)), -1, u, k, -1);
    }
    params_out_.Release(params_slot, false);
  }

  // The chunk's part of the sum to update with, where the optimizer runs.
  Operand GradientOfChunk(int u, int k, bool on_device) {
    const int64_t offset = table_.chunks[u][k].begin * facts_.acc_size;
    const int64_t bytes = ChunkElements(u, k) * facts_.acc_size;
    if (choice_.units[u].gradients == Tier::kNvme) {
      const Content content = Accumulated(u, k, contributions_[u]);
      const int32_t staged = host_sums_[facts_.unit_class[u]].Find(u);
      if (staged >= 0) return R(staged, offset, bytes, content);
      const int32_t slot = accumulated_chunk_.Acquire(SlotPool::kNothing);
      ReadSum(u, k, slot, 0, -1, -1);
      return R(slot, 0, bytes, content);
    }
    const bool delayed = plan_.mode == Mode::kDelayed;
    const Operand sum = R(delayed ? table_.pending[u] : table_.accumulated[u], offset, bytes,
                          delayed ? Pending(u, k, 0) : Accumulated(u, k, contributions_[u]));
    if (on_device || choice_.units[u].gradients == Tier::kHost) return sum;
    const int32_t slot = accumulated_chunk_.Acquire(SlotPool::kNothing);
    EmitCopy(OpKind::kD2H, lanes_.d2h, sum, W(slot, 0, bytes, sum.content), -1, u, k, -1);
    return R(slot, 0, bytes, sum.content);
  }

  // ---- The end

  void Commit() { marks_.commit = Emit(OpKind::kCommit, lanes_.commit, {}); }

  const ModelLayout& layout_;
  const LayoutFacts facts_;
  const PlanChoice& choice_;
  const bool train_;
  SlotTable table_;
  SlotPool host_batch_, device_batch_;
  std::vector<SlotPool> host_params_, device_params_, host_grads_, host_sums_, device_grads_;  // by class
  Held activation_, saved_, saved_rest_;
  SlotPool record_, params_out_, accumulated_chunk_;
  StepPlan plan_;
  LaneSet lanes_;
  StepMarks marks_;

  int32_t batch_slot_ = -1;             // device slot of the current micro-batch
  std::vector<int64_t> contributions_;  // by unit, so far
  const std::vector<bool> assumed_;     // by unit: updated before CLIP
  size_t records_ = 0;                  // NVMe records updated so far
};

}  // namespace

absl::StatusOr<StepPlan> BuildPlan(const ModelLayout& layout, const PlanChoice& choice, PlanKind kind) {
  STRATA_RETURN_IF_ERROR(CheckLayout(layout));
  STRATA_RETURN_IF_ERROR(CheckChoice(layout, choice));
  return Builder(layout, choice, kind).Build();
}

}  // namespace strata
