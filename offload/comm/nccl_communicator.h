// A Communicator by NCCL, on the device memory and streams of one GPU per rank.
//
// NCCL runs without blocking: a call that has only begun is polled until it is done. An operation has an
// event before it and one behind it, so that its time runs from when this rank's part has begun, however long
// the stream worked before. A thread of the communicator ("nccl-watch") looks every few milliseconds at these
// events, at NCCL's own asynchronous error and at what the rendezvous says of the other ranks, whether or not
// anybody awaits anything; Await looks more often.
//
// The first of these to be bad ends this rank's part: ncclCommAbort ends the kernels that would spin for
// ever, the error names the group, the rank and the operation, and the other ranks hear of it by the
// rendezvous. That NCCL has lost a peer is an error only after the rendezvous has had `reason_wait` to say
// why.
#ifndef OFFLOAD_COMM_NCCL_COMMUNICATOR_H_
#define OFFLOAD_COMM_NCCL_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "offload/comm/communicator.h"
#include "offload/comm/nccl_api.h"
#include "offload/comm/rendezvous.h"
#include "offload/device/cuda_api.h"

namespace strata {

struct NcclOptions {
  int rank = 0, size = 1;
  // Of this group; the ranks agree on it.
  std::string group = "world";
  // For the ranks to meet, and for the others to come to each operation.
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration reason_wait = absl::Seconds(3);
  Clock* clock = &Clock::Real();
};

// Meets the other ranks: rank 0 brings NCCL's id. With size 1 there is nobody to meet, and `rendezvous` may
// be null. After a failure the same call makes the communicator anew, in the next generation of the group.
// `nccl`, `cuda`, `rendezvous` and the clock outlive the result.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(NcclApi& nccl, CudaApi& cuda,
                                                                     Rendezvous* rendezvous,
                                                                     const NcclOptions& options);

}  // namespace strata

#endif  // OFFLOAD_COMM_NCCL_COMMUNICATOR_H_
