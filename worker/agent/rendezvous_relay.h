// RendezvousRelay: carries one trainer's part in a rendezvous (offload/comm/rendezvous.h) to the coordinator
// and back. Repeats what the trainer is a member of for as long as it is, so that neither a lost call nor a
// restart of the coordinator is noticed by anybody but the log; a coordinator that is away is no news for
// ranks that communicate already.
//
// Failures of this rank are told even when the trainer has left the group or has ended since: by End, which
// speaks for a trainer that is gone.
#ifndef WORKER_AGENT_RENDEZVOUS_RELAY_H_
#define WORKER_AGENT_RENDEZVOUS_RELAY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/strata/v1/rendezvous.pb.h"
#include "worker/agent/coordinator.h"

namespace strata {

class RendezvousRelay {
 public:
  // `news` gets every answer that differs from the one before, on the relay's thread, without locks; it must
  // not block. `coordinator` outlives this. No thread runs before the first Set.
  RendezvousRelay(Coordinator& coordinator, std::string job_uid, int32_t attempt,
                  std::function<void(const v1::RendezvousResponse&)> news);
  // Gives up what End has not told.
  ~RendezvousRelay();

  // What the trainer is a member of from now on. Refuses (kResourceExhausted) more than kMembersMax, and then
  // nothing has changed. Any thread; does not block.
  absl::Status Set(const v1::RendezvousRequest& request) ABSL_LOCKS_EXCLUDED(mu_);

  // The trainer has ended: what it was a member of has failed. Returns when the coordinator has been told,
  // after kLastWordTimeout at the latest. Call at most once, and nothing but the destructor afterwards.
  void End(const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr absl::Duration kLastWordTimeout = absl::Seconds(2);

 private:
  using Key = std::pair<std::string, int64_t>;  // group, generation
  struct Part {
    v1::GroupMember member;
    int64_t deadline_nanos = 0;  // from member.time_left at receipt
    bool listed = true;          // by the trainer's last Set; else only its failure is to be told
    bool told = false;           // the coordinator knows the failure
  };

  void Loop() ABSL_LOCKS_EXCLUDED(mu_);
  v1::RendezvousRequest Request() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until there is something to ask; false when that is over.
  bool WaitForWork(absl::Duration pause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The answer of a coordinator that refuses for good.
  static v1::RendezvousResponse Refusal(const v1::RendezvousRequest& request, const absl::Status& status);
  void Apply(const v1::RendezvousRequest& request, const v1::RendezvousResponse& response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Coordinator& coordinator_;
  const std::string job_uid_;
  const int32_t attempt_;
  const std::function<void(const v1::RendezvousResponse&)> news_;

  Mutex mu_;
  CondVar changed_;
  std::map<Key, Part> parts_ ABSL_GUARDED_BY(mu_);
  bool dirty_ ABSL_GUARDED_BY(mu_) = false;     // since the last request was built
  bool refused_ ABSL_GUARDED_BY(mu_) = false;   // for good: not asked again before the next change
  int64_t end_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // End: when it gives up; 0: it was not called
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Cancellation* asking_ ABSL_GUARDED_BY(mu_) = nullptr;  // the call in flight
  std::string last_ ABSL_GUARDED_BY(mu_);                // the last news
  Thread thread_;
};

}  // namespace strata

#endif  // WORKER_AGENT_RENDEZVOUS_RELAY_H_
