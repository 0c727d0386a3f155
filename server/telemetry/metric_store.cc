#include "server/telemetry/metric_store.h"

#include <algorithm>
#include <map>
#include <optional>
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

// All series of a query, thinned together as they grow: a bucket covers 1, 2, 4 ... rows, and every series
// shows its value at the bucket's step, so that what is left of the series are the same steps. That step is
// the last of those with the most series, families (stall_ms.CAUSE) not counted: a row leaves out their
// zeros. Another series that has no value there shows its own last one. The newest row stays by itself: it is
// what people look for first.
class Thinner {
 public:
  explicit Thinner(size_t max_points) : buckets_max_(std::max<size_t>(1, max_points) - 1) {}

  void Add(const v1::MetricRow& row, const std::vector<std::string>& wanted) {
    Bucket bucket;
    bucket.at = {.step = row.step(), .attempt = row.attempt(), .time = row.time()};
    for (const auto& [name, value] : row.values()) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
      const size_t index = index_.try_emplace(name, series_.size()).first->second;
      if (index == series_.size()) series_.push_back({.family = name.find('.') != std::string::npos});
      ++series_[index].values;
      if (!series_[index].family) ++bucket.series_at;
      Point& point = bucket.points[index] = bucket.at;
      point.value = point.min = point.max = value;
    }
    if (bucket.points.empty()) return;
    if (newest_) Push(*std::move(newest_));
    newest_ = std::move(bucket);
  }

  void Finish(v1::QueryMetricsResponse& response) {
    while (buckets_.size() > std::max<size_t>(1, buckets_max_)) Halve();
    if (buckets_.size() > buckets_max_) {
      newest_->series_at = series_.size();  // The only point.
      *newest_ = Merge(std::move(buckets_[0]), *std::move(newest_));
      buckets_.clear();
    }
    if (newest_) buckets_.push_back(*std::move(newest_));
    for (const auto& [name, index] : index_) {
      v1::Series& out = *response.add_series();
      out.set_name(name);
      for (const Bucket& bucket : buckets_) {
        const auto point = bucket.points.find(index);
        if (point == bucket.points.end()) continue;
        *out.add_points() =
            ToProto(point->second, series_[index].family && point->second.rows < bucket.at.rows);
      }
      out.set_downsampled(out.points_size() < series_[index].values);
    }
  }

 private:
  struct Series {
    bool family = false;
    int64_t values = 0;
  };
  // A v1::Point of half its size: there may be a million.
  struct Point {
    int64_t step = 0;
    int32_t attempt = 0;
    google::protobuf::Timestamp time;
    double value = 0, min = 0, max = 0;
    int64_t rows = 1;  // that have a value
  };
  struct Bucket {
    Point at;              // where it is, without a value
    size_t series_at = 0;  // how many series have one there
    std::map<size_t, Point> points;
  };

  static v1::Point ToProto(const Point& from, bool with_zeros) {
    v1::Point point;
    point.set_step(from.step);
    point.set_value(from.value);
    point.set_attempt(from.attempt);
    if (from.time.seconds() != 0) *point.mutable_time() = from.time;
    point.set_min(with_zeros ? std::min(from.min, 0.0) : from.min);
    point.set_max(with_zeros ? std::max(from.max, 0.0) : from.max);
    return point;
  }

  // Of two neighbours, `a` the earlier.
  Bucket Merge(Bucket a, Bucket b) const {
    const bool later = b.series_at >= a.series_at;
    Bucket& shown = later ? b : a;
    Bucket& other = later ? a : b;
    shown.at.rows += other.at.rows;
    for (const auto& [index, point] : other.points) {
      const auto [found, absent] = shown.points.try_emplace(index, point);
      Point& kept = found->second;
      if (absent && series_[index].family) {
        kept.step = shown.at.step;
        kept.attempt = shown.at.attempt;
        kept.time = shown.at.time;
        kept.value = 0;
      }
      if (absent) continue;
      const Point before = kept;
      if (kept.step != shown.at.step && point.step > kept.step) kept = point;
      kept.min = std::min(before.min, point.min);
      kept.max = std::max(before.max, point.max);
      kept.rows = before.rows + point.rows;
    }
    return std::move(shown);
  }

  void Push(Bucket bucket) {
    if (!buckets_.empty() && buckets_.back().at.rows < width_) {
      buckets_.back() = Merge(std::move(buckets_.back()), std::move(bucket));
      return;
    }
    // Beyond twice the limit neighbours are merged.
    if (buckets_.size() >= 2 * std::max<size_t>(1, buckets_max_)) Halve();
    buckets_.push_back(std::move(bucket));
  }

  // All buckets are full and of an even number, except in Finish.
  void Halve() {
    size_t kept = 0;
    for (size_t i = 0; i < buckets_.size(); i += 2) {
      Bucket merged = i + 1 < buckets_.size() ? Merge(std::move(buckets_[i]), std::move(buckets_[i + 1]))
                                              : std::move(buckets_[i]);
      buckets_[kept++] = std::move(merged);
    }
    buckets_.resize(kept);
    width_ *= 2;
  }

  const size_t buckets_max_;  // beside the newest row
  std::vector<Bucket> buckets_;
  std::optional<Bucket> newest_;
  int64_t width_ = 1;  // rows per full bucket
  std::map<std::string, size_t> index_;
  std::vector<Series> series_;
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
  Thinner thinner(query.max_points);
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
      thinner.Add(row, query.series);
    }
    if (page.size() < kPageRows) break;
    step = page.back().step();
    attempt = page.back().attempt();
  }
  v1::QueryMetricsResponse response;
  thinner.Finish(response);
  return response;
}

}  // namespace strata::server
