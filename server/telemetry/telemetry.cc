#include "server/telemetry/telemetry.h"

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

namespace strata::server {

absl::StatusOr<std::unique_ptr<Telemetry>> Telemetry::Open(const std::string& folder,
                                                           int64_t log_quota_bytes) {
  STRATA_RETURN_IF_ERROR(MakeDirectories(folder));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<MetricStore> metrics,
                          MetricStore::Open(absl::StrCat(folder, "/metrics.db")));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<LogStore> logs,
                          LogStore::Open(absl::StrCat(folder, "/logs"), log_quota_bytes));
  return std::unique_ptr<Telemetry>(new Telemetry(std::move(metrics), std::move(logs)));
}

int64_t Telemetry::Generation() {
  MutexLock lock(mu_);
  return generation_;
}

void Telemetry::Ring() {
  {
    MutexLock lock(mu_);
    ++generation_;
  }
  bell_.SignalAll();
}

void Telemetry::WaitBeyond(int64_t seen, std::chrono::nanoseconds timeout) {
  MutexLock lock(mu_);
  if (generation_ <= seen) bell_.WaitFor(mu_, timeout);
}

}  // namespace strata::server
