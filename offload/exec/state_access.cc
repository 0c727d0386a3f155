#include "offload/exec/state_access.h"

#include <algorithm>

#include "common/checked.h"
#include "common/status.h"

namespace strata {
namespace {

// Calls f(class, its items) for the classes of a record of n elements, in the order in which they lie there.
template <typename Byte, typename F>
absl::Status ForEachClass(Moments moments, int64_t n, Byte* record, F f) {
  for (const StateClass state : RecordClasses(moments)) {
    const StateItem item = StateItemOf(state, moments);
    const int64_t bytes = item.Count(n) * item.bytes();
    STRATA_RETURN_IF_ERROR(f(state, std::span<Byte>(record, static_cast<size_t>(bytes))));
    record += bytes;
  }
  return absl::OkStatus();
}

}  // namespace

// Staging needs one record and one chunk of parameters at once, after the resident states. A plan whose
// transient host slots are smaller (everything on the device) has chunks small enough: see the planner.
absl::StatusOr<std::unique_ptr<StateAccess>> StateAccess::Create(const StepPlan& plan,
                                                                 const ExecutorResources& resources) {
  auto access = std::unique_ptr<StateAccess>(new StateAccess(plan, resources));
  int64_t persistent_end = 0;
  for (const Slot& slot : plan.slots) {
    if (slot.persistent && slot.tier == Tier::kHost)
      persistent_end = std::max(persistent_end, slot.offset + slot.bytes);
  }
  int64_t elements = 0;
  bool nvme = false;
  for (const Slot& slot : plan.slots) nvme |= slot.tier == Tier::kNvme;
  for (const auto& unit : plan.chunks) {
    for (const ChunkInfo& chunk : unit) elements = std::max(elements, chunk.end - chunk.begin);
  }
  const int64_t record = RoundUp<int64_t>(RecordBytes(plan.moments, elements), kSlotAlignment);
  const int64_t params = RoundUp<int64_t>(elements * SizeOf(plan.compute_dtype), kSlotAlignment);
  const int64_t begin = RoundUp<int64_t>(persistent_end, kSlotAlignment);
  if (begin + record + params > static_cast<int64_t>(resources.host->size())) {
    return absl::InternalError(absl::StrCat("the host arena of ", resources.host->size(),
                                            " bytes has no room to stage a chunk of ", elements,
                                            " elements after ", begin, " bytes of resident states"));
  }
  std::byte* base = resources.host->data() + begin;
  access->record_ = {base, static_cast<size_t>(record)};
  access->params_ = {base + record, static_cast<size_t>(params)};
  if (nvme) {
    STRATA_ASSIGN_OR_RETURN(access->engine_, resources.make_engine(IoOp::kRead));
  }
  return access;
}

int64_t StateAccess::host_high_water_bytes() const {
  return params_.data() + params_.size() - resources_.host->data();
}

absl::Status StateAccess::Load(int64_t iterations, const Fill& fill) {
  for (int unit = 0; unit < static_cast<int>(plan_.chunks.size()); ++unit) {
    for (int chunk = 0; chunk < static_cast<int>(plan_.chunks[unit].size()); ++chunk) {
      STRATA_RETURN_IF_ERROR(LoadChunk(unit, chunk, iterations, fill), "loading ",
                             resources_.layout->units[unit].name, " chunk ", chunk);
      if (!plan_.pending.empty()) STRATA_RETURN_IF_ERROR(LoadPending(unit, chunk, fill));
    }
  }
  if (resources_.store == nullptr) return absl::OkStatus();
  return resources_.store->Commit(static_cast<Generation>(iterations));
}

absl::Status StateAccess::LoadChunk(int unit, int chunk, int64_t iterations, const Fill& fill) {
  const ChunkInfo& info = plan_.chunks[unit][chunk];
  const ChunkHome& home = plan_.homes[unit][chunk];
  const Slot& slot = plan_.slots[home.record_slot];
  const int64_t n = info.end - info.begin, bytes = RecordBytes(plan_.moments, n);
  // A record at home in the host arena is filled in place; the others are staged.
  std::span<std::byte> memory = record_;
  if (slot.tier == Tier::kHost) {
    memory = {resources_.host->data() + slot.offset + home.record_offset, static_cast<size_t>(bytes)};
  }
  STRATA_RETURN_IF_ERROR(ForEachClass(
      plan_.moments, n, memory.data(),
      [&](StateClass state, std::span<std::byte> items) { return fill(unit, state, info.begin, items); }));
  switch (slot.tier) {
    case Tier::kHost:
      break;
    case Tier::kDevice:
      STRATA_RETURN_IF_ERROR(resources_.device->CopyToDevice(
          nullptr, resources_.device->arena() + slot.offset + home.record_offset, memory.data(), bytes));
      break;
    case Tier::kNvme: {
      const int64_t stored = static_cast<int64_t>(StoredBytes(static_cast<uint64_t>(bytes)));
      std::fill(memory.begin() + bytes, memory.begin() + stored, std::byte{0});
      STRATA_RETURN_IF_ERROR(resources_.store->Write(*engine_, static_cast<ItemId>(home.record_slot),
                                                     static_cast<Generation>(iterations),
                                                     memory.first(stored)));
      break;
    }
  }
  // Master weights come first.
  return StoreParams(unit, chunk, iterations, reinterpret_cast<const float*>(memory.data()));
}

absl::Status StateAccess::StoreParams(int unit, int chunk, int64_t iterations, const float* master) {
  const ChunkInfo& info = plan_.chunks[unit][chunk];
  const ChunkHome& home = plan_.homes[unit][chunk];
  const Slot& slot = plan_.slots[home.params_slot];
  const int64_t n = info.end - info.begin;
  const int64_t bytes = n * SizeOf(plan_.compute_dtype);
  std::byte* target =
      slot.tier == Tier::kHost ? resources_.host->data() + slot.offset + home.params_offset : params_.data();
  STRATA_RETURN_IF_ERROR(
      resources_.host_state_ops->CastParams(nullptr, master, target, plan_.compute_dtype, n));
  switch (slot.tier) {
    case Tier::kHost:
      return absl::OkStatus();
    case Tier::kDevice:
      return resources_.device->CopyToDevice(
          nullptr, resources_.device->arena() + slot.offset + home.params_offset, target, bytes);
    case Tier::kNvme: {
      const int64_t stored = static_cast<int64_t>(StoredBytes(static_cast<uint64_t>(bytes)));
      std::fill(target + bytes, target + stored, std::byte{0});
      return resources_.store->Write(*engine_, static_cast<ItemId>(home.params_slot),
                                     static_cast<Generation>(iterations),
                                     {target, static_cast<size_t>(stored)});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> StateAccess::Fetch(int32_t slot_index, int64_t offset, int64_t bytes,
                                                    Generation generation, std::span<std::byte> staging) {
  const Slot& slot = plan_.slots[slot_index];
  switch (slot.tier) {
    case Tier::kHost:
      return resources_.host->data() + slot.offset + offset;
    case Tier::kDevice:
      STRATA_RETURN_IF_ERROR(resources_.device->CopyToHost(
          nullptr, staging.data(), resources_.device->arena() + slot.offset + offset, bytes));
      return staging.data();
    case Tier::kNvme:
      STRATA_RETURN_IF_ERROR(
          resources_.store->Read(*engine_, static_cast<ItemId>(slot_index), generation,
                                 staging.first(StoredBytes(static_cast<uint64_t>(bytes)))));
      return staging.data();
  }
  return absl::InternalError("unknown tier");
}

absl::Status StateAccess::LoadPending(int unit, int chunk, const Fill& fill) {
  const ChunkInfo& info = plan_.chunks[unit][chunk];
  const Slot& slot = plan_.slots[plan_.pending[unit]];
  const int64_t n = info.end - info.begin, offset = slot.offset + 4 * info.begin;
  const bool host = slot.tier == Tier::kHost;
  std::byte* memory = host ? resources_.host->data() + offset : record_.data();
  STRATA_RETURN_IF_ERROR(
      fill(unit, StateClass::kPendingGradient, info.begin, {memory, static_cast<size_t>(4 * n)}));
  if (host) return absl::OkStatus();
  return resources_.device->CopyToDevice(nullptr, resources_.device->arena() + offset, memory, 4 * n);
}

absl::Status StateAccess::Read(int unit, int64_t begin, int64_t end, int64_t iterations, const Visit& visit,
                               const VisitParams& params) {
  for (size_t chunk = 0; chunk < plan_.chunks[unit].size(); ++chunk) {
    const ChunkInfo& info = plan_.chunks[unit][chunk];
    const int64_t from = std::max(begin, info.begin);
    const int64_t to = std::min(end, info.end);
    if (from >= to) continue;
    const ChunkHome& home = plan_.homes[unit][chunk];
    const int64_t n = info.end - info.begin;
    // What is frozen is of the generation of the load.
    const auto generation = [&](int32_t slot) {
      const bool loaded = plan_.frozen[unit] && plan_.slots[slot].tier == Tier::kNvme;
      return (loaded ? resources_.store->newest(static_cast<ItemId>(slot)) : std::nullopt)
          .value_or(static_cast<Generation>(iterations));
    };
    // Items are clipped to the range: it begins with one.
    const auto clipped = [&](StateClass state, std::span<const std::byte> items) {
      const StateItem item = StateItemOf(state, plan_.moments);
      const int64_t first = (from - info.begin) / item.elements, count = item.Count(to - from);
      return visit(unit, state, from,
                   items.subspan(static_cast<size_t>(first * item.bytes()),
                                 static_cast<size_t>(count * item.bytes())));
    };
    STRATA_ASSIGN_OR_RETURN(const std::byte* record,
                            Fetch(home.record_slot, home.record_offset, RecordBytes(plan_.moments, n),
                                  generation(home.record_slot), record_),
                            "reading ", resources_.layout->units[unit].name, " chunk ", chunk);
    STRATA_RETURN_IF_ERROR(ForEachClass(plan_.moments, n, record, clipped));
    if (!plan_.pending.empty()) {
      STRATA_ASSIGN_OR_RETURN(const std::byte* pending, Fetch(plan_.pending[unit], 4 * info.begin, 4 * n,
                                                              static_cast<Generation>(iterations), record_));
      STRATA_RETURN_IF_ERROR(clipped(StateClass::kPendingGradient, {pending, static_cast<size_t>(4 * n)}));
    }
    if (!params) continue;
    const int64_t size = SizeOf(plan_.compute_dtype);
    STRATA_ASSIGN_OR_RETURN(const std::byte* low, Fetch(home.params_slot, home.params_offset, n * size,
                                                        generation(home.params_slot), params_));
    STRATA_RETURN_IF_ERROR(
        params(unit, from, {low + (from - info.begin) * size, static_cast<size_t>((to - from) * size)}));
  }
  return absl::OkStatus();
}

}  // namespace strata
