// Launches: one machine per launch, one block after another.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kernels/kx/emu/launch_lock.h"
#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {

Machine* machine = nullptr;

namespace {

thread_local Session* innermost_session = nullptr;

std::mutex& TheLock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// Guarded by the launch lock; never destroyed, as threads may launch until the process ends.
StackPool& Stacks() {
  static auto* stacks = new StackPool;
  return *stacks;
}
uint64_t launches = 0;

void LaunchError(Report& report, const std::string& text) { report.errors.push_back("launch: " + text); }

bool StartBlock(Machine& m, Dim3 grid, Dim3 block, Dim3 at, void (*entry)()) {
  const uint32_t count = block.x * block.y * block.z;
  m.block = at.x + grid.x * (at.y + grid.y * at.z);
  m.threads.clear();
  m.threads.resize(count);
  m.warps.assign(count / 32, WarpSlot());
  m.barriers = {};
  m.ready.clear();
  m.current = 0;
  m.alive = static_cast<int>(count);
  m.shared = SharedMemory();
  m.traffic.Start(static_cast<int>(count / 32));
  m.mbarriers.clear();
  m.loads.clear();
  m.tma_clock = 0;
  m.wgmma_clocks.assign(count / 32, 0);
  m.store_clocks.assign(count / 32, 0);
  m.wgmma_sequences.assign((count + 127) / 128, {});
  m.random.seed(m.options->seed * 7919 + m.block);
  AdoptThread(&m.scheduler);
  const auto nothing = std::make_shared<const VectorClock>(m.actor_count(), 0);
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = m.threads[i];
    if (!Stacks().Prepare(i, entry, &thread.fiber)) return false;
    thread.knows = nothing;
    thread.ids = {{i % block.x, i / block.x % block.y, i / (block.x * block.y)}, at, block, grid, i};
  }
  return true;
}

std::vector<Dim3> BlockOrder(Dim3 grid, const Options& options, std::mt19937_64& random) {
  std::vector<Dim3> blocks;
  blocks.reserve(static_cast<size_t>(grid.x) * grid.y * grid.z);
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  if (options.order == Order::kReverse || options.order == Order::kAheadReverse) {
    std::reverse(blocks.begin(), blocks.end());
  }
  if (options.order == Order::kShuffle) std::shuffle(blocks.begin(), blocks.end(), random);
  return blocks;
}

void Add(Report& total, const Report& report, int errors_max) {
  for (const std::string& error : report.errors) {
    if (static_cast<int>(total.errors.size()) < errors_max) total.errors.push_back(error);
  }
  Stats& sum = total.stats;
  const Stats& stats = report.stats;
  sum.blocks += stats.blocks;
  sum.switches += stats.switches;
  sum.barriers += stats.barriers;
  sum.mma += stats.mma;
  sum.wgmma += stats.wgmma;
  sum.ldmatrix += stats.ldmatrix;
  sum.ldmatrix_wavefronts += stats.ldmatrix_wavefronts;
  sum.cp_async += stats.cp_async;
  sum.tma += stats.tma;
  sum.shared_accesses += stats.shared_accesses;
  sum.global_accesses += stats.global_accesses;
  sum.shared_bytes = std::max(sum.shared_bytes, stats.shared_bytes);
  for (const auto& [place, wavefronts] : stats.conflicts) sum.conflicts[place] += wavefronts;
  sum.shared_passes += stats.shared_passes;
  sum.shared_wavefronts += stats.shared_wavefronts;
  sum.global_bytes += stats.global_bytes;
  sum.global_sector_bytes += stats.global_sector_bytes;
  for (const auto& [place, bytes] : stats.unused_sector_bytes) sum.unused_sector_bytes[place] += bytes;
}

}  // namespace

LaunchLock::LaunchLock() : lock_(TheLock()) {}

Session::Session(Options options) : options_(options), outer_(innermost_session) { innermost_session = this; }
Session::~Session() { innermost_session = outer_; }

std::string ShortPlace(Where where) {
  if (where.file == nullptr) return "?";
  const char* slash = strrchr(where.file, '/');
  return std::string(slash ? slash + 1 : where.file) + ":" + std::to_string(where.line);
}

void Complain(Where where, const char* format, ...) {
  const std::string place = ShortPlace(where);
  if (!machine->reported.emplace(place, format).second) return;
  if (static_cast<int>(machine->report->errors.size()) >= machine->options->errors_max) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Indices& ids = machine->self().ids;
  char line[768];
  snprintf(line, sizeof line, "%s: block (%u,%u,%u) thread %u (warp %u lane %u): %s", place.c_str(),
           ids.block.x, ids.block.y, ids.block.z, ids.linear, ids.linear / 32, ids.linear % 32, text);
  machine->report->errors.push_back(line);
}

Report RunLaunch(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  Session* session = innermost_session;
  const Options options = session != nullptr ? session->options_ : Options();
  Report report;
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || threads % 32 != 0) {
    LaunchError(report,
                std::to_string(threads) + " threads in a block: must be a multiple of 32, at most 1024");
  } else if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
             grid.z > 65535) {
    LaunchError(report, "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                            std::to_string(grid.z) + " blocks: each 1 or more, y and z at most 65535");
  } else if (shared_bytes > options.shared_bytes_max) {
    LaunchError(report, std::to_string(shared_bytes) + " bytes of shared memory: the device has " +
                            std::to_string(options.shared_bytes_max));
  } else {
    LaunchLock lock;
    Machine m;
    m.options = &options;
    m.report = &report;
    m.body = &body;
    m.launch = ++launches;
    m.shared_limit = shared_bytes;
    m.random.seed(options.seed);
    machine = &m;
    for (const Dim3& at : BlockOrder(grid, options, m.random)) {
      if (!StartBlock(m, grid, block, at, EntryPoint())) {
        LaunchError(report, "no memory for the stacks of " + std::to_string(threads) + " threads");
        break;
      }
      RunBlock();
      CheckRegisters();
      m.traffic.MeetAll(report.stats);
      ++report.stats.blocks;
      report.stats.shared_bytes = std::max<uint64_t>(report.stats.shared_bytes, m.shared.carved());
      if (m.alive > 0) break;  // deadlocked: the rest would say the same
    }
    machine = nullptr;
  }
  if (session != nullptr) Add(session->report_, report, options.errors_max);
  return report;
}

}  // namespace strata::kx::emu
