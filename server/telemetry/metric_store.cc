#include "server/telemetry/metric_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata::server {
namespace {

constexpr const char* kMigrations[] = {
    // 1. The unique index is also the order of queries: by step, the newest attempt first.
    R"(
CREATE TABLE rows(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  uid TEXT NOT NULL,
  rank INTEGER NOT NULL,
  step INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  row BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX rows_by_step ON rows(uid, rank, step, attempt DESC);
CREATE INDEX rows_by_arrival ON rows(uid, sequence);
)",
};

constexpr int32_t kPageRows = 1000;

// One series, thinned as it grows: beyond twice the limit neighbours are merged, so a bucket covers 1, 2, 4
// ... rows.
class Thinner {
 public:
  explicit Thinner(size_t max_points) : max_points_(std::max<size_t>(1, max_points)) {}

  void Add(const v1::MetricRow& row, double value) {
    if (in_last_ == width_ || points_.empty()) {
      if (points_.size() >= 2 * max_points_) Halve();
      if (in_last_ == width_ || points_.empty()) {
        points_.push_back(MakePoint(row, value));
        in_last_ = 1;
        return;
      }
    }
    Merge(points_.back(), MakePoint(row, value));
    ++in_last_;
  }

  void Finish(v1::Series& series) {
    while (points_.size() > max_points_) Halve();
    series.set_downsampled(width_ > 1);
    series.mutable_points()->Assign(points_.begin(), points_.end());
  }

 private:
  static v1::Point MakePoint(const v1::MetricRow& row, double value) {
    v1::Point point;
    point.set_step(row.step());
    point.set_value(value);
    point.set_attempt(row.attempt());
    if (row.has_time()) *point.mutable_time() = row.time();
    point.set_min(value);
    point.set_max(value);
    return point;
  }
  static void Merge(v1::Point& into, const v1::Point& next) {
    const double low = std::min(into.min(), next.min());
    const double high = std::max(into.max(), next.max());
    into = next;
    into.set_min(low);
    into.set_max(high);
  }
  void Halve() {
    const bool odd = points_.size() % 2 == 1;
    for (size_t i = 0; i + 1 < points_.size(); i += 2) {
      v1::Point merged = points_[i];
      Merge(merged, points_[i + 1]);
      points_[i / 2] = std::move(merged);
    }
    if (odd) points_[points_.size() / 2] = points_.back();
    in_last_ = odd ? in_last_ : width_ + in_last_;
    points_.resize((points_.size() + 1) / 2);
    width_ *= 2;
  }

  const size_t max_points_;
  std::vector<v1::Point> points_;
  int64_t width_ = 1;    // rows per full bucket
  int64_t in_last_ = 0;  // rows in the last one
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricStore>> MetricStore::Open(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> write, SqliteDb::Open(path));
  STRATA_RETURN_IF_ERROR(write->QuickCheck());
  STRATA_RETURN_IF_ERROR(write->Migrate(kMigrations, std::size(kMigrations)));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> read, SqliteDb::Open(path));
  STRATA_RETURN_IF_ERROR(read->Execute("PRAGMA query_only=ON"));
  return std::unique_ptr<MetricStore>(new MetricStore(std::move(write), std::move(read)));
}

absl::Status MetricStore::Append(const std::vector<v1::MetricRow>& rows) {
  if (rows.empty()) return absl::OkStatus();
  MutexLock lock(write_mu_);
  SqliteTransaction transaction(*write_);
  STRATA_RETURN_IF_ERROR(transaction.Begin());
  STRATA_ASSIGN_OR_RETURN(
      SqliteStatement * statement,
      write_->Prepare("INSERT OR IGNORE INTO rows(uid, rank, step, attempt, row) VALUES(?,?,?,?,?)"));
  for (const v1::MetricRow& row : rows) {
    SqliteUse insert(*write_, *statement);
    v1::MetricRow stored = row;
    stored.clear_job_uid();
    insert.Text(row.job_uid())
        .Int(row.rank())
        .Int(row.step())
        .Int(row.attempt())
        .Blob(stored.SerializeAsString());
    STRATA_RETURN_IF_ERROR(insert.Run());
  }
  return transaction.Commit();
}

absl::StatusOr<std::vector<SequencedRow>> MetricStore::ReadAfter(const std::string& uid,
                                                                 int64_t after_sequence, int32_t limit) {
  MutexLock lock(read_mu_);
  STRATA_ASSIGN_OR_RETURN(
      SqliteStatement * statement,
      read_->Prepare("SELECT sequence, row FROM rows WHERE uid=? AND sequence>? ORDER BY sequence LIMIT ?"));
  SqliteUse query(*read_, *statement);
  query.Text(uid).Int(after_sequence).Int(limit);
  std::vector<SequencedRow> rows;
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool more, query.Next());
    if (!more) return rows;
    SequencedRow& out = rows.emplace_back();
    out.sequence = query.GetInt(0);
    if (!out.row.ParseFromString(query.GetBytes(1))) {
      return absl::DataLossError(absl::StrCat("metric row ", out.sequence, " does not parse"));
    }
  }
}

absl::StatusOr<int64_t> MetricStore::LastStep(const std::string& uid) {
  MutexLock lock(read_mu_);
  STRATA_ASSIGN_OR_RETURN(SqliteStatement * statement,
                          read_->Prepare("SELECT max(step) FROM rows WHERE uid=? AND rank=0"));
  SqliteUse query(*read_, *statement);
  query.Text(uid);
  STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
  return row ? query.GetInt(0) : 0;
}

absl::StatusOr<v1::QueryMetricsResponse> MetricStore::Query(const std::string& uid,
                                                            const MetricQuery& query) {
  std::map<std::string, Thinner> series;
  const int64_t max_step = query.max_step == 0 ? INT64_MAX : query.max_step;
  int64_t step = query.min_step;  // the page starts after (step, attempt) in the order of the index
  int64_t attempt = INT64_MAX;
  int64_t last_step = -1;
  while (true) {
    // A page at a time, so that other readers get their turn.
    std::vector<v1::MetricRow> page;
    {
      MutexLock lock(read_mu_);
      STRATA_ASSIGN_OR_RETURN(
          SqliteStatement * statement,
          read_->Prepare("SELECT row FROM rows WHERE uid=?1 AND rank=0 AND step>=?2 AND step<=?3 "
                         "AND (step>?2 OR attempt<?4) ORDER BY step, attempt DESC LIMIT ?5"));
      SqliteUse use(*read_, *statement);
      use.Text(uid).Int(step).Int(max_step).Int(attempt).Int(kPageRows);
      while (true) {
        STRATA_ASSIGN_OR_RETURN(const bool more, use.Next());
        if (!more) break;
        if (!page.emplace_back().ParseFromString(use.GetBytes(0))) {
          return absl::DataLossError(absl::StrCat("a metric row of job ", uid, " does not parse"));
        }
      }
    }
    for (const v1::MetricRow& row : page) {
      if (!query.include_superseded && row.step() == last_step) continue;
      last_step = row.step();
      for (const auto& [name, value] : row.values()) {
        if (!query.series.empty() &&
            std::find(query.series.begin(), query.series.end(), name) == query.series.end()) {
          continue;
        }
        series.try_emplace(name, query.max_points).first->second.Add(row, value);
      }
    }
    if (page.size() < kPageRows) break;
    step = page.back().step();
    attempt = page.back().attempt();
  }
  v1::QueryMetricsResponse response;
  for (auto& [name, thinner] : series) {
    v1::Series& out = *response.add_series();
    out.set_name(name);
    thinner.Finish(out);
  }
  return response;
}

}  // namespace strata::server
