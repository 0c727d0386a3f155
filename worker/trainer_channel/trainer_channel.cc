#include "worker/trainer_channel/trainer_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "common/status.h"
#include "worker/trainer_channel/frame.h"

namespace strata {

absl::Status TrainerChannel::Error(int error, const char* what) const {
  if (shut_down_.load()) return absl::AbortedError("the trainer channel was shut down by this process");
  if (error == 0 || error == EPIPE || error == ECONNRESET) {
    return absl::UnavailableError("the process at the other end of the trainer channel is gone");
  }
  // EAGAIN would map to kUnavailable, which is reserved for a dead peer.
  const absl::Status status = ErrnoStatus(error, what);
  return absl::InternalError(status.message());
}

absl::Status TrainerChannel::Send(const google::protobuf::MessageLite& message) {
  STRATA_ASSIGN_OR_RETURN(const std::string frame, EncodeFrame(message));
  MutexLock lock(send_mu_);
  if (!send_error_.ok()) return send_error_;
  for (size_t done = 0; done < frame.size();) {
    // MSG_NOSIGNAL: a dead peer is a status, not SIGPIPE.
    const ssize_t n = send(socket_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return send_error_ = Error(errno, "sending on the trainer channel");
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status TrainerChannel::ReadExactly(char* data, size_t size, bool in_frame) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = recv(socket_.get(), data + done, size - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error(errno, "receiving on the trainer channel");
    if (n == 0) {
      const absl::Status gone = Error(0, "");
      if (in_frame || done > 0) return Annotate(gone, "inside a frame");
      return gone;
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status TrainerChannel::Receive(google::protobuf::MessageLite* message) {
  uint8_t header[kFrameHeaderBytes];
  STRATA_RETURN_IF_ERROR(ReadExactly(reinterpret_cast<char*>(header), sizeof(header), false));
  STRATA_ASSIGN_OR_RETURN(const uint32_t size, DecodeFrameHeader(header));
  std::string body(size, '\0');
  STRATA_RETURN_IF_ERROR(ReadExactly(body.data(), body.size(), true));
  return ParseFrameBody(body, message);
}

void TrainerChannel::Shutdown() {
  shut_down_.store(true);
  shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace strata
