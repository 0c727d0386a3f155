// Tables and texts for people: one function per thing that the CLI shows.
#ifndef CLIENT_CLI_VIEWS_H_
#define CLIENT_CLI_VIEWS_H_

#include <string>
#include <vector>

#include "proto/strata/v1/checkpoints.pb.h"
#include "proto/strata/v1/fleet.pb.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/metrics.pb.h"
#include "proto/strata/v1/plan.pb.h"

namespace strata {

std::string JobTable(const std::vector<v1::Job>& jobs);
std::string EventTable(const std::vector<v1::JobEvent>& events);
std::string WorkerTable(const std::vector<v1::Worker>& workers);
// What one worker has, gives, and how fast it was measured to be.
std::string WorkerText(const v1::Worker& worker);
std::string CheckpointTable(const std::vector<v1::Checkpoint>& checkpoints);
// One line per step, one column per series: as many as fit in 120 columns, the most asked for first, and the
// names of the rest below; all of them with `whole`.
std::string MetricTable(const v1::QueryMetricsResponse& metrics, bool whole);

// Everything about one job that a person asks first.
std::string JobText(const v1::Job& job);
// What lives where and why, peaks against budgets, predicted time; or what is missing and what would fit.
std::string PlanText(const v1::JobPlan& plan);

// "QUEUED (NO_WORKERS)", "STOPPING -> CANCELLED", "FAILED (DEVICE_OOM)".
std::string StateText(const v1::JobStatus& status);
// One sentence on why a job waits or failed, with numbers and the remedy; "" when there is nothing to say.
std::string WhyText(const v1::JobStatus& status);

}  // namespace strata

#endif  // CLIENT_CLI_VIEWS_H_
