// The coordinator with a fake clock, a store that can be told to fail, and workers played by the test.
#include "server/service/coordinator.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "server/service/coordinator_testing.h"

namespace strata::server {
namespace {

TEST_F(CoordinatorTest, AJobRunsFromSubmitToSuccess) {
  const v1::Job created = *Create("a");
  EXPECT_EQ(created.status().state(), v1::Job::QUEUED);
  EXPECT_EQ(created.status().waiting().code(), "NO_WORKERS");
  ASSERT_TRUE(Register("w1", 1).ok());
  coordinator_->Tick();
  v1::SyncResponse sync = Sync("w1", 1);
  ASSERT_EQ(sync.desired_size(), 1);
  EXPECT_EQ(sync.desired(0).want(), v1::DesiredTask::RUN);
  EXPECT_EQ(sync.desired(0).attempt(), 1);
  EXPECT_EQ(sync.desired(0).grant().device_bytes(), 10 * kMiB);
  EXPECT_EQ(sync.desired(0).budget().host_bytes(), 10 * kMiB);
  EXPECT_EQ(StateOf("a"), v1::Job::STARTING);
  Sync("w1", 1, {Report(Get("a"), "LOADING")});
  EXPECT_EQ(StateOf("a"), v1::Job::STARTING);
  v1::TaskReport stepping = Report(Get("a"), "STEPPING", 10);
  stepping.set_started_from("from the checkpoint of step 8");
  Sync("w1", 1, {stepping});
  const v1::Job running = Get("a");
  EXPECT_EQ(running.status().state(), v1::Job::RUNNING);
  EXPECT_EQ(running.status().message(), "from the checkpoint of step 8");
  EXPECT_EQ(running.status().progress().step(), 10);
  EXPECT_EQ(running.status().progress().eta().seconds(), 9) << "90 steps of 32 tokens at 320 tokens/s";
  const v1::Worker worker = coordinator_->ListWorkers({})->workers(0);
  EXPECT_EQ(worker.allocated().device_bytes(), 10 * kMiB);
  EXPECT_EQ(worker.jobs(0), running.name());
  sync = Sync("w1", 1, {Finished(running)});
  EXPECT_EQ(sync.desired_size(), 0);
  ASSERT_EQ(sync.forget_size(), 1);
  EXPECT_EQ(sync.forget(0).job_uid(), running.uid());
  const v1::Job done = Get("a");
  EXPECT_EQ(done.status().state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(done.status().result().train_loss(), 2.5);
  EXPECT_EQ(coordinator_->ListWorkers({})->workers(0).allocated().device_bytes(), 0);
  const v1::ListJobEventsResponse events = [&] {
    v1::ListJobEventsRequest request;
    request.set_name("a");
    return *coordinator_->ListJobEvents(request);
  }();
  ASSERT_EQ(events.events_size(), 4);
  EXPECT_EQ(events.events(0).to(), v1::Job::QUEUED);
  EXPECT_EQ(events.events(2).message(), "from the checkpoint of step 8");
  EXPECT_EQ(events.events(3).to(), v1::Job::SUCCEEDED);
  EXPECT_TRUE(coordinator_->CheckInvariants().ok());
}

TEST_F(CoordinatorTest, TheSameRequestAgainReturnsTheSameJobAndAnotherPayloadIsRefused) {
  const v1::Job first = *Create("", Spec(), "r1");
  EXPECT_EQ(Create("", Spec(), "r1")->name(), first.name());
  const absl::Status reused = Create("", Spec(5 * kMiB), "r1").status();
  EXPECT_EQ(ReasonOf(reused), "REQUEST_ID_REUSED");
  EXPECT_EQ(reused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(reused.message().find("memory.device"), std::string::npos) << reused;
  Start();
  EXPECT_EQ(Create("", Spec(), "r1")->name(), first.name()) << "also after a restart";
  EXPECT_EQ(ReasonOf(Create("x").status()), "");
  EXPECT_EQ(ReasonOf(Create("x").status()), "JOB_ID_TAKEN");
}

TEST_F(CoordinatorTest, AJobThatFitsNowhereIsRefusedWithNumbersAndNothingIsCreated) {
  ASSERT_TRUE(Register("w1", 1, 50).ok());
  const absl::Status refused = Create("big", Spec(60 * kMiB)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "UNSATISFIABLE");
  EXPECT_NE(refused.message().find("62914560"), std::string::npos) << refused;
  EXPECT_NE(refused.message().find("there is 50 MiB (52428800 bytes)"), std::string::npos) << refused;
  EXPECT_EQ(coordinator_->ListJobs({})->jobs_size(), 0);
}

TEST_F(CoordinatorTest, AJobInFp8GoesToAWorkerThatMultipliesInIt) {
  v1::RegisterRequest old_gpu;
  old_gpu.set_worker_id("old");
  old_gpu.set_incarnation(1);
  *old_gpu.mutable_capacity() = CapacityOf(100);
  old_gpu.set_checkpoint_root("/ckpt");
  v1::Rung& rung = *old_gpu.mutable_capacity()->add_ladder();
  rung.set_rung("fp8");
  rung.set_chosen("none");
  rung.set_why("it has compute capability 7.5: use training.precision: bf16");
  ASSERT_TRUE(coordinator_->Register(old_gpu, CallContext()).ok());
  v1::JobSpec spec = Spec();
  ASSERT_TRUE(Create("bf16", spec).ok());
  spec.mutable_training()->set_precision(v1::PRECISION_FP8);
  const absl::Status refused = Create("fp8", spec).status();
  EXPECT_EQ(ReasonOf(refused), "UNSATISFIABLE");
  EXPECT_EQ(refused.message(),
            "the job does not fit: fp8: it has compute capability 7.5: use training.precision: bf16");
  ASSERT_TRUE(Register("new", 1).ok());
  ASSERT_TRUE(Create("fp8", spec).ok());
  EXPECT_EQ(Get("fp8").status().tasks(0).worker(), "new");
}

// The planner learns it, and workers that differ in it are planned for apart.
TEST_F(CoordinatorTest, LimitsSayWhyAWorkerHasNoGpuDirect) {
  Worker worker;
  v1::Rung& rung = *worker.capacity.add_ladder();
  rung.set_rung("gpudirect");
  rung.set_chosen("nvidia-fs 2.19");
  const v1::ResourceRequest has = LimitsOf(worker);
  EXPECT_EQ(has.why_no_gpudirect(), "");
  rung.set_chosen("host arena");
  rung.set_why("no cuFile");
  const v1::ResourceRequest lacks = LimitsOf(worker);
  EXPECT_EQ(lacks.why_no_gpudirect(), "no cuFile");
  EXPECT_NE(CapacityClass(has), CapacityClass(lacks));
}

TEST_F(CoordinatorTest, AJobThatFitsLaterWaitsWithNumbers) {
  ASSERT_TRUE(Register("w1", 1, 50).ok());
  ASSERT_TRUE(Create("a", Spec(30 * kMiB)).ok());
  const v1::Job waiting = *Create("b", Spec(30 * kMiB));
  EXPECT_EQ(waiting.status().state(), v1::Job::QUEUED);
  EXPECT_EQ(waiting.status().waiting().code(), "CAPACITY");
  EXPECT_EQ(waiting.status().waiting().shortfalls(0).free(), 20 * kMiB);
  EXPECT_EQ(waiting.status().waiting().shortfalls(0).requested(), 30 * kMiB);
  Sync("w1", 1, {Finished(Get("a"))});
  EXPECT_EQ(StateOf("b"), v1::Job::STARTING) << "the room of the finished job is given on at once";
}

TEST_F(CoordinatorTest, CancelWorksInEveryStateAndTheSecondOneChangesNothing) {
  v1::CancelJobRequest cancel;
  cancel.set_name("q");
  ASSERT_TRUE(Create("q").ok());
  EXPECT_EQ(coordinator_->CancelJob(cancel, CallContext())->status().state(), v1::Job::CANCELLED);
  const int64_t revision = Get("q").revision();
  EXPECT_EQ(coordinator_->CancelJob(cancel, CallContext())->revision(), revision);

  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("r").ok());
  Sync("w1", 1);
  const v1::Job job = Get("r");
  Sync("w1", 1, {Report(job, "STEPPING", 5)});
  cancel.set_name("r");
  const v1::Job stopping = *coordinator_->CancelJob(cancel, CallContext());
  EXPECT_EQ(stopping.status().state(), v1::Job::STOPPING);
  EXPECT_EQ(stopping.status().stop_target(), v1::Job::CANCELLED);
  EXPECT_EQ(coordinator_->CancelJob(cancel, CallContext())->revision(), stopping.revision());
  EXPECT_EQ(Sync("w1", 1, {Report(job, "STEPPING", 6)}).desired(0).want(), v1::DesiredTask::STOP);
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(Sync("w1", 1, {Report(job, "STEPPING", 6)}).desired(0).want(), v1::DesiredTask::KILL);
  v1::TaskReport stopped = Stopped(job);
  stopped.set_scratch_removed(false);
  Sync("w1", 1, {stopped});
  EXPECT_EQ(StateOf("r"), v1::Job::STOPPING) << "no proof yet";
  EXPECT_EQ(Sync("w1", 1, {Stopped(job)}).forget_size(), 1);
  EXPECT_EQ(StateOf("r"), v1::Job::CANCELLED);
  cancel.set_name("nobody");
  EXPECT_EQ(ReasonOf(coordinator_->CancelJob(cancel, CallContext()).status()), "NOT_FOUND");
}

TEST_F(CoordinatorTest, AnAttemptThatTheWorkerNeverSawIsCancelledWithoutWaitingForAReport) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  v1::CancelJobRequest cancel;
  cancel.set_name("a");
  EXPECT_EQ(coordinator_->CancelJob(cancel, CallContext())->status().state(), v1::Job::STOPPING);
  EXPECT_EQ(Sync("w1", 1).desired(0).want(), v1::DesiredTask::STOP);
  Sync("w1", 1);
  EXPECT_EQ(StateOf("a"), v1::Job::CANCELLED);
}

TEST_F(CoordinatorTest, AWorkerThatCannotCleanUpIsQuarantinedAndTheJobGoesOnWithoutIt) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  v1::TaskReport stopped = Finished(Get("a"));
  stopped.set_scratch_removed(false);
  Sync("w1", 1, {stopped});
  EXPECT_EQ(StateOf("a"), v1::Job::STOPPING);
  EXPECT_EQ(Get("a").status().stop_target(), v1::Job::SUCCEEDED);
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(Sync("w1", 1, {stopped}).forget_size(), 0) << "its scratch is still there";
  EXPECT_EQ(StateOf("a"), v1::Job::SUCCEEDED);
  v1::GetWorkerRequest get;
  get.set_name("w1");
  EXPECT_EQ(coordinator_->GetWorker(get)->state(), v1::Worker::QUARANTINED);
  ASSERT_TRUE(Register("w1", 2).ok());
  EXPECT_EQ(coordinator_->GetWorker(get)->state(), v1::Worker::READY);
}

TEST_F(CoordinatorTest, AWorkerThatIsStoppingGetsNothingNew) {
  ASSERT_TRUE(Register("w1", 1).ok());
  v1::SyncRequest stopping;
  stopping.set_worker("w1");
  stopping.set_incarnation(1);
  stopping.set_draining(true);
  ASSERT_TRUE(coordinator_->Sync(stopping, CallContext()).ok());
  v1::GetWorkerRequest get;
  get.set_name("w1");
  EXPECT_EQ(coordinator_->GetWorker(get)->state(), v1::Worker::DRAINING);
  ASSERT_TRUE(Create("a").ok());
  EXPECT_EQ(StateOf("a"), v1::Job::QUEUED);
  EXPECT_EQ(Get("a").status().waiting().code(), "NO_WORKERS");
  ASSERT_TRUE(Register("w1", 2).ok());
  EXPECT_EQ(Sync("w1", 2).desired_size(), 1) << "a new incarnation is not stopping";
  EXPECT_EQ(StateOf("a"), v1::Job::STARTING);
}

TEST_F(CoordinatorTest, AnEtagThatIsNotCurrentIsRefused) {
  const v1::Job job = *Create("a");
  v1::CancelJobRequest cancel;
  cancel.set_name("a");
  cancel.set_etag("r0");
  EXPECT_EQ(ReasonOf(coordinator_->CancelJob(cancel, CallContext()).status()), "ETAG_MISMATCH");
  cancel.set_etag(job.etag());
  EXPECT_TRUE(coordinator_->CancelJob(cancel, CallContext()).ok());
}

TEST_F(CoordinatorTest, ASilentWorkerIsLostAfterLeaseAndGraceAndItsJobRunsAgainElsewhere) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job first = Get("a");
  Sync("w1", 1, {Report(first, "STEPPING", 5)});
  Advance(absl::Seconds(14));
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING) << "lease of 10 s and grace of 5 s are not over";
  ASSERT_TRUE(Register("w2", 1).ok());
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  EXPECT_EQ(Get("a").status().last_failure().cause(), v1::WORKER_LOST);
  EXPECT_EQ(Get("a").status().failures_counted(), 0);
  Sync("w2", 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("a"), v1::Job::STARTING);
  const v1::Job second = Get("a");
  EXPECT_EQ(second.status().attempt(), 2);
  EXPECT_EQ(second.status().tasks(0).worker(), "w2");

  // The old worker comes back and still runs attempt 1: it must stop it, and gets nothing until it has.
  EXPECT_TRUE(Sync("w1", 1, {Report(first, "STEPPING", 9)}).unknown_worker());
  ASSERT_TRUE(Register("w1", 1, 100, {Report(first, "STEPPING", 9)}).ok());
  EXPECT_EQ(Sync("w1", 1, {Report(first, "STEPPING", 9)}).desired_size(), 0);
  v1::GetWorkerRequest get;
  get.set_name("w1");
  EXPECT_EQ(coordinator_->GetWorker(get)->state(), v1::Worker::QUARANTINED);
  EXPECT_EQ(ReasonOf(Commit(first, 9).status()), "STALE_ATTEMPT");
  EXPECT_EQ(Sync("w1", 1, {Stopped(first)}).forget_size(), 1);
  EXPECT_EQ(coordinator_->GetWorker(get)->state(), v1::Worker::READY);
  EXPECT_EQ(Get("a").status().attempt(), 2);
}

TEST_F(CoordinatorTest, ARestartedAgentThatDoesNotReportATaskProvesItGone) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  Sync("w1", 1, {Report(Get("a"), "STEPPING", 5)});
  ASSERT_TRUE(Register("w1", 2).ok());
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  EXPECT_EQ(ReasonOf(Register("w1", 1).status()), "STALE_INCARNATION");
  EXPECT_TRUE(Sync("w1", 1).unknown_worker());
}

TEST_F(CoordinatorTest, AWorkerIdIsRefusedToAnotherAgentWhileItsLeaseLastsAndARestartHasItAtOnce) {
  ASSERT_TRUE(Register("w1", 5, 100, {}, "first").ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5, {}, "first");
  const v1::Job job = Get("a");
  const auto other = [&](int64_t incarnation) {
    const absl::Status status = Register("w1", incarnation, 100, {}, "second").status();
    EXPECT_EQ(ReasonOf(status), "WORKER_ID_IN_USE");
    return std::string(status.message());
  };
  for (const int64_t incarnation : {4, 5, 6}) {
    const std::string message = other(incarnation);
    EXPECT_NE(message.find("worker id w1 "), std::string::npos) << message;
    EXPECT_NE(message.find("lasts for 15s more"), std::string::npos) << message;
    EXPECT_NE(message.find("--worker-id"), std::string::npos) << message;
  }
  clock_.Advance(absl::Milliseconds(14'500));
  EXPECT_NE(other(6).find("lasts for 1s more"), std::string::npos);
  EXPECT_EQ(Sync("w1", 5, {Report(job, "STEPPING", 5)}, "first").desired_size(), 1);
  EXPECT_NE(other(6).find("lasts for 15s more"), std::string::npos) << "it was renewed";
  EXPECT_TRUE(Sync("w1", 5, {}, "second").unknown_worker());
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING);
  EXPECT_EQ(Get("a").status().attempt(), 1);

  ASSERT_TRUE(Register("w1", 6, 100, {}, "first").ok()) << "its agent was killed and has started again";
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  EXPECT_EQ(ReasonOf(Register("w1", 5, 100, {}, "first").status()), "STALE_INCARNATION");
  other(7);
}

TEST_F(CoordinatorTest, AnotherAgentHasTheWorkerIdWhenTheLeaseIsOverAndTheFirstIsRefused) {
  ASSERT_TRUE(Register("w1", 5, 100, {}, "first").ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5, {}, "first");
  const v1::Job first = Get("a");
  Sync("w1", 5, {Report(first, "STEPPING", 5)}, "first");
  clock_.Advance(absl::Seconds(16));  // no tick has seen it yet
  // Its clock is behind the other's, which means nothing.
  ASSERT_TRUE(Register("w1", 1, 100, {}, "second").ok());
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  EXPECT_EQ(Get("a").status().last_failure().cause(), v1::WORKER_LOST);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Sync("w1", 1, {}, "second").desired(0).attempt(), 2);
  EXPECT_TRUE(Sync("w1", 5, {Report(first, "STEPPING", 9)}, "first").unknown_worker());
  EXPECT_EQ(ReasonOf(Register("w1", 5, 100, {Report(first, "STEPPING", 9)}, "first").status()),
            "WORKER_ID_IN_USE");
  EXPECT_EQ(ReasonOf(Commit(first, 9).status()), "STALE_ATTEMPT");
  EXPECT_EQ(Get("a").status().attempt(), 2);
}

TEST_F(CoordinatorTest, AfterARestartOfTheCoordinatorTheWorkerIdIsKeptForTheAgentOfItsJob) {
  ASSERT_TRUE(Register("w1", 5, 100, {}, "first").ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5, {}, "first");
  const v1::Job job = Get("a");
  Start();
  const absl::Status refused = Register("w1", 6, 100, {}, "second").status();
  EXPECT_EQ(ReasonOf(refused), "WORKER_ID_IN_USE");
  EXPECT_NE(refused.message().find("lasts for 30s more"), std::string::npos) << refused;
  ASSERT_TRUE(Register("w1", 5, 100, {Report(job, "STEPPING", 5)}, "first").ok());
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING);
  Start();
  clock_.Advance(absl::Seconds(31));
  ASSERT_TRUE(Register("w1", 6, 100, {}, "second").ok()) << "it did not come back";
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
}

TEST_F(CoordinatorTest, AnAgentThatIsUpdatedToOneWithAnIdentityHasItsIdBackAtOnce) {
  ASSERT_TRUE(Register("w1", 5).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5);
  Start();  // with what was stored of an agent that had none
  ASSERT_TRUE(Register("w1", 6, 100, {}, "first").ok());
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Sync("w1", 6, {}, "first").desired(0).attempt(), 2);
}

TEST_F(CoordinatorTest, AWorkerThatHasStoppedInOrderGivesItsIdUp) {
  ASSERT_TRUE(Register("w1", 5, 100, {}, "first").ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5, {}, "first");
  v1::SyncRequest stopping;
  stopping.set_worker("w1");
  stopping.set_incarnation(5);
  stopping.set_identity("first");
  stopping.set_draining(true);
  *stopping.add_tasks() = Report(Get("a"), "STOPPING", 5);
  ASSERT_TRUE(coordinator_->Sync(stopping, CallContext()).ok());
  EXPECT_EQ(ReasonOf(Register("w1", 1, 100, {}, "second").status()), "WORKER_ID_IN_USE");
  *stopping.mutable_tasks(0) = Stopped(Get("a"));
  ASSERT_TRUE(coordinator_->Sync(stopping, CallContext()).ok());
  EXPECT_TRUE(Register("w1", 1, 100, {}, "second").ok());
}

TEST_F(CoordinatorTest, AnAgentIsNotToldToRunWhatItsPredecessorMayStillRun) {
  ASSERT_TRUE(Register("w1", 5, 100, {}, "first").ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 5, {}, "first");
  const v1::Job job = Get("a");
  Sync("w1", 5, {Report(job, "STEPPING", 5)}, "first");
  store_.SetFailure(absl::UnavailableError("disk full"));
  clock_.Advance(absl::Seconds(16));
  ASSERT_TRUE(Register("w1", 5, 100, {}, "second").ok());
  coordinator_->Flush();
  EXPECT_EQ(Sync("w1", 5, {}, "second").desired_size(), 0) << "the end of attempt 1 could not be written";
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING);
  store_.SetFailure(absl::OkStatus());
  Advance(absl::Seconds(2));
  Sync("w1", 5, {}, "second");
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Sync("w1", 5, {}, "second").desired(0).attempt(), 2);
}

TEST_F(CoordinatorTest, AfterARestartOfTheCoordinatorARunningTaskIsKept) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job job = Get("a");
  Sync("w1", 1, {Report(job, "STEPPING", 5)});
  Start();
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING);
  Advance(absl::Seconds(20));
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING) << "the worker has time to come back";
  EXPECT_TRUE(Sync("w1", 1, {Report(job, "STEPPING", 50)}).unknown_worker());
  ASSERT_TRUE(Register("w1", 1, 100, {Report(job, "STEPPING", 50)}).ok());
  const v1::SyncResponse sync = Sync("w1", 1, {Report(job, "STEPPING", 50)});
  ASSERT_EQ(sync.desired_size(), 1);
  EXPECT_EQ(sync.desired(0).attempt(), 1);
  EXPECT_EQ(StateOf("a"), v1::Job::RUNNING);
  Sync("w1", 1, {Finished(job)});
  EXPECT_EQ(StateOf("a"), v1::Job::SUCCEEDED);
}

TEST_F(CoordinatorTest, AfterARestartAWorkerThatStaysAwayLosesItsJob) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  Start();
  Advance(absl::Seconds(31));
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  Start();
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("a"), v1::Job::QUEUED);
}

TEST_F(CoordinatorTest, CommitsAreFencedIdempotentAndRetained) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  v1::Job job = Get("a");
  Sync("w1", 1, {Report(job, "STEPPING", 5)});
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Commit(job, step).ok()) << step;
  EXPECT_EQ(Commit(job, 30)->step(), 30) << "a replay";
  EXPECT_EQ(ReasonOf(Commit(job, 30, "other").status()), "CHECKPOINT_EXISTS");
  EXPECT_EQ(ReasonOf(Commit(job, 25).status()), "CHECKPOINT_OUT_OF_ORDER");
  v1::ListCheckpointsRequest list;
  list.set_parent("a");
  const v1::ListCheckpointsResponse kept = *coordinator_->ListCheckpoints(list);
  ASSERT_EQ(kept.checkpoints_size(), 2);
  EXPECT_EQ(kept.checkpoints(0).step(), 30);
  EXPECT_EQ(Get("a").status().latest_checkpoint_step(), 30);
  EXPECT_TRUE(coordinator_->GetCheckpoint(kept.checkpoints(1).name()).ok());
  EXPECT_EQ(ReasonOf(coordinator_->GetCheckpoint(job.name() + "/checkpoints/10").status()), "NOT_FOUND");
  ASSERT_TRUE(Register("w1", 2).ok());
  Advance(absl::Seconds(2));
  const v1::SyncResponse sync = Sync("w1", 2);
  ASSERT_EQ(sync.desired_size(), 1);
  ASSERT_EQ(sync.desired(0).resume_size(), 2);
  EXPECT_EQ(sync.desired(0).resume(0).step(), 30);
  // An agent may report a task that it has not started, and start it with what a later answer says.
  EXPECT_EQ(Sync("w1", 2, {Report(Get("a"), "PREPARING")}).desired(0).resume_size(), 2);
  EXPECT_EQ(ReasonOf(Commit(job, 40).status()), "STALE_ATTEMPT");

  v1::CommitCheckpointRequest bad;
  bad.set_job_uid(job.uid());
  bad.set_attempt(2);
  bad.set_step(50);
  bad.set_digest("d");
  bad.set_path("/ckpt/../etc");
  bad.add_files()->set_path("passwd");
  EXPECT_EQ(coordinator_->CommitCheckpoint(bad, CallContext()).status().code(),
            absl::StatusCode::kInvalidArgument);
  bad.set_path("/ckpt/x");
  bad.mutable_files(0)->set_path("../../etc/passwd");
  EXPECT_EQ(coordinator_->CommitCheckpoint(bad, CallContext()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorTest, FailuresAreHandledByTheirCause) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("user").ok());
  Sync("w1", 1);
  v1::TaskReport report = Stopped(Get("user"));
  report.mutable_failure()->set_cause(v1::USER_ERROR);
  report.mutable_failure()->set_message("no such file");
  Sync("w1", 1, {report});
  EXPECT_EQ(StateOf("user"), v1::Job::FAILED);
  EXPECT_EQ(Get("user").status().reason(), "USER_ERROR");

  ASSERT_TRUE(Create("disk").ok());
  Sync("w1", 1);
  report = Stopped(Get("disk"));
  report.mutable_failure()->set_cause(v1::NVME_IO_ERROR);
  Sync("w1", 1, {report});
  Advance(absl::Seconds(2));
  Sync("w1", 1);
  EXPECT_EQ(StateOf("disk"), v1::Job::QUEUED);
  coordinator_->Tick();
  EXPECT_EQ(Get("disk").status().waiting().code(), "NO_WORKERS");
  EXPECT_NE(Get("disk").status().waiting().shortfalls(0).remedy().find("quarantined"), std::string::npos);
  ASSERT_TRUE(Register("w1", 2).ok());
  EXPECT_EQ(StateOf("disk"), v1::Job::STARTING)
      << "a restarted agent is trusted again, and there is no other";
}

TEST_F(CoordinatorTest, TextsOfAWorkerAreCutBeforeTheyAreKept) {
  const std::string flood(1 << 20, 'x');
  v1::RegisterRequest request;
  request.set_worker_id("w1");
  request.set_incarnation(1);
  request.set_checkpoint_root("/ckpt");
  request.set_version(flood);
  *request.mutable_capacity() = CapacityOf(100);
  request.mutable_capacity()->mutable_nvme(0)->set_path(flood);
  request.mutable_capacity()->mutable_nvme(0)->set_free_bytes(100 * kMiB);
  request.mutable_capacity()->mutable_nvme(0)->set_fs_type(flood);
  request.mutable_capacity()->add_ladder()->set_why(flood);
  request.mutable_capacity()->mutable_machine()->set_source(flood);
  ASSERT_TRUE(coordinator_->Register(request, CallContext()).ok());
  EXPECT_LT(coordinator_->ListWorkers({})->ByteSizeLong(), 8u << 10);
  (*request.mutable_capacity()->mutable_labels())["zone"] = flood;
  EXPECT_EQ(ReasonOf(coordinator_->Register(request, CallContext()).status()), "INVALID_REQUEST");

  ASSERT_TRUE(Create("fails").ok());
  Sync("w1", 1);
  v1::TaskReport report = Stopped(Get("fails"));
  report.add_ladder()->set_why(flood);
  v1::Failure& failure = *report.mutable_failure();
  failure.set_cause(v1::USER_ERROR);
  failure.set_message(flood);
  failure.set_log_tail(flood);
  failure.set_worker(flood);
  Sync("w1", 1, {report});
  EXPECT_EQ(StateOf("fails"), v1::Job::FAILED);
  EXPECT_LT(Get("fails").ByteSizeLong(), 32u << 10);

  ASSERT_TRUE(Create("succeeds").ok());
  Sync("w1", 1);
  report = Finished(Get("succeeds"));
  report.mutable_result()->set_trace_path(flood);
  report.mutable_result()->set_checkpoint_path(flood);
  Sync("w1", 1, {report});
  EXPECT_EQ(StateOf("succeeds"), v1::Job::SUCCEEDED);
  EXPECT_LT(Get("succeeds").ByteSizeLong(), 16u << 10);
}

TEST_F(CoordinatorTest, AStartThatTakesTooLongAndATrainerThatDoesNotStepAreStopped) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job job = Get("a");
  for (int i = 0; i < 100; ++i) {
    Sync("w1", 1, {Report(job, "LOADING")});
    Advance(absl::Seconds(7));
  }
  EXPECT_EQ(StateOf("a"), v1::Job::STOPPING);
  EXPECT_EQ(Sync("w1", 1, {Report(job, "LOADING")}).desired(0).want(), v1::DesiredTask::KILL);
  Sync("w1", 1, {Stopped(job)});
  EXPECT_EQ(StateOf("a"), v1::Job::BACKOFF);
  EXPECT_EQ(Get("a").status().last_failure().cause(), v1::START_TIMEOUT);
  EXPECT_EQ(Get("a").status().failures_counted(), 1);
}

TEST_F(CoordinatorTest, AStoreThatFailsRefusesWritesTellsNothingAndRecovers) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job job = Get("a");
  store_.SetFailure(absl::UnavailableError("disk full"));
  const absl::Status refused = Create("b").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "STORAGE_DEGRADED");
  EXPECT_EQ(ReasonOf(coordinator_->GetJob("b").status()), "NOT_FOUND") << "nothing was created";
  EXPECT_EQ(ReasonOf(Create("b").status()), "STORAGE_DEGRADED");
  EXPECT_EQ(ReasonOf(Commit(job, 10).status()), "STORAGE_DEGRADED");
  // Training goes on: the lease is renewed, and nothing is forgotten that is not written down.
  const v1::SyncResponse sync = Sync("w1", 1, {Finished(job)});
  EXPECT_EQ(sync.desired_size(), 1);
  EXPECT_EQ(sync.forget_size(), 0);
  EXPECT_EQ(StateOf("a"), v1::Job::STARTING);
  EXPECT_TRUE(coordinator_->CheckInvariants().ok());
  Advance(absl::Seconds(2));
  EXPECT_EQ(ReasonOf(Create("b").status()), "STORAGE_DEGRADED");
  store_.SetFailure(absl::OkStatus());
  Advance(absl::Seconds(2));
  EXPECT_TRUE(Create("b").ok());
  EXPECT_EQ(Sync("w1", 1, {Finished(job)}).forget_size(), 1);
  EXPECT_EQ(StateOf("a"), v1::Job::SUCCEEDED);
}

TEST_F(CoordinatorTest, WhoWatchesIsToldThatTheStoreFailsAndThatItIsSoundAgain) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job job = Get("a");
  Coordinator::Watch watch = *coordinator_->StartWatch({});
  std::vector<v1::WatchJobsResponse> got;
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  store_.SetFailure(absl::UnavailableError("disk full"));
  EXPECT_FALSE(Create("b").ok());
  Advance(absl::Milliseconds(200));
  Sync("w1", 1, {Report(job, "STEPPING", 7)});
  got.clear();
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_EQ(got.size(), 1u);
  const v1::JobStatus& told = got[0].upsert().status();
  EXPECT_NE(told.message().find("disk full"), std::string::npos) << told.message();
  EXPECT_NE(told.message().find("--data-dir"), std::string::npos) << told.message();
  EXPECT_EQ(told.progress().step(), 7) << "training goes on";
  EXPECT_EQ(coordinator_->GetJob("a")->status().message(), told.message());
  store_.SetFailure(absl::OkStatus());
  Advance(absl::Seconds(2));
  Advance(absl::Milliseconds(200));
  got.clear();
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_GE(got.size(), 1u);
  EXPECT_EQ(got.back().upsert().status().message().find("disk full"), std::string::npos);
  // A disk without room is told before the first write fails.
  free_bytes_ = 100;
  Advance(absl::Seconds(2));
  Advance(absl::Milliseconds(200));
  got.clear();
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_GE(got.size(), 1u);
  EXPECT_NE(got.back().upsert().status().message().find("--data-dir is full"), std::string::npos);
  EXPECT_TRUE(Create("b").ok()) << "it still works";
}

TEST_F(CoordinatorTest, AWatchGetsASnapshotABookmarkAndEveryChangeAfterIt) {
  ASSERT_TRUE(Create("a").ok());
  Coordinator::Watch watch = *coordinator_->StartWatch({});
  std::vector<v1::WatchJobsResponse> got;
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_EQ(got.size(), 2u);
  EXPECT_TRUE(got[0].has_upsert());
  EXPECT_TRUE(got[1].bookmark().snapshot_complete());
  const int64_t cursor = got[1].revision();
  ASSERT_TRUE(Create("b").ok());
  v1::CancelJobRequest cancel;
  cancel.set_name("a");
  ASSERT_TRUE(coordinator_->CancelJob(cancel, CallContext()).ok());
  got.clear();
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].upsert().name(), "projects/default/jobs/b");
  EXPECT_EQ(got[1].upsert().status().state(), v1::Job::CANCELLED);

  Start();  // The cursor outlives the coordinator.
  v1::WatchJobsRequest resume;
  resume.set_from_revision(cursor);
  watch = *coordinator_->StartWatch(resume);
  got.clear();
  ASSERT_TRUE(coordinator_->NextWatch(watch, CallContext(), got).ok());
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1].upsert().status().state(), v1::Job::CANCELLED);
  resume.set_from_revision(1'000'000);
  EXPECT_EQ(ReasonOf(coordinator_->StartWatch(resume).status()), "REVISION_COMPACTED");
  coordinator_->Drain();
  got.clear();
  EXPECT_EQ(ReasonOf(coordinator_->NextWatch(watch, CallContext(), got)), "SERVER_DRAINING");
}

TEST_F(CoordinatorTest, TelemetryOfUnknownJobsAndOfFencedAttemptsBeyondTheResumeStepIsDropped) {
  ASSERT_TRUE(Register("w1", 1).ok());
  ASSERT_TRUE(Create("a").ok());
  Sync("w1", 1);
  const v1::Job job = Get("a");
  ASSERT_TRUE(Commit(job, 10).ok());
  ASSERT_TRUE(Register("w1", 2).ok());
  Advance(absl::Seconds(2));
  ASSERT_EQ(Get("a").status().attempt(), 2);
  v1::TelemetryBatch batch;
  const auto add = [&](const std::string& uid, int32_t attempt, int64_t step) {
    v1::MetricRow& row = *batch.add_metrics();
    row.set_job_uid(uid);
    row.set_attempt(attempt);
    row.set_step(step);
    (*row.mutable_values())["loss"] = static_cast<double>(step);
  };
  add(job.uid(), 1, 9);   // history
  add(job.uid(), 1, 11);  // will be done again
  add(job.uid(), 2, 11);
  add(job.uid(), 2, 11);  // a duplicate
  add(job.uid(), 3, 12);  // was never granted
  add("unknown", 1, 1);
  ASSERT_TRUE(coordinator_->PushTelemetry(batch).ok());
  ASSERT_TRUE(coordinator_->PushTelemetry(batch).ok());
  const std::vector<SequencedRow> rows = *telemetry_->metrics().ReadAfter(job.uid(), 0, 100);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].row.step(), 9);
  EXPECT_EQ(rows[1].row.attempt(), 2);
}

TEST_F(CoordinatorTest, PagesOfTheListCoverEveryJobOnce) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(Create(absl::StrCat("j", i)).ok());
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> names;
  do {
    const v1::ListJobsResponse page = *coordinator_->ListJobs(request);
    for (const v1::Job& job : page.jobs()) names.push_back(job.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  ASSERT_EQ(names.size(), 7u);
  EXPECT_EQ(names.front(), "projects/default/jobs/j6");
  EXPECT_EQ(names.back(), "projects/default/jobs/j0");
  for (const char* token : {"x", "////", "MTIzNA", "\xff\xfe", ""}) {
    request.set_page_token(token);
    request.set_state(*token == '\0' ? "NO_SUCH_STATE" : "");
    EXPECT_EQ(coordinator_->ListJobs(request).status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
}

// The whole service under random operations and failures of the store: grants never exceed what a worker has,
// the table stays consistent, what was acknowledged is there after a restart.
TEST_F(CoordinatorTest, RandomOperationsWithAFailingStoreAndRestartsLoseNothing) {
  const uint64_t seed = std::random_device()();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  std::map<std::string, v1::Job::State> acked;  // the last state that was seen
  std::map<std::string, int32_t> attempts;
  int64_t incarnations[3] = {1, 1, 1};
  bool failing = false;
  int jobs = 0;
  for (int operation = 0; operation < 1500; ++operation) {
    const std::string worker = absl::StrCat("w", below(3));
    int64_t& incarnation = incarnations[worker[1] - '0'];
    std::vector<v1::TaskReport> reports;
    for (const auto& [id, state] : acked) {
      if (state < v1::Job::STARTING || state > v1::Job::STOPPING) continue;
      const v1::Job job = Get(id);
      if (job.status().tasks_size() == 0 || job.status().tasks(0).worker() != worker) continue;
      switch (below(6)) {
        case 0:
          break;
        case 1:
          reports.push_back(Finished(job));
          break;
        case 2:
          reports.push_back(Stopped(job));
          reports.back().mutable_failure()->set_cause(static_cast<v1::FailureCause>(below(21)));
          break;
        default:
          reports.push_back(Report(job, "STEPPING", below(100)));
          (void)Commit(job, below(100));
      }
    }
    switch (below(10)) {
      case 0: {
        const std::string id = absl::StrCat("j", jobs);
        const absl::StatusOr<v1::Job> job = Create(id, Spec((1 + below(60)) * kMiB));
        if (job.ok()) {
          ++jobs;
          acked[id] = job->status().state();
        } else if (ReasonOf(job.status()) != "STORAGE_DEGRADED") {  // until a tick finds it working again
          ASSERT_EQ(ReasonOf(job.status()), "UNSATISFIABLE") << job.status();
        }
        break;
      }
      case 1:
        if (jobs > 0) {
          v1::CancelJobRequest cancel;
          cancel.set_name(absl::StrCat("j", below(jobs)));
          (void)coordinator_->CancelJob(cancel, CallContext());
        }
        break;
      case 2:
        if (below(3) == 0) ++incarnation;
        (void)Register(worker, incarnation, 100, reports);
        break;
      case 3:
        Advance(absl::Milliseconds(below(4000)));
        break;
      case 4:
        if (below(8) == 0) {
          failing = !failing;
          store_.SetFailure(failing ? absl::UnavailableError("random failure") : absl::OkStatus());
        }
        break;
      case 5:
        if (below(10) == 0 && !failing) Start();
        break;
      default:
        (void)Sync(worker, incarnation, reports);
    }
    ASSERT_TRUE(coordinator_->CheckInvariants().ok())
        << coordinator_->CheckInvariants() << " at " << operation;
    const v1::ListWorkersResponse fleet = *coordinator_->ListWorkers({});
    for (const v1::Worker& each : fleet.workers()) {
      // Of others, lost or not heard of since the restart, the capacity may be unknown.
      if (each.state() != v1::Worker::READY && each.state() != v1::Worker::QUARANTINED) continue;
      ASSERT_LE(each.allocated().device_bytes(), each.capacity().device_bytes()) << each.name();
    }
    for (auto& [id, state] : acked) {
      const absl::StatusOr<v1::Job> job = coordinator_->GetJob(id);
      ASSERT_TRUE(job.ok()) << id << " was acknowledged and is gone: " << job.status();
      if (state >= v1::Job::SUCCEEDED) {
        ASSERT_EQ(job->status().state(), state) << "terminal states never change";
      }
      ASSERT_GE(job->status().attempt(), attempts[id]);
      attempts[id] = job->status().attempt();
      state = job->status().state();
    }
  }
  store_.SetFailure(absl::OkStatus());
  Advance(absl::Seconds(2));
  EXPECT_TRUE(Create("last").ok()) << "it has recovered";
}

}  // namespace
}  // namespace strata::server
