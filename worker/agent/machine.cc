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

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/calibrate/calibrate.h"
#include "offload/device/cuda_plugin.h"
#include "offload/engine/ladder.h"
#include "offload/io/path_probe.h"
#include "offload/io/path_speed.h"
#include "proto/job_spec/validate.h"
#include "proto/machine/calibration.h"
#include "worker/ladder_proto/ladder_proto.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// The limit of the control group this process is in, or INT64_MAX. Both versions say it as one number in a
// file; "max" and numbers near 2^63 mean none.
int64_t ControlGroupLimit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    auto text = ReadFile(path, 64);
    int64_t limit;
    if (text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &limit) && limit > 0) return limit;
  }
  return INT64_MAX;
}

}  // namespace

// How fast this machine is, as it was measured when a worker first started on it in this state folder.
// Without it jobs run as well; only predictions are a guess.
void MeasureSpeeds(const AgentOptions& options, Machine* machine) {
  const int threads = std::min(kDefaultComputeThreads, AvailableCpus());
  std::vector<NvmePath> paths;
  for (size_t i = 0; i < options.nvme_paths.size(); ++i)
    paths.push_back({options.nvme_paths[i], machine->nvme_weights[i]});
  absl::StatusOr<v1::MachineProfile> speeds =
      LoadOrCalibrate(options.state_dir + "/calibration.json", paths, threads,
                      [](const std::string& warning) { spdlog::warn("{}", warning); });
  if (speeds.ok()) {
    *machine->capacity.mutable_machine() = *std::move(speeds);
  } else {
    machine->speeds_why_not = std::string(speeds.status().message());
  }
}

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/meminfo", 1 << 16));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemTotal:")) continue;
    (void)absl::ConsumeSuffix(&line, "kB");
    int64_t kib;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib)) {
      return std::min(kib * 1024, ControlGroupLimit());
    }
  }
  return absl::InternalError("/proc/meminfo has no MemTotal: give --device-bytes and --host-bytes");
}

namespace {

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
absl::Status InspectNvme(const AgentOptions& options, Machine& machine) {
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
  const double bytes = options.nvme_bytes > 0 ? static_cast<double>(options.nvme_bytes) : fits / 5 * 4;
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

absl::StatusOr<Machine> InspectMachine(const AgentOptions& options) {
  Machine machine;
  STRATA_ASSIGN_OR_RETURN(const int64_t memory, AvailableMemoryBytes());
  v1::Capacity& capacity = machine.capacity;
  capacity.set_cpus(AvailableCpus());
  // Trainers load what is beside them: what is found here, they find.
  std::error_code error;
  const fs::path trainer = fs::canonical(options.trainer, error);
  if (error) return absl::NotFoundError(absl::StrCat("--trainer: ", options.trainer, ": ", error.message()));
  const auto gpu = OpenCudaPlugin(trainer.parent_path().string());
  machine.gpu = gpu.ok();
  machine.why_no_gpu = std::string(gpu.status().message());
  if (!machine.gpu && options.require_gpu) {
    return absl::FailedPreconditionError(absl::StrCat("--require-gpu: ", machine.why_no_gpu));
  }
  const int64_t device_default = machine.gpu ? (*gpu)->memory_bytes() / 10 * 9 : memory / 4;
  capacity.set_device_bytes(options.device_bytes > 0 ? options.device_bytes : device_default);
  capacity.set_host_bytes(options.host_bytes > 0 ? options.host_bytes : memory / 5 * 3);
  if (machine.gpu && capacity.device_bytes() > (*gpu)->memory_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("--device-bytes (", FormatBytes(capacity.device_bytes()),
                                                   ") exceeds the ", FormatBytes((*gpu)->memory_bytes()),
                                                   " of ", (*gpu)->description(), ": lower it"));
  }
  // Both tiers of a CPU worker are in the same RAM.
  const int64_t in_memory = machine.gpu ? 0 : capacity.device_bytes();
  if (in_memory > memory - std::min(memory, capacity.host_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat("--device-bytes (", FormatBytes(capacity.device_bytes()),
                                                   ") and --host-bytes (", FormatBytes(capacity.host_bytes()),
                                                   ") together exceed the ", FormatBytes(memory),
                                                   " of memory this process may use: lower one of them"));
  }
  STRATA_RETURN_IF_ERROR(InspectNvme(options, machine));
  STRATA_ASSIGN_OR_RETURN(
      const Ladder ladder,
      OfferedLadder(options.nvme_paths, {machine.gpu ? gpu->get() : nullptr, machine.why_no_gpu}),
      "--nvme-path");
  for (const Rung& rung : ladder) *capacity.add_ladder() = ToProto(rung);
  MeasureSpeeds(options, &machine);
  return machine;
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
