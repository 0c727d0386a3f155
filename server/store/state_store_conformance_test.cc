// What every StateStore promises, and what only the one on disk can show.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "server/store/job_codec.h"
#include "server/store/memory_state_store.h"
#include "server/store/sqlite_state_store.h"

namespace strata::server {
namespace {

std::string NewPath() {
  static std::atomic<int> counter = 0;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/store", getpid(), ".", ++counter);
  EXPECT_TRUE(MakeDirectories(folder).ok());
  return folder + "/state.db";
}

JobPtr JobOf(int64_t sequence, int64_t revision, JobState state) {
  auto job = std::make_shared<Job>();
  job->uid = absl::StrCat("uid", sequence);
  job->name = absl::StrCat("projects/default/jobs/j", sequence);
  job->sequence = sequence;
  job->revision = revision;
  job->state = state;
  job->create_micros = 5;
  return job;
}

StoreTransaction TransactionOf(JobPtr job) {
  StoreTransaction transaction;
  transaction.event.revision = job->revision;
  transaction.event.to = job->state;
  transaction.event.reason = "TEST";
  transaction.job = std::move(job);
  return transaction;
}

// Submits and waits.
absl::Status Write(StateStore& store, StoreTransaction transaction, uint64_t epoch = 0) {
  Mutex mu;
  CondVar done;
  std::optional<absl::Status> result;
  store.Submit(epoch, std::move(transaction), [&](absl::Status status) {
    MutexLock lock(mu);
    result = std::move(status);
    done.Signal();
  });
  MutexLock lock(mu);
  while (!result) done.Wait(mu);
  return *result;
}

using Factory = std::function<std::unique_ptr<StateStore>()>;

class StateStoreConformance : public ::testing::TestWithParam<std::pair<const char*, Factory>> {
 protected:
  std::unique_ptr<StateStore> store_ = GetParam().second();
};

TEST_P(StateStoreConformance, WhatWasWrittenIsRead) {
  ASSERT_TRUE(Write(*store_, TransactionOf(JobOf(1, 1, JobState::kQueued))).ok());
  ASSERT_TRUE(Write(*store_, TransactionOf(JobOf(2, 2, JobState::kQueued))).ok());
  ASSERT_TRUE(Write(*store_, TransactionOf(JobOf(1, 3, JobState::kCancelled))).ok());
  EXPECT_EQ(*store_->LastRevision(), 3);
  ASSERT_EQ(store_->LoadLive()->size(), 1u);
  EXPECT_EQ(store_->LoadLive()->front()->uid, "uid2");
  EXPECT_EQ((*store_->FindByName("projects/default/jobs/j1"))->state, JobState::kCancelled);
  EXPECT_EQ((*store_->FindByUid("uid1"))->revision, 3);
  EXPECT_EQ(*store_->FindByUid("uid9"), nullptr);
  EXPECT_EQ(store_->ListEvents("uid1", 0, 10)->size(), 2u);
  EXPECT_EQ(store_->ListEvents("uid1", 1, 10)->size(), 1u);
  const std::vector<JobPtr> revisions = *store_->LoadRevisions(2);
  ASSERT_EQ(revisions.size(), 2u);
  EXPECT_EQ(revisions[0]->revision, 2);
  EXPECT_EQ(revisions[1]->revision, 3);
}

TEST_P(StateStoreConformance, ListsGoFromNewToOldByParentAndState) {
  for (int i = 1; i <= 5; ++i) {
    ASSERT_TRUE(
        Write(*store_, TransactionOf(JobOf(i, i, i % 2 ? JobState::kQueued : JobState::kFailed))).ok());
  }
  JobQuery query{"projects/default", JobState::kNone, INT64_MAX, 2};
  std::vector<JobPtr> page = *store_->ListJobs(query);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0]->sequence, 5);
  query.before_sequence = 4;
  query.state = JobState::kQueued;
  page = *store_->ListJobs(query);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0]->sequence, 3);
  EXPECT_EQ(page[1]->sequence, 1);
  query.parent = "projects/other";
  EXPECT_TRUE(store_->ListJobs(query)->empty());
}

TEST_P(StateStoreConformance, ARequestIdIsFoundWithItsScope) {
  StoreTransaction transaction = TransactionOf(JobOf(1, 1, JobState::kQueued));
  transaction.request = RequestRow{"CreateJob p", "r1", std::string("\0digest", 7), "uid1"};
  ASSERT_TRUE(Write(*store_, std::move(transaction)).ok());
  const std::optional<RequestRow> found = *store_->FindRequest("CreateJob p", "r1");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->digest, std::string("\0digest", 7));
  EXPECT_EQ(found->uid, "uid1");
  EXPECT_FALSE(store_->FindRequest("CreateJob q", "r1")->has_value());
}

TEST_P(StateStoreConformance, ATransactionOfAnotherEpochIsNotTried) {
  store_->SetEpoch(1);
  EXPECT_FALSE(Write(*store_, TransactionOf(JobOf(1, 1, JobState::kQueued)), 0).ok());
  EXPECT_EQ(*store_->LastRevision(), 0);
  EXPECT_TRUE(Write(*store_, TransactionOf(JobOf(1, 2, JobState::kQueued)), 1).ok());
}

TEST_P(StateStoreConformance, CallbacksComeInTheOrderOfTheCalls) {
  Mutex mu;
  CondVar done;
  std::vector<int> order;
  for (int i = 1; i <= 500; ++i) {
    store_->Submit(0, TransactionOf(JobOf(i, i, JobState::kQueued)), [&, i](const absl::Status& status) {
      MutexLock lock(mu);
      EXPECT_TRUE(status.ok());
      order.push_back(i);
      done.Signal();
    });
  }
  MutexLock lock(mu);
  while (order.size() < 500) done.Wait(mu);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StateStoreConformance,
    ::testing::Values(std::make_pair("sqlite", Factory([] {
                                       return *SqliteStateStore::Open(NewPath(), Clock::Real());
                                     })),
                      std::make_pair("memory", Factory([] { return std::make_unique<MemoryStateStore>(); }))),
    [](const auto& info) { return info.param.first; });

TEST(SqliteStateStoreTest, EverythingIsThereAfterReopening) {
  const std::string path = NewPath();
  auto checkpoint = std::make_shared<v1::Checkpoint>();
  checkpoint->set_step(10);
  checkpoint->set_digest("abc");
  {
    const auto store = *SqliteStateStore::Open(path, Clock::Real());
    StoreTransaction transaction = TransactionOf(JobOf(1, 1, JobState::kRunning));
    transaction.checkpoint = checkpoint;
    ASSERT_TRUE(Write(*store, std::move(transaction)).ok());
  }
  const auto store = *SqliteStateStore::Open(path, Clock::Real());
  const std::vector<JobPtr> live = *store->LoadLive();
  ASSERT_EQ(live.size(), 1u);
  ASSERT_EQ(live[0]->checkpoints.size(), 1u);
  EXPECT_EQ(live[0]->checkpoints[0]->digest(), "abc");
  StoreTransaction transaction = TransactionOf(JobOf(1, 2, JobState::kRunning));
  transaction.dropped_steps = {10};
  ASSERT_TRUE(Write(*store, std::move(transaction)).ok());
  EXPECT_TRUE(store->ListCheckpoints("uid1")->empty());
}

TEST(SqliteStateStoreTest, AFullDiskIsUnavailableAndRecoversWithoutReopening) {
  const auto store = *SqliteStateStore::Open(NewPath(), Clock::Real());
  ASSERT_TRUE(Write(*store, TransactionOf(JobOf(1, 1, JobState::kQueued))).ok());
  store->SetSizeLimit(4096);
  auto big = std::make_shared<Job>(*JobOf(2, 2, JobState::kQueued));
  big->message = std::string(1 << 20, 'x');
  EXPECT_EQ(Write(*store, TransactionOf(big)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->Probe().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*store->LastRevision(), 1) << "reads go on, and nothing of the write is there";
  store->SetSizeLimit(0);
  EXPECT_TRUE(store->Probe().ok());
  EXPECT_TRUE(Write(*store, TransactionOf(big)).ok());
  EXPECT_EQ(*store->LastRevision(), 2);
}

TEST(SqliteStateStoreTest, AFileThatIsNoDatabaseOrOfANewerFormatIsRefused) {
  const std::string garbage = NewPath();
  std::ofstream(garbage) << std::string(8192, 'g');
  EXPECT_EQ(SqliteStateStore::Open(garbage, Clock::Real()).status().code(), absl::StatusCode::kDataLoss);
  const std::string newer = NewPath();
  ASSERT_TRUE((*SqliteDb::Open(newer))->Execute("PRAGMA user_version=99").ok());
  EXPECT_EQ(SqliteStateStore::Open(newer, Clock::Real()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(JobCodecTest, ARecordSurvivesTheRoundTrip) {
  Job job = *JobOf(3, 9, JobState::kStopping);
  job.stop_target = JobState::kCancelled;
  job.intent = Intent::kCancel;
  job.worker = "w1";
  job.worker_incarnation = 77;
  job.worker_identity = "0123abcd";
  job.grant = {1, 2, 3};
  job.attempt = 4;
  job.resume_step = 20;
  job.failures_counted = 1;
  job.failures_uncounted = 2;
  job.failure_streak = 3;
  job.next_attempt_micros = 123456789;
  job.pending_failure = v1::Failure();
  job.pending_failure->set_cause(v1::STALLED);
  job.plan = v1::JobPlan();
  job.plan->set_fits(true);
  job.progress.step = 12;
  job.progress.phase = "STEPPING";
  const Job read = *DecodeJob(EncodeJob(job));
  EXPECT_EQ(EncodeJob(read), EncodeJob(job));
  EXPECT_EQ(read.grant, job.grant);
  EXPECT_EQ(read.intent, job.intent);
  EXPECT_EQ(read.worker_incarnation, 77);
  EXPECT_EQ(read.worker_identity, "0123abcd");
  EXPECT_EQ(read.pending_failure->cause(), v1::STALLED);
  EXPECT_EQ(DecodeJob("no record").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace strata::server
