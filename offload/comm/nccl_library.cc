#include "offload/comm/nccl_library.h"

#include "common/shared_library.h"
#include "common/status.h"

namespace strata {
namespace {

class Library : public NcclApi {
 public:
  absl::Status Load(const std::string& name);

  int GetVersion(int* version) override { return get_version_(version); }
  int GetUniqueId(nccl::UniqueId* id) override { return get_unique_id_(id); }
  int CommInitRankConfig(NcclComm** comm, int ranks, const nccl::UniqueId& id, int rank,
                         nccl::Config* config) override {
    return init_(comm, ranks, id, rank, config);
  }
  int CommGetAsyncError(NcclComm* comm, int* error) override { return async_error_(comm, error); }
  int CommFinalize(NcclComm* comm) override { return finalize_(comm); }
  int CommDestroy(NcclComm* comm) override { return destroy_(comm); }
  int CommAbort(NcclComm* comm) override { return abort_(comm); }
  const char* GetErrorString(int result) override { return error_string_(result); }
  const char* GetLastError(NcclComm* comm) override { return last_error_(comm); }
  int AllGather(const void* send, void* receive, size_t count, int type, NcclComm* comm,
                Stream* stream) override {
    return all_gather_(send, receive, count, type, comm, stream);
  }
  int ReduceScatter(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                    Stream* stream) override {
    return reduce_scatter_(send, receive, count, type, op, comm, stream);
  }
  int AllReduce(const void* send, void* receive, size_t count, int type, int op, NcclComm* comm,
                Stream* stream) override {
    return all_reduce_(send, receive, count, type, op, comm, stream);
  }
  int Broadcast(const void* send, void* receive, size_t count, int type, int root, NcclComm* comm,
                Stream* stream) override {
    return broadcast_(send, receive, count, type, root, comm, stream);
  }
  int Send(const void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) override {
    return send_(data, count, type, peer, comm, stream);
  }
  int Recv(void* data, size_t count, int type, int peer, NcclComm* comm, Stream* stream) override {
    return recv_(data, count, type, peer, comm, stream);
  }

 private:
  int (*get_version_)(int*) = nullptr;
  int (*get_unique_id_)(nccl::UniqueId*) = nullptr;
  int (*init_)(NcclComm**, int, nccl::UniqueId, int, nccl::Config*) = nullptr;
  int (*async_error_)(NcclComm*, int*) = nullptr;
  int (*finalize_)(NcclComm*) = nullptr;
  int (*destroy_)(NcclComm*) = nullptr;
  int (*abort_)(NcclComm*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  const char* (*last_error_)(NcclComm*) = nullptr;
  int (*all_gather_)(const void*, void*, size_t, int, NcclComm*, Stream*) = nullptr;
  int (*reduce_scatter_)(const void*, void*, size_t, int, int, NcclComm*, Stream*) = nullptr;
  int (*all_reduce_)(const void*, void*, size_t, int, int, NcclComm*, Stream*) = nullptr;
  int (*broadcast_)(const void*, void*, size_t, int, int, NcclComm*, Stream*) = nullptr;
  int (*send_)(const void*, size_t, int, int, NcclComm*, Stream*) = nullptr;
  int (*recv_)(void*, size_t, int, int, NcclComm*, Stream*) = nullptr;
};

absl::Status Library::Load(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(SharedLibrary library,
                          SharedLibrary::Open("NCCL", {name}, "install NCCL 2.14 or newer"));
  library.Find("ncclGetVersion", get_version_);
  library.Find("ncclGetUniqueId", get_unique_id_);
  library.Find("ncclCommInitRankConfig", init_);
  library.Find("ncclCommGetAsyncError", async_error_);
  library.Find("ncclCommFinalize", finalize_);
  library.Find("ncclCommDestroy", destroy_);
  library.Find("ncclCommAbort", abort_);
  library.Find("ncclGetErrorString", error_string_);
  library.Find("ncclGetLastError", last_error_);
  library.Find("ncclAllGather", all_gather_);
  library.Find("ncclReduceScatter", reduce_scatter_);
  library.Find("ncclAllReduce", all_reduce_);
  library.Find("ncclBroadcast", broadcast_);
  library.Find("ncclSend", send_);
  library.Find("ncclRecv", recv_);
  return library.AllFound();
}

}  // namespace

absl::StatusOr<NcclApi*> LoadNccl(const std::string& name) { return LoadOnce<Library>(name); }

}  // namespace strata
