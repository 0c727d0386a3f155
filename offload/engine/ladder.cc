#include "offload/engine/ladder.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/io/io_factory.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

constexpr uint64_t kTrialBytes = uint64_t{2} << 20;

void AddArena(const PinnedArenaReport& arena, Ladder& ladder) {
  ladder.push_back({Feature::kLockedMemory, arena.locked ? "locked" : "pageable",
                    arena.locked ? "" : arena.why_not_locked});
  ladder.push_back(
      {Feature::kHugePages, absl::StrCat(PageKindName(arena.pages), " pages"), arena.why_not_huge});
}

void AddDevice(const DeviceReport& device, Ladder& ladder) {
  ladder.push_back({Feature::kGpu, device.gpu.empty() ? "cpu" : device.gpu, device.why_not_gpu});
  if (device.gpu.empty()) return;
  ladder.push_back({Feature::kCudaHostRegister, device.why_not_registered.empty() ? "registered" : "pageable",
                    device.why_not_registered});
}

}  // namespace

const char* FeatureName(Feature feature) {
  switch (feature) {
    case Feature::kIoUring:
      return "io_uring";
    case Feature::kODirect:
      return "o_direct";
    case Feature::kRegisteredBuffers:
      return "registered_buffers";
    case Feature::kLockedMemory:
      return "locked_memory";
    case Feature::kHugePages:
      return "huge_pages";
    case Feature::kGpu:
      return "gpu";
    case Feature::kCudaHostRegister:
      return "cuda_host_register";
    case Feature::kGpuDirect:
      return "gpudirect";
  }
  return "unknown";
}

Rung GpuDirectRung(const DeviceReport& device, const std::vector<NvmePathReport>& paths) {
  const auto not_had = [](const std::string& why) { return Rung{Feature::kGpuDirect, "host arena", why}; };
  if (device.gpu.empty()) return not_had("there is no GPU");
  if (device.gpudirect.empty()) return not_had(device.why_not_gpudirect);
  for (const NvmePathReport& path : paths) {
    // The library would copy such a file through the host's memory itself.
    if (!path.direct)
      return not_had(absl::StrCat(path.folder, " is not read by O_DIRECT: ", path.why_buffered));
  }
  if (!device.gpudirect_asked)
    return not_had(absl::StrCat("memory.require: [gpudirect] turns it on, by ", device.gpudirect));
  return {Feature::kGpuDirect, device.gpudirect, ""};
}

// Lanes have engines of their own: the ladder tells of the one that is worst off.
Ladder LadderOf(const PinnedArenaReport& arena, const std::vector<IoEngineReport>& engines,
                const std::vector<NvmePathReport>& paths, const DeviceReport& device) {
  Ladder ladder;
  const auto worst = [](const auto& reports, const auto& why) {
    return *std::find_if(reports.begin(), reports.end() - 1,
                         [&](const auto& report) { return !why(report).empty(); });
  };
  if (!engines.empty()) {
    const IoEngineReport engine = worst(engines, [](const IoEngineReport& r) { return r.why_not_io_uring; });
    ladder.push_back({Feature::kIoUring, engine.backend, engine.why_not_io_uring});
  }
  if (!paths.empty()) {
    const NvmePathReport path = worst(paths, [](const NvmePathReport& r) { return r.why_buffered; });
    ladder.push_back({Feature::kODirect, path.direct ? "O_DIRECT" : "buffered", path.why_buffered});
  }
  if (!engines.empty()) {
    const IoEngineReport engine =
        worst(engines, [](const IoEngineReport& r) { return r.why_not_registered; });
    ladder.push_back({Feature::kRegisteredBuffers, engine.why_not_registered.empty() ? "registered" : "plain",
                      engine.why_not_registered});
  }
  AddArena(arena, ladder);
  AddDevice(device, ladder);
  if (!paths.empty()) ladder.push_back(GpuDirectRung(device, paths));
  return ladder;
}

void AskForGpuDirect(Accelerator& accelerator, DeviceReport& report) {
  const absl::StatusOr<std::string> way = accelerator.gpudirect();
  report.gpudirect = way.ok() ? *way : "";
  report.why_not_gpudirect = std::string(way.status().message());
}

absl::StatusOr<Ladder> OfferedLadder(const std::vector<std::string>& nvme_paths,
                                     const AcceleratorChoice& accelerator) {
  std::vector<NvmePathReport> paths;
  for (const std::string& path : nvme_paths) {
    STRATA_ASSIGN_OR_RETURN(const PathInfo info, ProbePath(path));
    paths.push_back({.folder = path, .direct = info.o_direct, .why_buffered = info.o_direct_why_not});
  }
  STRATA_ASSIGN_OR_RETURN(const auto arena, PinnedArena::Create({.bytes = kTrialBytes, .budget = ""}));
  STRATA_ASSIGN_OR_RETURN(const auto engine, CreateIoEngine({}));
  (void)engine->RegisterBuffer(arena->span());  // What it says is in the report.
  DeviceReport device{.why_not_gpu = accelerator.why_not};
  if (accelerator.accelerator != nullptr) {
    device.gpu = accelerator.accelerator->description();
    AskForGpuDirect(*accelerator.accelerator, device);
    device.gpudirect_asked = true;  // what a job that asks would get
  }
  return LadderOf(arena->report(), {engine->report()}, paths, device);
}

absl::Status CheckRequired(const Ladder& ladder, const std::vector<Feature>& required) {
  for (const Rung& rung : ladder) {
    if (rung.why.empty() || std::find(required.begin(), required.end(), rung.feature) == required.end())
      continue;
    return absl::FailedPreconditionError(
        absl::StrCat("memory.require: ", FeatureName(rung.feature), " cannot be had, there is only ",
                     rung.chosen, ": ", rung.why, "; mend that, or take it out of memory.require",
                     rung.feature == Feature::kGpu ? "" : ": the numbers stay the same"));
  }
  return absl::OkStatus();
}

}  // namespace strata
