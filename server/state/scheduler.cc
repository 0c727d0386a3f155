#include "server/state/scheduler.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace strata::server {
namespace {

constexpr char kWait[] = "wait for a job on this worker to end, cancel one, or add a worker";

void AddShortfall(v1::Waiting& waiting, const std::string& scope, const char* resource, int64_t requested,
                  int64_t free, int64_t total, const std::string& remedy = kWait) {
  if (requested <= free) return;
  v1::Shortfall* shortfall = waiting.add_shortfalls();
  shortfall->set_resource(resource);
  shortfall->set_scope(scope);
  shortfall->set_requested(requested);
  shortfall->set_free(free);
  shortfall->set_total(total);
  shortfall->set_remedy(remedy);
}

v1::Waiting NoWorkers(const std::map<std::string, Worker>& workers) {
  v1::Waiting waiting;
  waiting.set_code("NO_WORKERS");
  v1::Shortfall* shortfall = waiting.add_shortfalls();
  shortfall->set_resource("workers");
  shortfall->set_requested(1);
  shortfall->set_total(static_cast<int64_t>(workers.size()));
  std::string remedy = "start strata_worker and point it at this coordinator";
  for (const auto& [id, worker] : workers) {
    if (worker.state == WorkerState::kQuarantined) {
      remedy = absl::StrCat("worker ", id, " is quarantined: ", worker.reason);
    }
  }
  shortfall->set_remedy(remedy);
  return waiting;
}

std::string FullDiskRemedy(const Worker& worker) {
  std::vector<std::string> paths;
  for (const v1::NvmeVolume& volume : worker.capacity.nvme()) paths.push_back(volume.path());
  return absl::StrCat("something else fills the disk of ", absl::StrJoin(paths, ", "),
                      " there: free space on it");
}

// What jobs may take on a worker now. A job that starts may have its file already or not: it is counted twice
// for a moment, rather than not at all.
Resources RoomOn(const Worker& worker, const JobTable& jobs) {
  Resources room = worker.total - jobs.Allocated(worker.id);
  int64_t starting = 0;
  for (const JobPtr& job : jobs.JobsOn(worker.id))
    starting += job->state == JobState::kStarting ? job->grant.nvme_bytes : 0;
  room.nvme_bytes = std::min(room.nvme_bytes, std::max<int64_t>(0, NvmeFreeNow(worker.capacity) - starting));
  return room;
}

// One job against all workers.
struct Placement {
  std::optional<Grant> grant;
  v1::Waiting waiting;
};

Placement Place(const Job& job, const JobTable& jobs, const std::map<std::string, Worker>& workers,
                const std::map<std::string, Resources>& free, const PlanLookup& plans,
                ScheduleResult& result) {
  Placement placement;
  const Worker* nearest = nullptr;  // could run the job, but not now
  std::shared_ptr<const v1::JobPlan> nearest_plan;
  std::shared_ptr<const v1::JobPlan> refused;  // of the last worker that can never run it
  bool any_worker = false;
  bool unknown = false;
  std::optional<Grant> avoided;
  for (const auto& [id, worker] : workers) {
    if (worker.state != WorkerState::kReady || worker.draining) continue;
    any_worker = true;
    std::shared_ptr<const v1::JobPlan> plan = plans(job, worker);
    if (plan == nullptr) {
      unknown = true;
      result.missing.emplace_back(job.uid, id);
      continue;
    }
    const Resources wanted = FromProto(plan->resources());
    if (!plan->fits() || !wanted.FitsIn(worker.total)) {
      refused = plan;
      continue;
    }
    if (!wanted.FitsIn(free.at(id))) {
      if (nearest == nullptr || id != job.avoid_worker) {
        nearest = &worker;
        nearest_plan = plan;
      }
      continue;
    }
    Grant grant{job.uid, id, wanted, plan};
    if (id == job.avoid_worker) {
      avoided = std::move(grant);
      continue;
    }
    placement.grant = std::move(grant);
    return placement;
  }
  if (avoided && nearest == nullptr && !unknown) {
    placement.grant = std::move(avoided);
    return placement;
  }
  if (!any_worker) {
    placement.waiting = NoWorkers(workers);
  } else if (nearest != nullptr || unknown || refused == nullptr) {
    placement.waiting.set_code("CAPACITY");
    if (nearest != nullptr) {
      const Resources wanted = FromProto(nearest_plan->resources());
      const Resources& room = free.at(nearest->id);
      AddShortfall(placement.waiting, nearest->id, "device", wanted.device_bytes, room.device_bytes,
                   nearest->total.device_bytes);
      AddShortfall(placement.waiting, nearest->id, "host", wanted.host_bytes, room.host_bytes,
                   nearest->total.host_bytes);
      const bool of_jobs =
          wanted.nvme_bytes > nearest->total.nvme_bytes - jobs.Allocated(nearest->id).nvme_bytes;
      AddShortfall(placement.waiting, nearest->id, "nvme", wanted.nvme_bytes, room.nvme_bytes,
                   nearest->total.nvme_bytes, of_jobs ? kWait : FullDiskRemedy(*nearest));
    }
  } else {
    placement.waiting.set_code("UNSATISFIABLE");
    placement.waiting.set_unsatisfiable(true);
    *placement.waiting.mutable_shortfalls() = refused->shortfalls();
  }
  return placement;
}

int64_t Clamp(int64_t bytes) { return std::clamp<int64_t>(bytes, 0, kResourceMax); }

}  // namespace

Resources TotalOf(const v1::Capacity& capacity) {
  Resources total{Clamp(capacity.device_bytes()), Clamp(capacity.host_bytes()), 0};
  for (const v1::NvmeVolume& volume : capacity.nvme()) {
    total.nvme_bytes = Clamp(total.nvme_bytes + Clamp(volume.bytes()));
  }
  return total;
}

int64_t NvmeFreeNow(const v1::Capacity& capacity) {
  const auto total = static_cast<double>(TotalOf(capacity).nvme_bytes);
  double free = kResourceMax;
  for (const v1::NvmeVolume& volume : capacity.nvme()) {
    if (volume.path().empty() || volume.bytes() <= 0) continue;
    const double share = static_cast<double>(Clamp(volume.bytes())) / total;
    free = std::min(free, static_cast<double>(Clamp(volume.free_bytes())) / share);
  }
  return static_cast<int64_t>(free);
}

void RefuseBeyondCapacity(v1::JobPlan& plan, const Resources& total) {
  const Resources wanted = FromProto(plan.resources());
  if (!plan.fits() || wanted.FitsIn(total)) return;
  plan.set_fits(false);
  const auto add = [&plan](const char* resource, int64_t requested, int64_t there) {
    if (requested <= there) return;
    v1::Shortfall* shortfall = plan.add_shortfalls();
    shortfall->set_resource(resource);
    shortfall->set_requested(requested);
    shortfall->set_free(there);
    shortfall->set_total(there);
    shortfall->set_remedy(absl::StrCat("lower memory.", resource, " or add a worker that has as much"));
  };
  add("device", wanted.device_bytes, total.device_bytes);
  add("host", wanted.host_bytes, total.host_bytes);
  add("nvme", wanted.nvme_bytes, total.nvme_bytes);
}

Resources FromProto(const v1::ResourceRequest& request) {
  return {Clamp(request.device_bytes()), Clamp(request.host_bytes()), Clamp(request.nvme_bytes())};
}

v1::ResourceRequest ToProto(const Resources& resources) {
  v1::ResourceRequest request;
  request.set_device_bytes(resources.device_bytes);
  request.set_host_bytes(resources.host_bytes);
  request.set_nvme_bytes(resources.nvme_bytes);
  return request;
}

ScheduleResult Schedule(const JobTable& jobs, const std::map<std::string, Worker>& workers,
                        const PlanLookup& plans) {
  ScheduleResult result;
  std::map<std::string, Resources> free;
  for (const auto& [id, worker] : workers) free[id] = RoomOn(worker, jobs);
  int32_t ahead = 0;
  for (const JobPtr& job : jobs.Queue()) {
    Placement placement = Place(*job, jobs, workers, free, plans, result);
    if (placement.grant) {
      Resources& room = free[placement.grant->worker];
      room = room - placement.grant->resources;
      result.grants.push_back(*std::move(placement.grant));
      continue;
    }
    placement.waiting.set_jobs_ahead(ahead);
    if (!placement.waiting.unsatisfiable()) ++ahead;
    result.waiting[job->uid] = std::move(placement.waiting);
  }
  return result;
}

}  // namespace strata::server
