#include "offload/comm/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"

namespace strata {
namespace {

constexpr std::chrono::microseconds kPollInterval(100);  // of a caller that waits
constexpr std::chrono::milliseconds kWatchInterval(5);

int TypeOf(DType type) {
  switch (type) {
    case DType::kBF16:
      return nccl::kBfloat16;
    case DType::kF16:
      return nccl::kFloat16;
    case DType::kF32:
      return nccl::kFloat32;
    default:
      return nccl::kFloat64;
  }
}

// What a rank has enqueued and not seen done.
struct Operation {
  const char* name = "";
  int64_t number = 0;  // of this rank, from 1
  DType type = DType::kF32;
  int64_t count = 0;
  int other = -1;  // root or peer
  CudaEvent* before = nullptr;
  CudaEvent* behind = nullptr;
  bool enqueued = false;  // `behind` has its place in the stream
  bool begun = false;     // the stream has come to it
  int64_t begun_nanos = 0;
};

std::string ToText(const Operation& operation) {
  return absl::StrCat(operation.name, " of ", operation.count, " ", Name(operation.type),
                      operation.other < 0 ? "" : absl::StrCat(" with rank ", operation.other), " (operation ",
                      operation.number, ")");
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(NcclApi& nccl, CudaApi& cuda, const NcclOptions& options,
                   std::unique_ptr<Membership> membership)
      : nccl_(nccl), cuda_(cuda), options_(options), membership_(std::move(membership)) {}
  ~NcclCommunicator() override;

  absl::Status Open(const nccl::UniqueId& id) ABSL_LOCKS_EXCLUDED(mu_);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  absl::Status AllGather(Stream* stream, DType type, const void* send, void* receive,
                         int64_t count) override {
    return Enqueue(stream, "all-gather", type, count, -1, [&](NcclComm* comm) {
      return nccl_.AllGather(send, receive, static_cast<size_t>(count), TypeOf(type), comm, stream);
    });
  }
  absl::Status ReduceScatter(Stream* stream, DType type, const void* send, void* receive,
                             int64_t count) override {
    return Enqueue(stream, "reduce-scatter", type, count, -1, [&](NcclComm* comm) {
      return nccl_.ReduceScatter(send, receive, static_cast<size_t>(count), TypeOf(type), nccl::kSum, comm,
                                 stream);
    });
  }
  absl::Status AllReduce(Stream* stream, DType type, const void* send, void* receive,
                         int64_t count) override {
    return Enqueue(stream, "all-reduce", type, count, -1, [&](NcclComm* comm) {
      return nccl_.AllReduce(send, receive, static_cast<size_t>(count), TypeOf(type), nccl::kSum, comm,
                             stream);
    });
  }
  absl::Status Broadcast(Stream* stream, DType type, void* data, int64_t count, int root) override {
    return Enqueue(stream, "broadcast", type, count, root, [&](NcclComm* comm) {
      return nccl_.Broadcast(data, data, static_cast<size_t>(count), TypeOf(type), root, comm, stream);
    });
  }
  absl::Status Send(Stream* stream, DType type, const void* data, int64_t count, int peer) override {
    return Enqueue(stream, "send", type, count, peer, [&](NcclComm* comm) {
      return nccl_.Send(data, static_cast<size_t>(count), TypeOf(type), peer, comm, stream);
    });
  }
  absl::Status Receive(Stream* stream, DType type, void* data, int64_t count, int peer) override {
    return Enqueue(stream, "receive", type, count, peer, [&](NcclComm* comm) {
      return nccl_.Recv(data, static_cast<size_t>(count), TypeOf(type), peer, comm, stream);
    });
  }

  absl::Status Await() override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const std::string& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Whose failure it is: this rank's, which the others are to hear of; one that they have told; or what NCCL
  // noticed of a peer, which has a reason that may be on its way.
  enum class Origin : uint8_t { kHere, kTold, kPeer };

  absl::Status Enqueue(Stream* stream, const char* name, DType type, int64_t count, int other,
                       const std::function<int(NcclComm*)>& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits, without the lock now and then, until what was begun is done; `what` is for the error.
  absl::Status Settle(int result, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the device passed the event: kCudaSuccess, kCudaNotReady or what went wrong. Leaves no last error
  // behind for this thread's next kernel launch.
  int Query(CudaEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Looks once at everything that may have gone wrong, then forgets the operations that are done.
  absl::Status Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Operations at the front of `queue` that are done; sets `late` when the one behind them is overdue.
  absl::Status CountDone(std::deque<Operation>& queue, size_t* done, absl::Status* late)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPeers(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckNccl(int result, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckCuda(int error, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Late(const std::string& what) const;
  // Ends NCCL's part, and keeps the first error, which it returns.
  absl::Status Fail(absl::Status status, Origin origin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The failure, once it is known in full; OK while there is none.
  absl::Status Failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CudaEvent*> TakeEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Elapsed(int64_t since_nanos, absl::Duration duration) const {
    return absl::Nanoseconds(options_.clock->MonotonicNanos() - since_nanos) >= duration;
  }
  // The oldest operation that is under way, null when none is.
  const Operation* Oldest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  std::string Me(const std::string& what) const {
    return absl::StrCat("group ", options_.group, ", rank ", options_.rank, " of ", options_.size, ", ",
                        what);
  }

  NcclApi& nccl_;
  CudaApi& cuda_;
  const NcclOptions options_;
  const std::unique_ptr<Membership> membership_;  // null with one rank

  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  NcclComm* comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null after a failure
  bool failing_ ABSL_GUARDED_BY(mu_) = false;      // its reason is still awaited
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t operations_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Stream*, std::deque<Operation>> pending_ ABSL_GUARDED_BY(mu_);
  std::vector<CudaEvent*> free_events_ ABSL_GUARDED_BY(mu_);
  Thread watch_;
};

NcclCommunicator::~NcclCommunicator() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (watch_.joinable()) watch_.Join();
  MutexLock lock(mu_);
  if (failure_.ok()) (void)Poll();
  if (const Operation* const oldest = Oldest(); oldest != nullptr)
    (void)Fail(absl::UnavailableError(Me(absl::StrCat("left during ", ToText(*oldest)))), Origin::kHere);
  if (comm_ != nullptr) {
    // What this rank has seen done, all have done: nobody is left waiting.
    if (Settle(nccl_.CommFinalize(comm_), "leaving").ok()) (void)nccl_.CommDestroy(comm_);
  }
  for (const auto& [stream, queue] : pending_) {
    for (const Operation& operation : queue) {
      (void)cuda_.EventDestroy(operation.before);
      (void)cuda_.EventDestroy(operation.behind);
    }
  }
  for (CudaEvent* event : free_events_) (void)cuda_.EventDestroy(event);
}

absl::Status NcclCommunicator::Failure() {
  while (failing_) changed_.Wait(mu_);
  return failure_;
}

absl::Status NcclCommunicator::Fail(absl::Status status, Origin origin) {
  if (failing_ || !failure_.ok()) return Failure();
  failing_ = true;
  if (NcclComm* const comm = std::exchange(comm_, nullptr); comm != nullptr) {
    // It may take a while. Nobody else touches NCCL or the failure from here on.
    mu_.Unlock();
    (void)nccl_.CommAbort(comm);
    mu_.Lock();
  }
  const int64_t begin = options_.clock->MonotonicNanos();
  while (origin == Origin::kPeer && membership_ != nullptr) {
    if (const absl::Status told = membership_->Check(); !told.ok()) {
      status = absl::Status(told.code(), absl::StrCat(status.message(), "; ", told.message()));
      origin = Origin::kTold;
    } else if (Elapsed(begin, options_.reason_wait)) {
      origin = Origin::kHere;
    } else {
      changed_.WaitFor(mu_, kWatchInterval);
    }
  }
  if (origin != Origin::kTold && membership_ != nullptr) {
    mu_.Unlock();
    membership_->Fail(std::string(status.message()));
    mu_.Lock();
  }
  failure_ = std::move(status);
  failing_ = false;
  changed_.SignalAll();
  return failure_;
}

absl::Status NcclCommunicator::CheckPeers(const std::string& what) {
  if (membership_ == nullptr) return absl::OkStatus();
  const absl::Status told = membership_->Check();
  if (told.ok()) return absl::OkStatus();
  return Fail(absl::Status(told.code(), Me(absl::StrCat(what, ": ", told.message()))), Origin::kTold);
}

absl::Status NcclCommunicator::CheckNccl(int result, const std::string& what) {
  if (result == nccl::kSuccess) return absl::OkStatus();
  const char* const detail = comm_ == nullptr ? nullptr : nccl_.GetLastError(comm_);
  const std::string message =
      Me(absl::StrCat(what, ": ", nccl_.GetErrorString(result), " (NCCL error ", result, ")",
                      detail == nullptr || *detail == '\0' ? "" : absl::StrCat(", ", detail)));
  switch (result) {
    case nccl::kRemoteError:
    case nccl::kSystemError:
      return Fail(absl::UnavailableError(message), Origin::kPeer);
    case nccl::kInvalidArgument:
    case nccl::kInvalidUsage:
      return Fail(absl::InvalidArgumentError(message), Origin::kHere);
    default:
      return Fail(absl::InternalError(message), Origin::kHere);
  }
}

absl::Status NcclCommunicator::CheckCuda(int error, const std::string& what) {
  if (error == kCudaSuccess) return absl::OkStatus();
  return Fail(absl::InternalError(
                  Me(absl::StrCat(what, ": ", cuda_.GetErrorString(error), " (CUDA error ", error, ")"))),
              Origin::kHere);
}

absl::Status NcclCommunicator::Late(const std::string& what) const {
  return absl::DeadlineExceededError(
      Me(absl::StrCat(what, ": not all ranks came within ", absl::FormatDuration(options_.timeout))));
}

absl::Status NcclCommunicator::Settle(int result, const std::string& what) {
  const int64_t begin = options_.clock->MonotonicNanos();
  while (result == nccl::kInProgress) {
    STRATA_RETURN_IF_ERROR(CheckPeers(what));
    int state = nccl::kSuccess;
    if (const int asked = nccl_.CommGetAsyncError(comm_, &state); asked != nccl::kSuccess) state = asked;
    result = state;
    if (result != nccl::kInProgress) break;
    if (Elapsed(begin, options_.timeout)) return Fail(Late(what), Origin::kHere);
    changed_.WaitFor(mu_, kPollInterval);
    STRATA_RETURN_IF_ERROR(Failure());
  }
  return CheckNccl(result, what);
}

absl::Status NcclCommunicator::Open(const nccl::UniqueId& id) {
  MutexLock lock(mu_);
  nccl::Config config;
  const int result = nccl_.CommInitRankConfig(&comm_, options_.size, id, options_.rank, &config);
  STRATA_RETURN_IF_ERROR(Settle(result, "joining"));
  watch_ = Thread("nccl-watch", [this] { Watch(); });
  return absl::OkStatus();
}

absl::StatusOr<CudaEvent*> NcclCommunicator::TakeEvent() {
  CudaEvent* event = nullptr;
  if (free_events_.empty()) {
    STRATA_RETURN_IF_ERROR(CheckCuda(cuda_.EventCreate(&event), "making an event"));
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  return event;
}

absl::Status NcclCommunicator::Enqueue(Stream* stream, const char* name, DType type, int64_t count, int other,
                                       const std::function<int(NcclComm*)>& call) {
  MutexLock lock(mu_);
  STRATA_RETURN_IF_ERROR(Failure());
  Operation operation{name, ++operations_, type, count, other};
  const std::string what = ToText(operation);
  if (count < 0) return Fail(absl::InvalidArgumentError(Me(what)), Origin::kHere);
  STRATA_RETURN_IF_ERROR(Poll());
  std::deque<Operation>& queue = pending_[stream];
  STRATA_ASSIGN_OR_RETURN(operation.before, TakeEvent());
  if (const auto behind = TakeEvent(); behind.ok()) {
    operation.behind = *behind;
  } else {
    free_events_.push_back(operation.before);
    return behind.status();
  }
  // From here on it counts as under way, whatever becomes of it. Elements of a deque stay where they are.
  queue.push_back(operation);
  Operation& mine = queue.back();
  STRATA_RETURN_IF_ERROR(CheckCuda(cuda_.EventRecord(mine.before, stream), what));
  STRATA_RETURN_IF_ERROR(Settle(call(comm_), what));
  STRATA_RETURN_IF_ERROR(CheckCuda(cuda_.EventRecord(mine.behind, stream), what));
  mine.enqueued = true;
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Await() {
  MutexLock lock(mu_);
  while (true) {
    STRATA_RETURN_IF_ERROR(Failure());
    STRATA_RETURN_IF_ERROR(Poll());
    if (Oldest() == nullptr) return absl::OkStatus();
    changed_.WaitFor(mu_, kPollInterval);
  }
}

void NcclCommunicator::Abort(const std::string& why) {
  MutexLock lock(mu_);
  (void)Fail(absl::UnavailableError(Me(absl::StrCat("aborted: ", why))), Origin::kHere);
}

void NcclCommunicator::Watch() {
  MutexLock lock(mu_);
  while (!stop_ && !failing_ && failure_.ok()) {
    if (!Poll().ok()) return;
    changed_.WaitFor(mu_, kWatchInterval);
  }
}

const Operation* NcclCommunicator::Oldest() const {
  const Operation* oldest = nullptr;
  for (const auto& [stream, queue] : pending_) {
    if (!queue.empty() && (oldest == nullptr || queue.front().number < oldest->number))
      oldest = &queue.front();
  }
  return oldest;
}

int NcclCommunicator::Query(CudaEvent* event) {
  const int error = cuda_.EventQuery(event);
  if (error != kCudaSuccess) (void)cuda_.GetLastError();
  return error;
}

absl::Status NcclCommunicator::CountDone(std::deque<Operation>& queue, size_t* done, absl::Status* late) {
  for (Operation& operation : queue) {
    if (!operation.enqueued) break;  // by the thread that is at it right now
    if (!operation.begun) {
      const int begun = Query(operation.before);
      if (begun == kCudaNotReady) break;
      STRATA_RETURN_IF_ERROR(CheckCuda(begun, ToText(operation)));
      operation.begun = true;
      operation.begun_nanos = options_.clock->MonotonicNanos();
    }
    const int polled = Query(operation.behind);
    if (polled == kCudaNotReady) {
      if (Elapsed(operation.begun_nanos, options_.timeout)) *late = Late(ToText(operation));
      break;
    }
    STRATA_RETURN_IF_ERROR(CheckCuda(polled, ToText(operation)));
    ++*done;
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Poll() {
  const Operation* const oldest = Oldest();
  const std::string what = oldest == nullptr ? "between operations" : ToText(*oldest);
  STRATA_RETURN_IF_ERROR(CheckPeers(what));
  absl::Status late;
  std::vector<std::pair<std::deque<Operation>*, size_t>> done;
  for (auto& [stream, queue] : pending_) {
    STRATA_RETURN_IF_ERROR(CountDone(queue, &done.emplace_back(&queue, 0).second, &late));
  }
  // Behind the events: an operation that NCCL gave up is over, too, and only then is its error sure to be
  // there.
  int state = nccl::kSuccess;
  if (const int asked = nccl_.CommGetAsyncError(comm_, &state); asked != nccl::kSuccess) state = asked;
  if (state != nccl::kInProgress) STRATA_RETURN_IF_ERROR(CheckNccl(state, what));
  for (const auto& [queue, count] : done) {
    for (size_t i = 0; i < count; ++i) {
      free_events_.push_back(queue->front().before);
      free_events_.push_back(queue->front().behind);
      queue->pop_front();
    }
  }
  return late.ok() ? late : Fail(std::move(late), Origin::kHere);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(NcclApi& nccl, CudaApi& cuda,
                                                                     Rendezvous* rendezvous,
                                                                     const NcclOptions& options) {
  const std::string me = absl::StrCat("group ", options.group, ": rank ", options.rank, " of ", options.size);
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    return absl::InvalidArgumentError(absl::StrCat(me, ": ranks are 0 to the size less 1"));
  if (options.size > 1 && rendezvous == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(me, ": several ranks need a rendezvous"));
  nccl::UniqueId id = {};
  if (options.rank == 0) {
    if (const int result = nccl.GetUniqueId(&id); result != nccl::kSuccess) {
      return absl::InternalError(absl::StrCat(me, ": ncclGetUniqueId: ", nccl.GetErrorString(result)));
    }
  }
  std::unique_ptr<Membership> membership;
  if (options.size > 1) {
    JoinRequest join{options.group, options.rank, options.size, "", options.timeout};
    if (options.rank == 0) join.id.assign(id.internal, sizeof(id.internal));
    STRATA_ASSIGN_OR_RETURN(membership, rendezvous->Join(join), me);
    if (membership->id().size() != sizeof(id.internal)) {
      const std::string why = absl::StrCat("rank 0 gave an id of ", membership->id().size(),
                                           " bytes, NCCL's has ", sizeof(id.internal));
      membership->Fail(why);
      return absl::InvalidArgumentError(absl::StrCat(me, ": ", why, ": it uses another library"));
    }
    std::memcpy(id.internal, membership->id().data(), sizeof(id.internal));
  }
  auto communicator = std::make_unique<NcclCommunicator>(nccl, cuda, options, std::move(membership));
  STRATA_RETURN_IF_ERROR(communicator->Open(id));
  return communicator;
}

}  // namespace strata
