#include "client/cli/local_limits.h"

#include "client/cli/preflight.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr double kDeviceShare = 0.2;
constexpr double kHostShare = 0.5;
constexpr double kNvmeShare = 0.9;

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

}  // namespace strata
