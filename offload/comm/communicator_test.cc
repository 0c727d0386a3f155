// What every communicator promises, on the reference (threads) and on NCCL's (over fakes).
#include "offload/comm/communicator.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "common/bfloat16.h"
#include "common/random.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/comm/fake_nccl.h"
#include "offload/comm/local_rendezvous.h"
#include "offload/comm/nccl_communicator.h"
#include "offload/comm/nccl_library.h"
#include "offload/comm/nccl_testing.h"
#include "offload/comm/thread_communicator.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Duration kLong = absl::Minutes(2), kShort = absl::Milliseconds(200);

enum class Kind { kThreads, kNccl };

class CommunicatorTest : public ::testing::TestWithParam<Kind> {
 protected:
  using Body = std::function<void(int rank, Communicator&, Stream*)>;

  // Runs `body` as each of `size` ranks, at once.
  void Run(int size, const Body& body, absl::Duration timeout = kLong) {
    ThreadGroup group(size, timeout);
    LocalRendezvous rendezvous;
    FakeNcclThreads world;
    std::vector<std::unique_ptr<NcclRank>> ranks(size);
    const auto all = [&](const std::function<void(int rank)>& part) {
      std::vector<Thread> threads;
      for (int rank = 0; rank < size; ++rank) threads.emplace_back("rank", [&part, rank] { part(rank); });
      for (Thread& thread : threads) thread.Join();
    };
    if (GetParam() == Kind::kThreads) {
      all([&](int rank) { body(rank, *group.Join(rank), nullptr); });
      return;
    }
    // A rank that fails at once would end the meeting of the others, too.
    all([&](int rank) {
      ranks[rank] = std::make_unique<NcclRank>(world, rank);
      const NcclOptions options{.rank = rank, .size = size, .timeout = timeout, .reason_wait = kShort};
      auto made = CreateNcclCommunicator(*ranks[rank]->nccl, ranks[rank]->cuda, &rendezvous, options);
      ASSERT_TRUE(made.ok()) << made.status();
      ranks[rank]->communicator = *std::move(made);
    });
    all([&](int rank) { body(rank, *ranks[rank]->communicator, ranks[rank]->stream); });
    for (const auto& rank : ranks) {
      if (rank == nullptr) continue;
      EXPECT_EQ(rank->cuda.Complaints(false), "");
    }
  }

  static std::vector<float> Values(int rank, int64_t n) {
    const CounterRandom random(5, static_cast<uint64_t>(rank));
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(random.Normal(static_cast<uint64_t>(i)));
    return values;
  }
};

TEST_P(CommunicatorTest, CollectivesAgreeWithTheirDefinitionAndOnEveryRank) {
  for (const int size : {1, 2, 5}) {
    constexpr int64_t kCount = 37;
    std::vector<float> sum(static_cast<size_t>(kCount * size)), all;
    for (int r = 0; r < size; ++r) {
      const std::vector<float> values = Values(r, kCount * size);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
      all.insert(all.end(), values.begin(), values.begin() + kCount);
    }
    Run(size, [&](int rank, Communicator& ranks, Stream* stream) {
      EXPECT_EQ(ranks.rank(), rank);
      EXPECT_EQ(ranks.size(), size);
      const std::vector<float> mine = Values(rank, kCount * size);
      std::vector<float> gathered(mine.size()), reduced(mine), scattered(kCount), sent(mine);
      EXPECT_TRUE(ranks.AllGather(stream, DType::kF32, mine.data(), gathered.data(), kCount).ok());
      EXPECT_TRUE(ranks.AllReduce(stream, DType::kF32, reduced.data(), reduced.data(), kCount * size)
                      .ok());  // in place
      EXPECT_TRUE(ranks.ReduceScatter(stream, DType::kF32, mine.data(), scattered.data(), kCount).ok());
      EXPECT_TRUE(ranks.Broadcast(stream, DType::kF32, sent.data(), kCount, size - 1).ok());
      const absl::Status done = ranks.Await();
      EXPECT_TRUE(done.ok()) << done;
      EXPECT_EQ(gathered, all);
      EXPECT_EQ(reduced, sum);
      EXPECT_TRUE(std::equal(scattered.begin(), scattered.end(), sum.begin() + rank * kCount));
      const std::vector<float> root = Values(size - 1, kCount);
      EXPECT_TRUE(std::equal(root.begin(), root.end(), sent.begin()));
    });
  }
}

TEST_P(CommunicatorTest, ReduceScatterMayPutItsResultInItsOwnAddends) {
  constexpr int kSize = 3;
  constexpr int64_t kCount = 8;
  Run(kSize, [&](int rank, Communicator& ranks, Stream* stream) {
    std::vector<double> values(kSize * kCount);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) + 100 * rank;
    double* const mine = values.data() + rank * kCount;
    EXPECT_TRUE(ranks.ReduceScatter(stream, DType::kF64, values.data(), mine, kCount).ok());
    EXPECT_TRUE(ranks.Await().ok());
    for (int64_t i = 0; i < kCount; ++i)
      EXPECT_EQ(mine[i], kSize * static_cast<double>(rank * kCount + i) + 300);
  });
}

TEST_P(CommunicatorTest, LowPrecisionSumsAreRoundedOnce) {
  constexpr int kSize = 4;
  Run(kSize, [&](int, Communicator& ranks, Stream* stream) {
    // 256 + 1 + 1 + 1 in bf16 one by one stays 256; the sum rounded once is 260.
    BFloat16 value = ToBFloat16(ranks.rank() == 0 ? 256.0f : 1.0f);
    EXPECT_TRUE(ranks.AllReduce(stream, DType::kBF16, &value, &value, 1).ok());
    EXPECT_TRUE(ranks.Await().ok());
    EXPECT_EQ(ToFloat(value), 260.0f);
  });
}

TEST_P(CommunicatorTest, MessagesGoAroundARing) {
  constexpr int kSize = 3;
  Run(kSize, [&](int rank, Communicator& ranks, Stream* stream) {
    float token = static_cast<float>(rank), from_before = -1;
    const int next = (rank + 1) % kSize, before = (rank + kSize - 1) % kSize;
    for (int round = 0; round < 4; ++round) {
      // Without a buffer between them someone has to receive first.
      if (rank == 0) {
        EXPECT_TRUE(ranks.Send(stream, DType::kF32, &token, 1, next).ok());
        EXPECT_TRUE(ranks.Receive(stream, DType::kF32, &from_before, 1, before).ok());
      } else {
        EXPECT_TRUE(ranks.Receive(stream, DType::kF32, &from_before, 1, before).ok());
        EXPECT_TRUE(ranks.Send(stream, DType::kF32, &token, 1, next).ok());
      }
      EXPECT_TRUE(ranks.Await().ok());
      EXPECT_EQ(from_before, static_cast<float>(before));
    }
  });
}

TEST_P(CommunicatorTest, RanksThatDisagreeAllFail) {
  Run(3, [&](int rank, Communicator& ranks, Stream* stream) {
    std::vector<float> values(16), out(16);
    absl::Status status = ranks.AllReduce(stream, DType::kF32, values.data(), out.data(), rank == 1 ? 8 : 16);
    status.Update(ranks.Await());
    EXPECT_FALSE(status.ok()) << rank;
    EXPECT_FALSE(ranks.AllReduce(stream, DType::kF32, values.data(), out.data(), 16).ok());  // it stays
  });
}

TEST_P(CommunicatorTest, ARankThatAbortsEndsTheOthersOperation) {
  Run(3, [&](int rank, Communicator& ranks, Stream* stream) {
    float value = 1;
    if (rank == 2) {
      ranks.Abort("the disk is full");
      EXPECT_THAT(ranks.Await().message(), HasSubstr("the disk is full"));
      return;
    }
    absl::Status status = ranks.AllReduce(stream, DType::kF32, &value, &value, 1);
    status.Update(ranks.Await());
    EXPECT_EQ(status.code(), Code::kUnavailable) << rank << status;
  });
}

TEST_P(CommunicatorTest, ARankThatDoesNotComeIsATimeoutOfTheOthers) {
  Run(
      3,
      [&](int rank, Communicator& ranks, Stream* stream) {
        float value = 1;
        if (rank == 0) return;
        absl::Status status = ranks.AllReduce(stream, DType::kF32, &value, &value, 1);
        status.Update(ranks.Await());
        // Who notices first aborts, and the other may hear of that.
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
      },
      kShort);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CommunicatorTest, ::testing::Values(Kind::kThreads, Kind::kNccl),
                         [](const auto& kind) { return kind.param == Kind::kThreads ? "Threads" : "Nccl"; });

TEST(ThreadCommunicatorTest, SaysWhoDisagreesAndAboutWhat) {
  ThreadGroup group(2, kLong);
  const auto one = group.Join(0), two = group.Join(1);
  float value = 0;
  absl::Status first;
  Thread thread("rank", [&] { first = one->Broadcast(nullptr, DType::kF32, &value, 1, 0); });
  const absl::Status second = two->Broadcast(nullptr, DType::kF32, &value, 1, 1);
  thread.Join();
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.code(), Code::kInvalidArgument);
  EXPECT_THAT(first.message(), HasSubstr("broadcast of 1 f32 from rank "));
  EXPECT_EQ(one->Await(), first);
}

TEST(ThreadCommunicatorTest, RanksOutsideOfTheGroupAreRefused) {
  ThreadGroup group(2, kLong);
  float value = 0;
  EXPECT_THAT(group.Join(0)->Send(nullptr, DType::kF32, &value, 1, 2).message(),
              HasSubstr("send to rank 2 in a group of 2"));
}

TEST(LoadNcclTest, AMissingLibraryIsNamedWithTheRemedy) {
  const absl::Status missing = LoadNccl("libnot_nccl.so.2").status();
  EXPECT_EQ(missing.code(), Code::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("libnot_nccl.so.2"));
  EXPECT_THAT(missing.message(), HasSubstr("install NCCL"));
  EXPECT_THAT(LoadNccl("libm.so.6").status().message(), HasSubstr("has no ncclGetVersion"));
}

// The real library, where it is. Last: once it is loaded, it is what every load gives.
TEST(RealNcclTest, HasEverySymbol) {
  const auto library = LoadNccl();
  if (!library.ok()) GTEST_SKIP() << library.status();
  int version = 0;
  EXPECT_EQ((*library)->GetVersion(&version), nccl::kSuccess);
  std::printf("NCCL %d\n", version);
  EXPECT_GE(version, 21400);
}

}  // namespace
}  // namespace strata
