// TrainerChannel: whole protobuf messages over a connected stream socket (the inherited socket pair between
// the agent and a trainer). Blocking; made for the trainer, whose threads have nothing better to do than
// wait. The agent multiplexes many trainers and uses frame.h directly.
//
// Errors:
//   kUnavailable      the other process is gone (end of file, also inside a frame, EPIPE, ECONNRESET):
//                     nothing else gives it
//   kAborted          Shutdown() was called on this side
//   kDataLoss         the bytes are no frame or no such message; the channel is unusable from here on
//   kInvalidArgument  Send of a message above 1 MiB; nothing was written and the channel is still good
//   kInternal         any other errno
#ifndef WORKER_TRAINER_CHANNEL_TRAINER_CHANNEL_H_
#define WORKER_TRAINER_CHANNEL_TRAINER_CHANNEL_H_

#include <google/protobuf/message_lite.h>

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace strata {

// The descriptor at which the agent hands a trainer its end: `--agent-fd=3`.
inline constexpr int kTrainerAgentFd = 3;

class TrainerChannel {
 public:
  // Takes a connected SOCK_STREAM socket in blocking mode.
  explicit TrainerChannel(Fd socket) : socket_(std::move(socket)) {}

  // Sends one message; safe from any thread, messages never interleave. Blocks while the socket is full.
  absl::Status Send(const google::protobuf::MessageLite& message);

  // Waits for the next message; one thread at a time.
  absl::Status Receive(google::protobuf::MessageLite* message);

  // Wakes a blocked Receive or Send on this side (kAborted) and shows the peer end of file. Any thread.
  void Shutdown();

 private:
  absl::Status Error(int error, const char* what) const;
  // Reads exactly `size` bytes. `in_frame` tells whether end of file cuts a frame.
  absl::Status ReadExactly(char* data, size_t size, bool in_frame);

  const Fd socket_;
  std::atomic<bool> shut_down_{false};
  // Held over the writes of one frame: whole frames are what it protects.
  Mutex send_mu_;
  absl::Status send_error_ ABSL_GUARDED_BY(send_mu_);  // sticky: after a torn frame no frame may follow
};

}  // namespace strata

#endif  // WORKER_TRAINER_CHANNEL_TRAINER_CHANNEL_H_
