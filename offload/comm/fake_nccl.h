// FakeNccl: NCCL's calls among ranks that each have a FakeCuda: operations are work of streams, which meet in
// a FakeNcclWorld. Calls begin and are done some polls later, as without blocking.
#ifndef OFFLOAD_COMM_FAKE_NCCL_H_
#define OFFLOAD_COMM_FAKE_NCCL_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "offload/comm/nccl_api.h"
#include "offload/comm/thread_communicator.h"
#include "offload/device/cuda_api.h"

namespace strata {

// Ranks with one id meet here. Outlives the FakeNccls.
class FakeNcclWorld {
 public:
  virtual ~FakeNcclWorld() = default;
  virtual nccl::UniqueId NewId() = 0;
  virtual std::unique_ptr<Communicator> Join(const nccl::UniqueId& id, int ranks, int rank) = 0;
};

// ... of ranks that are threads.
class FakeNcclThreads : public FakeNcclWorld {
 public:
  nccl::UniqueId NewId() override;
  std::unique_ptr<Communicator> Join(const nccl::UniqueId& id, int ranks, int rank) override;

 private:
  Mutex mu_;
  int ids_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::unique_ptr<ThreadGroup>> groups_ ABSL_GUARDED_BY(mu_);
};

// One rank's library.
class FakeNccl : public NcclApi {
 public:
  FakeNccl(FakeNcclWorld& world, CudaApi& cuda);
  ~FakeNccl() override;

  int polls = 2;           // for which a call is in progress
  int64_t fail_call = -1;  // this call (of those that return an error), counted from 0, fails ...
  int fail_with = nccl::kInternalError;
  bool hangs = false;  // operations are enqueued by no one
  int64_t calls = 0;
  std::atomic<int> communicators = 0;  // not destroyed or aborted; any thread may look

  int GetVersion(int* version) override;
  int GetUniqueId(nccl::UniqueId* id) override;
  int CommInitRankConfig(NcclComm** comm, int ranks, const nccl::UniqueId& id, int rank,
                         nccl::Config* config) override;
  int CommGetAsyncError(NcclComm* comm, int* error) override;
  int CommFinalize(NcclComm* comm) override;
  int CommDestroy(NcclComm* comm) override;
  int CommAbort(NcclComm* comm) override;
  const char* GetErrorString(int result) override;
  const char* GetLastError(NcclComm* comm) override;
  int AllGather(const void* send, void* receive, size_t count, int type, NcclComm* comm,
                Stream* stream) override;
  int ReduceScatter(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                    Stream* stream) override;
  int AllReduce(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                Stream* stream) override;
  int Broadcast(const void* send, void* receive, size_t count, int type, int root, NcclComm* comm,
                Stream* stream) override;
  int Send(const void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) override;
  int Recv(void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) override;

 private:
  struct Comm;
  struct Work;
  bool Fails() { return calls++ == fail_call; }
  int Enqueue(NcclComm* comm, Stream* stream, std::function<absl::Status(Communicator&)> body);

  FakeNcclWorld& world_;
  CudaApi& cuda_;
  std::vector<std::unique_ptr<Comm>> comms_;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_FAKE_NCCL_H_
