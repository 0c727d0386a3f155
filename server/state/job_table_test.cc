#include "server/state/job_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "server/state/failure_policy.h"
#include "server/state/scheduler.h"

namespace strata::server {
namespace {

v1::JobSpec Spec(int32_t max_failures = 3, int32_t priority = 50) {
  v1::JobSpec spec;
  spec.mutable_training()->set_steps(100);
  spec.mutable_checkpoint()->set_keep_last(2);
  spec.mutable_scheduling()->set_max_failures(max_failures);
  spec.mutable_scheduling()->set_priority(priority);
  return spec;
}

v1::Failure FailureOf(v1::FailureCause cause, int32_t signal = 0) {
  v1::Failure failure;
  failure.set_cause(cause);
  failure.set_signal(signal);
  return failure;
}

std::shared_ptr<v1::Checkpoint> CheckpointOf(int64_t step, int32_t attempt) {
  auto checkpoint = std::make_shared<v1::Checkpoint>();
  checkpoint->set_step(step);
  checkpoint->set_attempt(attempt);
  return checkpoint;
}

class JobTableTest : public ::testing::Test {
 protected:
  absl::StatusOr<JobPtr> Apply(decltype(Event::what) what, const std::string& uid = "u1") {
    Event event;
    event.uid = uid;
    event.revision = ++revision_;
    event.wall_micros = 1'000'000 + revision_;
    event.what = std::move(what);
    return table_.Apply(event);
  }
  JobPtr Create(const std::string& uid = "u1", v1::JobSpec spec = Spec()) {
    Job job;
    job.name = "projects/default/jobs/" + uid;
    job.spec = std::move(spec);
    return *Apply(Created{job}, uid);
  }
  JobPtr Run(const std::string& uid = "u1") {
    const JobPtr job = *Apply(Granted{"w1", 7, {10, 20, 30}, {}, "agent"}, uid);
    return *Apply(Started{job->attempt}, uid);
  }
  JobTable table_;
  int64_t revision_ = 0;
};

TEST_F(JobTableTest, AJobThatFinishesPassesThroughTheStatesAndReturnsItsGrant) {
  EXPECT_EQ(Create()->state, JobState::kQueued);
  const JobPtr running = Run();
  EXPECT_EQ(running->state, JobState::kRunning);
  EXPECT_EQ(running->worker_identity, "agent");
  EXPECT_EQ(table_.Allocated("w1"), (Resources{10, 20, 30}));
  const JobPtr stopping = *Apply(StopRequested{1, std::nullopt, v1::RunResult()});
  EXPECT_EQ(stopping->state, JobState::kStopping);
  EXPECT_EQ(stopping->stop_target, JobState::kSucceeded);
  EXPECT_EQ(table_.Allocated("w1"), (Resources{10, 20, 30})) << "nothing is returned without proof";
  const JobPtr done = *Apply(AttemptEnded{1, std::nullopt, std::nullopt});
  EXPECT_EQ(done->state, JobState::kSucceeded);
  EXPECT_TRUE(done->result.has_value());
  EXPECT_EQ(done->progress.step, 100);
  EXPECT_EQ(table_.Allocated("w1"), Resources());
}

TEST_F(JobTableTest, TerminalStatesNeverChange) {
  Create();
  ASSERT_TRUE(Apply(CancelRequested{"no"}).ok());
  EXPECT_FALSE(Apply(CancelRequested{"again"}).ok());
  EXPECT_FALSE(Apply(Granted{"w1", 1, {}, {}}).ok());
  EXPECT_FALSE(Apply(BackoffElapsed{}).ok());
  EXPECT_EQ(table_.Find("u1")->state, JobState::kCancelled);
}

TEST_F(JobTableTest, AStaleAttemptChangesNothing) {
  Create();
  Run();
  ASSERT_TRUE(Apply(AttemptEnded{1, FailureOf(v1::WORKER_LOST), std::nullopt}).ok());
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  EXPECT_EQ(Run()->attempt, 2);
  EXPECT_FALSE(Apply(AttemptEnded{1, std::nullopt, v1::RunResult()}).ok());
  EXPECT_FALSE(Apply(CheckpointCommitted{CheckpointOf(10, 1)}).ok());
  EXPECT_EQ(table_.Find("u1")->state, JobState::kRunning);
}

TEST_F(JobTableTest, CancelWinsOverAFinishThatIsNotRecordedYet) {
  Create();
  Run();
  ASSERT_TRUE(Apply(StopRequested{1, std::nullopt, v1::RunResult()}).ok());
  ASSERT_TRUE(Apply(CancelRequested{""}).ok());
  EXPECT_EQ((*Apply(AttemptEnded{1, std::nullopt, v1::RunResult()}))->state, JobState::kCancelled);
}

TEST_F(JobTableTest, OnlyFailuresTheJobIsToBlameForCountTowardsMaxFailures) {
  Create("u1", Spec(/*max_failures=*/1));
  for (int i = 0; i < 30; ++i) {
    Run();
    const JobPtr job = *Apply(AttemptEnded{i + 1, FailureOf(v1::WORKER_LOST), std::nullopt});
    ASSERT_EQ(job->state, JobState::kBackoff) << i;
    ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  }
  EXPECT_EQ(table_.Find("u1")->failures_counted, 0);
  EXPECT_EQ(table_.Find("u1")->failures_uncounted, 30);
  Run();
  EXPECT_EQ((*Apply(AttemptEnded{31, FailureOf(v1::TRAINER_CRASHED, 11), std::nullopt}))->state,
            JobState::kBackoff);
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  Run();
  const JobPtr failed = *Apply(AttemptEnded{32, FailureOf(v1::TRAINER_CRASHED, 11), std::nullopt});
  EXPECT_EQ(failed->state, JobState::kFailed);
  EXPECT_EQ(failed->reason, "TRAINER_CRASHED");
}

TEST_F(JobTableTest, KillsForMemoryCountWhateverCheckpointsAreBetweenThem) {
  Create("u1", Spec(/*max_failures=*/2));
  for (int32_t attempt = 1; attempt <= 2; ++attempt) {
    Run();
    ASSERT_TRUE(Apply(CheckpointCommitted{CheckpointOf(10 * attempt, attempt)}).ok());
    ASSERT_EQ((*Apply(AttemptEnded{attempt, FailureOf(v1::HOST_OOM, 9), std::nullopt}))->state,
              JobState::kBackoff);
    ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  }
  Run();
  const JobPtr failed = *Apply(AttemptEnded{3, FailureOf(v1::HOST_OOM, 9), std::nullopt});
  EXPECT_EQ(failed->state, JobState::kFailed);
  EXPECT_EQ(failed->failures_counted, 3);
  // An arena that could not be had cannot be had by the next attempt either.
  Create("u2", Spec(/*max_failures=*/2));
  Run("u2");
  EXPECT_EQ((*Apply(AttemptEnded{1, FailureOf(v1::HOST_OOM), std::nullopt}, "u2"))->state, JobState::kFailed);
}

TEST_F(JobTableTest, ATrainerThatIsKilledAgainAndAgainWithoutACheckpointFailsInTheEnd) {
  Create();
  for (int i = 1; i <= kUncountedStreakMax; ++i) {
    Run();
    ASSERT_EQ((*Apply(AttemptEnded{i, FailureOf(v1::TRAINER_CRASHED, 9), std::nullopt}))->state,
              JobState::kBackoff);
    ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  }
  Run();
  const JobPtr failed =
      *Apply(AttemptEnded{kUncountedStreakMax + 1, FailureOf(v1::TRAINER_CRASHED, 9), std::nullopt});
  EXPECT_EQ(failed->state, JobState::kFailed);
  EXPECT_EQ(failed->failures_counted, 0);
}

TEST_F(JobTableTest, NumbersThatAreNotFiniteAreNotTriedAgainFromTheSameStart) {
  Create();
  Run();
  const JobPtr failed = *Apply(AttemptEnded{1, FailureOf(v1::NUMERIC), std::nullopt});
  EXPECT_EQ(failed->state, JobState::kFailed) << "the start is no other the second time";
  EXPECT_NE(failed->message.find("not retried"), std::string::npos) << failed->message;
}

TEST_F(JobTableTest, NumbersThatAreNotFiniteAreTriedOnceFromEachCheckpoint) {
  Create();
  Run();
  ASSERT_TRUE(Apply(CheckpointCommitted{CheckpointOf(10, 1)}).ok());
  ASSERT_EQ((*Apply(AttemptEnded{1, FailureOf(v1::NUMERIC), std::nullopt}))->state, JobState::kBackoff);
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  Run();
  ASSERT_EQ((*Apply(AttemptEnded{2, FailureOf(v1::WORKER_LOST), std::nullopt}))->state, JobState::kBackoff);
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  Run();
  ASSERT_TRUE(Apply(CheckpointCommitted{CheckpointOf(20, 3)}).ok());
  ASSERT_EQ((*Apply(AttemptEnded{3, FailureOf(v1::NUMERIC), std::nullopt}))->state, JobState::kBackoff)
      << "it got further than before";
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  Run();
  EXPECT_EQ((*Apply(AttemptEnded{4, FailureOf(v1::NUMERIC), std::nullopt}))->state, JobState::kFailed);
}

TEST_F(JobTableTest, UserErrorsAndMemoryFailuresAreNotTriedAgain) {
  for (const v1::FailureCause cause : {v1::USER_ERROR, v1::INVALID_DATA, v1::DEVICE_OOM, v1::HOST_OOM,
                                       v1::PIN_FAILED, v1::CHECKPOINT_CORRUPT}) {
    const std::string uid = v1::FailureCause_Name(cause);
    Create(uid);
    Run(uid);
    EXPECT_EQ((*Apply(AttemptEnded{1, FailureOf(cause), std::nullopt}, uid))->state, JobState::kFailed)
        << uid;
  }
}

TEST_F(JobTableTest, TheReasonTheCoordinatorStoppedForWinsOverTheExitThatFollows) {
  Create();
  Run();
  ASSERT_TRUE(Apply(StopRequested{1, FailureOf(v1::STALLED), std::nullopt}).ok());
  const JobPtr job = *Apply(AttemptEnded{1, FailureOf(v1::TRAINER_CRASHED, 9), std::nullopt});
  EXPECT_EQ(job->last_failure->cause(), v1::STALLED);
  EXPECT_EQ(job->failures_counted, 1);
  EXPECT_EQ(job->avoid_worker, "w1");
}

TEST_F(JobTableTest, TheNewestCheckpointsAreKeptAndALaterAttemptReplacesWhatItDoesAgain) {
  Create();
  Run();
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Apply(CheckpointCommitted{CheckpointOf(step, 1)}).ok());
  auto kept = table_.Find("u1")->checkpoints;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0]->step(), 30);
  EXPECT_EQ(kept[1]->step(), 20);
  ASSERT_TRUE(Apply(AttemptEnded{1, FailureOf(v1::WORKER_LOST), std::nullopt}).ok());
  ASSERT_TRUE(Apply(BackoffElapsed{}).ok());
  EXPECT_EQ(Run()->resume_step, 30);
  // It did not find 30 usable and does the steps again from 20.
  ASSERT_TRUE(Apply(CheckpointCommitted{CheckpointOf(25, 2)}).ok());
  kept = table_.Find("u1")->checkpoints;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0]->step(), 25);
  EXPECT_EQ(kept[1]->step(), 20);
}

TEST_F(JobTableTest, PuttingTheOldRecordBackUndoesAnEvent) {
  Create();
  const JobPtr before = table_.Find("u1");
  Run();
  table_.Put("u1", before);
  EXPECT_EQ(table_.Allocated("w1"), Resources());
  EXPECT_EQ(table_.Queue().size(), 1u);
  EXPECT_TRUE(table_.CheckInvariants().ok());
}

// Random operations, most of them not allowed in the state they meet: I1 (terminal states are final), I3
// (attempts increase, one at a time), I4 and I6 (grants), I5 (intents are monotone), I8 (what is counted).
TEST_F(JobTableTest, InvariantsHoldUnderRandomOperations) {
  const uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 12; ++i) Create("u" + std::to_string(i), Spec(below(4), below(3) * 50));
  for (int operation = 0; operation < 20000; ++operation) {
    const std::string uid = "u" + std::to_string(below(14));
    const JobPtr before = table_.Find(uid);
    const int32_t attempt = before == nullptr ? 1 : before->attempt - (below(10) == 0);
    decltype(Event::what) what;
    const auto maybe_failure = [&]() -> std::optional<v1::Failure> {
      if (below(3) == 0) return std::nullopt;
      return FailureOf(static_cast<v1::FailureCause>(below(21)), below(3) * 9);
    };
    const auto maybe_result = [&] { return below(6) == 0 ? std::optional(v1::RunResult()) : std::nullopt; };
    switch (below(9)) {
      case 0:
        if (before == nullptr) continue;
        what = Created{*before};
        break;
      case 1:
      case 2:
        what = Granted{"w" + std::to_string(below(3)), 1, {below(100), below(100), below(100)}, {}};
        break;
      case 3:
        what = Started{attempt};
        break;
      case 4:
        if (below(20) == 0) what = CancelRequested{"random"};
        break;
      case 5:
        what = StopRequested{attempt, maybe_failure(), maybe_result()};
        break;
      case 6:
        what = AttemptEnded{attempt, maybe_failure(), maybe_result()};
        break;
      case 7:
        what = BackoffElapsed{};
        break;
      default:
        what = CheckpointCommitted{CheckpointOf(below(100), attempt)};
    }
    const absl::StatusOr<JobPtr> after = Apply(what, uid);
    ASSERT_TRUE(table_.CheckInvariants().ok())
        << table_.CheckInvariants() << " after operation " << operation;
    if (!after.ok()) {
      ASSERT_EQ(table_.Find(uid), before) << "a refused event changes nothing";
      continue;
    }
    ASSERT_GT((*after)->revision, before == nullptr ? 0 : before->revision);
    if (before == nullptr) continue;
    ASSERT_FALSE(IsTerminal(before->state));
    ASSERT_GE((*after)->intent, before->intent);
    ASSERT_GE((*after)->attempt, before->attempt);
    ASSERT_LE((*after)->attempt, before->attempt + 1);
    if ((*after)->attempt > before->attempt) {
      ASSERT_EQ(before->state, JobState::kQueued);
    }
    // One in a while ends for good: make room for a new one.
    if (IsTerminal((*after)->state) && below(2) == 0) {
      table_.Put(uid, nullptr);
      Create(uid, Spec(below(4)));
    }
  }
}

TEST(SchedulerTest, PriorityThenAgeThenFirstFit) {
  JobTable table;
  int64_t revision = 0;
  const auto create = [&](const std::string& uid, int32_t priority) {
    Event event;
    event.uid = uid;
    event.revision = ++revision;
    event.wall_micros = revision;
    Job job;
    job.name = "projects/default/jobs/" + uid;
    job.spec = Spec(3, priority);
    event.what = Created{job};
    ASSERT_TRUE(table.Apply(event).ok());
  };
  create("old-low", 10);
  create("big", 90);
  create("first", 50);
  create("second", 50);
  create("never", 100);
  std::map<std::string, Worker> workers;
  workers["w1"].id = "w1";
  workers["w1"].state = WorkerState::kReady;
  workers["w1"].total = {100, 100, 100};
  workers["w2"] = workers["w1"];
  workers["w2"].id = "w2";
  workers["w2"].state = WorkerState::kQuarantined;
  const auto plans = [](const Job& job, const Worker& worker) {
    auto plan = std::make_shared<v1::JobPlan>();
    const int64_t bytes = job.uid == "big" ? 80 : job.uid == "never" ? 1000 : 20;
    plan->mutable_resources()->set_device_bytes(bytes);
    plan->set_fits(bytes <= worker.total.device_bytes);
    if (!plan->fits()) plan->add_shortfalls()->set_resource("device");
    return std::shared_ptr<const v1::JobPlan>(plan);
  };
  const ScheduleResult result = Schedule(table, workers, plans);
  ASSERT_EQ(result.grants.size(), 2u);
  EXPECT_EQ(result.grants[0].uid, "big");
  EXPECT_EQ(result.grants[1].uid, "first");
  EXPECT_EQ(result.grants[1].worker, "w1");
  ASSERT_EQ(result.waiting.size(), 3u);
  EXPECT_EQ(result.waiting.at("never").code(), "UNSATISFIABLE");
  EXPECT_TRUE(result.waiting.at("never").unsatisfiable());
  EXPECT_EQ(result.waiting.at("second").code(), "CAPACITY");
  EXPECT_EQ(result.waiting.at("second").jobs_ahead(), 0) << "a job that never fits is not ahead of anybody";
  EXPECT_EQ(result.waiting.at("second").shortfalls(0).requested(), 20);
  EXPECT_EQ(result.waiting.at("second").shortfalls(0).free(), 0);
  EXPECT_EQ(result.waiting.at("old-low").jobs_ahead(), 1);
  workers.clear();
  EXPECT_EQ(Schedule(table, workers, plans).waiting.at("big").code(), "NO_WORKERS");
}

// What is free on the disks now binds like what other jobs have taken.
TEST(SchedulerTest, AJobWaitsForADiskThatOthersHaveFilled) {
  JobTable table;
  Event event;
  event.uid = "job";
  event.revision = event.wall_micros = 1;
  Job job;
  job.name = "projects/default/jobs/job";
  job.spec = Spec(3, 50);
  event.what = Created{job};
  ASSERT_TRUE(table.Apply(event).ok());
  Worker worker;
  worker.id = "w1";
  worker.state = WorkerState::kReady;
  worker.capacity.set_device_bytes(100);
  worker.capacity.set_host_bytes(100);
  const auto add_volume = [&](const char* path, int64_t bytes, int64_t free) {
    v1::NvmeVolume& volume = *worker.capacity.add_nvme();
    volume.set_path(path);
    volume.set_bytes(bytes);
    volume.set_free_bytes(free);
  };
  const auto schedule = [&] {
    worker.total = TotalOf(worker.capacity);
    return Schedule(table, {{"w1", worker}}, [](const Job&, const Worker&) {
      auto plan = std::make_shared<v1::JobPlan>();
      plan->mutable_resources()->set_nvme_bytes(40);
      plan->set_fits(true);
      return std::shared_ptr<const v1::JobPlan>(plan);
    });
  };
  add_volume("/a", 100, 39);
  const ScheduleResult full = schedule();
  ASSERT_EQ(full.grants.size(), 0u);
  EXPECT_EQ(full.waiting.at("job").code(), "CAPACITY");
  const v1::Shortfall& shortfall = full.waiting.at("job").shortfalls(0);
  EXPECT_EQ(shortfall.resource(), "nvme");
  EXPECT_EQ(shortfall.free(), 39);
  EXPECT_EQ(shortfall.total(), 100);
  EXPECT_NE(shortfall.remedy().find("fills the disk of /a"), std::string::npos) << shortfall.remedy();
  worker.capacity.mutable_nvme(0)->set_free_bytes(40);
  EXPECT_EQ(schedule().grants.size(), 1u);
  // A quarter of the job is on the second path.
  worker.capacity.mutable_nvme(0)->set_bytes(75);
  add_volume("/b", 25, 9);
  EXPECT_EQ(NvmeFreeNow(worker.capacity), 36);
  EXPECT_EQ(schedule().grants.size(), 0u);
  worker.capacity.mutable_nvme(1)->set_free_bytes(10);
  EXPECT_EQ(schedule().grants.size(), 1u);
  worker.capacity.mutable_nvme(0)->set_free_bytes(0);
  EXPECT_EQ(schedule().grants.size(), 0u);
}

}  // namespace
}  // namespace strata::server
