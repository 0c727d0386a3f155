#include "offload/comm/fake_nccl.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

DType TypeOf(int type) {
  switch (type) {
    case nccl::kBfloat16:
      return DType::kBF16;
    case nccl::kFloat16:
      return DType::kF16;
    case nccl::kFloat32:
      return DType::kF32;
    default:
      return DType::kF64;
  }
}

// Longer than any test waits: who is missing is the communicator's to notice.
constexpr absl::Duration kForEver = absl::Hours(1);

}  // namespace

struct FakeNccl::Work {
  Comm* comm = nullptr;
  std::function<absl::Status(Communicator&)> body;
};

struct FakeNccl::Comm {
  std::unique_ptr<Communicator> ranks;
  std::atomic<int> error = nccl::kSuccess;
  int polls_left = 0;
  std::vector<std::unique_ptr<Work>> work;
};

std::unique_ptr<Communicator> FakeNcclThreads::Join(const nccl::UniqueId& id, int ranks, int rank) {
  MutexLock lock(mu_);
  std::unique_ptr<ThreadGroup>& group = groups_[std::string(id.internal, sizeof(id.internal))];
  if (group == nullptr) group = std::make_unique<ThreadGroup>(ranks, kForEver);
  return group->Join(rank);
}

nccl::UniqueId FakeNcclThreads::NewId() {
  MutexLock lock(mu_);
  nccl::UniqueId id = {};
  const std::string text = absl::StrCat("id ", ++ids_);
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

FakeNccl::FakeNccl(FakeNcclWorld& world, CudaApi& cuda) : world_(world), cuda_(cuda) {}

FakeNccl::~FakeNccl() = default;

int FakeNccl::GetVersion(int* version) {
  *version = 22800;
  return nccl::kSuccess;
}

int FakeNccl::GetUniqueId(nccl::UniqueId* id) {
  if (Fails()) return fail_with;
  *id = world_.NewId();
  return nccl::kSuccess;
}

int FakeNccl::CommInitRankConfig(NcclComm** comm, int ranks, const nccl::UniqueId& id, int rank,
                                 nccl::Config* config) {
  if (Fails()) return fail_with;
  if (config->magic != 0xcafebeef || config->size != sizeof(nccl::Config) || config->blocking != 0)
    return nccl::kInvalidArgument;
  Comm& made = *comms_.emplace_back(std::make_unique<Comm>());
  made.ranks = world_.Join(id, ranks, rank);
  made.polls_left = polls;
  ++communicators;
  *comm = reinterpret_cast<NcclComm*>(&made);
  return polls > 0 ? nccl::kInProgress : nccl::kSuccess;
}

int FakeNccl::CommGetAsyncError(NcclComm* comm, int* error) {
  Comm& self = *reinterpret_cast<Comm*>(comm);
  *error = self.error.load();
  if (*error == nccl::kSuccess && self.polls_left > 0) {
    --self.polls_left;
    *error = nccl::kInProgress;
  }
  return nccl::kSuccess;
}

int FakeNccl::CommFinalize(NcclComm* comm) {
  Comm& self = *reinterpret_cast<Comm*>(comm);
  self.polls_left = polls;
  return polls > 0 ? nccl::kInProgress : nccl::kSuccess;
}

int FakeNccl::CommDestroy(NcclComm*) {
  --communicators;
  return nccl::kSuccess;
}

int FakeNccl::CommAbort(NcclComm* comm) {
  --communicators;
  reinterpret_cast<Comm*>(comm)->ranks->Abort("ncclCommAbort");
  return nccl::kSuccess;
}

const char* FakeNccl::GetErrorString(int result) {
  switch (result) {
    case nccl::kInternalError:
      return "internal error";
    case nccl::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "some error";
  }
}

const char* FakeNccl::GetLastError(NcclComm*) { return ""; }

int FakeNccl::Enqueue(NcclComm* comm, Stream* stream, std::function<absl::Status(Communicator&)> body) {
  if (Fails()) return fail_with;
  Comm& self = *reinterpret_cast<Comm*>(comm);
  if (hangs) return nccl::kSuccess;
  Work& work = *self.work.emplace_back(std::make_unique<Work>());
  work.comm = &self;
  work.body = std::move(body);
  const int error = cuda_.LaunchHostFunc(
      stream,
      [](void* argument) {
        Work& now = *static_cast<Work*>(argument);
        if (!now.body(*now.comm->ranks).ok()) now.comm->error = nccl::kRemoteError;
      },
      &work);
  if (error != kCudaSuccess) return nccl::kUnhandledCudaError;
  self.polls_left = polls;
  return polls > 0 ? nccl::kInProgress : nccl::kSuccess;
}

int FakeNccl::AllGather(const void* send, void* receive, size_t count, int type, NcclComm* comm,
                        Stream* stream) {
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.AllGather(nullptr, TypeOf(type), send, receive, static_cast<int64_t>(count));
  });
}
int FakeNccl::ReduceScatter(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                            Stream* stream) {
  if (op != nccl::kSum) return nccl::kInvalidArgument;
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.ReduceScatter(nullptr, TypeOf(type), send, receive, static_cast<int64_t>(count));
  });
}
int FakeNccl::AllReduce(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                        Stream* stream) {
  if (op != nccl::kSum) return nccl::kInvalidArgument;
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.AllReduce(nullptr, TypeOf(type), send, receive, static_cast<int64_t>(count));
  });
}
int FakeNccl::Broadcast(const void*, void* receive, size_t count, int type, int root, NcclComm* comm,
                        Stream* stream) {
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.Broadcast(nullptr, TypeOf(type), receive, static_cast<int64_t>(count), root);
  });
}
int FakeNccl::Send(const void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) {
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.Send(nullptr, TypeOf(type), data, static_cast<int64_t>(count), peer);
  });
}
int FakeNccl::Recv(void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) {
  return Enqueue(comm, stream, [=](Communicator& ranks) {
    return ranks.Receive(nullptr, TypeOf(type), data, static_cast<int64_t>(count), peer);
  });
}

}  // namespace strata
