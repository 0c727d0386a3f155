#include "worker/agent/fake_coordinator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "common/clock.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/rendezvous/rendezvous.h"

namespace strata {
namespace {

constexpr int64_t kPatienceNanos = 60'000'000'000;  // sanitizers on a busy machine; never waited for in full

grpc::Status Refusal(const std::string& reason, const std::string& message, int retry_seconds = 0) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("strata");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  if (retry_seconds > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_seconds);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, message, details.SerializeAsString());
}

grpc::Status Stale() { return Refusal("STALE_ATTEMPT", "attempt 1 is fenced"); }

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline = Clock::Real().MonotonicNanos() + kPatienceNanos;
  while (!condition()) {
    if (Clock::Real().MonotonicNanos() > deadline) return false;
    usleep(2000);
  }
  return true;
}

void FakeCoordinator::Start() {
  {
    MutexLock lock(mu_);
    stopping_ = false;
    groups_.clear();  // the one thing that no coordinator stores
  }
  // A port that was just given up may linger for a moment.
  ASSERT_TRUE(Eventually([&] {
    grpc::ServerBuilder builder;
    // Else the kernel hands connections also to the old listener, as long as gRPC has not closed it.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }));
}

void FakeCoordinator::Stop() {
  if (server_ == nullptr) return;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server_.reset();
}

void FakeCoordinator::Want(const std::string& job, int attempt, v1::DesiredTask::Want want,
                           const std::string& behaviour, int rank) {
  MutexLock lock(mu_);
  v1::DesiredTask& task = desired_[{job, attempt, rank}];
  task.set_job_uid(job);
  task.set_attempt(attempt);
  task.set_rank(rank);
  task.set_want(want);
  if (!behaviour.empty()) task.set_job_name(behaviour);
  task.mutable_budget()->set_host_bytes(123);
  changed_.SignalAll();
}

grpc::Status FakeCoordinator::Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                                       v1::RegisterResponse* response) {
  MutexLock lock(mu_);
  if (behaviour_.refuse_register) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "too old");
  if (!behaviour_.register_reason.empty()) {
    ++refused_registers_;
    return Refusal(behaviour_.register_reason, "the id is another's", behaviour_.retry_seconds);
  }
  registers_.push_back(*request);
  known_.insert(request->worker_id());
  response->set_worker("workers/" + request->worker_id());
  response->mutable_lease_ttl()->set_seconds(behaviour_.lease_millis / 1000);
  response->mutable_orphan_timeout()->set_seconds(behaviour_.orphan_seconds);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                                   v1::SyncResponse* response) {
  MutexLock lock(mu_);
  ++syncs_;
  if (known_.empty()) {
    response->set_unknown_worker(true);
    return grpc::Status::OK;
  }
  bool news = false;
  std::map<Key, v1::TaskReport> reported;
  for (const v1::TaskReport& report : request->tasks()) {
    const Key key{report.job_uid(), report.attempt(), report.rank()};
    reports_[key] = report;
    reported[key] = report;
    if (report.phase() == "STOPPED" && behaviour_.forget) {
      EXPECT_TRUE(report.processes_gone());
      EXPECT_TRUE(report.scratch_removed());
      desired_.erase(key);
      v1::TaskRef& ref = *response->add_forget();
      ref.set_job_uid(report.job_uid());
      ref.set_attempt(report.attempt());
      news = true;
    }
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(request->max_wait().seconds()) +
                     std::chrono::nanoseconds(request->max_wait().nanos());
  while (!news && Agrees(reported) && !stopping_ && !context->IsCancelled() &&
         std::chrono::steady_clock::now() < until) {
    changed_.WaitFor(mu_, std::chrono::milliseconds(20));
  }
  // A call that the worker gave up has told it nothing.
  if (stopping_ || context->IsCancelled()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
  for (const auto& [key, task] : desired_) *response->add_desired() = task;
  response->mutable_lease_ttl()->set_seconds(behaviour_.lease_millis / 1000);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::PushTelemetry(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::TelemetryAck, v1::TelemetryBatch>* stream) {
  v1::TelemetryBatch batch;
  int64_t last_sequence = 0;
  while (stream->Read(&batch)) {
    EXPECT_GT(batch.sequence(), last_sequence);
    last_sequence = batch.sequence();
    v1::TelemetryAck ack;
    ack.set_sequence(batch.sequence());
    bool reply;
    {
      MutexLock lock(mu_);
      Store(batch);
      if (behaviour_.break_streams > 0) {
        --behaviour_.break_streams;
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken on purpose");
      }
      reply = behaviour_.ack_telemetry;
    }
    if (reply && !stream->Write(ack)) break;
  }
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::CommitCheckpoint(grpc::ServerContext*,
                                               const v1::CommitCheckpointRequest* request,
                                               v1::Checkpoint* response) {
  MutexLock lock(mu_);
  if (behaviour_.failing_commits > 0) {
    --behaviour_.failing_commits;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "try again");
  }
  if (behaviour_.stale_commits) return Stale();
  // What a commit covers must be here already.
  EXPECT_TRUE((metrics_[{request->job_uid(), request->attempt()}].contains(request->step())));
  commits_.push_back(*request);
  response->set_step(request->step());
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                                         v1::RendezvousResponse* response) {
  EXPECT_EQ(CheckMembers(*request).field, "") << CheckMembers(*request).description;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(request->max_wait().seconds());
  MutexLock lock(mu_);
  if (behaviour_.failing_rendezvous > 0) {
    --behaviour_.failing_rendezvous;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "try again");
  }
  if (behaviour_.stale_commits) return Stale();
  RendezvousTable& table = groups_[{request->job_uid(), request->attempt()}];
  const auto members = MembersFromProto(*request, Clock::Real().MonotonicNanos());
  while (true) {
    response->clear_groups();
    bool news = false;
    for (const GroupMember& member : members) EXPECT_TRUE(table.Report(member).ok());
    for (int i = 0; i < request->members_size(); ++i) {
      *response->add_groups() = ToProto(table.Answer(members[i]));
      news = news ||
             response->groups(i).state() > std::max(request->members(i).known(), v1::GroupState::FORMING);
    }
    if (stopping_ || context->IsCancelled()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
    if (news || std::chrono::steady_clock::now() >= until) return grpc::Status::OK;
    changed_.WaitFor(mu_, std::chrono::milliseconds(20));
  }
}

bool FakeCoordinator::Agrees(const std::map<Key, v1::TaskReport>& reported) {
  for (const auto& [key, task] : desired_) {
    const auto report = reported.find(key);
    if (report == reported.end()) return false;
    if (task.want() > v1::DesiredTask::RUN && !absl::StartsWith(report->second.phase(), "STOP")) return false;
  }
  for (const auto& [key, report] : reported) {
    if (!desired_.contains(key) && !absl::StartsWith(report.phase(), "STOP")) return false;
  }
  return true;
}

void FakeCoordinator::Store(const v1::TelemetryBatch& batch) {
  for (const v1::MetricRow& row : batch.metrics()) {
    auto& steps = metrics_[{row.job_uid(), row.attempt()}];
    if (!steps.emplace(row.step(), row.values().at("loss")).second) ++duplicates_;
  }
  for (const v1::LogChunk& chunk : batch.logs()) {
    EXPECT_LE(chunk.data().size(), 64u << 10);
    std::string& text =
        logs_[{chunk.job_uid(), chunk.at().attempt(), chunk.at().rank(), chunk.at().stream()}];
    const size_t offset = static_cast<size_t>(chunk.at().offset());
    if (offset > text.size()) text.resize(offset, '?');  // a gap
    text.replace(std::min(offset, text.size()), chunk.data().size(), chunk.data());
  }
}

}  // namespace strata
