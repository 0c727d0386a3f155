#include "client/cli/local_limits.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/binaries.h"
#include "client/cli/command_util.h"
#include "client/cli/preflight.h"
#include "common/bytes.h"
#include "common/status.h"
#include "offload/calibrate/calibrate.h"
#include "offload/device/cuda_plugin.h"
#include "offload/io/path_probe.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"
#include "proto/machine/calibration.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

constexpr double kDeviceShare = 0.2;
constexpr double kHostShare = 0.5;
constexpr double kNvmeShare = 0.9;
constexpr int64_t kLeastScratchBytes = 4096;

// "": there is no home.
std::string CacheFolder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/strata";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/strata";
}

}  // namespace

absl::StatusOr<LocalMachine> LookAtMachine(const std::string& bin_dir) {
  LocalMachine machine;
  STRATA_ASSIGN_OR_RETURN(machine.memory, ReadMemoryLimits());
  const absl::StatusOr<std::string> trainer = FindProgram(Program::kTrainer, bin_dir);
  if (!trainer.ok()) {
    machine.why_no_gpu = std::string(trainer.status().message());
    return machine;
  }
  // A link's other end: trainers load what is beside their file.
  std::error_code error;
  const std::filesystem::path program = std::filesystem::canonical(*trainer, error);
  absl::StatusOr<std::unique_ptr<Accelerator>> gpu = OpenCudaPlugin(program.parent_path().string());
  absl::StatusOr<int64_t> free = gpu.ok() ? (*gpu)->FreeForJobs() : gpu.status();
  if (!free.ok()) {
    machine.why_no_gpu = std::string(free.status().message());
    return machine;
  }
  machine.gpu = *std::move(gpu);
  machine.gpu_free_bytes = *free;
  return machine;
}

std::vector<FieldViolation> CheckRequiredGpu(const v1::JobSpec& spec, const std::string& why_no_gpu) {
  if (why_no_gpu.empty() || !Requires(spec.memory(), v1::FEATURE_GPU)) return {};
  return {{.field = "memory.require",
           .description = absl::StrCat("gpu cannot be had: ", why_no_gpu,
                                       "; or take gpu out of memory.require, and the job trains on a CPU")}};
}

std::vector<FieldViolation> CheckFp8(const v1::JobSpec& spec, const LocalMachine& machine) {
  if (spec.training().precision() != v1::PRECISION_FP8 || machine.gpu == nullptr) return {};
  const absl::Status fp8 = machine.gpu->CheckFp8();
  if (fp8.ok()) return {};
  return {{.field = "training.precision", .description = std::string(fp8.message())}};
}

std::vector<FieldViolation> CheckMemory(const v1::JobSpec& spec, const LocalMachine& machine) {
  std::vector<FieldViolation> violations;
  const int64_t device = spec.memory().device(), host = spec.memory().host();  // each at most 2^50
  if (machine.gpu != nullptr && device > machine.gpu_free_bytes) {
    violations.push_back(
        {.field = "memory.device",
         .description = absl::StrCat(
             "is ", FormatBytes(device), ", but jobs can have ", FormatBytes(machine.gpu_free_bytes),
             " of the ", FormatBytes(machine.gpu->memory_bytes()), " of ", machine.gpu->description(),
             ": lower it, write auto, or end what else uses the GPU")});
  }
  const int64_t device_in_ram = machine.gpu == nullptr ? device : 0;
  const MemoryLimit& ram = machine.memory.total;
  if (device_in_ram + host > ram.bytes) {
    violations.push_back(
        {.field = device_in_ram > host ? "memory.device" : "memory.host",
         .description = absl::StrCat(
             machine.gpu == nullptr ? "the budgets of device and host are together "
                                    : "the budget of the host is ",
             FormatBytes(device_in_ram + host), ", more than the ", FormatBytes(ram.bytes), " of ", ram.of,
             ": lower ", device_in_ram > host ? "memory.device" : "memory.host", ", or write auto")});
  }
  return violations;
}

absl::StatusOr<v1::ResourceRequest> LocalLimits(const v1::JobSpec& spec, const LocalMachine& machine,
                                                const std::string& nvme_path, int64_t own_bytes) {
  const auto share = [](double part, int64_t of) {
    return static_cast<int64_t>(part * static_cast<double>(of));
  };
  const MemoryLimit& free = machine.memory.available;
  const bool device_in_ram = machine.gpu == nullptr;
  STRATA_ASSIGN_OR_RETURN(const RamBudgets in_ram,
                          OfferRam({.free = free,
                                    .own_bytes = own_bytes,
                                    .wanted = {.device = device_in_ram ? spec.memory().device() : 0,
                                               .host = spec.memory().host()},
                                    .usual = {.device = device_in_ram ? share(kDeviceShare, free.bytes) : 0,
                                              .host = share(kHostShare, free.bytes)}}),
                          "memory.device, memory.host");
  v1::ResourceRequest limits;
  limits.set_host_bytes(in_ram.host);
  limits.set_device_bytes(in_ram.device);
  if (!device_in_ram) {
    *limits.mutable_machine() = ToProto(UnmeasuredGpu());
    const int64_t wanted = spec.memory().device();
    limits.set_device_bytes(wanted > 0 ? wanted : AutoDeviceBudget(machine.gpu_free_bytes));
    if (limits.device_bytes() <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory.device is auto, and jobs can have ", FormatBytes(machine.gpu_free_bytes),
                       " of the ", FormatBytes(machine.gpu->memory_bytes()), " of ",
                       machine.gpu->description(), ": end what else uses the GPU"));
    }
  }
  int64_t scratch = share(kNvmeShare, FreeBytes(nvme_path));
  if (IsInMemory(NearestExisting(nvme_path))) scratch = std::min(scratch, LeftOfRam(free, own_bytes, in_ram));
  // A limit of 0 would say that nothing is known.
  limits.set_nvme_bytes(spec.memory().nvme() > 0 ? spec.memory().nvme()
                                                 : std::max(scratch, kLeastScratchBytes));
  if (Requires(spec.memory(), v1::FEATURE_GPUDIRECT)) {
    limits.set_why_no_gpudirect(machine.gpu == nullptr
                                    ? "there is no GPU"
                                    : std::string(machine.gpu->gpudirect().status().message()));
  }
  return limits;
}

v1::ResourceRequest LimitsOf(const v1::MachineFile& machine) {
  v1::ResourceRequest limits;
  limits.set_device_bytes(machine.device());
  limits.set_host_bytes(machine.host());
  limits.set_nvme_bytes(machine.nvme());
  *limits.mutable_machine() = machine.speeds();
  return limits;
}

v1::MachineProfile LocalSpeeds(Accelerator* gpu) {
  // Without a home nothing is kept and NVMe is not measured.
  const std::string folder = CacheFolder();
  const std::string file = gpu == nullptr ? "/calibration.json" : "/calibration_gpu.json";
  const std::string cache = folder.empty() ? "" : folder + file;
  std::vector<NvmePath> paths;
  std::error_code error;
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
    paths.push_back({folder});
  }
  if (!std::filesystem::exists(cache, error))
    PrintError("measuring how fast this machine is (once, a second or two)\n");
  absl::StatusOr<v1::MachineProfile> speeds = LoadOrCalibrate(
      cache, paths, std::min(kDefaultComputeThreads, AvailableCpus()), gpu,
      [](const std::string& warning) { PrintError(absl::StrCat("warning: ", warning, "\n")); });
  if (speeds.ok()) return *std::move(speeds);
  PrintError(absl::StrCat("note: predicted times are a guess: ", speeds.status().message(), "\n"));
  return GuessedSpeeds(gpu == nullptr ? MachineProfile() : UnmeasuredGpu(), speeds.status().message());
}

}  // namespace strata
