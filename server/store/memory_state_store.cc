#include "server/store/memory_state_store.h"

namespace strata::server {

MemoryStateStore::MemoryStateStore() : writer_("memory-store", [this] { Loop(); }) {}

MemoryStateStore::~MemoryStateStore() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.SignalAll();
  writer_.Join();
}

void MemoryStateStore::Submit(uint64_t epoch, StoreTransaction transaction, Done done) {
  {
    MutexLock lock(mu_);
    queue_.push_back({epoch, std::move(transaction), std::move(done)});
  }
  wake_.SignalAll();
}

void MemoryStateStore::SetEpoch(uint64_t epoch) {
  MutexLock lock(mu_);
  epoch_ = epoch;
}

void MemoryStateStore::SetFailure(absl::Status status) {
  MutexLock lock(mu_);
  failure_ = std::move(status);
}

void MemoryStateStore::Hold(bool held) {
  {
    MutexLock lock(mu_);
    held_ = held;
  }
  wake_.SignalAll();
}

JobPtr MemoryStateStore::WaitForQueued() {
  MutexLock lock(mu_);
  while (queue_.empty()) wake_.Wait(mu_);
  return queue_.front().transaction.job;
}

absl::Status MemoryStateStore::Probe() {
  MutexLock lock(mu_);
  return failure_;
}

void MemoryStateStore::Loop() {
  while (true) {
    Item item;
    absl::Status status;
    {
      MutexLock lock(mu_);
      while ((queue_.empty() || held_) && !stop_) wake_.Wait(mu_);
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
      status = item.epoch == epoch_ ? failure_ : absl::AbortedError("an earlier write failed");
      if (status.ok()) {
        const StoreTransaction& transaction = item.transaction;
        jobs_[transaction.job->sequence] = transaction.job;
        revisions_[transaction.job->revision] = transaction.job;
        events_[transaction.job->uid].push_back(transaction.event);
        if (transaction.request) {
          requests_[{transaction.request->scope, transaction.request->request_id}] = *transaction.request;
        }
      }
    }
    item.done(status);
  }
}

absl::StatusOr<int64_t> MemoryStateStore::LastRevision() {
  MutexLock lock(mu_);
  return revisions_.empty() ? 0 : revisions_.rbegin()->first;
}

absl::StatusOr<std::vector<JobPtr>> MemoryStateStore::LoadLive() {
  MutexLock lock(mu_);
  std::vector<JobPtr> live;
  for (const auto& [sequence, job] : jobs_) {
    if (!IsTerminal(job->state)) live.push_back(job);
  }
  return live;
}

absl::StatusOr<std::vector<JobPtr>> MemoryStateStore::LoadRevisions(int32_t limit) {
  MutexLock lock(mu_);
  std::vector<JobPtr> last;
  for (const auto& [revision, job] : revisions_) last.push_back(job);
  if (last.size() > static_cast<size_t>(limit)) last.erase(last.begin(), last.end() - limit);
  return last;
}

absl::StatusOr<JobPtr> MemoryStateStore::FindByName(const std::string& name) {
  MutexLock lock(mu_);
  for (const auto& [sequence, job] : jobs_) {
    if (job->name == name) return job;
  }
  return JobPtr();
}

absl::StatusOr<JobPtr> MemoryStateStore::FindByUid(const std::string& uid) {
  MutexLock lock(mu_);
  for (const auto& [sequence, job] : jobs_) {
    if (job->uid == uid) return job;
  }
  return JobPtr();
}

absl::StatusOr<std::vector<JobPtr>> MemoryStateStore::ListJobs(const JobQuery& query) {
  MutexLock lock(mu_);
  std::vector<JobPtr> page;
  for (auto it = jobs_.rbegin(); it != jobs_.rend() && page.size() < static_cast<size_t>(query.limit); ++it) {
    const Job& job = *it->second;
    if (job.sequence >= query.before_sequence || ParentOf(job.name) != query.parent) continue;
    if (query.state == JobState::kNone || query.state == job.state) page.push_back(it->second);
  }
  return page;
}

absl::StatusOr<std::optional<RequestRow>> MemoryStateStore::FindRequest(const std::string& scope,
                                                                        const std::string& request_id) {
  MutexLock lock(mu_);
  const auto found = requests_.find({scope, request_id});
  if (found == requests_.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<std::vector<EventRow>> MemoryStateStore::ListEvents(const std::string& uid,
                                                                   int64_t after_revision, int32_t limit) {
  MutexLock lock(mu_);
  std::vector<EventRow> page;
  for (const EventRow& event : events_[uid]) {
    if (event.revision > after_revision && page.size() < static_cast<size_t>(limit)) page.push_back(event);
  }
  return page;
}

absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> MemoryStateStore::ListCheckpoints(
    const std::string& uid) {
  MutexLock lock(mu_);
  for (const auto& [sequence, job] : jobs_) {
    if (job->uid == uid) return job->checkpoints;
  }
  return std::vector<std::shared_ptr<const v1::Checkpoint>>();
}

}  // namespace strata::server
