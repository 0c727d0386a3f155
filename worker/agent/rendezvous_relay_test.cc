// The relay between a trainer and a coordinator, both played by the test.
#include "worker/agent/rendezvous_relay.h"

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/duration/duration.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

// Answers each call by the next script entry; without one, or by kHeld, it holds the call until it is
// cancelled.
class ScriptedCoordinator : public Coordinator {
 public:
  using Answer = std::function<absl::Status(const v1::RendezvousRequest&, v1::RendezvousResponse*)>;
  static constexpr std::nullptr_t kHeld = nullptr;

  void Script(Answer answer) {
    MutexLock lock(mu_);
    script_.push_back(std::move(answer));
    changed_.SignalAll();
  }
  std::vector<v1::RendezvousRequest> requests() {
    MutexLock lock(mu_);
    return requests_;
  }
  size_t left() {
    MutexLock lock(mu_);
    return script_.size();
  }

  absl::Status Rendezvous(const v1::RendezvousRequest& request, absl::Duration timeout,
                          Cancellation* cancellation, v1::RendezvousResponse* response) override {
    const int64_t end = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
    Answer answer;
    {
      MutexLock lock(mu_);
      requests_.push_back(request);
      const bool held = !script_.empty() && script_.front() == kHeld;
      if (held) script_.pop_front();
      while (held || script_.empty()) {
        if (cancellation->cancelled()) return absl::CancelledError("");
        if (Clock::Real().MonotonicNanos() > end) return absl::DeadlineExceededError("");
        changed_.WaitFor(mu_, std::chrono::milliseconds(1));
      }
      answer = std::move(script_.front());
      script_.pop_front();
    }
    return answer(request, response);
  }
  absl::Status Register(const v1::RegisterRequest&, absl::Duration, Cancellation*,
                        v1::RegisterResponse*) override {
    return absl::UnimplementedError("");
  }
  absl::Status Sync(const v1::SyncRequest&, absl::Duration, Cancellation*, v1::SyncResponse*) override {
    return absl::UnimplementedError("");
  }
  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest&, absl::Duration, Cancellation*,
                                v1::Checkpoint*) override {
    return absl::UnimplementedError("");
  }
  std::unique_ptr<TelemetryStream> OpenTelemetry() override { return nullptr; }
  bool IsConnected() override { return true; }
  bool WaitConnected(absl::Duration) override { return true; }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<Answer> script_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::RendezvousRequest> requests_ ABSL_GUARDED_BY(mu_);
};

class RelayTest : public ::testing::Test {
 protected:
  static v1::GroupMember Member(int rank, const std::string& group = "world") {
    v1::GroupMember member;
    member.set_group(group);
    member.set_generation(1);
    member.set_rank(rank);
    member.set_size(3);
    if (rank == 0) member.set_id("the id");
    member.set_token("t");
    *member.mutable_time_left() = ToProto(absl::Seconds(60));
    return member;
  }
  static v1::RendezvousRequest Only(const std::vector<v1::GroupMember>& members) {
    v1::RendezvousRequest request;
    for (const v1::GroupMember& member : members) *request.add_members() = member;
    return request;
  }
  // All groups of the request get this state.
  static ScriptedCoordinator::Answer Say(v1::GroupState::State state, const std::string& message = "") {
    return [state, message](const v1::RendezvousRequest& request, v1::RendezvousResponse* response) {
      for (const v1::GroupMember& member : request.members()) {
        v1::GroupState& group = *response->add_groups();
        group.set_group(member.group());
        group.set_generation(member.generation());
        group.set_state(state);
        group.set_message(message);
        if (state == v1::GroupState::COMPLETE) group.set_id("the id");
      }
      return absl::OkStatus();
    };
  }
  // No thread sees the status of another: Debian's Abseil counts its users where ThreadSanitizer does not
  // look.
  static ScriptedCoordinator::Answer Fail(absl::StatusCode code, const std::string& message) {
    return [code, message](const v1::RendezvousRequest&, v1::RendezvousResponse*) {
      return absl::Status(code, message);
    };
  }
  std::vector<v1::RendezvousResponse> news() {
    MutexLock lock(mu_);
    return news_;
  }

  ScriptedCoordinator coordinator_;
  Mutex mu_;
  std::vector<v1::RendezvousResponse> news_ ABSL_GUARDED_BY(mu_);
  RendezvousRelay relay_{coordinator_, "job", 7, [this](const v1::RendezvousResponse& news) {
                           MutexLock lock(mu_);
                           news_.push_back(news);
                         }};
};

TEST_F(RelayTest, AsksForItsOwnAttemptAndBringsEachAnswerOnce) {
  v1::RendezvousRequest set = Only({Member(1)});
  set.set_job_uid("of somebody else");
  set.set_attempt(8);
  coordinator_.Script(Say(v1::GroupState::FORMING));
  coordinator_.Script(Say(v1::GroupState::FORMING));
  coordinator_.Script(Say(v1::GroupState::COMPLETE));
  coordinator_.Script(Say(v1::GroupState::COMPLETE));
  ASSERT_TRUE(relay_.Set(set).ok());
  ASSERT_TRUE(Eventually([&] { return coordinator_.requests().size() == 5; }));
  ASSERT_EQ(news().size(), 2u);
  EXPECT_EQ(news()[1].groups(0).id(), "the id");
  const auto requests = coordinator_.requests();
  EXPECT_EQ(requests[0].job_uid(), "job");
  EXPECT_EQ(requests[0].attempt(), 7);
  EXPECT_EQ(requests[0].members(0).id(), "");
  EXPECT_EQ(requests[3].members(0).known(), v1::GroupState::COMPLETE);
  EXPECT_EQ(requests[3].members(0).id(), "the id")
      << "a coordinator that restarted learns it from whoever comes";
  EXPECT_LT(FromProto(requests[4].members(0).time_left()), absl::Seconds(60));
}

TEST_F(RelayTest, TriesAgainWhileTheCoordinatorIsAwayAndSaysNothing) {
  for (int i = 0; i < 3; ++i) coordinator_.Script(Fail(absl::StatusCode::kUnavailable, "away"));
  coordinator_.Script(Say(v1::GroupState::COMPLETE));
  ASSERT_TRUE(relay_.Set(Only({Member(0)})).ok());
  ASSERT_TRUE(Eventually([&] { return news().size() == 1; }));
  EXPECT_EQ(news()[0].groups(0).state(), v1::GroupState::COMPLETE);
}

TEST_F(RelayTest, ARefusalForGoodIsTheAnswerAndIsNotAskedForAgain) {
  coordinator_.Script(Fail(absl::StatusCode::kFailedPrecondition, "attempt 7 is not the current one"));
  ASSERT_TRUE(relay_.Set(Only({Member(0), Member(1, "tp")})).ok());
  ASSERT_TRUE(Eventually([&] { return news().size() == 1; }));
  ASSERT_EQ(news()[0].groups_size(), 2);
  EXPECT_EQ(news()[0].groups(1).state(), v1::GroupState::FAILED);
  EXPECT_EQ(news()[0].groups(1).cause(), v1::GroupState::REFUSED);
  EXPECT_THAT(news()[0].groups(1).message(), HasSubstr("attempt 7 is not the current one"));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(coordinator_.requests().size(), 1u);
}

TEST_F(RelayTest, AChangeDoesNotWaitForTheCallThatIsHeld) {
  ASSERT_TRUE(relay_.Set(Only({Member(0)})).ok());
  ASSERT_TRUE(Eventually([&] { return coordinator_.requests().size() == 1; }));
  ASSERT_TRUE(relay_.Set(Only({Member(0), Member(1, "tp")})).ok());
  ASSERT_TRUE(Eventually([&] { return coordinator_.requests().size() == 2; }));
  EXPECT_EQ(coordinator_.requests()[1].members_size(), 2);
}

TEST_F(RelayTest, AFailureIsToldThoughTheTrainerHasLeftTheGroupMeanwhile) {
  coordinator_.Script(Say(v1::GroupState::COMPLETE));
  ASSERT_TRUE(relay_.Set(Only({Member(1)})).ok());
  ASSERT_TRUE(Eventually([&] { return coordinator_.requests().size() == 2; }));
  v1::GroupMember failed = Member(1);
  failed.set_failure("the disk is full");
  coordinator_.Script(Fail(absl::StatusCode::kUnavailable, "away"));
  ASSERT_TRUE(relay_.Set(Only({failed})).ok());
  ASSERT_TRUE(relay_.Set(Only({})).ok());
  coordinator_.Script(Say(v1::GroupState::FAILED));
  ASSERT_TRUE(Eventually([&] { return coordinator_.left() == 0; }));
  EXPECT_EQ(coordinator_.requests().back().members(0).failure(), "the disk is full");
  // Then it is over: nothing is left to be said.
  const size_t asked = coordinator_.requests().size();
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(coordinator_.requests().size(), asked);
  relay_.End("the trainer has ended");
  EXPECT_EQ(coordinator_.requests().size(), asked);
}

TEST_F(RelayTest, SpeaksForATrainerThatIsGone) {
  coordinator_.Script(Say(v1::GroupState::COMPLETE));
  coordinator_.Script(ScriptedCoordinator::kHeld);
  coordinator_.Script(Fail(absl::StatusCode::kUnavailable, "once"));
  coordinator_.Script(Say(v1::GroupState::FAILED));
  ASSERT_TRUE(relay_.Set(Only({Member(2)})).ok());
  ASSERT_TRUE(Eventually([&] { return coordinator_.requests().size() == 2; }));
  relay_.End("killed by signal 9 \xff");
  const v1::RendezvousRequest last = coordinator_.requests().back();
  EXPECT_THAT(last.members(0).failure(), HasSubstr("killed by signal 9 "));
  EXPECT_EQ(last.members(0).id(), "the id");
  EXPECT_FALSE(last.has_max_wait());
  EXPECT_EQ(coordinator_.left(), 0u);
}

TEST_F(RelayTest, TheLastWordIsNotWaitedForForEver) {
  ASSERT_TRUE(relay_.Set(Only({Member(0)})).ok());
  const int64_t begin = Clock::Real().MonotonicNanos();
  relay_.End("the coordinator holds every call");
  const absl::Duration took = absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
  EXPECT_GE(took, RendezvousRelay::kLastWordTimeout);
  EXPECT_LT(took, 10 * RendezvousRelay::kLastWordTimeout);
}

TEST_F(RelayTest, ATrainerThatNeverMetAnybodyCostsNothing) {
  relay_.End("it has finished");
  EXPECT_TRUE(coordinator_.requests().empty());
}

TEST_F(RelayTest, TooManyGroupsAreRefusedAndChangeNothing) {
  std::vector<v1::GroupMember> members;
  for (int i = 0; i < 65; ++i) members.push_back(Member(0, absl::StrCat("g", i)));
  const absl::Status refused = relay_.Set(Only(members));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("a member of 65 groups at a time, at most 64"));
  EXPECT_TRUE(coordinator_.requests().empty());
}

}  // namespace
}  // namespace strata
