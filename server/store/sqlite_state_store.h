// SqliteStateStore: the embedded StateStore. One writer thread commits whatever is queued in one transaction
// (group commit); reads use a second connection and see the last commit.
#ifndef SERVER_STORE_SQLITE_STATE_STORE_H_
#define SERVER_STORE_SQLITE_STATE_STORE_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "server/store/sqlite.h"
#include "server/store/state_store.h"

namespace strata::server {

class SqliteStateStore : public StateStore {
 public:
  // Opens or creates `path`, checks it, migrates it. kDataLoss when the file is damaged.
  static absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open(const std::string& path, Clock& clock);
  // Finishes what is queued.
  ~SqliteStateStore() override;

  void Submit(uint64_t epoch, StoreTransaction transaction, Done done) override;
  void SetEpoch(uint64_t epoch) override;
  absl::Status Probe() override;

  absl::StatusOr<int64_t> LastRevision() override;
  absl::StatusOr<std::vector<JobPtr>> LoadLive() override;
  absl::StatusOr<std::vector<JobPtr>> LoadRevisions(int32_t limit) override;
  absl::StatusOr<JobPtr> FindByName(const std::string& name) override;
  absl::StatusOr<JobPtr> FindByUid(const std::string& uid) override;
  absl::StatusOr<std::vector<JobPtr>> ListJobs(const JobQuery& query) override;
  absl::StatusOr<std::optional<RequestRow>> FindRequest(const std::string& scope,
                                                        const std::string& request_id) override;
  absl::StatusOr<std::vector<EventRow>> ListEvents(const std::string& uid, int64_t after_revision,
                                                   int32_t limit) override;
  absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> ListCheckpoints(
      const std::string& uid) override;
  std::string Describe() const override;

  // The database may not grow beyond this size: writes then fail as they do on a full disk. 0: no limit.
  void SetSizeLimit(int64_t bytes);

 private:
  struct Item {
    uint64_t epoch = 0;
    StoreTransaction transaction;
    Done done;
    bool probe = false;
  };

  SqliteStateStore(std::string path, Clock& clock, std::unique_ptr<SqliteDb> write,
                   std::unique_ptr<SqliteDb> read);
  void Loop();
  // The status of every item of the group.
  std::vector<absl::Status> WriteGroup(const std::vector<Item>& group);
  absl::Status WriteTransaction(const StoreTransaction& transaction);
  absl::Status WriteProbe();
  absl::StatusOr<JobPtr> FinishJob(const std::string& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);
  absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> ReadCheckpoints(const std::string& uid)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);
  absl::StatusOr<JobPtr> FindOne(const char* sql, const std::string& key);

  const std::string path_;
  Clock& clock_;
  std::unique_ptr<SqliteDb> write_;  // the writer thread's
  int64_t applied_limit_ = 0;        // the writer thread's

  Mutex read_mu_;
  std::unique_ptr<SqliteDb> read_ ABSL_GUARDED_BY(read_mu_);

  Mutex mu_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t size_limit_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread writer_;
};

}  // namespace strata::server

#endif  // SERVER_STORE_SQLITE_STATE_STORE_H_
