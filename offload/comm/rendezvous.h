// Rendezvous: how the ranks of a group find each other before they can communicate, and hear of each other's
// failure while they do. The meeting point is the coordinator (worker/trainer/channel_rendezvous.h); ranks
// that are threads of one process have LocalRendezvous.
//
// A group is a name that its ranks agree on ("world", "tp.3"), of one attempt of a job. It can be formed
// again, as after an abort: each time is a generation of it, numbered from 1, and ends for good when it
// fails. A rank that joins gets the newest generation that it has not been in; asking for a new one ends
// those before.
//
// Failure: it is the generation that fails, for all of its ranks, with one cause. Status codes:
//   kDeadlineExceeded    ranks were missing when the first one ran out of time: the message names them
//   kInvalidArgument     the ranks disagree about the size, or two claim to be the same one
//   kUnavailable         a rank has failed: the message says which and why
//   kAborted             a rank has begun a later generation
//   kFailedPrecondition  the attempt is over, fenced or refused: no generation will be formed any more
#ifndef OFFLOAD_COMM_RENDEZVOUS_H_
#define OFFLOAD_COMM_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace strata {

// Of a group's name: [A-Za-z0-9._/-].
inline constexpr size_t kGroupNameBytesMax = 64;
inline constexpr size_t kRendezvousIdBytesMax = 128;  // NCCL's unique id
inline constexpr int kGroupRanksMax = 4096;

struct JoinRequest {
  std::string group = "world";
  int rank = 0, size = 2;
  std::string id;  // rank 0's: opaque, 1 to kRendezvousIdBytesMax bytes; of other ranks: empty
  absl::Duration timeout = absl::Minutes(10);
};

// A rank's part in one generation, from when all have arrived. Destruction leaves, which the others do not
// notice. Any thread; nothing blocks.
class Membership {
 public:
  virtual ~Membership() = default;

  virtual const std::string& id() const = 0;  // rank 0's
  virtual int64_t generation() const = 0;

  // OK while the generation stands, else what it failed with, but for Fail of this rank.
  virtual absl::Status Check() = 0;
  // Fails the generation: the others hear that this rank has, and `why`. Told even if this is destroyed next.
  virtual void Fail(const std::string& why) = 0;
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Waits until all ranks have joined. After an error a later call joins the next generation. Any thread; a
  // rank joins the groups that it has in common with another one in the same order.
  virtual absl::StatusOr<std::unique_ptr<Membership>> Join(const JoinRequest& request) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_RENDEZVOUS_H_
