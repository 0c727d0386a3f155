// store_bench: GB/s of the NVMe store - the read and write path of a training step, checksums included - from
// one pinned huge-page arena. Prints one JSON object, so that a script can run fio beside it
// (tests/bench/nvme_vs_fio.sh).
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/thread.h"
#include "nlohmann/json.hpp"
#include "offload/arena/pinned_arena.h"
#include "offload/io/io_factory.h"
#include "offload/store/nvme_store.h"

namespace strata {
namespace {

struct BenchOptions {
  std::vector<std::string> paths = {"."};
  uint64_t bytes = uint64_t{1} << 30;        // Moved by each pass.
  uint64_t item_bytes = uint64_t{32} << 20;  // One READ or WRITE of a plan.
  uint64_t block_bytes = kIoBlockBytes;
  unsigned depth = 32;
  unsigned write_depth = 32;
  unsigned window = 2;  // Items in flight per thread and direction.
  unsigned threads = 1;
  unsigned passes = 3;
  std::string backend = "auto";
  bool registered = true;
  bool buffered = false;
};

// A lane: its own engine and its own slots of the arena, one for each item in flight.
struct BenchLane {
  std::unique_ptr<IoEngine> engine;
  std::vector<std::span<std::byte>> slots;
};

class StoreBench {
 public:
  static absl::StatusOr<nlohmann::json> Run(const BenchOptions& options) {
    StoreBench bench(options);
    STRATA_RETURN_IF_ERROR(bench.SetUp());
    nlohmann::json result;
    // The first pass also turns the preallocated blocks into written ones: reported, but apart.
    STRATA_ASSIGN_OR_RETURN(result["first_write_gbps"], bench.Pass(/*reading=*/false, /*writing=*/true));
    for (unsigned i = 0; i < 2; ++i) STRATA_RETURN_IF_ERROR(bench.Pass(false, true).status());
    for (unsigned i = 0; i < options.passes; ++i) {
      STRATA_ASSIGN_OR_RETURN(const double write, bench.Pass(false, true));
      STRATA_ASSIGN_OR_RETURN(const double read, bench.Pass(true, false));
      STRATA_ASSIGN_OR_RETURN(const double mixed, bench.Pass(true, true));
      result["write_gbps"].push_back(write);
      result["read_gbps"].push_back(read);
      result["mixed_gbps"].push_back(mixed);  // Both directions added.
    }
    bench.Describe(result);
    STRATA_RETURN_IF_ERROR(std::move(*bench.store_).Close());
    return result;
  }

 private:
  explicit StoreBench(const BenchOptions& options)
      : options_(options), items_(std::max<uint64_t>(options.bytes / options.item_bytes, 1)) {}

  absl::Status SetUp() {
    const uint64_t slot_bytes = StoredBytes(options_.item_bytes);
    // In `mixed` each lane reads and writes at the same time from two threads.
    const unsigned lanes = 2 * options_.threads;
    STRATA_ASSIGN_OR_RETURN(arena_, PinnedArena::Create({.bytes = slot_bytes * lanes * options_.window}));
    StoreLayout layout;
    for (uint32_t i = 0; i < items_; ++i) layout.items.push_back({ItemId{i}, options_.item_bytes});
    layout.write_ahead_items = 0;
    NvmeStoreOptions store{.owner = "store-bench",
                           .direct = options_.buffered ? DirectIo::kBuffered : DirectIo::kAuto,
                           .block_bytes = options_.block_bytes};
    for (const std::string& path : options_.paths) store.paths.push_back({path});
    STRATA_ASSIGN_OR_RETURN(store_, NvmeStore::Open(store, layout));
    STRATA_ASSIGN_OR_RETURN(const IoBackend backend, ParseIoBackend(options_.backend));
    for (unsigned i = 0; i < lanes; ++i) {
      BenchLane lane;
      const unsigned depth = i % 2 == 0 ? options_.depth : options_.write_depth;
      STRATA_ASSIGN_OR_RETURN(lane.engine, CreateIoEngine({.backend = backend, .depth = depth}));
      if (options_.registered) {
        (void)lane.engine->RegisterBuffer(arena_->span());  // What is off is in the report.
        (void)store_->RegisterWith(*lane.engine);
      }
      for (unsigned j = 0; j < options_.window; ++j) {
        const std::span<std::byte> slot =
            arena_->span().subspan((i * options_.window + j) * slot_bytes, slot_bytes);
        std::fill(slot.begin(), slot.end(), std::byte{static_cast<unsigned char>(i + 1)});
        lane.slots.push_back(slot);
      }
      lanes_.push_back(std::move(lane));
    }
    return absl::OkStatus();
  }

  // Reads the last generation and/or writes the next one, each direction by options_.threads threads.
  absl::StatusOr<double> Pass(bool reading, bool writing) {
    std::vector<absl::Status> statuses(lanes_.size());
    std::vector<Thread> threads;
    const int64_t start = Clock::Real().MonotonicNanos();
    for (unsigned i = 0; i < options_.threads; ++i) {
      if (reading)
        threads.emplace_back("bench-read",
                             [&, i] { statuses[2 * i] = MoveShare(lanes_[2 * i], i, /*reading=*/true); });
      if (writing) {
        threads.emplace_back("bench-write", [&, i] {
          statuses[2 * i + 1] = MoveShare(lanes_[2 * i + 1], i, /*reading=*/false);
        });
      }
    }
    for (Thread& thread : threads) thread.Join();
    const int64_t nanos = Clock::Real().MonotonicNanos() - start;
    for (const absl::Status& status : statuses) STRATA_RETURN_IF_ERROR(status);
    if (writing) {
      STRATA_RETURN_IF_ERROR(store_->Commit(Generation{generation_}));
      ++generation_;
    }
    const uint64_t bytes =
        items_ * StoredBytes(options_.item_bytes) * (unsigned{reading} + unsigned{writing});
    return static_cast<double>(bytes) / static_cast<double>(nanos);
  }

  // A thread's share of the items, from `first`: reads of the committed state, which there are beside writes
  // of the next generation too, or those writes.
  absl::Status MoveShare(BenchLane& lane, unsigned first, bool reading) {
    NvmeLane transfers(*store_, *lane.engine);
    size_t slot = 0;
    for (uint64_t i = first; i < items_; i += options_.threads) {
      if (transfers.in_flight() == options_.window) STRATA_RETURN_IF_ERROR(transfers.Finish());
      const ItemId item{static_cast<uint32_t>(i)};
      const std::span<std::byte> memory = lane.slots[slot++ % options_.window];
      STRATA_RETURN_IF_ERROR(reading ? transfers.StartRead(item, Generation{generation_ - 1}, memory)
                                     : transfers.StartWrite(item, Generation{generation_}, memory));
    }
    while (transfers.in_flight() > 0) STRATA_RETURN_IF_ERROR(transfers.Finish());
    return absl::OkStatus();
  }

  void Describe(nlohmann::json& result) const {
    const IoEngineReport engine = lanes_[0].engine->report();
    const PinnedArenaReport& arena = arena_->report();
    const NvmeStoreCounters counters = store_->counters();
    result["backend"] = engine.backend;
    result["registered_buffers"] = engine.registered_buffer_bytes > 0;
    result["registered_files"] = engine.registered_files > 0;
    result["why_not_io_uring"] = engine.why_not_io_uring;
    result["why_not_registered"] = engine.why_not_registered;
    result["direct"] = store_->report().paths[0].direct;
    result["pages"] = PageKindName(arena.pages);
    result["huge_fraction"] =
        static_cast<double>(arena.huge_page_bytes) / static_cast<double>(arena_->size());
    result["capacity_bytes"] = store_->report().capacity_bytes;
    result["bytes_per_pass"] = items_ * StoredBytes(options_.item_bytes);
    result["read_p50_us"] = counters.read_p50_nanos / 1000;
    result["read_p99_us"] = counters.read_p99_nanos / 1000;
    result["write_p50_us"] = counters.write_p50_nanos / 1000;
    result["write_p99_us"] = counters.write_p99_nanos / 1000;
    result["checksum_errors"] = counters.checksum_errors;
  }

  const BenchOptions options_;
  const uint64_t items_;
  std::unique_ptr<PinnedArena> arena_;  // Outlives the engines that borrow it.
  std::unique_ptr<NvmeStore> store_;
  std::vector<BenchLane> lanes_;
  uint64_t generation_ = 0;
};

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::BenchOptions options;
  std::string bytes = "1GiB", item = "32MiB", block = "1MiB";
  CLI::App app("GB/s of the NVMe store, as JSON");
  app.add_option("--path", options.paths, "folder on the disk to measure; several: striped over them");
  app.add_option("--bytes", bytes, "bytes moved by each pass");
  app.add_option("--item", item, "bytes of one item");
  app.add_option("--block", block, "bytes of one request");
  app.add_option("--depth", options.depth, "requests in flight per reading thread");
  app.add_option("--write-depth", options.write_depth, "requests in flight per writing thread");
  app.add_option("--window", options.window, "items in flight per thread")->check(CLI::Range(1u, 64u));
  app.add_option("--threads", options.threads, "threads per direction")->check(CLI::Range(1u, 64u));
  app.add_option("--passes", options.passes, "measured passes");
  app.add_option("--backend", options.backend, "auto, io_uring or threads");
  app.add_flag("--registered,!--no-registered", options.registered, "register buffers and file");
  app.add_flag("--buffered", options.buffered, "without O_DIRECT");
  CLI11_PARSE(app, argc, argv);
  for (const auto& [text, value] : {std::pair{&bytes, &options.bytes}, std::pair{&item, &options.item_bytes},
                                    std::pair{&block, &options.block_bytes}}) {
    const absl::StatusOr<int64_t> parsed = strata::ParseBytes(*text);
    if (!parsed.ok() || *parsed <= 0) {
      fprintf(stderr, "store_bench: \"%s\" is not a positive number of bytes\n", text->c_str());
      return 2;
    }
    *value = static_cast<uint64_t>(*parsed);
  }
  const absl::StatusOr<nlohmann::json> result = strata::StoreBench::Run(options);
  if (!result.ok()) {
    fprintf(stderr, "store_bench: %s\n", result.status().ToString().c_str());
    return 1;
  }
  printf("%s\n", result->dump(2).c_str());
  return 0;
}
