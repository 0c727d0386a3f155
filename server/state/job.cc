#include "server/state/job.h"

namespace strata::server {
namespace {

constexpr const char* kNames[] = {
    "STATE_UNSPECIFIED", "QUEUED",    "STARTING", "RUNNING",  "STOPPING", "PAUSED",
    "BACKOFF",           "SUCCEEDED", "FAILED",   "CANCELLED"};

}  // namespace

const char* JobStateName(JobState state) { return kNames[static_cast<int>(state)]; }

JobState JobStateFromName(const std::string& name) {
  for (int i = 1; i < 10; ++i) {
    if (name == kNames[i]) return static_cast<JobState>(i);
  }
  return JobState::kNone;
}

Resources operator+(const Resources& a, const Resources& b) {
  return {a.device_bytes + b.device_bytes, a.host_bytes + b.host_bytes, a.nvme_bytes + b.nvme_bytes};
}

Resources operator-(const Resources& a, const Resources& b) {
  return {a.device_bytes - b.device_bytes, a.host_bytes - b.host_bytes, a.nvme_bytes - b.nvme_bytes};
}

std::string ParentOf(const std::string& job_name) { return job_name.substr(0, job_name.find("/jobs/")); }

}  // namespace strata::server
