// A Communicator by NCCL, on the device memory and streams of one GPU per rank.
//
// NCCL runs without blocking: every call that has only begun is polled until it is done or the timeout is
// over, and Await polls an event behind the operations together with NCCL's own asynchronous error. So a rank
// that dies is noticed by the others, who abort their part: ncclCommAbort ends the kernels that would spin
// for ever.
#ifndef OFFLOAD_COMM_NCCL_COMMUNICATOR_H_
#define OFFLOAD_COMM_NCCL_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "offload/comm/communicator.h"
#include "offload/comm/nccl_api.h"
#include "offload/device/cuda_api.h"

namespace strata {

struct NcclOptions {
  int rank = 0, size = 1;
  // Of this group, among the names of the bootstrap; the ranks agree on it.
  std::string name = "world";
  absl::Duration timeout = absl::Minutes(10);
  Clock* clock = &Clock::Real();
};

// Meets the other ranks: rank 0 publishes NCCL's id, the others fetch it. `nccl`, `cuda` and the clock
// outlive the result.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(NcclApi& nccl, CudaApi& cuda,
                                                                     Bootstrap& bootstrap,
                                                                     const NcclOptions& options);

}  // namespace strata

#endif  // OFFLOAD_COMM_NCCL_COMMUNICATOR_H_
