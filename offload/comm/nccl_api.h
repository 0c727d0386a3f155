// NcclApi: the few calls of NCCL that the communicator makes, as an interface: the real library is fetched by
// dlopen (nccl_library.h), tests use FakeNccl. Each call is the library's function of the same name and
// returns its ncclResult_t as a number; the constants and structures are those of nccl.h 2.14 and later.
#ifndef OFFLOAD_COMM_NCCL_API_H_
#define OFFLOAD_COMM_NCCL_API_H_

#include <cstddef>

#include "kernels/ops.h"

namespace strata {

struct NcclComm;  // a ncclComm_t is an NcclComm*

namespace nccl {

inline constexpr int kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3,
                     kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
// ncclDataType_t
inline constexpr int kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;
// ncclRedOp_t
inline constexpr int kSum = 0;

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as of 2.14: later versions take the shorter one by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

}  // namespace nccl

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int GetVersion(int* version) = 0;
  virtual int GetUniqueId(nccl::UniqueId* id) = 0;
  virtual int CommInitRankConfig(NcclComm** comm, int ranks, const nccl::UniqueId& id, int rank,
                                 nccl::Config* config) = 0;
  virtual int CommGetAsyncError(NcclComm* comm, int* error) = 0;
  virtual int CommFinalize(NcclComm* comm) = 0;
  virtual int CommDestroy(NcclComm* comm) = 0;
  virtual int CommAbort(NcclComm* comm) = 0;
  virtual const char* GetErrorString(int result) = 0;
  virtual const char* GetLastError(NcclComm* comm) = 0;

  virtual int AllGather(const void* send, void* receive, size_t count, int type, NcclComm* comm,
                        Stream* stream) = 0;
  virtual int ReduceScatter(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                            Stream* stream) = 0;
  virtual int AllReduce(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                        Stream* stream) = 0;
  virtual int Broadcast(const void* send, void* receive, size_t count, int type, int root, NcclComm* comm,
                        Stream* stream) = 0;
  virtual int Send(const void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) = 0;
  virtual int Recv(void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_NCCL_API_H_
