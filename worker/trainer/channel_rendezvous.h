// ChannelRendezvous: the rendezvous of a trainer process, by its agent, which carries it to the coordinator
// (worker/agent/rendezvous_relay.h). The trainer has no address and no connection of its own.
//
// Each change of what this process is a member of is one message with all of it; answers come to Take. While
// the coordinator is away, nothing is heard: groups that stand go on, a Join ends by its own timeout.
#ifndef WORKER_TRAINER_CHANNEL_RENDEZVOUS_H_
#define WORKER_TRAINER_CHANNEL_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"
#include "offload/comm/rendezvous.h"
#include "offload/comm/rendezvous_table.h"
#include "proto/strata/v1/trainer.pb.h"

namespace strata {

class ChannelRendezvous : public Rendezvous {
 public:
  // `send` sends to the agent, from any thread; an error of it ends a Join. Outlives its memberships.
  using Send = std::function<absl::Status(const v1::TrainerMessage&)>;
  explicit ChannelRendezvous(Send send, Clock& clock = Clock::Real());

  // The coordinator ends a generation when the time of its first rank is over, and says who was missing. A
  // coordinator that has not answered kAnswerWait later is what the error is about.
  absl::StatusOr<std::unique_ptr<Membership>> Join(const JoinRequest& request) override
      ABSL_LOCKS_EXCLUDED(mu_, send_mu_);

  // An answer from the agent. Any thread, but one at a time; does not block.
  void Take(const v1::RendezvousResponse& response) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr absl::Duration kAnswerWait = absl::Seconds(5);

 private:
  class Part;
  using Key = std::pair<std::string, int64_t>;  // group, generation
  struct Entry {
    v1::GroupMember member;
    int64_t deadline_nanos = 0;
    GroupState state;
  };

  // Tells the agent all entries as they are.
  absl::Status Publish() ABSL_LOCKS_EXCLUDED(mu_, send_mu_);
  absl::Status Begin(const JoinRequest& request, int64_t deadline_nanos, Key* key) ABSL_LOCKS_EXCLUDED(mu_);
  // Until `key` is no longer forming, or its time is over.
  GroupState AwaitAnswer(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const Key& key) ABSL_LOCKS_EXCLUDED(mu_, send_mu_);

  const Send send_;
  Clock& clock_;
  const std::string token_;

  // Held over building and sending a message: none may overtake a later one.
  Mutex send_mu_;
  Mutex mu_;
  CondVar changed_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> last_
      ABSL_GUARDED_BY(mu_);  // generation that this process was in or knows of
};

}  // namespace strata

#endif  // WORKER_TRAINER_CHANNEL_RENDEZVOUS_H_
