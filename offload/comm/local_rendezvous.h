// LocalRendezvous: the meeting point of ranks that are threads of one process.
#ifndef OFFLOAD_COMM_LOCAL_RENDEZVOUS_H_
#define OFFLOAD_COMM_LOCAL_RENDEZVOUS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "offload/comm/rendezvous.h"
#include "offload/comm/rendezvous_table.h"

namespace strata {

// Outlives its memberships. Every Join counts as a process of its own.
class LocalRendezvous : public Rendezvous {
 public:
  absl::StatusOr<std::unique_ptr<Membership>> Join(const JoinRequest& request) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Part;

  Mutex mu_;
  CondVar changed_;
  RendezvousTable table_ ABSL_GUARDED_BY(mu_);
  int64_t joins_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::pair<std::string, int>, int64_t> last_ ABSL_GUARDED_BY(mu_);  // generation by group and rank
};

}  // namespace strata

#endif  // OFFLOAD_COMM_LOCAL_RENDEZVOUS_H_
