// Shared memory: bounds, initialization, races, asynchronous writes in flight.
#include <algorithm>
#include <cstring>

#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {
namespace {

// Between arrays, so that running off one never lands in the next.
constexpr uint32_t kRedZone = 128;

const char* Verb(bool write) { return write ? "write" : "read"; }

std::string Name(uint16_t actor) {
  const int threads = machine->thread_count();
  if (actor < threads) return "thread " + std::to_string(actor);
  if (actor == machine->TmaActor()) return "a TMA load";
  if (actor < machine->StoreActor(0))
    return "wgmma of warp " + std::to_string(actor - machine->WgmmaActor(0));
  return "a TMA store of warp " + std::to_string(actor - machine->StoreActor(0));
}

// A read in `cell` that does not come before `actor`, or null.
const Read* UnorderedRead(const Cell& cell, const Actor& actor, Read* storage) {
  if (cell.more_reads) {
    for (size_t u = 0; u < cell.more_reads->size(); ++u) {
      const Clock clock = (*cell.more_reads)[u];
      if (clock != 0 && !actor.After(static_cast<uint16_t>(u), clock)) {
        *storage = {static_cast<uint16_t>(u), clock};
        return storage;
      }
    }
    return nullptr;
  }
  for (int i = 0; i < cell.reads; ++i) {
    if (!actor.After(cell.read[i].actor, cell.read[i].clock)) return &cell.read[i];
  }
  return nullptr;
}

void RecordRead(Cell& cell, const Actor& actor) {
  if (cell.more_reads) {
    (*cell.more_reads)[actor.id] = actor.clock;
    return;
  }
  for (int i = 0; i < cell.reads; ++i) {
    // An older read that this one comes after says nothing more.
    if (cell.read[i].actor == actor.id || actor.After(cell.read[i].actor, cell.read[i].clock)) {
      cell.read[i] = {actor.id, actor.clock};
      return;
    }
  }
  if (cell.reads < cell.read.size()) {
    cell.read[cell.reads++] = {actor.id, actor.clock};
    return;
  }
  cell.more_reads = std::make_unique<VectorClock>(machine->actor_count(), 0);
  for (const Read& read : cell.read) (*cell.more_reads)[read.actor] = read.clock;
  (*cell.more_reads)[actor.id] = actor.clock;
}

// Reports the first thing wrong with the access; true: nothing is.
bool Check(const Cell& cell, SharedAddress a, bool write, const Actor& actor, Where where) {
  if (cell.in_flight != 0) {
    Complain(where,
             "%s of shared 0x%x while an asynchronous copy into it is in flight (issued at %s by thread %u)",
             Verb(write), a, ShortPlace(cell.wrote).c_str(), cell.in_flight - 1);
    return false;
  }
  if (!write && !cell.initialized) {
    Complain(where, "read of uninitialized shared 0x%x", a);
    return false;
  }
  if (cell.writer != kNobody && !actor.After(cell.writer, cell.write_clock)) {
    Complain(where, "RACE: %s of shared 0x%x, which %s wrote at %s with nothing ordering the two",
             Verb(write), a, Name(cell.writer).c_str(), ShortPlace(cell.wrote).c_str());
    return false;
  }
  if (actor.async_proxy && cell.ordinary && cell.writer < machine->thread_count() &&
      cell.write_clock > machine->threads[cell.writer].proxy_fence) {
    Complain(
        where,
        "the asynchronous proxy %ss shared 0x%x, written at %s by an ordinary store with no FenceAsyncProxy "
        "after it",
        Verb(write), a, ShortPlace(cell.wrote).c_str());
    return false;
  }
  if (write) {
    Read storage;
    if (const Read* read = UnorderedRead(cell, actor, &storage)) {
      Complain(where, "RACE: write of shared 0x%x, which %s read with nothing ordering the two", a,
               Name(read->actor).c_str());
      return false;
    }
  }
  return true;
}

}  // namespace

bool Actor::After(uint16_t other, Clock when) const {
  if (lane_clocks != nullptr) {
    const int lane = other - first_lane;
    if (lane >= 0 && lane < 32) return when <= lane_clocks[lane];
  }
  return other == id || when <= (*knows)[other];
}

Cell& Cell::operator=(const Cell& other) {
  if (this == &other) return *this;
  writer = other.writer;
  in_flight = other.in_flight;
  initialized = other.initialized;
  ordinary = other.ordinary;
  reads = other.reads;
  write_clock = other.write_clock;
  wrote = other.wrote;
  read = other.read;
  more_reads = other.more_reads ? std::make_unique<VectorClock>(*other.more_reads) : nullptr;
  return *this;
}

SharedAddress SharedMemory::Alloc(uint32_t nth, uint32_t bytes, uint32_t align, size_t limit, Where where) {
  if (nth < arrays_.size()) {
    if (arrays_[nth].bytes != bytes || arrays_[nth].align != align) {
      Complain(where, "threads disagree about shared array %u: %u bytes and %u bytes", nth,
               arrays_[nth].bytes, bytes);
    }
    return arrays_[nth].begin;
  }
  // The layout the GPU will have, which decides whether the launch gave enough.
  carved_ = (carved_ + align - 1) / align * align + bytes;
  if (carved_ > limit) {
    Complain(where, "the kernel carves %u bytes of shared memory, the launch gave %zu", carved_, limit);
  }
  const uint32_t first =
      arrays_.empty() ? 0 : arrays_.back().begin - kSharedBase + arrays_.back().bytes + kRedZone;
  const uint32_t offset = (first + align - 1) / align * align;
  arrays_.push_back({kSharedBase + offset, bytes, align});
  bytes_.resize(offset + bytes, kPoison);
  chunks_.resize((offset + bytes + 15) / 16);
  return kSharedBase + offset;
}

const SharedMemory::Array* SharedMemory::Find(SharedAddress a, uint32_t bytes) const {
  for (const Array& array : arrays_) {
    if (a >= array.begin && a - array.begin <= array.bytes && bytes <= array.bytes - (a - array.begin))
      return &array;
  }
  return nullptr;
}

template <class F>
void SharedMemory::ForEachCell(SharedAddress a, uint32_t bytes, F&& f) {
  uint32_t offset = a - kSharedBase;
  const uint32_t end = offset + bytes;
  while (offset < end) {
    Chunk& chunk = chunks_[offset / 16];
    const uint32_t stop = std::min(end, offset / 16 * 16 + 16);
    const bool full = stop - offset == 16;
    if (!full && !chunk.bytes) {
      chunk.bytes = std::make_unique<std::array<Cell, 16>>();
      chunk.bytes->fill(chunk.whole);
    }
    if (chunk.bytes) {
      for (uint32_t i = offset; i < stop; ++i) {
        if (!f((*chunk.bytes)[i % 16], kSharedBase + i)) return;
      }
    } else if (!f(chunk.whole, kSharedBase + offset)) {
      return;
    }
    offset = stop;
  }
}

bool SharedMemory::Access(SharedAddress a, uint32_t bytes, bool write, const Actor& actor, Where where) {
  ++machine->report->stats.shared_accesses;
  if (Find(a, bytes) == nullptr) {
    Complain(where, "%s of %u bytes at shared 0x%x: outside every array", Verb(write), bytes, a);
    return false;
  }
  if (a % bytes != 0) {
    Complain(where, "misaligned %u-byte %s of shared 0x%x", bytes, Verb(write), a);
    return false;
  }
  if (!machine->options->shared_races) return true;
  const uint32_t offset = a - kSharedBase;
  if (write && bytes == 16 && chunks_[offset / 16].bytes) {
    // All 16 bytes get one history again.
    Chunk& chunk = chunks_[offset / 16];
    for (const Cell& cell : *chunk.bytes) {
      if (!Check(cell, a, write, actor, where)) break;
    }
    chunk.bytes.reset();
    chunk.whole = Cell();
  }
  ForEachCell(a, bytes, [&](Cell& cell, SharedAddress at) {
    if (!Check(cell, at, write, actor, where)) return false;
    if (write) {
      cell = Cell();
      cell.writer = actor.id;
      cell.write_clock = actor.clock;
      cell.wrote = where;
      cell.initialized = true;
      cell.ordinary = !actor.async_proxy;
    } else {
      RecordRead(cell, actor);
    }
    return true;
  });
  return true;
}

bool SharedMemory::BeginAsyncWrite(SharedAddress a, uint32_t bytes, const Actor& issuer, Where where) {
  for (uint32_t i = 0; i < bytes; i += 16) {
    if (!Access(a + i, 16, true, issuer, where)) return false;
  }
  memset(Raw(a), kPoison, bytes);
  if (machine->options->shared_races) {
    ForEachCell(a, bytes, [&](Cell& cell, SharedAddress) {
      cell.in_flight = static_cast<uint16_t>(machine->current + 1);
      return true;
    });
  }
  return true;
}

void SharedMemory::EndAsyncWrite(SharedAddress a, uint32_t bytes, uint16_t actor, Clock clock,
                                 bool async_proxy) {
  if (!machine->options->shared_races) return;
  ForEachCell(a, bytes, [&](Cell& cell, SharedAddress) {
    cell.in_flight = 0;
    cell.writer = actor;
    cell.write_clock = clock;
    cell.initialized = true;
    cell.ordinary = !async_proxy;
    return true;
  });
}

void LoadShared(SharedAddress address, void* value, uint32_t bytes, Where where) {
  memset(value, kPoison, bytes);
  if (machine->shared.Access(address, bytes, false, CurrentActor(), where)) {
    memcpy(value, machine->shared.Raw(address), bytes);
  }
}

void StoreShared(SharedAddress address, const void* value, uint32_t bytes, Where where) {
  if (machine->shared.Access(address, bytes, true, CurrentActor(), where)) {
    memcpy(machine->shared.Raw(address), value, bytes);
  }
}

void CheckedLoadShared(SharedAddress address, void* value, uint32_t bytes, Where where) {
  CountShared(address, bytes, false, where);
  LoadShared(address, value, bytes, where);
}

void CheckedStoreShared(SharedAddress address, const void* value, uint32_t bytes, Where where) {
  CountShared(address, bytes, true, where);
  StoreShared(address, value, bytes, where);
}

void CheckIndex(int64_t index, int64_t count, int64_t limit, Where where) {
  if (index < 0 || count > limit - index) {
    Complain(where, "shared index %ld (and %ld elements) outside [0, %ld)", static_cast<long>(index),
             static_cast<long>(count), static_cast<long>(limit));
  }
}

SharedAddress AllocShared(uint32_t nth, uint32_t bytes, uint32_t align, Where where) {
  return machine->shared.Alloc(nth, bytes, align, machine->shared_limit, where);
}

}  // namespace strata::kx::emu
