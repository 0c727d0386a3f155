// The state of one running launch, shared by the emulator's own files. Everything here belongs to the OS
// thread that holds the launch lock (launch.cc).
#ifndef KERNELS_KX_EMU_MACHINE_H_
#define KERNELS_KX_EMU_MACHINE_H_

#include <array>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kx/emu/emu.h"
#include "kernels/kx/emu/fiber.h"
#include "kernels/kx/emu/primitives.h"
#include "kernels/kx/emu/tensor_map.h"
#include "kernels/kx/emu/traffic.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::kx::emu {

// --- happens-before ------------------------------------------------------------------------------
// An actor is a thread of the block or an asynchronous engine working for it (ActorOf...). Each counts its
// own clock; a vector clock says up to which time of each actor its owner has been ordered after.
using Clock = uint32_t;
using VectorClock = std::vector<Clock>;
using Knowledge = std::shared_ptr<const VectorClock>;
// What is known of other blocks of the launch: by block number.
using Foreign = std::shared_ptr<const std::map<uint32_t, Knowledge>>;

void MergeInto(VectorClock& into, const VectorClock& from);
Foreign Merged(const Foreign& a, const Foreign& b);

// Who accesses memory, and what it is ordered after.
struct Actor {
  uint16_t id;
  Clock clock;
  const VectorClock* knows;
  // Of an engine working for a warp: the lanes' clocks when the operation was issued. Accesses the
  // lanes made up to then come before it by program order.
  const Clock* lane_clocks = nullptr;
  int first_lane = 0;
  bool async_proxy = false;

  bool After(uint16_t other, Clock when) const;
};

// --- shared memory -------------------------------------------------------------------------------
// Address of the first shared byte: 0 stays invalid. A multiple of every swizzle atom.
inline constexpr SharedAddress kSharedBase = 1024;
inline constexpr uint16_t kNobody = 0xffff;

struct Read {
  uint16_t actor;
  Clock clock;
};

// What is known of some bytes that have always been accessed together.
struct Cell {
  Cell() = default;
  Cell(const Cell& other) { *this = other; }
  Cell& operator=(const Cell& other);

  uint16_t writer = kNobody;
  uint16_t in_flight = 0;  // 1 + the thread whose asynchronous copy will overwrite it
  bool initialized = false;
  bool ordinary = false;  // last written by a store, not by the asynchronous proxy
  uint8_t reads = 0;
  Clock write_clock = 0;
  Where wrote = {nullptr, 0};
  std::array<Read, 4> read = {};
  std::unique_ptr<VectorClock> more_reads;  // replaces `read` when it is full
};

// 16 bytes: one cell while they are accessed together, else one per byte.
struct Chunk {
  Cell whole;
  std::unique_ptr<std::array<Cell, 16>> bytes;
};

class SharedMemory {
 public:
  struct Array {
    SharedAddress begin;
    uint32_t bytes;
    uint32_t align;
  };

  SharedAddress Alloc(uint32_t nth, uint32_t bytes, uint32_t align, size_t limit, Where where);
  unsigned char* Raw(SharedAddress a) { return bytes_.data() + (a - kSharedBase); }
  // Checks and records an access; false (already reported): it is out of bounds or misaligned, do nothing.
  bool Access(SharedAddress a, uint32_t bytes, bool write, const Actor& actor, Where where);
  // Asynchronous writes: from Begin to End the bytes are poisoned and nobody may touch them.
  bool BeginAsyncWrite(SharedAddress a, uint32_t bytes, const Actor& issuer, Where where);
  void EndAsyncWrite(SharedAddress a, uint32_t bytes, uint16_t actor, Clock clock, bool async_proxy);
  uint32_t carved() const { return carved_; }

 private:
  const Array* Find(SharedAddress a, uint32_t bytes) const;
  template <class F>
  void ForEachCell(SharedAddress a, uint32_t bytes, F&& f);

  std::vector<Array> arrays_;
  std::vector<unsigned char> bytes_;
  std::vector<Chunk> chunks_;
  uint32_t carved_ = 0;
};

// --- threads -------------------------------------------------------------------------------------
enum class State : uint8_t { kReady, kBarrier, kCollective, kMbarrier, kDone };

struct Copy {  // one cp.async
  SharedAddress to;
  const void* from;
  bool valid;
  Where where;
};

struct Wgmma {  // one instruction as one lane issued it
  float* d;
  int n;
  bool a_in_registers;
  uint32_t a[4];
  uint64_t a_descriptor, b_descriptor;
  bool a_mn_major, b_mn_major;
  bool accumulate;
  Elements elements;
  Where where;
  Knowledge knows;
  Clock clock;
};
struct Accumulator {
  std::vector<float> values;
  int pending = 0;
};

struct BulkStore {  // one TMA store
  TensorMapFields map;
  SharedAddress from;
  std::array<int, 5> at;
  Where where;
  Knowledge knows;
  Clock clock;
  std::vector<unsigned char> data;  // filled when the engine has read shared memory
  bool read = false;
};

struct Thread {
  Fiber fiber;
  State state = State::kReady;
  Indices ids;
  Where waits_at = {nullptr, 0};
  Knowledge knows;
  Clock clock = 1;
  Foreign foreign;

  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;

  Clock proxy_fence = 0;  // own stores up to this time are visible to the asynchronous proxy
  int mbarrier_parity = 0;
  int registers = 0;            // by setmaxnreg; 0 as launched
  bool more_registers = false;  // it was an increase
  bool wgmma_fenced = false;
  uint32_t wgmmas_issued = 0;
  std::vector<Wgmma> open_wgmmas;
  std::deque<std::vector<Wgmma>> wgmma_groups;
  std::map<float*, Accumulator> accumulators;
  std::vector<BulkStore> open_stores;
  std::deque<std::vector<BulkStore>> store_groups;
};

struct WarpSlot {  // the collective a warp is gathering for
  uint32_t arrived = 0;
  Collective op;
  Where where;
  std::array<void*, 32> args;
};

struct BarrierState {
  int need = 0, got = 0;
  VectorClock clocks;
  Knowledge last_merged;
  Foreign foreign;
  std::vector<int> waiting;
  struct Arrival {
    Where where = {nullptr, 0};
    int lanes = 0;
  };
  std::array<Arrival, 32> warps = {};  // where each warp arrived, and how many of its lanes
  Where first = {nullptr, 0};
};

struct Mbarrier {
  int count = 0, left = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;
  bool fenced = false;  // the initialization is visible to the asynchronous proxy
  int initializer = 0;
  VectorClock clocks;
  Knowledge completed;
  std::vector<int> waiting;
};

struct TmaLoad {
  TensorMapFields map;
  SharedAddress to, mbarrier;
  std::array<int, 5> at;
  Where where;
};

// --- the launch ----------------------------------------------------------------------------------
struct Machine {
  const Options* options = nullptr;
  Report* report = nullptr;
  std::set<std::pair<std::string, std::string>> reported;  // place and kind of complaint, each told once
  uint64_t launch = 0;                                     // number of this launch, never reused
  const std::function<void()>* body = nullptr;
  std::mt19937_64 random;

  // The block that runs.
  uint32_t block = 0;  // its number in the grid
  std::vector<Thread> threads;
  std::vector<WarpSlot> warps;
  std::array<BarrierState, 16> barriers;
  std::deque<int> ready;
  int current = 0;
  int alive = 0;
  Fiber scheduler;
  size_t shared_limit = 0;
  SharedMemory shared;
  Traffic traffic;
  std::map<SharedAddress, Mbarrier> mbarriers;
  std::deque<TmaLoad> loads;
  Clock tma_clock = 0;
  std::vector<Clock> wgmma_clocks, store_clocks;       // per warp
  std::vector<std::vector<uint64_t>> wgmma_sequences;  // per warpgroup: what its first warp issued

  int thread_count() const { return static_cast<int>(threads.size()); }
  int warp_count() const { return static_cast<int>(warps.size()); }
  uint16_t TmaActor() const { return static_cast<uint16_t>(threads.size()); }
  uint16_t WgmmaActor(int warp) const { return static_cast<uint16_t>(thread_count() + 1 + warp); }
  uint16_t StoreActor(int warp) const {
    return static_cast<uint16_t>(thread_count() + 1 + warp_count() + warp);
  }
  size_t actor_count() const { return threads.size() + 1 + 2 * warps.size(); }
  Thread& self() { return threads[current]; }
};

// Only while a launch runs; guarded by the launch lock.
extern Machine* machine;

// Reports a complaint about thread `machine->current`, once per place and format.
void Complain(Where where, const char* format, ...) __attribute__((format(printf, 2, 3)));
std::string ShortPlace(Where where);
inline bool SamePlace(Where a, Where b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

Actor CurrentActor();

// scheduler.cc
void Wake(std::span<int> threads);  // reorders them
void BlockCurrent(State state, Where where);
void RunBlock();
void (*EntryPoint())();  // what the fibers run

// wgmma.cc, hopper.cc
void WaitForWgmmas(int warp, int groups_left);
void CompleteOneLoad();
void DrainAtExit(Thread& thread);
void CheckRegisters();

// shared.cc. One lane's part of an instruction that is counted by itself (ldmatrix, stmatrix).
void LoadShared(SharedAddress address, void* value, uint32_t bytes, Where where);
void StoreShared(SharedAddress address, const void* value, uint32_t bytes, Where where);
// Counts a lane's part of a plain instruction, or of a cp.async; Options::traffic.
inline void CountShared(SharedAddress address, uint32_t bytes, bool write, Where where) {
  if (!machine->options->traffic) return;
  machine->traffic.Record(Space::kShared, machine->current, address, bytes, write, where);
}

// global.cc
bool AccessGlobal(const void* address, uint32_t bytes, bool write, Where where);
// As CountShared.
void CountGlobal(const void* address, uint32_t bytes, bool write, Where where);
inline constexpr unsigned char kPoison = 0xff;

// numeric.cc
float HalfToFloat(uint16_t bits);
inline constexpr int BytesOf(Elements elements) { return elements == Elements::kE4m3 ? 1 : 2; }
// The value of the lowest bits.
inline float Element(uint32_t bits, Elements elements) {
  if (elements == Elements::kE4m3) return ToFloat(e4m3{static_cast<uint8_t>(bits)});
  return elements == Elements::kF16 ? HalfToFloat(static_cast<uint16_t>(bits))
                                    : std::bit_cast<float>(bits << 16);
}
// c[rows x n] += a[rows x depth] * b[depth x n], row-major. A depth of 32 is that of eight-bit elements.
struct ProductShape {
  int rows, n, depth;
};
void MultiplyAdd(float* c, const float* a, const float* b, ProductShape shape, Accumulate how);

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_MACHINE_H_
