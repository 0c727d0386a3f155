// MemoryStateStore: a StateStore without durability, for tests of what stands above it. Can be told to fail,
// or to write nothing for a while.
#ifndef SERVER_STORE_MEMORY_STATE_STORE_H_
#define SERVER_STORE_MEMORY_STATE_STORE_H_

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/thread.h"
#include "server/store/state_store.h"

namespace strata::server {

class MemoryStateStore : public StateStore {
 public:
  MemoryStateStore();
  ~MemoryStateStore() override;

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
  std::string Describe() const override { return "memory"; }

  // Writes answer with `status` from now on (OK: they work again).
  void SetFailure(absl::Status status);
  // While held, transactions stay in the queue.
  void Hold(bool held);
  // The record that is to be written next, once there is one.
  JobPtr WaitForQueued();

 private:
  struct Item {
    uint64_t epoch;
    StoreTransaction transaction;
    Done done;
  };
  void Loop();

  Mutex mu_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, JobPtr> jobs_ ABSL_GUARDED_BY(mu_);  // by sequence
  std::map<int64_t, JobPtr> revisions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<EventRow>> events_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, std::string>, RequestRow> requests_ ABSL_GUARDED_BY(mu_);
  Thread writer_;
};

}  // namespace strata::server

#endif  // SERVER_STORE_MEMORY_STATE_STORE_H_
