#include "proto/machine/calibration.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "offload/calibrate/calibrate.h"
#include "offload/calibrate/cpu_share.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

constexpr int kCacheVersion = 3;  // grows when what is measured changes
constexpr int64_t kCacheMaxBytes = 1 << 20;

// Of the CPUs, taken by others, above which speeds are those of a busy machine.
constexpr double kBusyShare = 0.15;
constexpr std::chrono::milliseconds kLook{100};
constexpr char kMeasuredWhileBusy[] = ", while others computed: measured again when they do not";

bool OthersComputeNow() {
  const OthersShare share;
  std::this_thread::sleep_for(kLook);
  return MachineIsBusy() || share.Now() > kBusyShare;
}

bool SameMachine(const v1::CalibrationCache& a, const v1::CalibrationCache& b) {
  return a.version() == b.version() && a.cpu() == b.cpu() && a.cpus() == b.cpus() &&
         a.threads() == b.threads() &&
         std::equal(a.nvme_devices().begin(), a.nvme_devices().end(), b.nvme_devices().begin(),
                    b.nvme_devices().end());
}

// kNotFound: there is none. Other errors say what is wrong with it.
absl::StatusOr<v1::CalibrationCache> ReadCache(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kCacheMaxBytes));
  v1::CalibrationCache cache;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &cache);
  if (!parsed.ok())
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON of a calibration: ", parsed.ToString()));
  if (cache.version() == kCacheVersion) STRATA_RETURN_IF_ERROR(CheckMachine(cache.profile()));
  return cache;
}

}  // namespace

bool TakeKept(const v1::CalibrationCache& kept, const absl::StatusOr<int64_t>& memory,
              const std::function<bool()>& others_compute) {
  if (!memory.ok()) return true;
  return (!kept.busy() && kept.memory_bytes() >= *memory) || others_compute();
}

absl::StatusOr<v1::MachineProfile> LoadOrCalibrate(const std::string& cache,
                                                   const std::vector<NvmePath>& nvme_paths, int threads,
                                                   Accelerator* gpu,
                                                   const std::function<void(const std::string&)>& warn) {
  v1::CalibrationCache here;
  here.set_version(kCacheVersion);
  here.set_cpu(gpu == nullptr ? CpuModel() : absl::StrCat(CpuModel(), "; ", gpu->identity()));
  here.set_cpus(AvailableCpus());
  here.set_threads(threads);
  for (const NvmePath& path : nvme_paths) {
    struct stat info = {};
    here.add_nvme_devices(stat(path.path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_dev) : 0);
  }
  const absl::StatusOr<v1::CalibrationCache> kept = ReadCache(cache);
  const absl::StatusOr<int64_t> memory = CalibrationMemoryNow(nvme_paths);
  if (kept.ok() && SameMachine(*kept, here) && TakeKept(*kept, memory, &OthersComputeNow))
    return kept->profile();
  if (!kept.ok() && !absl::IsNotFound(kept.status())) {
    warn(absl::StrCat("the speeds kept in ", cache,
                      " are not used, this machine is measured again: ", kept.status().message()));
  }
  STRATA_RETURN_IF_ERROR(memory.status());
  const bool busy_before = MachineIsBusy();
  const OthersShare share;
  STRATA_ASSIGN_OR_RETURN(
      const MachineProfile profile,
      Calibrate({.nvme_paths = nvme_paths, .threads = threads, .gpu = gpu, .memory_bytes = *memory}));
  here.set_memory_bytes(*memory);
  here.set_busy(busy_before || share.Now() > kBusyShare);
  *here.mutable_profile() = ToProto(profile);
  if (here.busy()) {
    here.mutable_profile()->set_measured_while_busy(true);
    here.mutable_profile()->mutable_source()->append(kMeasuredWhileBusy);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(here, &text, options).ok())
    (void)WriteFileDurably(cache, text);  // only a convenience
  return here.profile();
}

}  // namespace strata
