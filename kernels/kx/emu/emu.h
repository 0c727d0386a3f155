// The emulator as its tests see it: options, reports, checked device memory.
//
// A launch runs its blocks one after another, each CUDA thread on a fiber of the calling OS thread. What it
// holds against a kernel (each complaint names file:line of the primitive, the block, thread, warp and lane):
//   - races on shared memory: accesses of two threads, one a write, that no barrier, mbarrier or Syncwarp
//     orders (vector clocks). Other warp collectives give no order: hardware promises none.
//   - races on global memory inside one launch, also between blocks; only AtomicAddAcqRel orders blocks.
//   - reads of bytes nobody wrote (shared memory starts as NaNs; global ranges declared kOutput likewise).
//   - accesses outside an array or a registered range, misaligned ones, writes to an input.
//   - asynchronous results used before their wait: they land as late as the ISA allows, and until then their
//     destination is poisoned. Missing proxy fences between ordinary stores and TMA or wgmma.
//   - divergence: lanes of a warp, or threads of a barrier, at different places of the source.
//   - deadlock: who waits where. Operations still in flight at exit. More shared memory or registers than
//   given.
// What it cannot see: timing, register pressure and spills (the ptxas gate), the last bits of the hardware's
// approximations and accumulation order, order of instructions inside one thread, clusters, blocks that wait
// for each other, races between launches (the device layer's verifier), proxy fences for global memory.
//
// Threads: launches and registrations from any OS thread; one lock serializes them.
#ifndef KERNELS_KX_EMU_EMU_H_
#define KERNELS_KX_EMU_EMU_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/kx/types.h"

namespace strata::kx::emu {

// In which order threads that become runnable go on, and blocks run.
enum class Order : uint8_t {
  kForward,       // thread 0 first; blocks ascending
  kReverse,       // last thread first; blocks descending
  kShuffle,       // by `seed`, and asynchronous copies complete at any moment after their issue
  kAhead,         // the thread woken last runs first: one warp runs as far ahead as it can
  kAheadReverse,  // the same from the other end; blocks descending
};
inline constexpr Order kAllOrders[] = {Order::kForward, Order::kReverse, Order::kShuffle, Order::kAhead,
                                       Order::kAheadReverse};

// How a tensor core adds up; hardware promises none of them, so a kernel must be right in each.
enum class Accumulate : uint8_t {
  kFloatChain,  // float, one addition after another
  kDouble,      // exact products, one rounding
  // float, each addition chopped toward zero. Of e4m3, what Hopper was found to do (DeepSeek-V3 Technical
  // Report, 2024, section 3.3.2): all addends of one instruction aligned to the largest, chopped 13 bits
  // behind its leading bit.
  kTruncate,
};

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;
  Accumulate accumulate = Accumulate::kFloatChain;
  // Happens-before checks of shared and of global memory. Large tests may
  // switch them off once a small test of the same code has them on.
  bool shared_races = true;
  bool global_races = true;
  // Any access of global memory outside the registered ranges is an error.
  bool only_registered = false;
  // Bank conflicts of plain accesses and of cp.async, and sectors of global memory (emu/traffic.h).
  bool traffic = false;
  size_t shared_bytes_max = 227 * 1024;
  int errors_max = 20;
};

// What a session's launches did, added up.
struct Stats {
  uint64_t blocks = 0;
  uint64_t switches = 0;             // between fibers
  uint64_t barriers = 0;             // barrier phases completed
  uint64_t mma = 0;                  // m16n8k16 by a warp
  uint64_t wgmma = 0;                // m64nNk16 or k32 by a warp, a quarter of the instruction
  uint64_t ldmatrix = 0;             // matrices loaded or stored by ldmatrix and stmatrix
  uint64_t ldmatrix_wavefronts = 0;  // equals `ldmatrix` when no bank is hit twice
  uint64_t cp_async = 0;
  uint64_t tma = 0;
  uint64_t shared_accesses = 0;
  uint64_t global_accesses = 0;
  uint64_t shared_bytes = 0;  // the most that any block carved
  // The source lines that hit banks twice, with the extra wavefronts: of ldmatrix and stmatrix, and with
  // Options::traffic of all others.
  std::map<std::string, uint64_t> conflicts;
  // With Options::traffic only.
  uint64_t shared_passes = 0;        // 128 bytes or less each
  uint64_t shared_wavefronts = 0;    // equals `shared_passes` when no bank is hit twice
  uint64_t global_bytes = 0;         // that the lanes of an instruction ask for, each counted once
  uint64_t global_sector_bytes = 0;  // of the sectors, 32 bytes each, in which these lie
  std::map<std::string, uint64_t> unused_sector_bytes;  // by source line
};

struct Report {
  std::vector<std::string> errors;  // at most Options::errors_max
  Stats stats;
  bool ok() const { return errors.empty(); }
  std::string FirstError() const { return errors.empty() ? "" : errors.front(); }
};

// While it lives, launches of this OS thread run under `options` and add to its report. A launch without a
// session uses the defaults. Sessions nest; the innermost counts.
class Session {
 public:
  explicit Session(Options options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Report& report() const { return report_; }
  const Options& options() const { return options_; }

 private:
  friend Report RunLaunch(Dim3, Dim3, size_t, const std::function<void()>&);
  Options options_;
  Report report_;
  Session* outer_;
};

enum class RangeKind : uint8_t {
  kInput,   // initialized; a write by a kernel is an error
  kOutput,  // uninitialized: a read before a write is an error
  kInOut,   // initialized, may be written
};

// Declares [begin, begin + bytes) as device memory named `name` while it lives. Ranges must not overlap. The
// memory is the caller's and must outlive the range. A launch that may run concurrently must not use it any
// more when it is destroyed.
class GlobalRange {
 public:
  GlobalRange(std::string name, const void* begin, size_t bytes, RangeKind kind);
  ~GlobalRange();
  GlobalRange(const GlobalRange&) = delete;
  GlobalRange& operator=(const GlobalRange&) = delete;
  // Whether a kernel (or MarkInitialized) wrote each byte; kInput and kInOut always.
  bool Initialized(size_t offset) const;
  void MarkInitialized(size_t offset, size_t bytes);

 private:
  const void* begin_;
};

// Runs `body` once per thread of the grid. What kx::Launch calls; tests may call it with a lambda.
Report RunLaunch(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& body);

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_EMU_H_
