// mbarriers, proxy fences, TMA, setmaxnreg.
#include <algorithm>
#include <cstring>

#include "kernels/kx/emu/machine.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::kx::emu {
namespace {

// Of its arrivals, and of the bytes it still expects.
constexpr int kMbarrierMax = (1 << 20) - 1;

Mbarrier* FindMbarrier(SharedAddress bar, Where where) {
  const auto found = machine->mbarriers.find(bar);
  if (found == machine->mbarriers.end()) {
    Complain(where, "no mbarrier was initialized at shared 0x%x", bar);
    return nullptr;
  }
  // An access like any other: its initialization must come before.
  if (!machine->shared.Access(bar, 8, false, CurrentActor(), where)) return nullptr;
  return &found->second;
}

void Acquire(Thread& thread, const Knowledge& completed) {
  if (!completed || thread.knows == completed) return;
  auto merged = std::make_shared<VectorClock>(*thread.knows);
  MergeInto(*merged, *completed);
  thread.knows = merged;
}

void CompletePhase(Mbarrier& bar) {
  if (bar.left != 0 || bar.bytes != 0) return;
  ++bar.phase;
  bar.left = bar.count;
  bar.completed = std::make_shared<const VectorClock>(bar.clocks);
  std::vector<int> woken, still;
  for (const int thread : bar.waiting) {
    const bool done = static_cast<int>(bar.phase & 1) != machine->threads[thread].mbarrier_parity;
    (done ? woken : still).push_back(thread);
  }
  bar.waiting = std::move(still);
  // Here and not when they run: by then a later phase may have completed.
  for (const int thread : woken) Acquire(machine->threads[thread], bar.completed);
  Wake(woken);
}

// Calls f(byte offset in the box, global address or null outside the tensor, bytes) for each piece of at most
// 16 bytes that is contiguous and wholly inside or outside.
template <class F>
void ForEachPiece(const TensorMapFields& map, const std::array<int, 5>& at, F&& f) {
  const uint32_t element = map.element_bytes;
  uint32_t rows = 1;
  for (int d = 1; d < map.rank; ++d) rows *= map.box[d];
  const uint32_t row_bytes = map.box[0] * element;
  for (uint32_t row = 0; row < rows; ++row) {
    bool inside = true;
    char* address = static_cast<char*>(map.base);
    uint32_t rest = row;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t c = static_cast<int64_t>(at[d]) + rest % map.box[d];
      rest /= map.box[d];
      inside = inside && c >= 0 && c < static_cast<int64_t>(map.extent[d]);
      if (inside) address += c * static_cast<int64_t>(map.stride[d - 1]);
    }
    for (uint32_t i = 0; i < map.box[0]; ++i) {
      const int64_t c = static_cast<int64_t>(at[0]) + i;
      const bool in = inside && c >= 0 && c < static_cast<int64_t>(map.extent[0]);
      char* p = in ? address + c * element : nullptr;
      const uint32_t offset = row * row_bytes + i * element;
      const uint32_t wide = 16 / element;
      const bool sixteen = in && reinterpret_cast<uintptr_t>(p) % 16 == 0 && offset % 16 == 0 &&
                           i + wide <= map.box[0] && c + wide <= static_cast<int64_t>(map.extent[0]);
      f(offset, p, sixteen ? 16u : element);
      if (sixteen) i += wide - 1;
    }
  }
}

uint32_t BoxBytes(const TensorMapFields& map) {
  uint32_t bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

SharedAddress Swizzled(const TensorMapFields& map, SharedAddress a) {
  return map.swizzle_bytes == 128 ? a ^ ((a >> 7 & 7) << 4) : a;
}

bool ReadMap(const TensorMap& map, int rank, SharedAddress shared, TensorMapFields* fields, Where where) {
  memcpy(fields, map.opaque, sizeof *fields);
  if (fields->magic != TensorMapFields::kMagic) {
    Complain(where, "TMA with a tensor map that was never encoded");
    return false;
  }
  if (fields->rank != rank) {
    Complain(where, "TMA with %d coordinates and a tensor map of rank %d", rank, fields->rank);
    return false;
  }
  const uint32_t align = fields->swizzle_bytes == 128 ? 1024 : 128;
  if (shared % align != 0) {
    Complain(where, "TMA with shared address 0x%x: must be a multiple of %u", shared, align);
    return false;
  }
  return true;
}

// The engine reads shared memory, as late as BulkWaitRead lets it.
void ReadStore(BulkStore& store) {
  if (store.read) return;
  store.read = true;
  const int warp = machine->current / 32;
  std::array<Clock, 32> lanes;
  for (int i = 0; i < 32; ++i) lanes[i] = (*store.knows)[warp * 32 + i];
  lanes[machine->current % 32] = store.clock;
  const Actor engine{machine->StoreActor(warp),
                     machine->store_clocks[warp],
                     store.knows.get(),
                     lanes.data(),
                     warp * 32,
                     true};
  store.data.assign(BoxBytes(store.map), kPoison);
  for (uint32_t offset = 0; offset < store.data.size(); offset += 16) {
    const SharedAddress a = Swizzled(store.map, store.from + offset);
    if (machine->shared.Access(a, 16, false, engine, store.where)) {
      memcpy(store.data.data() + offset, machine->shared.Raw(a), 16);
    }
  }
}

void WriteStore(const BulkStore& store) {
  ForEachPiece(store.map, store.at, [&](uint32_t offset, char* to, uint32_t bytes) {
    if (to != nullptr && AccessGlobal(to, bytes, true, store.where))
      memcpy(to, store.data.data() + offset, bytes);
  });
}

// Of each thread, with one block to an SM: ptxas gives a kernel that has setmaxnreg all that its launch bound
// leaves, but no more than the largest count it raises to.
int RegistersAtLaunch() {
  int raised_to = 0;
  for (const Thread& thread : machine->threads) {
    if (thread.more_registers) raised_to = std::max(raised_to, thread.registers);
  }
  const int most = std::min(65536 / machine->thread_count() / 8 * 8, 256);
  return raised_to == 0 ? most : std::min(most, raised_to);
}

}  // namespace

void InitMbarrier(SharedAddress bar, int arrivals, Where where) {
  if (!machine->shared.Access(bar, 8, true, CurrentActor(), where)) return;
  if (arrivals < 1 || arrivals > kMbarrierMax) {
    Complain(where, "mbarrier with %d arrivals: 1 to 2^20 - 1", arrivals);
    return;
  }
  if (machine->mbarriers.count(bar) != 0) {
    Complain(where, "mbarrier 0x%x is initialized a second time: undefined while it is one", bar);
    return;
  }
  Mbarrier state;
  state.count = state.left = arrivals;
  state.initializer = machine->current;
  state.clocks.assign(machine->actor_count(), 0);
  machine->mbarriers[bar] = std::move(state);
}

void FenceMbarriers() {
  for (auto& [address, bar] : machine->mbarriers) {
    if (bar.initializer == machine->current) bar.fenced = true;
  }
}

void ArriveMbarrier(SharedAddress address, int bytes, Where where) {
  Mbarrier* bar = FindMbarrier(address, where);
  if (bar == nullptr) return;
  if (bar->left <= 0) {
    Complain(where, "mbarrier 0x%x: more arrivals in one phase than its %d", address, bar->count);
    return;
  }
  Thread& self = machine->self();
  MergeInto(bar->clocks, *self.knows);
  bar->clocks[machine->current] = std::max(bar->clocks[machine->current], self.clock);
  ++self.clock;
  bar->bytes += bytes;
  if (bytes < 0 || bar->bytes > kMbarrierMax) {
    Complain(where, "mbarrier 0x%x expects %ld bytes: at most 2^20 - 1", address,
             static_cast<long>(bar->bytes));
  }
  --bar->left;
  CompletePhase(*bar);
}

void WaitMbarrier(SharedAddress address, int parity, Where where) {
  Mbarrier* bar = FindMbarrier(address, where);
  if (bar == nullptr) return;
  Thread& self = machine->self();
  if (static_cast<int>(bar->phase & 1) != (parity & 1)) {
    Acquire(self, bar->completed);
    return;
  }
  self.mbarrier_parity = parity & 1;
  bar->waiting.push_back(machine->current);
  BlockCurrent(State::kMbarrier, where);
}

void FenceProxy() {
  Thread& self = machine->self();
  self.proxy_fence = self.clock++;
}

void LoadTensor(SharedAddress to, const TensorMap& map, SharedAddress bar, int rank, const int* at,
                Where where) {
  ++machine->report->stats.tma;
  TmaLoad load;
  if (!ReadMap(map, rank, to, &load.map, where)) return;
  const Mbarrier* state = FindMbarrier(bar, where);
  if (state == nullptr) return;
  if (!state->fenced) {
    Complain(where, "TMA completes on mbarrier 0x%x with no FenceMbarInit after its initialization", bar);
    return;
  }
  load.to = to;
  load.mbarrier = bar;
  load.where = where;
  load.at = {};
  std::copy_n(at, rank, load.at.begin());
  Actor issuer = CurrentActor();
  issuer.async_proxy = true;
  if (!machine->shared.BeginAsyncWrite(to, BoxBytes(load.map), issuer, where)) return;
  ForEachPiece(load.map, load.at, [&](uint32_t, const char* from, uint32_t bytes) {
    if (from != nullptr) AccessGlobal(from, bytes, false, where);
  });
  machine->loads.push_back(load);
}

void CompleteOneLoad() {
  const size_t nth =
      machine->options->order == Order::kShuffle ? machine->random() % machine->loads.size() : 0;
  const TmaLoad load = machine->loads[nth];
  machine->loads.erase(machine->loads.begin() + static_cast<int64_t>(nth));
  ForEachPiece(load.map, load.at, [&](uint32_t offset, const char* from, uint32_t bytes) {
    unsigned char* to = machine->shared.Raw(Swizzled(load.map, load.to + offset));
    if (from != nullptr) {
      memcpy(to, from, bytes);
    } else {
      memset(to, 0, bytes);
    }
  });
  const uint32_t bytes = BoxBytes(load.map);
  const Clock clock = ++machine->tma_clock;
  machine->shared.EndAsyncWrite(load.to, bytes, machine->TmaActor(), clock, true);
  Mbarrier& bar = machine->mbarriers.at(load.mbarrier);
  bar.clocks[machine->TmaActor()] = clock;
  bar.bytes -= bytes;
  CompletePhase(bar);
}

void StoreTensor(const TensorMap& map, SharedAddress from, int rank, const int* at, Where where) {
  ++machine->report->stats.tma;
  BulkStore store;
  if (!ReadMap(map, rank, from, &store.map, where)) return;
  Thread& self = machine->self();
  store.from = from;
  store.at = {};
  std::copy_n(at, rank, store.at.begin());
  store.where = where;
  store.knows = self.knows;
  store.clock = self.clock++;
  self.open_stores.push_back(std::move(store));
}

void CommitStores() {
  Thread& self = machine->self();
  self.store_groups.push_back(std::move(self.open_stores));
  self.open_stores.clear();
}

void WaitStores(int groups_left, bool only_read) {
  Thread& self = machine->self();
  const int done = static_cast<int>(self.store_groups.size()) - groups_left;
  if (done <= 0) return;
  const int warp = machine->current / 32;
  const Clock clock = ++machine->store_clocks[warp];
  for (int i = 0; i < done; ++i) {
    for (BulkStore& store : self.store_groups[i]) ReadStore(store);
  }
  // The reads come before whatever the thread does next.
  auto knows = std::make_shared<VectorClock>(*self.knows);
  (*knows)[machine->StoreActor(warp)] = clock;
  self.knows = knows;
  if (only_read) return;
  for (int i = 0; i < done; ++i) {
    for (const BulkStore& store : self.store_groups.front()) WriteStore(store);
    self.store_groups.pop_front();
  }
}

void DrainAtExit(Thread& thread) {
  const auto complain = [](Where where, const char* what) {
    Complain(where, "the thread exits before %s", what);
  };
  for (const Copy& copy : thread.open_copies)
    complain(copy.where, "this cp.async was committed and waited for");
  for (const auto& group : thread.copy_groups) {
    for (const Copy& copy : group) complain(copy.where, "this cp.async was waited for");
  }
  for (const Wgmma& op : thread.open_wgmmas) complain(op.where, "this wgmma was committed and waited for");
  for (const auto& group : thread.wgmma_groups) {
    for (const Wgmma& op : group) complain(op.where, "this wgmma was waited for");
  }
  for (const BulkStore& store : thread.open_stores) complain(store.where, "this TMA store was committed");
  for (const auto& group : thread.store_groups) {
    for (const BulkStore& store : group) {
      if (!store.read) {
        complain(store.where, "this TMA store has read shared memory (BulkWaitRead)");
      } else {
        WriteStore(store);  // global memory is complete when the kernel is
      }
    }
  }
}

void SetRegisters(int registers, bool more, Where where) {
  Thread& self = machine->self();
  if (self.registers != 0) Complain(where, "a second setmaxnreg of one thread: the emulator knows one");
  self.registers = registers;
  self.more_registers = more;
  self.waits_at = where;
}

void CheckRegisters() {
  const int threads = machine->thread_count(), at_launch = RegistersAtLaunch();
  int64_t sum = 0;
  bool used = false;
  Where where = {nullptr, 0};
  for (int i = 0; i < threads; ++i) {
    const Thread& thread = machine->threads[i];
    machine->current = i;
    if (thread.registers != machine->threads[i / 128 * 128].registers) {
      Complain(thread.waits_at, "threads of one warpgroup set %d and %d registers", thread.registers,
               machine->threads[i / 128 * 128].registers);
    }
    sum += thread.registers != 0 ? thread.registers : at_launch;
    if (thread.registers == 0) continue;
    used = true;
    where = thread.waits_at;
    if (thread.more_registers ? thread.registers < at_launch : thread.registers > at_launch) {
      Complain(where, "setmaxnreg.%s to %d of a thread that was launched with %d: undefined",
               thread.more_registers ? "inc" : "dec", thread.registers, at_launch);
    }
  }
  // The launch took no more than this for the block: an increase past it waits for ever.
  const int64_t pool = static_cast<int64_t>(at_launch) * threads;
  if (used && sum > pool) {
    Complain(where, "setmaxnreg gives the block %ld registers: it was launched with %ld",
             static_cast<long>(sum), static_cast<long>(pool));
  }
}

}  // namespace strata::kx::emu
