// Frames between agent and trainer: a 4-byte little-endian length (at most kMaxFrameBytes), then that many
// bytes of one protobuf message. Pure functions and one incremental decoder; no descriptors here.
#ifndef WORKER_TRAINER_CHANNEL_FRAME_H_
#define WORKER_TRAINER_CHANNEL_FRAME_H_

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

inline constexpr uint32_t kMaxFrameBytes = 1 << 20;
inline constexpr size_t kFrameHeaderBytes = 4;

// Header and body of one frame. kInvalidArgument when the message is larger than kMaxFrameBytes.
absl::StatusOr<std::string> EncodeFrame(const google::protobuf::MessageLite& message);

// The length in a frame's header. kDataLoss above kMaxFrameBytes: nothing may be allocated for it.
absl::StatusOr<uint32_t> DecodeFrameHeader(const uint8_t header[kFrameHeaderBytes]);

// kDataLoss when `body` is not a message of this type.
absl::Status ParseFrameBody(absl::string_view body, google::protobuf::MessageLite* message);

// Cuts a stream of bytes into frame bodies. Holds at most one frame and what the last Append brought.
// After an error the stream has no known frame boundary left, so every later call returns the same error.
class FrameDecoder {
 public:
  void Append(absl::string_view bytes) { buffer_.append(bytes.data(), bytes.size()); }

  // The next whole body, nullopt when more bytes are needed, kDataLoss for a length above kMaxFrameBytes.
  absl::StatusOr<std::optional<std::string>> Next();

  // Bytes that belong to a frame not complete yet; more than 0 at end of file means the writer died
  // inside a frame.
  size_t pending_bytes() const { return buffer_.size() - start_; }

 private:
  std::string buffer_;
  size_t start_ = 0;  // bytes of buffer_ already returned
  absl::Status error_;
};

}  // namespace strata

#endif  // WORKER_TRAINER_CHANNEL_FRAME_H_
