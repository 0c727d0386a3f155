#include "offload/comm/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr std::chrono::microseconds kPollInterval(100);

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

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(NcclApi& nccl, CudaApi& cuda, const NcclOptions& options)
      : nccl_(nccl), cuda_(cuda), options_(options) {}
  ~NcclCommunicator() override;

  absl::Status Open(const nccl::UniqueId& id) ABSL_LOCKS_EXCLUDED(mu_);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  absl::Status AllGather(Stream* stream, DType type, const void* send, void* receive,
                         int64_t count) override {
    return Enqueue(stream, "all-gather", count, [&](NcclComm* comm) {
      return nccl_.AllGather(send, receive, static_cast<size_t>(count), TypeOf(type), comm, stream);
    });
  }
  absl::Status ReduceScatter(Stream* stream, DType type, const void* send, void* receive,
                             int64_t count) override {
    return Enqueue(stream, "reduce-scatter", count, [&](NcclComm* comm) {
      return nccl_.ReduceScatter(send, receive, static_cast<size_t>(count), TypeOf(type), nccl::kSum, comm,
                                 stream);
    });
  }
  absl::Status AllReduce(Stream* stream, DType type, const void* send, void* receive,
                         int64_t count) override {
    return Enqueue(stream, "all-reduce", count, [&](NcclComm* comm) {
      return nccl_.AllReduce(send, receive, static_cast<size_t>(count), TypeOf(type), nccl::kSum, comm,
                             stream);
    });
  }
  absl::Status Broadcast(Stream* stream, DType type, void* data, int64_t count, int root) override {
    return Enqueue(stream, "broadcast", count, [&](NcclComm* comm) {
      return nccl_.Broadcast(data, data, static_cast<size_t>(count), TypeOf(type), root, comm, stream);
    });
  }
  absl::Status Send(Stream* stream, DType type, const void* data, int64_t count, int peer) override {
    return Enqueue(stream, "send", count, [&](NcclComm* comm) {
      return nccl_.Send(data, static_cast<size_t>(count), TypeOf(type), peer, comm, stream);
    });
  }
  absl::Status Receive(Stream* stream, DType type, void* data, int64_t count, int peer) override {
    return Enqueue(stream, "receive", count, [&](NcclComm* comm) {
      return nccl_.Recv(data, static_cast<size_t>(count), TypeOf(type), peer, comm, stream);
    });
  }

  absl::Status Await() override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const std::string& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Enqueue(Stream* stream, const char* what, int64_t count,
                       const std::function<int(NcclComm*)>& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits, without the lock now and then, until what was begun is done; `what` is for the error.
  absl::Status Settle(int result, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckNccl(int result, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckCuda(int error, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckTime(int64_t begin_nanos, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps the first error, and ends NCCL's part.
  absl::Status Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Me(const std::string& what) const {
    return absl::StrCat("group ", options_.name, ", rank ", options_.rank, " of ", options_.size, ", ", what);
  }

  NcclApi& nccl_;
  CudaApi& cuda_;
  const NcclOptions options_;

  Mutex mu_;
  CondVar changed_;
  NcclComm* comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null after a failure
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  // Behind the last operation on each stream; true: not awaited yet.
  std::map<Stream*, std::pair<CudaEvent*, bool>> events_ ABSL_GUARDED_BY(mu_);
};

NcclCommunicator::~NcclCommunicator() {
  MutexLock lock(mu_);
  for (const auto& [stream, event] : events_) {
    if (event.second && failure_.ok())
      (void)Fail(absl::UnavailableError(Me("left while operations were under way")));
  }
  if (comm_ != nullptr) {
    // What this rank has seen done, all have done: nobody is left waiting.
    if (Settle(nccl_.CommFinalize(comm_), "leaving").ok()) (void)nccl_.CommDestroy(comm_);
  }
  for (const auto& [stream, event] : events_) (void)cuda_.EventDestroy(event.first);
}

absl::Status NcclCommunicator::Fail(absl::Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  if (comm_ != nullptr) (void)nccl_.CommAbort(std::exchange(comm_, nullptr));
  changed_.SignalAll();
  return failure_;
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
      return Fail(absl::UnavailableError(message));
    case nccl::kInvalidArgument:
    case nccl::kInvalidUsage:
      return Fail(absl::InvalidArgumentError(message));
    default:
      return Fail(absl::InternalError(message));
  }
}

absl::Status NcclCommunicator::CheckCuda(int error, const std::string& what) {
  if (error == kCudaSuccess) return absl::OkStatus();
  return Fail(absl::InternalError(
      Me(absl::StrCat(what, ": ", cuda_.GetErrorString(error), " (CUDA error ", error, ")"))));
}

absl::Status NcclCommunicator::CheckTime(int64_t begin_nanos, const std::string& what) {
  if (absl::Nanoseconds(options_.clock->MonotonicNanos() - begin_nanos) < options_.timeout)
    return absl::OkStatus();
  return Fail(absl::DeadlineExceededError(
      Me(absl::StrCat(what, ": not all ranks came within ", absl::FormatDuration(options_.timeout)))));
}

absl::Status NcclCommunicator::Settle(int result, const std::string& what) {
  const int64_t begin = options_.clock->MonotonicNanos();
  while (result == nccl::kInProgress) {
    if (!failure_.ok()) return failure_;
    int state = nccl::kSuccess;
    if (const int asked = nccl_.CommGetAsyncError(comm_, &state); asked != nccl::kSuccess) state = asked;
    result = state;
    if (result != nccl::kInProgress) break;
    STRATA_RETURN_IF_ERROR(CheckTime(begin, what));
    changed_.WaitFor(mu_, kPollInterval);
  }
  return CheckNccl(result, what);
}

absl::Status NcclCommunicator::Open(const nccl::UniqueId& id) {
  MutexLock lock(mu_);
  nccl::Config config;
  const int result = nccl_.CommInitRankConfig(&comm_, options_.size, id, options_.rank, &config);
  return Settle(result, "joining");
}

absl::Status NcclCommunicator::Enqueue(Stream* stream, const char* what, int64_t count,
                                       const std::function<int(NcclComm*)>& call) {
  MutexLock lock(mu_);
  if (!failure_.ok()) return failure_;
  if (count < 0) return Fail(absl::InvalidArgumentError(Me(absl::StrCat(what, " of ", count, " elements"))));
  auto& [event, pending] = events_[stream];
  if (event == nullptr) STRATA_RETURN_IF_ERROR(CheckCuda(cuda_.EventCreate(&event), what));
  pending = true;
  STRATA_RETURN_IF_ERROR(Settle(call(comm_), absl::StrCat(what, " of ", count, " elements")));
  return CheckCuda(cuda_.EventRecord(event, stream), what);
}

absl::Status NcclCommunicator::Await() {
  MutexLock lock(mu_);
  const int64_t begin = options_.clock->MonotonicNanos();
  for (auto& [stream, event] : events_) {
    while (event.second) {
      if (!failure_.ok()) return failure_;
      int state = nccl::kSuccess;
      STRATA_RETURN_IF_ERROR(CheckNccl(nccl_.CommGetAsyncError(comm_, &state), "waiting"));
      if (state != nccl::kInProgress) STRATA_RETURN_IF_ERROR(CheckNccl(state, "waiting"));
      const int polled = cuda_.EventQuery(event.first);
      if (polled == kCudaSuccess) {
        event.second = false;
        // An operation that was given up is over, too: only now is its error sure to be there.
        STRATA_RETURN_IF_ERROR(CheckNccl(nccl_.CommGetAsyncError(comm_, &state), "waiting"));
        if (state != nccl::kInProgress) STRATA_RETURN_IF_ERROR(CheckNccl(state, "waiting"));
        break;
      }
      if (polled != kCudaNotReady) return CheckCuda(polled, "waiting");
      STRATA_RETURN_IF_ERROR(CheckTime(begin, "waiting"));
      changed_.WaitFor(mu_, kPollInterval);
    }
  }
  return failure_;
}

void NcclCommunicator::Abort(const std::string& why) {
  MutexLock lock(mu_);
  (void)Fail(absl::UnavailableError(Me(absl::StrCat("aborted: ", why))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(NcclApi& nccl, CudaApi& cuda,
                                                                     Bootstrap& bootstrap,
                                                                     const NcclOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", options.name, ": rank ", options.rank, " of ", options.size));
  }
  const std::string name = absl::StrCat(options.name, "/nccl-id");
  nccl::UniqueId id;
  if (options.rank == 0) {
    if (const int result = nccl.GetUniqueId(&id); result != nccl::kSuccess) {
      return absl::InternalError(absl::StrCat("ncclGetUniqueId: ", nccl.GetErrorString(result)));
    }
    STRATA_RETURN_IF_ERROR(bootstrap.Publish(name, std::string(id.internal, sizeof(id.internal))), name);
  } else {
    STRATA_ASSIGN_OR_RETURN(const std::string value, bootstrap.Fetch(name, options.timeout), name);
    if (value.size() != sizeof(id.internal)) {
      return absl::InternalError(
          absl::StrCat(name, " has ", value.size(), " bytes, not ", sizeof(id.internal)));
    }
    std::memcpy(id.internal, value.data(), value.size());
  }
  auto communicator = std::make_unique<NcclCommunicator>(nccl, cuda, options);
  STRATA_RETURN_IF_ERROR(communicator->Open(id));
  return communicator;
}

}  // namespace strata
