// What NCCL's communicator does beyond the promises of all: failures of its own, of peers, and in time.
#include "offload/comm/nccl_communicator.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/comm/fake_nccl.h"
#include "offload/comm/local_rendezvous.h"
#include "offload/comm/nccl_testing.h"

namespace strata {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Duration kLong = absl::Minutes(2), kShort = absl::Milliseconds(200);

bool Eventually(const std::function<bool()>& condition) {
  const int64_t end = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(kLong);
  while (!condition()) {
    if (Clock::Real().MonotonicNanos() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// `size` ranks whose communicators are made by threads of their own, and then belong to the test.
class Ranks {
 public:
  explicit Ranks(int size, NcclOptions options = {}) : options_(options) {
    options_.size = size;
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<NcclRank>(world_, rank));
    Make();
  }
  // Anew, the old ones are given up before or after.
  void Make(bool keep_old = false) {
    std::vector<std::unique_ptr<Communicator>> old(ranks_.size());
    All([&](int rank) {
      if (keep_old) old[rank] = std::move(ranks_[rank]->communicator);
      ranks_[rank]->communicator.reset();
      NcclOptions options = options_;
      options.rank = rank;
      auto made = CreateNcclCommunicator(*ranks_[rank]->nccl, ranks_[rank]->cuda, &rendezvous_, options);
      ASSERT_TRUE(made.ok()) << made.status();
      ranks_[rank]->communicator = *std::move(made);
    });
  }
  void All(const std::function<void(int rank)>& body) {
    std::vector<Thread> threads;
    for (int rank = 0; rank < options_.size; ++rank) threads.emplace_back("rank", [&, rank] { body(rank); });
    for (Thread& thread : threads) thread.Join();
  }
  absl::Status Reduce(int rank, float* value) {
    NcclRank& self = *ranks_[rank];
    return self.communicator->AllReduce(self.stream, DType::kF32, value, value, 1);
  }
  absl::Status Await(int rank) { return ranks_[rank]->communicator->Await(); }
  NcclRank& operator[](int rank) { return *ranks_[rank]; }

 private:
  FakeNcclThreads world_;
  LocalRendezvous rendezvous_;
  NcclOptions options_;
  std::vector<std::unique_ptr<NcclRank>> ranks_;
};

TEST(NcclCommunicatorTest, EachCallOfNcclThatFailsIsAnErrorAndNothingLeaks) {
  int failed = 0;
  for (int64_t nth = 0;; ++nth) {
    FakeNcclThreads world;
    NcclRank rank(world, 0);
    rank.nccl->fail_call = nth;
    absl::Status status;
    auto made = CreateNcclCommunicator(*rank.nccl, rank.cuda, nullptr, {});
    status = made.status();
    if (made.ok()) {
      rank.communicator = *std::move(made);
      float value = 2, out = 0;
      status = rank.communicator->AllReduce(rank.stream, DType::kF32, &value, &out, 1);
      if (status.ok()) status = rank.communicator->AllGather(rank.stream, DType::kF32, &value, &out, 1);
      if (status.ok()) status = rank.communicator->Await();
      if (status.ok()) {
        EXPECT_EQ(out, 2);
      }
    }
    if (rank.nccl->calls <= nth) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    ++failed;
    EXPECT_EQ(status.code(), Code::kInternal) << nth << status;
    EXPECT_THAT(status.message(), HasSubstr("internal error"));
  }
  EXPECT_EQ(failed, 4);
}

TEST(NcclCommunicatorTest, EachCallOfCudaThatFailsIsAnErrorOfBothRanks) {
  int failed = 0;
  for (int64_t nth = 0;; ++nth) {
    bool happened;
    std::vector<absl::Status> status(2);
    {
      Ranks ranks(2);
      ranks[1].cuda.FailCall(nth, kCudaLaunchFailure);
      ranks.All([&](int rank) {
        float value = 2;
        status[rank] = ranks.Reduce(rank, &value);
        if (status[rank].ok()) status[rank] = ranks.Await(rank);
      });
      happened = ranks[1].cuda.failed();
      // Also one that only the watch saw.
      if (happened) {
        EXPECT_TRUE(Eventually([&] { return !ranks.Await(0).ok(); })) << nth;
      }
    }
    if (!happened) {
      EXPECT_TRUE(status[0].ok() && status[1].ok()) << status[0] << status[1];
      break;
    }
    ++failed;
    if (!status[1].ok()) {
      EXPECT_EQ(status[1].code(), Code::kInternal) << nth << status[1];
      EXPECT_THAT(std::string(status[1].message()),
                  AnyOf(HasSubstr("CUDA error 719"), HasSubstr("NCCL error 1")));  // of a call of NCCL's own
    }
    if (nth > 50) break;  // the watch makes calls for as long as it is let
  }
  EXPECT_GE(failed, 4);
}

TEST(NcclCommunicatorTest, ABrokenGpuIsAnError) {
  FakeNcclThreads world;
  NcclRank rank(world, 0);
  rank.communicator = *CreateNcclCommunicator(*rank.nccl, rank.cuda, nullptr, {});
  rank.cuda.FailWork(0, kCudaIllegalAddress);
  float value = 2;
  absl::Status status = rank.communicator->AllReduce(rank.stream, DType::kF32, &value, &value, 1);
  status.Update(rank.communicator->Await());
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("CUDA error 700"));
}

TEST(NcclCommunicatorTest, RanksMeetByTheRendezvousOrNotInTime) {
  FakeNcclThreads world;
  LocalRendezvous rendezvous;
  NcclRank rank(world, 1);
  const NcclOptions options{.rank = 1, .size = 2, .timeout = absl::Milliseconds(20)};
  const absl::Status late = CreateNcclCommunicator(*rank.nccl, rank.cuda, &rendezvous, options).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("rank 0 of 2 has not arrived in time"));
  EXPECT_EQ(rank.nccl->calls, 0) << "without the others there is nothing to begin";
  EXPECT_EQ(
      CreateNcclCommunicator(*rank.nccl, rank.cuda, &rendezvous, {.rank = 2, .size = 2}).status().code(),
      Code::kInvalidArgument);
  EXPECT_THAT(
      CreateNcclCommunicator(*rank.nccl, rank.cuda, nullptr, {.rank = 1, .size = 2}).status().message(),
      HasSubstr("several ranks need a rendezvous"));
}

TEST(NcclCommunicatorTest, AnIdOfAnotherLibraryIsRefusedAndRank0Hears) {
  FakeNcclThreads world;
  LocalRendezvous rendezvous;
  NcclRank rank(world, 1);
  absl::StatusOr<std::unique_ptr<Membership>> zero;
  Thread other("rank 0", [&] { zero = rendezvous.Join({.rank = 0, .size = 2, .id = "short"}); });
  const absl::Status status =
      CreateNcclCommunicator(*rank.nccl, rank.cuda, &rendezvous, {.rank = 1, .size = 2}).status();
  other.Join();
  EXPECT_THAT(status.message(), HasSubstr("an id of 5 bytes, NCCL's has 128"));
  // Before it was told that both are there, or after.
  const absl::Status heard = zero.ok() ? (*zero)->Check() : zero.status();
  EXPECT_THAT(heard.message(), HasSubstr("rank 1: rank 0 gave an id of 5 bytes"));
}

TEST(NcclCommunicatorTest, AnOverdueOperationIsAbortedAndNamedThoughNobodyAwaitsIt) {
  Ranks ranks(3, {.timeout = kShort});
  float value = 1;
  for (const int rank : {0, 1}) ASSERT_TRUE(ranks.Reduce(rank, &value).ok());
  // Nobody calls in, and it ends nevertheless: ncclCommAbort has run.
  EXPECT_TRUE(Eventually([&] { return ranks[0].nccl->communicators + ranks[1].nccl->communicators == 0; }));
  std::string all;
  for (const int rank : {0, 1, 2}) {
    const absl::Status status = ranks.Await(rank);
    EXPECT_FALSE(status.ok());
    all += std::string(status.message()) + "\n";
  }
  // One rank's time is over first, the others hear of it or notice by themselves.
  EXPECT_THAT(all, HasSubstr("of 3, all-reduce of 1 f32 (operation 1): not all ranks came within 200ms"));
  EXPECT_TRUE(Eventually([&] { return !ranks.Reduce(2, &value).ok(); })) << "also a rank that was idle";
  EXPECT_THAT(ranks.Await(2).message(), HasSubstr("all-reduce of 1 f32 (operation 1)"));
}

// A kernel launch reports the thread's last error as its own.
TEST(NcclCommunicatorTest, LookingForWhatIsDoneLeavesTheCallersThreadNoError) {
  Ranks ranks(2);
  float values[2] = {1, 2}, more[2] = {3, 4};
  ASSERT_TRUE(ranks.Reduce(0, &values[0]).ok());
  ASSERT_TRUE(ranks.Reduce(0, &more[0]).ok()) << "looks for the first, which waits for the other rank";
  EXPECT_EQ(ranks[0].cuda.GetLastError(), kCudaSuccess);
  ranks.All([&](int rank) {
    if (rank == 1) {
      EXPECT_TRUE(ranks.Reduce(1, &values[1]).ok() && ranks.Reduce(1, &more[1]).ok());
    }
    EXPECT_TRUE(ranks.Await(rank).ok());
    EXPECT_EQ(ranks[rank].cuda.GetLastError(), kCudaSuccess);
    EXPECT_EQ(values[rank], 3);
    EXPECT_EQ(more[rank], 7);
  });
}

TEST(NcclCommunicatorTest, TimeRunsFromWhenTheStreamComesToTheOperation) {
  FakeClock clock;
  Ranks ranks(2, {.timeout = kShort, .clock = &clock});
  std::atomic<bool> go = false;
  ASSERT_EQ(ranks[0].cuda.LaunchHostFunc(
                ranks[0].stream,
                [](void* flag) {
                  while (!static_cast<std::atomic<bool>*>(flag)->load())
                    absl::SleepFor(absl::Milliseconds(1));
                },
                &go),
            0);
  float values[2] = {1, 2};
  ASSERT_TRUE(ranks.Reduce(0, &values[0]).ok());
  clock.Advance(100 * kShort);  // of work before it
  absl::SleepFor(absl::Milliseconds(50));
  go = true;
  ranks.All([&](int rank) {
    if (rank == 1) {
      EXPECT_TRUE(ranks.Reduce(1, &values[1]).ok());
    }
    const absl::Status status = ranks.Await(rank);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(values[rank], 3);
  });
}

TEST(NcclCommunicatorTest, TheOthersEndWithTheReasonOfTheRankThatFailed) {
  Ranks ranks(3);
  ranks.All([&](int rank) {
    float value = 1;
    if (rank == 2) return ranks[2].communicator->Abort("the disk is full");
    absl::Status status = ranks.Reduce(rank, &value);
    if (status.ok()) status = ranks.Await(rank);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("group world, rank ", rank, " of 3, ")));
    EXPECT_THAT(status.message(), HasSubstr("rank 2: group world, rank 2 of 3, aborted: the disk is full"));
    EXPECT_EQ(ranks.Await(rank), status) << "it stays";
  });
}

TEST(NcclCommunicatorTest, APeerThatIsLostWithoutAWordIsAnErrorAfterAWhileAndTheOthersHear) {
  FakeNcclThreads world;
  LocalRendezvous rendezvous;
  NcclRank zero(world, 0);
  std::unique_ptr<Membership> one;
  std::unique_ptr<Communicator> peer;
  Thread thread("rank 1", [&] {
    one = *rendezvous.Join({.rank = 1, .size = 2});
    nccl::UniqueId id;
    std::copy(one->id().begin(), one->id().end(), id.internal);
    peer = world.Join(id, 2, 1);
  });
  zero.communicator = *CreateNcclCommunicator(*zero.nccl, zero.cuda, &rendezvous,
                                              {.size = 2, .reason_wait = absl::Milliseconds(30)});
  thread.Join();
  float value = 1;
  ASSERT_TRUE(zero.communicator->AllReduce(zero.stream, DType::kF32, &value, &value, 1).ok());
  peer->Abort("gone");
  EXPECT_TRUE(Eventually([&] { return !one->Check().ok(); })) << "nobody awaits";
  EXPECT_THAT(one->Check().message(), HasSubstr("rank 0: group world, rank 0 of 2, all-reduce of 1 f32 "
                                                "(operation 1): remote process exited"));
  EXPECT_EQ(zero.communicator->Await().code(), Code::kUnavailable);
}

TEST(NcclCommunicatorTest, AfterAnAbortTheGroupIsMadeAnewInTheNextGeneration) {
  Ranks ranks(3);
  for (const bool keep_old : {false, true, true, false}) {
    ranks.All([&](int rank) {
      float value = 1;
      if (rank == 1) ranks[1].communicator->Abort("once more");
      absl::Status status = ranks.Reduce(rank, &value);
      if (status.ok()) status = ranks.Await(rank);
      EXPECT_EQ(status.code(), Code::kUnavailable);
    });
    ranks.Make(keep_old);
    ranks.All([&](int rank) {
      float value = 1;
      EXPECT_TRUE(ranks.Reduce(rank, &value).ok());
      const absl::Status status = ranks.Await(rank);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(value, 3);
    });
  }
}

TEST(NcclCommunicatorTest, ARankThatLeavesDuringAnOperationIsTold) {
  Ranks ranks(2);
  float value = 1;
  ASSERT_TRUE(ranks.Reduce(0, &value).ok());
  ranks[0].communicator.reset();
  EXPECT_TRUE(Eventually([&] { return !ranks.Await(1).ok(); }));
  EXPECT_THAT(ranks.Await(1).message(), HasSubstr("left during all-reduce of 1 f32 (operation 1)"));
}

}  // namespace
}  // namespace strata
