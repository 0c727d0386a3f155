#include "server/store/job_codec.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/state/scheduler.h"

namespace strata::server {
namespace {

constexpr int64_t kMicros = 1'000'000;

template <typename Setter>
void SetTime(int64_t micros, Setter setter) {
  if (micros != 0) *setter() = MicrosToProto(micros);
}

}  // namespace

google::protobuf::Timestamp MicrosToProto(int64_t micros) {
  google::protobuf::Timestamp time;
  time.set_seconds(micros / kMicros);
  time.set_nanos(static_cast<int32_t>(micros % kMicros * 1000));
  return time;
}

int64_t MicrosFromProto(const google::protobuf::Timestamp& time) {
  return time.seconds() * kMicros + time.nanos() / 1000;
}

std::string EtagOf(const Job& job) { return absl::StrCat("r", absl::Hex(job.revision)); }

v1::Job JobToProto(const Job& job, const Progress& live) {
  v1::Job out;
  out.set_name(job.name);
  out.set_uid(job.uid);
  out.set_etag(EtagOf(job));
  out.set_revision(job.revision);
  *out.mutable_spec() = job.spec;
  out.mutable_labels()->insert(job.labels.begin(), job.labels.end());
  out.set_creator(job.creator);
  SetTime(job.create_micros, [&] { return out.mutable_create_time(); });
  SetTime(job.update_micros, [&] { return out.mutable_update_time(); });
  SetTime(job.start_micros, [&] { return out.mutable_start_time(); });
  SetTime(job.end_micros, [&] { return out.mutable_end_time(); });

  v1::JobStatus& status = *out.mutable_status();
  status.set_state(static_cast<v1::Job::State>(job.state));
  status.set_reason(job.reason);
  status.set_message(job.message);
  status.set_attempt(job.attempt);
  status.set_failures_counted(job.failures_counted);
  status.set_failures_uncounted(job.failures_uncounted);
  status.set_stop_target(static_cast<v1::Job::State>(job.stop_target));
  SetTime(job.next_attempt_micros, [&] { return status.mutable_next_attempt_time(); });
  SetTime(job.state_micros, [&] { return status.mutable_state_time(); });
  if (job.plan) *status.mutable_plan() = *job.plan;
  if (job.last_failure) *status.mutable_last_failure() = *job.last_failure;
  if (job.result) *status.mutable_result() = *job.result;
  if (!job.checkpoints.empty()) {
    status.set_latest_checkpoint(job.checkpoints.front()->name());
    status.set_latest_checkpoint_step(job.checkpoints.front()->step());
  }

  v1::Progress& progress = *status.mutable_progress();
  progress.set_step(live.step);
  progress.set_total_steps(job.spec.training().steps());
  progress.set_loss(live.loss);
  progress.set_tokens_per_second(live.tokens_per_second);
  progress.set_nvme_written_bytes(live.nvme_written_bytes);
  SetTime(live.last_step_micros, [&] { return progress.mutable_last_step_time(); });
  const int64_t left = job.spec.training().steps() - live.step;
  const double tokens_per_step =
      static_cast<double>(job.spec.training().global_batch()) * job.spec.data().seq_len();
  if (HoldsResources(job.state) && live.tokens_per_second > 0 && left >= 0) {
    const double seconds = left * tokens_per_step / live.tokens_per_second;
    if (std::isfinite(seconds) && seconds < 3e9) {
      progress.mutable_eta()->set_seconds(static_cast<int64_t>(seconds));
    }
  }
  if (job.attempt > 0) {
    v1::TaskStatus& task = *status.add_tasks();
    task.set_worker(job.worker);
    task.set_phase(HoldsResources(job.state) ? live.phase : "STOPPED");
    task.set_step(live.step);
    task.mutable_ladder()->Assign(live.ladder.begin(), live.ladder.end());
    if (!HoldsResources(job.state) && job.last_failure && job.last_failure->attempt() == job.attempt) {
      task.set_exit_code(job.last_failure->exit_code());
      task.set_signal(job.last_failure->signal());
    }
  }
  return out;
}

std::string EncodeJob(const Job& job) {
  store::JobRecord record;
  *record.mutable_job() = JobToProto(job, job.progress);
  record.set_intent(static_cast<int>(job.intent));
  record.set_sequence(job.sequence);
  record.set_worker(job.worker);
  record.set_worker_incarnation(job.worker_incarnation);
  record.set_worker_identity(job.worker_identity);
  *record.mutable_grant() = ToProto(job.grant);
  record.set_resume_step(job.resume_step);
  record.set_avoid_worker(job.avoid_worker);
  record.set_failure_streak(job.failure_streak);
  if (job.pending_failure) *record.mutable_pending_failure() = *job.pending_failure;
  if (job.pending_result) *record.mutable_pending_result() = *job.pending_result;
  return record.SerializeAsString();
}

absl::StatusOr<Job> DecodeJob(const std::string& bytes) {
  store::JobRecord record;
  if (!record.ParseFromString(bytes)) {
    return absl::DataLossError("a stored job record does not parse: restore the database from a backup");
  }
  const v1::Job& in = record.job();
  const v1::JobStatus& status = in.status();
  if (!v1::Job::State_IsValid(status.state()) || record.intent() < 0 || record.intent() > 2) {
    return absl::DataLossError(
        absl::StrCat("the stored record of ", in.name(),
                     " has an unknown state: it was written by a newer strata_server"));
  }
  Job job;
  job.uid = in.uid();
  job.name = in.name();
  job.sequence = record.sequence();
  job.revision = in.revision();
  job.spec = in.spec();
  job.labels = {in.labels().begin(), in.labels().end()};
  job.creator = in.creator();
  job.create_micros = MicrosFromProto(in.create_time());
  job.update_micros = MicrosFromProto(in.update_time());
  job.state_micros = MicrosFromProto(status.state_time());
  job.start_micros = MicrosFromProto(in.start_time());
  job.end_micros = MicrosFromProto(in.end_time());
  job.next_attempt_micros = MicrosFromProto(status.next_attempt_time());
  job.state = static_cast<JobState>(status.state());
  job.stop_target = static_cast<JobState>(status.stop_target());
  job.intent = static_cast<Intent>(record.intent());
  job.reason = status.reason();
  job.message = status.message();
  job.attempt = status.attempt();
  job.worker = record.worker();
  job.worker_incarnation = record.worker_incarnation();
  job.worker_identity = record.worker_identity();
  job.grant = FromProto(record.grant());
  job.resume_step = record.resume_step();
  job.avoid_worker = record.avoid_worker();
  if (status.has_plan()) job.plan = status.plan();
  job.failures_counted = status.failures_counted();
  job.failures_uncounted = status.failures_uncounted();
  job.failure_streak = record.failure_streak();
  if (record.has_pending_failure()) job.pending_failure = record.pending_failure();
  if (record.has_pending_result()) job.pending_result = record.pending_result();
  if (status.has_last_failure()) job.last_failure = status.last_failure();
  if (status.has_result()) job.result = status.result();
  job.progress.step = status.progress().step();
  job.progress.loss = status.progress().loss();
  job.progress.tokens_per_second = status.progress().tokens_per_second();
  job.progress.nvme_written_bytes = status.progress().nvme_written_bytes();
  job.progress.last_step_micros = MicrosFromProto(status.progress().last_step_time());
  if (status.tasks_size() > 0) {
    job.progress.phase = status.tasks(0).phase();
    job.progress.ladder.assign(status.tasks(0).ladder().begin(), status.tasks(0).ladder().end());
  }
  return job;
}

}  // namespace strata::server
