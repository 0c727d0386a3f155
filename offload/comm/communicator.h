// Communicator: what the ranks of one job do together. All ranks call the same operations in the same order.
//
// Data: `count` elements of `type` (kF32, kBF16, kF16 or kF64) in memory of the implementation's device.
// AllGather's `receive` and ReduceScatter's `send` hold size() parts of `count` elements in the order of the
// ranks. `send` may be the rank's own part of `receive` (AllGather), the reverse (ReduceScatter) or `receive`
// itself (AllReduce); otherwise they do not overlap. Sums: the same bits on every rank and in every run with
// the same ranks, given the same implementation, machine and library.
//
// Order: an operation is enqueued on `stream` (a CPU implementation runs it before it returns and takes
// nullptr). Await blocks until all that this rank has enqueued is done.
//
// Failure: a rank that does not come, fails or aborts makes the others fail, in Await at the latest, after
// the group's timeout: never a hang, never a result of some ranks only. The first error stays: every later
// call returns it, results are undefined, and the group is to be built anew (kUnavailable: a rank has failed,
// another try may work; kDeadlineExceeded: a rank did not come in time; kInvalidArgument: the ranks disagree
// about the operation; and what rendezvous.h says of a group that was given up).
//
// Threads: one at a time per rank, but for Abort.
#ifndef OFFLOAD_COMM_COMMUNICATOR_H_
#define OFFLOAD_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

class Communicator {
 public:
  // Aborts when operations are still under way.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual absl::Status AllGather(Stream* stream, DType type, const void* send, void* receive,
                                 int64_t count) = 0;
  // receive = this rank's part of the sum over the ranks.
  virtual absl::Status ReduceScatter(Stream* stream, DType type, const void* send, void* receive,
                                     int64_t count) = 0;
  // receive = the sum over the ranks.
  virtual absl::Status AllReduce(Stream* stream, DType type, const void* send, void* receive,
                                 int64_t count) = 0;
  // `data` of `root` to all.
  virtual absl::Status Broadcast(Stream* stream, DType type, void* data, int64_t count, int root) = 0;
  // Between two ranks; `peer` calls the other one.
  virtual absl::Status Send(Stream* stream, DType type, const void* data, int64_t count, int peer) = 0;
  virtual absl::Status Receive(Stream* stream, DType type, void* data, int64_t count, int peer) = 0;

  virtual absl::Status Await() = 0;
  // Ends this rank's part: its own calls and those of the other ranks fail. Any thread.
  virtual void Abort(const std::string& why) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_COMMUNICATOR_H_
