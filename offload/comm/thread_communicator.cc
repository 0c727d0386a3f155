#include "offload/comm/thread_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"
#include "common/mutex.h"
#include "common/status.h"

namespace strata {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// What the ranks must agree on.
struct Operation {
  std::string name;
  DType type = DType::kF32;
  int64_t count = 0;
  int root = -1;

  bool operator==(const Operation&) const = default;
};

std::string ToText(const Operation& operation) {
  return absl::StrCat(operation.name, " of ", operation.count, " ", Name(operation.type),
                      operation.root < 0 ? "" : absl::StrCat(" from rank ", operation.root));
}

double Load(DType type, const void* data, int64_t i) {
  switch (type) {
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(data)[i]);
    case DType::kF16:
      return ToFloat(static_cast<const Float16*>(data)[i]);
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    default:
      return static_cast<const double*>(data)[i];
  }
}

template <typename Acc>
Acc SumAt(DType type, const std::vector<const void*>& parts, int64_t i) {
  Acc sum = static_cast<Acc>(Load(type, parts[0], i));
  for (size_t r = 1; r < parts.size(); ++r) sum += static_cast<Acc>(Load(type, parts[r], i));
  return sum;
}

// out[0 .. count) = the sum over the parts, from element `first` on.
void Sum(DType type, const std::vector<const void*>& parts, int64_t first, int64_t count, void* out) {
  for (int64_t i = 0; i < count; ++i) {
    switch (type) {
      case DType::kBF16:
        static_cast<BFloat16*>(out)[i] = ToBFloat16(SumAt<float>(type, parts, first + i));
        break;
      case DType::kF16:
        static_cast<Float16*>(out)[i] = ToFloat16(SumAt<float>(type, parts, first + i));
        break;
      case DType::kF32:
        static_cast<float*>(out)[i] = SumAt<float>(type, parts, first + i);
        break;
      default:
        static_cast<double*>(out)[i] = SumAt<double>(type, parts, first + i);
    }
  }
}

SteadyTime After(absl::Duration timeout) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

// False when the time ran out.
bool WaitUntil(CondVar& changed, Mutex& mu, SteadyTime end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  const auto left = end - std::chrono::steady_clock::now();
  return left.count() > 0 && (changed.WaitFor(mu, left), true);
}

}  // namespace

struct ThreadGroup::State {
  State(int size, absl::Duration timeout) : size(size), timeout(timeout), sends(size), receives(size) {}

  const int size;
  const absl::Duration timeout;

  Mutex mu;
  CondVar changed;
  absl::Status failure ABSL_GUARDED_BY(mu);
  // Of the operation under way: who has come with what. `round` counts the meetings that are complete, `left`
  // those who have not taken their result yet.
  int64_t round ABSL_GUARDED_BY(mu) = 0;
  int arrived ABSL_GUARDED_BY(mu) = 0;
  int left ABSL_GUARDED_BY(mu) = 0;
  Operation operation ABSL_GUARDED_BY(mu);
  std::vector<const void*> sends ABSL_GUARDED_BY(mu);
  std::vector<void*> receives ABSL_GUARDED_BY(mu);
  // Messages from (sender, receiver) that no one has taken yet.
  struct Message {
    Operation operation;
    const void* data = nullptr;
    bool taken = false;
  };
  std::map<std::pair<int, int>, Message*> messages ABSL_GUARDED_BY(mu);

  absl::Status Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (failure.ok()) failure = std::move(status);
    changed.SignalAll();
    return failure;
  }
};

class ThreadGroup::Rank : public Communicator {
 public:
  Rank(State& state, int rank) : state_(state), rank_(rank) {}
  // A rank that leaves is missed by the others at their next operation, by its timeout.
  ~Rank() override = default;

  int rank() const override { return rank_; }
  int size() const override { return state_.size; }

  absl::Status AllGather(Stream*, DType type, const void* send, void* receive, int64_t count) override {
    return Meet({"all-gather", type, count}, send, receive, [&](auto& sends, auto& receives) {
      const int64_t bytes = count * SizeOf(type);
      for (void* out : receives) {
        for (size_t r = 0; r < sends.size(); ++r)
          std::memmove(static_cast<std::byte*>(out) + static_cast<int64_t>(r) * bytes, sends[r], bytes);
      }
    });
  }

  absl::Status ReduceScatter(Stream*, DType type, const void* send, void* receive, int64_t count) override {
    return Meet({"reduce-scatter", type, count}, send, receive, [&](auto& sends, auto& receives) {
      // Results may lie in their rank's own addends: all are taken before any is put down.
      const int64_t bytes = count * SizeOf(type);
      std::vector<std::byte> sums(sends.size() * static_cast<size_t>(bytes));
      for (size_t r = 0; r < sends.size(); ++r)
        Sum(type, sends, static_cast<int64_t>(r) * count, count,
            sums.data() + r * static_cast<size_t>(bytes));
      for (size_t r = 0; r < sends.size(); ++r)
        std::memcpy(receives[r], sums.data() + r * static_cast<size_t>(bytes), static_cast<size_t>(bytes));
    });
  }

  absl::Status AllReduce(Stream*, DType type, const void* send, void* receive, int64_t count) override {
    return Meet({"all-reduce", type, count}, send, receive, [&](auto& sends, auto& receives) {
      std::vector<std::byte> sum(static_cast<size_t>(count * SizeOf(type)));
      Sum(type, sends, 0, count, sum.data());
      for (void* out : receives) std::memcpy(out, sum.data(), sum.size());
    });
  }

  absl::Status Broadcast(Stream*, DType type, void* data, int64_t count, int root) override {
    if (root < 0 || root >= size()) return Wrong(absl::StrCat("broadcast from rank ", root));
    return Meet({"broadcast", type, count, root}, data, data, [&](auto& sends, auto& receives) {
      for (void* out : receives) {
        if (out != sends[root]) std::memcpy(out, sends[root], static_cast<size_t>(count * SizeOf(type)));
      }
    });
  }

  absl::Status Send(Stream*, DType type, const void* data, int64_t count, int peer) override {
    if (peer < 0 || peer >= size() || peer == rank_) return Wrong(absl::StrCat("send to rank ", peer));
    State::Message message{{"message", type, count}, data};
    MutexLock lock(state_.mu);
    const SteadyTime end = After(state_.timeout);
    State::Message*& place = state_.messages[{rank_, peer}];
    place = &message;
    state_.changed.SignalAll();
    // The message is on this stack: it goes with this function.
    while (state_.failure.ok() && !message.taken) {
      if (!WaitUntil(state_.changed, state_.mu, end) && !message.taken)
        (void)state_.Fail(Late(message.operation, absl::StrCat("rank ", peer)));
    }
    place = nullptr;
    return message.taken ? absl::OkStatus() : state_.failure;
  }

  absl::Status Receive(Stream*, DType type, void* data, int64_t count, int peer) override {
    if (peer < 0 || peer >= size() || peer == rank_) return Wrong(absl::StrCat("receive from rank ", peer));
    const Operation operation{"message", type, count};
    MutexLock lock(state_.mu);
    const SteadyTime end = After(state_.timeout);
    State::Message*& place = state_.messages[{peer, rank_}];
    while (state_.failure.ok() && (place == nullptr || place->taken)) {
      if (!WaitUntil(state_.changed, state_.mu, end) && place == nullptr)
        (void)state_.Fail(Late(operation, absl::StrCat("rank ", peer)));
    }
    if (!state_.failure.ok()) return state_.failure;
    if (!(place->operation == operation)) return state_.Fail(Disagree(operation, place->operation));
    std::memcpy(data, place->data, static_cast<size_t>(count * SizeOf(type)));
    place->taken = true;
    state_.changed.SignalAll();
    return absl::OkStatus();
  }

  absl::Status Await() override {
    MutexLock lock(state_.mu);
    return state_.failure;
  }

  void Abort(const std::string& why) override {
    MutexLock lock(state_.mu);
    (void)state_.Fail(absl::UnavailableError(absl::StrCat("rank ", rank_, " aborted: ", why)));
  }

 private:
  absl::Status Wrong(const std::string& what) {
    MutexLock lock(state_.mu);
    return state_.Fail(
        absl::InvalidArgumentError(absl::StrCat("rank ", rank_, ": ", what, " in a group of ", state_.size)));
  }
  absl::Status Late(const Operation& operation, const std::string& whom) {
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank_, ", ", ToText(operation), ": ", whom,
                                                    " did not come within ",
                                                    absl::FormatDuration(state_.timeout)));
  }
  absl::Status Disagree(const Operation& mine, const Operation& theirs) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " calls ", ToText(mine), ", others call ", ToText(theirs)));
  }

  // The last rank to come does the work for all.
  absl::Status Meet(
      const Operation& operation, const void* send, void* receive,
      const std::function<void(const std::vector<const void*>&, const std::vector<void*>&)>& work) {
    if (operation.count < 0) return Wrong(ToText(operation));
    MutexLock lock(state_.mu);
    const SteadyTime end = After(state_.timeout);
    while (state_.failure.ok() && state_.left > 0) {  // the meeting before is not over
      if (!WaitUntil(state_.changed, state_.mu, end)) (void)state_.Fail(Late(operation, "another rank"));
    }
    if (!state_.failure.ok()) return state_.failure;
    if (state_.arrived == 0) state_.operation = operation;
    if (!(state_.operation == operation)) return state_.Fail(Disagree(operation, state_.operation));
    state_.sends[rank_] = send;
    state_.receives[rank_] = receive;
    const int64_t round = state_.round;
    if (++state_.arrived == state_.size) {
      work(state_.sends, state_.receives);
      ++state_.round;
      state_.arrived = 0;
      state_.left = state_.size;
      state_.changed.SignalAll();
    }
    while (state_.failure.ok() && state_.round == round) {
      if (!WaitUntil(state_.changed, state_.mu, end) && state_.round == round)
        (void)state_.Fail(Late(operation, absl::StrCat("some of ", state_.size - state_.arrived, " ranks")));
    }
    if (state_.round == round) return state_.failure;
    if (--state_.left == 0) state_.changed.SignalAll();
    return absl::OkStatus();
  }

  State& state_;
  const int rank_;
};

ThreadGroup::ThreadGroup(int size, absl::Duration timeout) : state_(std::make_unique<State>(size, timeout)) {
  STRATA_CHECK(size >= 1);
}

ThreadGroup::~ThreadGroup() = default;

std::unique_ptr<Communicator> ThreadGroup::Join(int rank) {
  STRATA_CHECK(rank >= 0 && rank < state_->size);
  return std::make_unique<Rank>(*state_, rank);
}

}  // namespace strata
