// Scheduling decisions as a pure function of the jobs, the workers and the plans.
#ifndef SERVER_STATE_SCHEDULER_H_
#define SERVER_STATE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/strata/v1/fleet.pb.h"
#include "proto/strata/v1/plan.pb.h"
#include "server/state/job.h"
#include "server/state/job_table.h"

namespace strata::server {

enum class WorkerState { kExpected, kReady, kQuarantined, kLost };

// What the coordinator knows about one worker. Nothing of it is stored: workers report everything again.
struct Worker {
  std::string id;
  // kExpected: named by a stored job and not heard of since this coordinator started.
  WorkerState state = WorkerState::kExpected;
  std::string reason;    // for kQuarantined and kLost
  std::string identity;  // of its agent; "" when not known
  int64_t incarnation = 0;
  v1::Capacity capacity;
  Resources total;  // of `capacity`
  std::string version;
  int32_t protocol_version = 0;
  std::string checkpoint_root;
  int64_t last_sync_nanos = 0;  // monotonic
  bool draining = false;        // said so itself: it is stopping and gets no grant
  bool suspect = false;         // quarantined for a hardware fault: until the agent starts anew
  // Attempts that it still reports but should not run; it gets no grant while there are any.
  std::set<std::string> leftovers;
};

struct Grant {
  std::string uid;
  std::string worker;
  Resources resources;
  std::shared_ptr<const v1::JobPlan> plan;
};

struct ScheduleResult {
  std::vector<Grant> grants;                   // to be applied in this order
  std::map<std::string, v1::Waiting> waiting;  // every job of the queue that was not granted (I7)
  // Pairs of (job uid, worker id) whose plan was asked for and is not there yet.
  std::vector<std::pair<std::string, std::string>> missing;
};

// The plan of a job on a worker of that total capacity: null when it has not been made yet. A plan with
// fits == false carries the shortfalls.
using PlanLookup = std::function<std::shared_ptr<const v1::JobPlan>(const Job&, const Worker&)>;

// Priority, then age, first fit in the order of the worker ids. A job that does not fit now, among the
// worker's jobs and on its disks, never holds back the jobs behind it. A worker that the job should avoid is
// taken only when no other worker could ever run it.
ScheduleResult Schedule(const JobTable& jobs, const std::map<std::string, Worker>& workers,
                        const PlanLookup& plans);

// The largest capacity any accounting here accepts, per resource.
inline constexpr int64_t kResourceMax = int64_t{1} << 60;
Resources TotalOf(const v1::Capacity& capacity);
// NVMe bytes that one more job can have as the worker's file systems are now: others may have filled them.
// Scratch is striped over the volumes by their `bytes`, so the one that is full first limits it. A volume
// without a path says nothing.
int64_t NvmeFreeNow(const v1::Capacity& capacity);
// A plan may say that it fits and still ask for more than there is; then it does not fit, and says what is
// missing.
void RefuseBeyondCapacity(v1::JobPlan& plan, const Resources& total);
Resources FromProto(const v1::ResourceRequest& request);
v1::ResourceRequest ToProto(const Resources& resources);

}  // namespace strata::server

#endif  // SERVER_STATE_SCHEDULER_H_
