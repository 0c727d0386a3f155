#include "worker/agent/machine.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/memory_limit.h"
#include "common/status.h"
#include "offload/calibrate/calibrate.h"
#include "offload/device/cuda_plugin.h"
#include "offload/engine/ladder.h"
#include "offload/io/path_probe.h"
#include "offload/io/path_speed.h"
#include "proto/job_spec/validate.h"
#include "proto/machine/calibration.h"
#include "proto/machine/machine.h"
#include "worker/ladder_proto/ladder_proto.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWorkerOwnBytes = kAgentBytes + kTrainerBytes;
constexpr double kLeastScratchBytes = 1 << 20;  // 0 would say that nothing is known

// How fast this machine is, as it was measured when a worker first started on it in this state folder.
// Without it jobs run as well; only predictions are a guess.
void MeasureSpeeds(const AgentOptions& options, Accelerator* gpu, Machine* machine) {
  const int threads = std::min(kDefaultComputeThreads, AvailableCpus());
  std::vector<NvmePath> paths;
  for (size_t i = 0; i < options.nvme_paths.size(); ++i)
    paths.push_back({options.nvme_paths[i], machine->nvme_weights[i]});
  absl::StatusOr<v1::MachineProfile> speeds =
      LoadOrCalibrate(options.state_dir + "/calibration.json", paths, threads, gpu,
                      [](const std::string& warning) { spdlog::warn("{}", warning); });
  if (speeds.ok()) {
    *machine->capacity.mutable_machine() = *std::move(speeds);
  } else {
    machine->speeds_why_not = std::string(speeds.status().message());
    // Plans for a GPU differ from those for a CPU by more than their times.
    *machine->capacity.mutable_machine() =
        GuessedSpeeds(gpu == nullptr ? MachineProfile() : UnmeasuredGpu(), machine->speeds_why_not);
  }
}

absl::StatusOr<GpuMemory> MemoryOf(Accelerator& gpu) {
  STRATA_ASSIGN_OR_RETURN(const int64_t free, gpu.FreeForJobs());
  return GpuMemory{gpu.description(), gpu.memory_bytes(), free};
}

// Paths on one file system share what it has free.
absl::StatusOr<std::vector<double>> FreeBytesOfEach(const AgentOptions& options, const Machine& machine) {
  std::vector<dev_t> devices;
  std::map<dev_t, double> weights;  // Of all paths on it.
  for (size_t i = 0; i < options.nvme_paths.size(); ++i) {
    struct stat info;
    if (stat(options.nvme_paths[i].c_str(), &info) != 0) return ErrnoStatus(errno, options.nvme_paths[i]);
    devices.push_back(info.st_dev);
    weights[info.st_dev] += machine.nvme_weights[i];
  }
  std::vector<double> free;
  for (size_t i = 0; i < devices.size(); ++i) {
    free.push_back(static_cast<double>(machine.capacity.nvme(static_cast<int>(i)).free_bytes()) *
                   machine.nvme_weights[i] / weights[devices[i]]);
  }
  return free;
}

// Scratch is striped by weight, so the path that is full first limits them all.
// `ram_left`: what auto may take of paths that are in memory.
absl::Status InspectNvme(const AgentOptions& options, int64_t ram_left, Machine& machine) {
  v1::Capacity& capacity = machine.capacity;
  double total_weight = 0;
  for (size_t i = 0; i < options.nvme_paths.size(); ++i) {
    const std::string& path = options.nvme_paths[i];
    STRATA_ASSIGN_OR_RETURN(const PathInfo info, ProbePath(path), "--nvme-path");
    v1::NvmeVolume& volume = *capacity.add_nvme();
    volume.set_path(path);
    volume.set_free_bytes(static_cast<int64_t>(info.free_bytes));
    volume.set_o_direct(info.o_direct);
    volume.set_fs_type(info.fs_type);
    double weight = 1;
    if (!options.nvme_weights.empty()) {
      weight = options.nvme_weights[i];
    } else if (options.nvme_paths.size() > 1) {
      STRATA_ASSIGN_OR_RETURN(const PathSpeed speed, MeasurePathSpeed(path), "--nvme-path");
      weight = speed.RoundTripBytesPerSecond() / 1e6;
    }
    machine.nvme_weights.push_back(weight);
    total_weight += weight;
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<double> free, FreeBytesOfEach(options, machine));
  size_t least = 0;
  for (size_t i = 1; i < free.size(); ++i) {
    if (free[i] / machine.nvme_weights[i] < free[least] / machine.nvme_weights[least]) least = i;
  }
  const double fits = free[least] / machine.nvme_weights[least] * total_weight;
  double bytes = options.nvme_bytes > 0 ? static_cast<double>(options.nvme_bytes) : fits / 5 * 4;
  if (options.nvme_bytes == 0 &&
      std::any_of(options.nvme_paths.begin(), options.nvme_paths.end(), IsInMemory))
    bytes = std::min(bytes, std::max(static_cast<double>(ram_left), kLeastScratchBytes));
  if (bytes > fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nvme-bytes (", FormatBytes(options.nvme_bytes), "): ", options.nvme_paths[least],
                     " has ", FormatBytes(static_cast<int64_t>(free[least])), " free for its share of ",
                     FormatBytes(static_cast<int64_t>(bytes * machine.nvme_weights[least] / total_weight)),
                     ": lower it, or free space"));
  }
  // The shares add up to exactly what was asked.
  double share_end = 0;
  int64_t given = 0;
  for (size_t i = 0; i < free.size(); ++i) {
    share_end += machine.nvme_weights[i] / total_weight;
    const int64_t end =
        i + 1 == free.size() ? static_cast<int64_t>(bytes) : static_cast<int64_t>(bytes * share_end);
    capacity.mutable_nvme(static_cast<int>(i))->set_bytes(end - given);
    given = end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Accelerator>> OpenGpu(const AgentOptions& options) {
  std::error_code error;
  const fs::path trainer = fs::canonical(options.trainer, error);
  if (error) return absl::NotFoundError(absl::StrCat("--trainer: ", options.trainer, ": ", error.message()));
  auto gpu = OpenCudaPlugin(trainer.parent_path().string());
  if (!gpu.ok() && options.require_gpu) return Annotate(gpu.status(), "--require-gpu");
  return gpu;
}

absl::StatusOr<RamBudgets> OfferMemory(const AgentOptions& options, const MemoryLimits& limits,
                                       const GpuMemory* gpu) {
  const int64_t memory = limits.total.bytes;
  const bool shared = gpu == nullptr;  // Both tiers of a CPU worker are in the same RAM.
  RamBudgets offered = {options.device_bytes, options.host_bytes};
  if (!shared && offered.device == 0) {
    offered.device = AutoDeviceBudget(gpu->free_for_jobs_bytes);
    if (offered.device <= 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--device-bytes is auto, and jobs can have ", FormatBytes(gpu->free_for_jobs_bytes), " of the ",
          FormatBytes(gpu->bytes), " of ", gpu->name, ": end what else uses the GPU"));
    }
  }
  if (!shared && offered.device > gpu->free_for_jobs_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device-bytes (", FormatBytes(offered.device), ") exceeds the ",
        FormatBytes(gpu->free_for_jobs_bytes), " that jobs can have of the ", FormatBytes(gpu->bytes), " of ",
        gpu->name, ": lower it, or end what else uses the GPU"));
  }
  const int64_t device_in_ram = shared ? offered.device : 0;
  if (device_in_ram > memory || offered.host > memory - device_in_ram) {
    const std::string host = absl::StrCat("--host-bytes (", FormatBytes(offered.host), ")");
    return absl::InvalidArgumentError(
        absl::StrCat(device_in_ram > 0 ? absl::StrCat("--device-bytes (", FormatBytes(offered.device),
                                                      ") and ", host, " together exceed ")
                                       : absl::StrCat(host, " exceeds "),
                     FormatBytes(memory), ", ", limits.total.of, ": lower ",
                     device_in_ram > offered.host ? "--device-bytes" : "--host-bytes"));
  }
  STRATA_ASSIGN_OR_RETURN(const RamBudgets in_ram,
                          OfferRam({.free = limits.available,
                                    .own_bytes = kWorkerOwnBytes,
                                    .wanted = {.device = device_in_ram, .host = offered.host},
                                    .usual = {.device = shared ? memory / 4 : 0, .host = memory / 5 * 3}}),
                          "--device-bytes, --host-bytes");
  return RamBudgets{.device = shared ? in_ram.device : offered.device, .host = in_ram.host};
}

absl::Status CheckGpuAndBudgets(const AgentOptions& options) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Accelerator> gpu, OpenGpu(options));
  STRATA_ASSIGN_OR_RETURN(const GpuMemory gpu_memory, MemoryOf(*gpu), "--require-gpu");
  STRATA_ASSIGN_OR_RETURN(const MemoryLimits memory, ReadMemoryLimits());
  STRATA_RETURN_IF_ERROR(OfferMemory(options, memory, &gpu_memory).status());
  return gpu->Release();
}

absl::StatusOr<Machine> InspectMachine(const AgentOptions& options) {
  Machine machine;
  const absl::StatusOr<MemoryLimits> memory = ReadMemoryLimits();
  if (!memory.ok()) return memory.status();
  v1::Capacity& capacity = machine.capacity;
  capacity.set_cpus(AvailableCpus());
  // Trainers load what is beside them: what is found here, they find.
  absl::StatusOr<std::unique_ptr<Accelerator>> gpu = OpenGpu(options);
  if (absl::IsNotFound(gpu.status()) || (!gpu.ok() && options.require_gpu)) return gpu.status();
  if (gpu.ok()) {
    if (auto found = MemoryOf(**gpu); found.ok()) {
      machine.gpu = *std::move(found);
    } else if (options.require_gpu) {
      return Annotate(found.status(), "--require-gpu");
    } else {
      gpu = found.status();
    }
  }
  machine.why_no_gpu = std::string(gpu.status().message());
  STRATA_ASSIGN_OR_RETURN(const RamBudgets offered,
                          OfferMemory(options, *memory, machine.gpu ? &*machine.gpu : nullptr));
  machine.memory = memory->total;
  capacity.set_device_bytes(offered.device);
  capacity.set_host_bytes(offered.host);
  const RamBudgets in_ram = {.device = machine.gpu ? 0 : offered.device, .host = offered.host};
  STRATA_RETURN_IF_ERROR(
      InspectNvme(options, LeftOfRam(memory->available, kWorkerOwnBytes, in_ram), machine));
  Accelerator* const accelerator = machine.gpu ? gpu->get() : nullptr;
  STRATA_ASSIGN_OR_RETURN(const Ladder ladder,
                          OfferedLadder(options.nvme_paths, {accelerator, machine.why_no_gpu}),
                          "--nvme-path");
  for (const Rung& rung : ladder) *capacity.add_ladder() = ToProto(rung);
  const absl::Status fp8 = accelerator == nullptr ? absl::OkStatus() : accelerator->CheckFp8();
  if (!fp8.ok()) {
    v1::Rung& rung = *capacity.add_ladder();
    rung.set_rung("fp8");
    rung.set_chosen("none");
    rung.set_why(std::string(fp8.message()));
  }
  MeasureSpeeds(options, accelerator, &machine);
  // Trainers have processes of their own: nothing of the GPU stays with this one.
  if (accelerator != nullptr) STRATA_RETURN_IF_ERROR(accelerator->Release());
  return machine;
}

absl::StatusOr<v1::MachineProfile> MeasureSpeedsAgain(const AgentOptions& options, bool on_gpu,
                                                      const std::vector<double>& nvme_weights) {
  Machine machine;
  machine.nvme_weights = nvme_weights;
  std::unique_ptr<Accelerator> gpu;
  if (on_gpu) {
    STRATA_ASSIGN_OR_RETURN(gpu, OpenGpu(options));
  }
  MeasureSpeeds(options, gpu.get(), &machine);
  if (gpu != nullptr) STRATA_RETURN_IF_ERROR(gpu->Release());
  if (!machine.speeds_why_not.empty()) return absl::UnavailableError(machine.speeds_why_not);
  return machine.capacity.machine();
}

void RefreshMemory(const AgentOptions& options, const std::optional<GpuMemory>& gpu, MemoryLimit* memory,
                   v1::Capacity* capacity) {
  absl::StatusOr<MemoryLimits> limits = ReadMemoryLimits();
  if (!limits.ok() || limits->total.bytes == memory->bytes) return;
  *memory = limits->total;
  if (options.device_bytes > 0 && options.host_bytes > 0) return;
  constexpr RamBudgets kNothing = {.device = 1, .host = 1};  // 0 would say that nothing is known
  const absl::StatusOr<RamBudgets> offered = OfferMemory(options, *limits, gpu ? &*gpu : nullptr);
  if (!offered.ok()) spdlog::warn("jobs get no memory: {}", offered.status().ToString());
  capacity->set_device_bytes(offered.value_or(kNothing).device);
  capacity->set_host_bytes(offered.value_or(kNothing).host);
  spdlog::info("the limit of memory is {}, {}: {} device, {} host", FormatBytes(memory->bytes), memory->of,
               FormatBytes(capacity->device_bytes()), FormatBytes(capacity->host_bytes()));
}

void RefreshFreeBytes(v1::Capacity* capacity) {
  for (v1::NvmeVolume& volume : *capacity->mutable_nvme()) {
    struct statvfs info;
    if (statvfs(volume.path().c_str(), &info) == 0) {
      volume.set_free_bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
    }
  }
}

absl::Status RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "reading the limit of open files");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "raising the limit of open files");
  return absl::OkStatus();
}

}  // namespace strata
