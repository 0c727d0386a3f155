// Ranks that are threads of one process: the reference of the collectives, on host memory. Sums are taken in
// the order of the ranks, in double for kF64 and float otherwise, and rounded once.
#ifndef OFFLOAD_COMM_THREAD_COMMUNICATOR_H_
#define OFFLOAD_COMM_THREAD_COMMUNICATOR_H_

#include <memory>

#include "absl/time/time.h"
#include "offload/comm/communicator.h"

namespace strata {

// The ranks' meeting point. Outlives their communicators.
class ThreadGroup {
 public:
  // `size` >= 1; `timeout`: for which a rank waits for the others in one operation.
  ThreadGroup(int size, absl::Duration timeout);
  ~ThreadGroup();

  // Once per rank.
  std::unique_ptr<Communicator> Join(int rank);

 private:
  class Rank;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_THREAD_COMMUNICATOR_H_
