// MetricStore: the rows that trainers report, in a database of its own, so that no amount of them delays a
// job transaction. A row is stored once per (job, attempt, rank, step), however often it is sent.
#ifndef SERVER_TELEMETRY_METRIC_STORE_H_
#define SERVER_TELEMETRY_METRIC_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/strata/v1/metrics.pb.h"
#include "server/store/sqlite.h"

namespace strata::server {

struct SequencedRow {
  int64_t sequence = 0;  // strictly increasing in order of arrival
  v1::MetricRow row;
};

struct MetricQuery {
  std::vector<std::string> series;  // none: all
  int64_t min_step = 0;
  int64_t max_step = 0;       // 0: no bound
  int32_t max_points = 1000;  // per series
  bool include_superseded = false;
};

// Thread-safe.
class MetricStore {
 public:
  static absl::StatusOr<std::unique_ptr<MetricStore>> Open(const std::string& path);

  // Durable on return. job_uid of every row is set.
  absl::Status Append(const std::vector<v1::MetricRow>& rows);
  absl::StatusOr<std::vector<SequencedRow>> ReadAfter(const std::string& uid, int64_t after_sequence,
                                                      int32_t limit);
  // The highest step any row of the job has; 0 without rows.
  absl::StatusOr<int64_t> LastStep(const std::string& uid);
  // Rank 0. Where a later attempt did a step again only its row counts, unless superseded ones are asked for.
  // More than max_points steps are thinned, for all series alike: a bucket of neighbouring steps has of every
  // series its value at one of them, minimum and maximum. Memory stays bounded by max_points however many
  // rows there are.
  absl::StatusOr<v1::QueryMetricsResponse> Query(const std::string& uid, const MetricQuery& query);

 private:
  MetricStore(std::unique_ptr<SqliteDb> write, std::unique_ptr<SqliteDb> read)
      : write_(std::move(write)), read_(std::move(read)) {}

  Mutex write_mu_;
  std::unique_ptr<SqliteDb> write_ ABSL_GUARDED_BY(write_mu_);
  Mutex read_mu_;
  std::unique_ptr<SqliteDb> read_ ABSL_GUARDED_BY(read_mu_);
};

}  // namespace strata::server

#endif  // SERVER_TELEMETRY_METRIC_STORE_H_
