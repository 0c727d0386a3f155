// Telemetry: metrics and logs of all jobs, and a bell that rings when something has arrived.
#ifndef SERVER_TELEMETRY_TELEMETRY_H_
#define SERVER_TELEMETRY_TELEMETRY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/telemetry/log_store.h"
#include "server/telemetry/metric_store.h"

namespace strata::server {

class Telemetry {
 public:
  // Everything lives in `folder` (created): metrics.db and logs/.
  static absl::StatusOr<std::unique_ptr<Telemetry>> Open(const std::string& folder, int64_t log_quota_bytes);

  MetricStore& metrics() { return *metrics_; }
  LogStore& logs() { return *logs_; }

  // Grows with every Ring.
  int64_t Generation();
  void Ring();
  // Until the generation is above `seen`, or the time is over.
  void WaitBeyond(int64_t seen, std::chrono::nanoseconds timeout);

 private:
  Telemetry(std::unique_ptr<MetricStore> metrics, std::unique_ptr<LogStore> logs)
      : metrics_(std::move(metrics)), logs_(std::move(logs)) {}

  const std::unique_ptr<MetricStore> metrics_;
  const std::unique_ptr<LogStore> logs_;
  Mutex mu_;
  CondVar bell_;
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata::server

#endif  // SERVER_TELEMETRY_TELEMETRY_H_
