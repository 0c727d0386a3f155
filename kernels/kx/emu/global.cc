// Global memory: registered ranges, bounds, initialization, and races between the threads of one launch.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "kernels/kx/emu/launch_lock.h"
#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {
namespace {

enum class Kind : uint8_t { kRead, kWrite, kAtomic };

struct GlobalRead {
  uint32_t block;
  uint16_t thread;
  Clock clock;
};

struct GlobalCell {
  uint32_t block = 0;  // of the last write
  uint16_t writer = kNobody;
  bool atomic = false;
  uint8_t reads = 0;
  Clock write_clock = 0;
  Where wrote = {nullptr, 0};
  // At most this many unordered readers are remembered: a race of a later write with a fifth one, ordered
  // after these four, goes unseen.
  std::array<GlobalRead, 4> read = {};
};

struct GlobalChunk {  // 16 bytes, as in shared memory
  GlobalCell whole;
  std::unique_ptr<std::array<GlobalCell, 16>> bytes;
};

constexpr uintptr_t kPageBytes = 4096;
struct Page {
  uint64_t launch = 0;  // the accesses of an earlier launch come before everything in this one
  std::array<GlobalChunk, kPageBytes / 16> chunks;
};

struct Range {
  uintptr_t begin, end;
  std::string name;
  RangeKind kind;
  std::vector<bool> initialized;  // kOutput only
  std::unordered_map<uintptr_t, Page> pages;
};

// What is known to those who read a word by AtomicAddAcqRel.
struct Words {
  uint64_t launch = 0;
  std::map<const void*, Foreign> known;
};

// Guarded by LaunchLock.
std::map<uintptr_t, Range>& Ranges() {
  static auto* ranges = new std::map<uintptr_t, Range>;
  return *ranges;
}
Words& ReleasedWords() {
  static auto* words = new Words;
  if (words->launch != machine->launch) {
    words->known.clear();
    words->launch = machine->launch;
  }
  return *words;
}

// The range that holds `address`, or null.
Range* Find(uintptr_t address) {
  auto& ranges = Ranges();
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return nullptr;
  Range& range = std::prev(after)->second;
  return address < range.end ? &range : nullptr;
}

bool After(uint32_t block, uint16_t thread, Clock clock) {
  if (block == machine->block) return CurrentActor().After(thread, clock);
  const Foreign& foreign = machine->self().foreign;
  if (!foreign) return false;
  const auto known = foreign->find(block);
  return known != foreign->end() && clock <= (*known->second)[thread];
}

const char* Verb(Kind kind) {
  switch (kind) {
    case Kind::kRead:
      return "read";
    case Kind::kWrite:
      return "write";
    case Kind::kAtomic:
      return "atomic";
  }
  return "?";
}

std::string Place(const Range& range, uintptr_t address) {
  return range.name + "[byte " + std::to_string(address - range.begin) + "]";
}

bool CheckRace(const GlobalCell& cell, const Range& range, uintptr_t address, Kind kind, Where where) {
  const bool both_atomic = kind == Kind::kAtomic && cell.atomic;
  if (cell.writer != kNobody && !both_atomic && !After(cell.block, cell.writer, cell.write_clock)) {
    Complain(where, "RACE: %s of %s, which block %u thread %u wrote at %s with nothing ordering the two",
             Verb(kind), Place(range, address).c_str(), cell.block, cell.writer,
             ShortPlace(cell.wrote).c_str());
    return false;
  }
  for (int i = 0; kind != Kind::kRead && i < cell.reads; ++i) {
    const GlobalRead& read = cell.read[i];
    if (After(read.block, read.thread, read.clock)) continue;
    Complain(where, "RACE: %s of %s, which block %u thread %u read with nothing ordering the two", Verb(kind),
             Place(range, address).c_str(), read.block, read.thread);
    return false;
  }
  return true;
}

void Record(GlobalCell& cell, Kind kind, Where where) {
  const auto thread = static_cast<uint16_t>(machine->current);
  const Clock clock = machine->self().clock;
  if (kind != Kind::kRead) {
    cell = GlobalCell();
    cell.block = machine->block;
    cell.writer = thread;
    cell.atomic = kind == Kind::kAtomic;
    cell.write_clock = clock;
    cell.wrote = where;
    return;
  }
  for (int i = 0; i < cell.reads; ++i) {
    if (After(cell.read[i].block, cell.read[i].thread, cell.read[i].clock)) {
      cell.read[i] = {machine->block, thread, clock};
      return;
    }
  }
  if (cell.reads < cell.read.size()) cell.read[cell.reads++] = {machine->block, thread, clock};
}

void CheckRaces(Range& range, uintptr_t address, uint32_t bytes, Kind kind, Where where) {
  uintptr_t at = address;
  while (at < address + bytes) {
    Page& page = range.pages[at / kPageBytes];
    if (page.launch != machine->launch) {
      page.chunks = {};
      page.launch = machine->launch;
    }
    GlobalChunk& chunk = page.chunks[at % kPageBytes / 16];
    const uintptr_t stop = std::min(address + bytes, at / 16 * 16 + 16);
    if (stop - at < 16 && !chunk.bytes) {
      chunk.bytes = std::make_unique<std::array<GlobalCell, 16>>();
      chunk.bytes->fill(chunk.whole);
    }
    for (uintptr_t i = at; i < stop; i += chunk.bytes ? 1 : 16) {
      GlobalCell& cell = chunk.bytes ? (*chunk.bytes)[i % 16] : chunk.whole;
      if (!CheckRace(cell, range, i, kind, where)) return;
      Record(cell, kind, where);
    }
    at = stop;
  }
}

bool Access(const void* pointer, uint32_t bytes, Kind kind, Where where) {
  ++machine->report->stats.global_accesses;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % bytes != 0) {
    Complain(where, "misaligned %u-byte %s of global %p", bytes, Verb(kind), pointer);
    return false;
  }
  Range* range = Find(address);
  if (range == nullptr) {
    // Memory nobody registered is AddressSanitizer's to check, unless the test says that all is registered.
    if (!machine->options->only_registered && pointer != nullptr) return true;
    Complain(where, "%s of %u bytes at global %p: outside every registered range", Verb(kind), bytes,
             pointer);
    return false;
  }
  if (bytes > range->end - address) {
    Complain(where, "%s of %u bytes at %s runs past its end", Verb(kind), bytes,
             Place(*range, address).c_str());
    return false;
  }
  if (range->kind == RangeKind::kInput && kind != Kind::kRead) {
    Complain(where, "%s of %s, which is an input", Verb(kind), Place(*range, address).c_str());
    return false;
  }
  if (range->kind == RangeKind::kOutput) {
    for (uint32_t i = 0; i < bytes; ++i) {
      const size_t offset = address - range->begin + i;
      if (kind != Kind::kWrite && !range->initialized[offset]) {
        Complain(where, "%s of uninitialized %s", Verb(kind), Place(*range, address + i).c_str());
        break;
      }
      range->initialized[offset] = true;
    }
  }
  if (machine->options->global_races) CheckRaces(*range, address, bytes, kind, where);
  return true;
}

}  // namespace

bool AccessGlobal(const void* address, uint32_t bytes, bool write, Where where) {
  return Access(address, bytes, write ? Kind::kWrite : Kind::kRead, where);
}

void CountGlobal(const void* address, uint32_t bytes, bool write, Where where) {
  if (!machine->options->traffic) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const Range* const range = Find(at);
  machine->traffic.Record(Space::kGlobal, machine->current, range != nullptr ? at - range->begin : at, bytes,
                          write, where);
}

void CheckedLoadGlobal(const void* address, void* value, uint32_t bytes, Where where) {
  CountGlobal(address, bytes, false, where);
  memset(value, kPoison, bytes);
  if (Access(address, bytes, Kind::kRead, where)) memcpy(value, address, bytes);
}

void CheckedStoreGlobal(void* address, const void* value, uint32_t bytes, Where where) {
  CountGlobal(address, bytes, true, where);
  if (Access(address, bytes, Kind::kWrite, where)) memcpy(address, value, bytes);
}

bool CheckedAtomic(void* address, uint32_t bytes, AtomicOrder order, Where where) {
  if (!Access(address, bytes, Kind::kAtomic, where)) return false;
  if (order == AtomicOrder::kRelaxed || !machine->options->global_races) return true;
  Thread& self = machine->self();
  Foreign& word = ReleasedWords().known[address];
  // Acquire what earlier ones released, of this block too; then release it all and what is the thread's own.
  self.foreign = Merged(self.foreign, word);
  auto clocks = std::make_shared<VectorClock>(*self.knows);
  if (word) {
    const auto own = word->find(machine->block);
    if (own != word->end()) MergeInto(*clocks, *own->second);
  }
  self.knows = clocks;
  auto released = std::make_shared<VectorClock>(*clocks);
  (*released)[machine->current] = std::max((*released)[machine->current], self.clock);
  ++self.clock;
  auto mine = std::make_shared<std::map<uint32_t, Knowledge>>();
  (*mine)[machine->block] = released;
  word = Merged(Merged(word, self.foreign), mine);
  return true;
}

GlobalRange::GlobalRange(std::string name, const void* begin, size_t bytes, RangeKind kind) : begin_(begin) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  Range range{address, address + bytes, std::move(name), kind, {}, {}};
  if (kind == RangeKind::kOutput) range.initialized.assign(bytes, false);
  LaunchLock lock;
  auto& ranges = Ranges();
  const auto after = ranges.lower_bound(address);
  const Range* clash = nullptr;
  if (after != ranges.end() && after->second.begin < range.end) clash = &after->second;
  if (after != ranges.begin() && std::prev(after)->second.end > address) clash = &std::prev(after)->second;
  if (bytes == 0 || clash != nullptr) {
    fprintf(stderr, "GlobalRange %s: %s %s\n", range.name.c_str(), clash ? "overlaps" : "is empty",
            clash ? clash->name.c_str() : "");
    abort();
  }
  ranges.emplace(address, std::move(range));
}

GlobalRange::~GlobalRange() {
  LaunchLock lock;
  Ranges().erase(reinterpret_cast<uintptr_t>(begin_));
}

bool GlobalRange::Initialized(size_t offset) const {
  LaunchLock lock;
  const Range& range = Ranges().at(reinterpret_cast<uintptr_t>(begin_));
  return range.kind != RangeKind::kOutput || range.initialized.at(offset);
}

void GlobalRange::MarkInitialized(size_t offset, size_t bytes) {
  LaunchLock lock;
  Range& range = Ranges().at(reinterpret_cast<uintptr_t>(begin_));
  for (size_t i = 0; i < bytes && range.kind == RangeKind::kOutput; ++i)
    range.initialized.at(offset + i) = true;
}

}  // namespace strata::kx::emu
