#include "server/store/sqlite_state_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/store/job_codec.h"

namespace strata::server {
namespace {

// At most so many transactions share one commit: bounds the time a single one waits for the others.
constexpr size_t kGroupMax = 256;
constexpr int64_t kRequestsKeptMicros = int64_t{30} * 24 * 3600 * 1'000'000;

constexpr const char* kMigrations[] = {
    // 1
    R"(
CREATE TABLE jobs(
  sequence INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL UNIQUE,
  parent TEXT NOT NULL,
  state INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  record BLOB NOT NULL) STRICT;
CREATE INDEX jobs_live ON jobs(sequence) WHERE state NOT IN (7, 8, 9);
CREATE INDEX jobs_by_parent ON jobs(parent, sequence);
CREATE INDEX jobs_by_state ON jobs(parent, state, sequence);
CREATE TABLE events(
  revision INTEGER PRIMARY KEY,
  uid TEXT NOT NULL,
  wall_micros INTEGER NOT NULL,
  from_state INTEGER NOT NULL,
  to_state INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  reason TEXT NOT NULL,
  message TEXT NOT NULL,
  actor TEXT NOT NULL) STRICT;
CREATE INDEX events_by_job ON events(uid, revision);
CREATE TABLE revisions(revision INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
CREATE TABLE requests(
  scope TEXT NOT NULL,
  request_id TEXT NOT NULL,
  digest BLOB NOT NULL,
  uid TEXT NOT NULL,
  wall_micros INTEGER NOT NULL,
  PRIMARY KEY(scope, request_id)) STRICT, WITHOUT ROWID;
CREATE TABLE checkpoints(
  uid TEXT NOT NULL,
  step INTEGER NOT NULL,
  record BLOB NOT NULL,
  PRIMARY KEY(uid, step)) STRICT, WITHOUT ROWID;
CREATE TABLE probe(id INTEGER PRIMARY KEY, filler BLOB) STRICT;
)",
};

#define STRATA_PREPARE(name, db, sql)                                            \
  STRATA_ASSIGN_OR_RETURN(SqliteStatement* name##_statement, (db).Prepare(sql)); \
  SqliteUse name((db), *name##_statement)

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(const std::string& path,
                                                                         Clock& clock) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> write, SqliteDb::Open(path));
  STRATA_RETURN_IF_ERROR(write->QuickCheck());
  STRATA_RETURN_IF_ERROR(write->Migrate(kMigrations, std::size(kMigrations)));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> read, SqliteDb::Open(path));
  STRATA_RETURN_IF_ERROR(read->Execute("PRAGMA query_only=ON"));
  return std::unique_ptr<SqliteStateStore>(
      new SqliteStateStore(path, clock, std::move(write), std::move(read)));
}

SqliteStateStore::SqliteStateStore(std::string path, Clock& clock, std::unique_ptr<SqliteDb> write,
                                   std::unique_ptr<SqliteDb> read)
    : path_(std::move(path)),
      clock_(clock),
      write_(std::move(write)),
      read_(std::move(read)),
      writer_("store-writer", [this] { Loop(); }) {}

SqliteStateStore::~SqliteStateStore() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.SignalAll();
  writer_.Join();
}

void SqliteStateStore::Submit(uint64_t epoch, StoreTransaction transaction, Done done) {
  {
    MutexLock lock(mu_);
    queue_.push_back({epoch, std::move(transaction), std::move(done), false});
  }
  wake_.Signal();
}

void SqliteStateStore::SetEpoch(uint64_t epoch) {
  MutexLock lock(mu_);
  epoch_ = epoch;
}

void SqliteStateStore::SetSizeLimit(int64_t bytes) {
  MutexLock lock(mu_);
  size_limit_ = bytes;
}

absl::Status SqliteStateStore::Probe() {
  Mutex mu;
  CondVar finished;
  std::optional<absl::Status> result;
  {
    MutexLock lock(mu_);
    queue_.push_back({0,
                      {},
                      [&](absl::Status status) {
                        MutexLock result_lock(mu);
                        result = std::move(status);
                        finished.Signal();
                      },
                      true});
  }
  wake_.Signal();
  MutexLock lock(mu);
  while (!result) finished.Wait(mu);
  return *result;
}

void SqliteStateStore::Loop() {
  while (true) {
    std::vector<Item> group;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stop_) wake_.Wait(mu_);
      if (queue_.empty()) return;
      while (!queue_.empty() && group.size() < kGroupMax) {
        group.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    const std::vector<absl::Status> results = WriteGroup(group);
    for (size_t i = 0; i < group.size(); ++i) group[i].done(results[i]);
  }
}

std::vector<absl::Status> SqliteStateStore::WriteGroup(const std::vector<Item>& group) {
  uint64_t epoch = 0;
  int64_t limit = 0;
  {
    MutexLock lock(mu_);
    epoch = epoch_;
    limit = size_limit_;
  }
  std::vector<absl::Status> results(group.size(), absl::OkStatus());
  if (limit != applied_limit_) {
    const absl::StatusOr<int64_t> page_size = write_->QueryInt("PRAGMA page_size");
    const int64_t pages = limit == 0 ? 0xfffffffe : limit / (page_size.ok() ? *page_size : 4096);
    if (write_->QueryInt(absl::StrCat("PRAGMA max_page_count=", pages)).ok()) applied_limit_ = limit;
  }
  const auto write_all = [&]() -> absl::Status {
    SqliteTransaction transaction(*write_);
    STRATA_RETURN_IF_ERROR(transaction.Begin());
    for (const Item& item : group) {
      if (item.probe || item.epoch != epoch) continue;
      STRATA_RETURN_IF_ERROR(WriteTransaction(item.transaction));
    }
    return transaction.Commit();
  };
  const absl::Status written = write_all();
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].probe) {
      results[i] = WriteProbe();
    } else if (group[i].epoch != epoch) {
      results[i] = absl::AbortedError("an earlier write failed");
    } else {
      results[i] = written;
    }
  }
  if (!written.ok()) {
    // After an I/O error nothing is known about what the connection has cached.
    if (absl::StatusOr<std::unique_ptr<SqliteDb>> fresh = SqliteDb::Open(path_); fresh.ok()) {
      write_ = *std::move(fresh);
      applied_limit_ = 0;
    }
  }
  return results;
}

absl::Status SqliteStateStore::WriteTransaction(const StoreTransaction& transaction) {
  const Job& job = *transaction.job;
  const std::string record = EncodeJob(job);
  {
    STRATA_PREPARE(
        upsert, *write_,
        "INSERT INTO jobs(sequence, uid, name, parent, state, revision, record) VALUES(?,?,?,?,?,?,?) "
        "ON CONFLICT(sequence) DO UPDATE SET state=excluded.state, revision=excluded.revision, "
        "record=excluded.record");
    upsert.Int(job.sequence).Text(job.uid).Text(job.name).Text(ParentOf(job.name));
    upsert.Int(static_cast<int>(job.state)).Int(job.revision).Blob(record);
    STRATA_RETURN_IF_ERROR(upsert.Run());
  }
  {
    const EventRow& event = transaction.event;
    STRATA_PREPARE(
        insert, *write_,
        "INSERT INTO events(revision, uid, wall_micros, from_state, to_state, attempt, reason, message, "
        "actor) VALUES(?,?,?,?,?,?,?,?,?)");
    insert.Int(event.revision).Text(job.uid).Int(event.wall_micros).Int(static_cast<int>(event.from));
    insert.Int(static_cast<int>(event.to)).Int(event.attempt).Text(event.reason).Text(event.message);
    insert.Text(event.actor);
    STRATA_RETURN_IF_ERROR(insert.Run());
  }
  {
    STRATA_PREPARE(insert, *write_, "INSERT INTO revisions(revision, record) VALUES(?,?)");
    STRATA_RETURN_IF_ERROR(insert.Int(job.revision).Blob(record).Run());
    STRATA_PREPARE(trim, *write_, "DELETE FROM revisions WHERE revision <= ?");
    STRATA_RETURN_IF_ERROR(trim.Int(job.revision - kRevisionsKept).Run());
  }
  if (transaction.request) {
    const RequestRow& request = *transaction.request;
    const int64_t now = absl::ToUnixMicros(clock_.WallNow());
    STRATA_PREPARE(insert, *write_,
                   "INSERT INTO requests(scope, request_id, digest, uid, wall_micros) VALUES(?,?,?,?,?)");
    insert.Text(request.scope).Text(request.request_id).Blob(request.digest).Text(request.uid).Int(now);
    STRATA_RETURN_IF_ERROR(insert.Run());
  }
  if (transaction.checkpoint != nullptr) {
    STRATA_PREPARE(upsert, *write_, "INSERT OR REPLACE INTO checkpoints(uid, step, record) VALUES(?,?,?)");
    upsert.Text(job.uid)
        .Int(transaction.checkpoint->step())
        .Blob(transaction.checkpoint->SerializeAsString());
    STRATA_RETURN_IF_ERROR(upsert.Run());
  }
  for (const int64_t step : transaction.dropped_steps) {
    STRATA_PREPARE(drop, *write_, "DELETE FROM checkpoints WHERE uid=? AND step=?");
    STRATA_RETURN_IF_ERROR(drop.Text(job.uid).Int(step).Run());
  }
  return absl::OkStatus();
}

absl::Status SqliteStateStore::WriteProbe() {
  // Also the place where old request ids go: it is off the path of every transition.
  {
    SqliteTransaction transaction(*write_);
    STRATA_RETURN_IF_ERROR(transaction.Begin());
    STRATA_RETURN_IF_ERROR(
        write_->Execute("INSERT OR REPLACE INTO probe(id, filler) VALUES(1, randomblob(65536))"));
    STRATA_RETURN_IF_ERROR(transaction.Commit());
  }
  SqliteTransaction transaction(*write_);
  STRATA_RETURN_IF_ERROR(transaction.Begin());
  STRATA_RETURN_IF_ERROR(write_->Execute("DELETE FROM probe"));
  STRATA_PREPARE(trim, *write_, "DELETE FROM requests WHERE wall_micros < ?");
  STRATA_RETURN_IF_ERROR(trim.Int(absl::ToUnixMicros(clock_.WallNow()) - kRequestsKeptMicros).Run());
  return transaction.Commit();
}

absl::StatusOr<int64_t> SqliteStateStore::LastRevision() {
  MutexLock lock(read_mu_);
  return read_->QueryInt("SELECT max(revision) FROM events");
}

absl::StatusOr<JobPtr> SqliteStateStore::FinishJob(const std::string& record) {
  STRATA_ASSIGN_OR_RETURN(Job job, DecodeJob(record));
  STRATA_ASSIGN_OR_RETURN(job.checkpoints, ReadCheckpoints(job.uid));
  return std::make_shared<const Job>(std::move(job));
}

absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> SqliteStateStore::ReadCheckpoints(
    const std::string& uid) {
  std::vector<std::shared_ptr<const v1::Checkpoint>> checkpoints;
  STRATA_PREPARE(query, *read_, "SELECT record FROM checkpoints WHERE uid=? ORDER BY step DESC");
  query.Text(uid);
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return checkpoints;
    auto checkpoint = std::make_shared<v1::Checkpoint>();
    if (!checkpoint->ParseFromString(query.GetBytes(0))) {
      return absl::DataLossError(
          absl::StrCat(path_, ": a checkpoint record of job ", uid, " does not parse"));
    }
    checkpoints.push_back(std::move(checkpoint));
  }
}

absl::StatusOr<std::vector<JobPtr>> SqliteStateStore::LoadLive() {
  MutexLock lock(read_mu_);
  std::vector<JobPtr> jobs;
  STRATA_PREPARE(query, *read_, "SELECT record FROM jobs WHERE state NOT IN (7, 8, 9) ORDER BY sequence");
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return jobs;
    STRATA_ASSIGN_OR_RETURN(JobPtr job, FinishJob(query.GetBytes(0)));
    jobs.push_back(std::move(job));
  }
}

absl::StatusOr<std::vector<JobPtr>> SqliteStateStore::LoadRevisions(int32_t limit) {
  MutexLock lock(read_mu_);
  std::vector<JobPtr> jobs;
  STRATA_PREPARE(query, *read_, "SELECT record FROM revisions ORDER BY revision DESC LIMIT ?");
  query.Int(limit);
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) break;
    STRATA_ASSIGN_OR_RETURN(Job job, DecodeJob(query.GetBytes(0)));
    jobs.push_back(std::make_shared<const Job>(std::move(job)));
  }
  std::reverse(jobs.begin(), jobs.end());
  return jobs;
}

absl::StatusOr<JobPtr> SqliteStateStore::FindOne(const char* sql, const std::string& key) {
  MutexLock lock(read_mu_);
  STRATA_PREPARE(query, *read_, sql);
  query.Text(key);
  STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
  if (!row) return JobPtr();
  return FinishJob(query.GetBytes(0));
}

absl::StatusOr<JobPtr> SqliteStateStore::FindByName(const std::string& name) {
  return FindOne("SELECT record FROM jobs WHERE name=?", name);
}

absl::StatusOr<JobPtr> SqliteStateStore::FindByUid(const std::string& uid) {
  return FindOne("SELECT record FROM jobs WHERE uid=?", uid);
}

absl::StatusOr<std::vector<JobPtr>> SqliteStateStore::ListJobs(const JobQuery& query) {
  MutexLock lock(read_mu_);
  std::vector<JobPtr> jobs;
  STRATA_PREPARE(all, *read_,
                 "SELECT record FROM jobs WHERE parent=? AND sequence<? ORDER BY sequence DESC LIMIT ?");
  STRATA_PREPARE(
      some, *read_,
      "SELECT record FROM jobs WHERE parent=? AND sequence<? AND state=? ORDER BY sequence DESC LIMIT ?");
  SqliteUse& use = query.state == JobState::kNone ? all : some;
  use.Text(query.parent).Int(query.before_sequence);
  if (query.state != JobState::kNone) use.Int(static_cast<int>(query.state));
  use.Int(query.limit);
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool row, use.Next());
    if (!row) return jobs;
    STRATA_ASSIGN_OR_RETURN(JobPtr job, FinishJob(use.GetBytes(0)));
    jobs.push_back(std::move(job));
  }
}

absl::StatusOr<std::optional<RequestRow>> SqliteStateStore::FindRequest(const std::string& scope,
                                                                        const std::string& request_id) {
  MutexLock lock(read_mu_);
  STRATA_PREPARE(query, *read_, "SELECT digest, uid FROM requests WHERE scope=? AND request_id=?");
  query.Text(scope).Text(request_id);
  STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
  if (!row) return std::nullopt;
  return RequestRow{scope, request_id, query.GetBytes(0), query.GetBytes(1)};
}

absl::StatusOr<std::vector<EventRow>> SqliteStateStore::ListEvents(const std::string& uid,
                                                                   int64_t after_revision, int32_t limit) {
  MutexLock lock(read_mu_);
  std::vector<EventRow> events;
  STRATA_PREPARE(
      query, *read_,
      "SELECT revision, wall_micros, from_state, to_state, attempt, reason, message, actor FROM events "
      "WHERE uid=? AND revision>? ORDER BY revision LIMIT ?");
  query.Text(uid).Int(after_revision).Int(limit);
  while (true) {
    STRATA_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return events;
    events.push_back({query.GetInt(0), query.GetInt(1), static_cast<JobState>(query.GetInt(2)),
                      static_cast<JobState>(query.GetInt(3)), static_cast<int32_t>(query.GetInt(4)),
                      query.GetBytes(5), query.GetBytes(6), query.GetBytes(7)});
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> SqliteStateStore::ListCheckpoints(
    const std::string& uid) {
  MutexLock lock(read_mu_);
  return ReadCheckpoints(uid);
}

std::string SqliteStateStore::Describe() const { return absl::StrCat("sqlite ", sqlite3_libversion()); }

}  // namespace strata::server
