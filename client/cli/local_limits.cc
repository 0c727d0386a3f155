#include "client/cli/local_limits.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command_util.h"
#include "client/cli/preflight.h"
#include "common/status.h"
#include "offload/calibrate/calibrate.h"
#include "proto/job_spec/validate.h"
#include "proto/machine/calibration.h"

namespace strata {
namespace {

constexpr double kDeviceShare = 0.2;
constexpr double kHostShare = 0.5;
constexpr double kNvmeShare = 0.9;

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

absl::StatusOr<v1::ResourceRequest> LocalLimits(const v1::JobSpec& spec, const std::string& nvme_path) {
  STRATA_ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  const auto choose = [](int64_t wanted, double share, int64_t free) {
    return wanted > 0 ? wanted : static_cast<int64_t>(share * static_cast<double>(free));
  };
  v1::ResourceRequest limits;
  limits.set_device_bytes(choose(spec.memory().device(), kDeviceShare, machine.available_bytes));
  limits.set_host_bytes(choose(spec.memory().host(), kHostShare, machine.available_bytes));
  limits.set_nvme_bytes(choose(spec.memory().nvme(), kNvmeShare, FreeBytes(nvme_path)));
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

v1::MachineProfile LocalSpeeds() {
  // Without a home nothing is kept and NVMe is not measured.
  const std::string folder = CacheFolder();
  const std::string cache = folder.empty() ? "" : folder + "/calibration.json";
  std::vector<NvmePath> paths;
  std::error_code error;
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
    paths.push_back({folder});
  }
  if (!std::filesystem::exists(cache, error))
    PrintError("measuring how fast this machine is (once, a second or two)\n");
  absl::StatusOr<v1::MachineProfile> speeds = LoadOrCalibrate(
      cache, paths, std::min(kDefaultComputeThreads, AvailableCpus()),
      [](const std::string& warning) { PrintError(absl::StrCat("warning: ", warning, "\n")); });
  if (speeds.ok()) return *std::move(speeds);
  PrintError(absl::StrCat("note: predicted times are a guess: ", speeds.status().message(), "\n"));
  return {};
}

}  // namespace strata
