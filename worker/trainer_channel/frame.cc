#include "worker/trainer_channel/frame.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata {

absl::StatusOr<std::string> EncodeFrame(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a ", message.GetTypeName(), " of ", size,
                                                   " bytes does not fit a trainer frame of at most ",
                                                   kMaxFrameBytes, " bytes: send less in one message"));
  }
  std::string frame;
  frame.reserve(kFrameHeaderBytes + size);
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(size >> shift & 0xFF));
  if (!message.AppendToString(&frame)) {
    return absl::InternalError(absl::StrCat("could not serialize a ", message.GetTypeName()));
  }
  return frame;
}

absl::StatusOr<uint32_t> DecodeFrameHeader(const uint8_t header[kFrameHeaderBytes]) {
  const uint32_t size =
      uint32_t{header[0]} | uint32_t{header[1]} << 8 | uint32_t{header[2]} << 16 | uint32_t{header[3]} << 24;
  if (size > kMaxFrameBytes) {
    return absl::DataLossError(absl::StrCat("trainer frame announces ", size, " bytes, at most ",
                                            kMaxFrameBytes,
                                            " are allowed: the two programs are of different versions, or "
                                            "something else wrote to the channel"));
  }
  return size;
}

absl::Status ParseFrameBody(absl::string_view body, google::protobuf::MessageLite* message) {
  if (!message->ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return absl::DataLossError(
        absl::StrCat("trainer frame of ", body.size(), " bytes is no ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> FrameDecoder::Next() {
  if (!error_.ok()) return error_;
  if (pending_bytes() >= kFrameHeaderBytes) {
    const auto size = DecodeFrameHeader(reinterpret_cast<const uint8_t*>(buffer_.data()) + start_);
    if (!size.ok()) return error_ = size.status();
    if (pending_bytes() - kFrameHeaderBytes >= *size) {
      std::string body = buffer_.substr(start_ + kFrameHeaderBytes, *size);
      start_ += kFrameHeaderBytes + *size;
      return body;
    }
  }
  // Only when no whole frame is left are consumed bytes dropped: one move per Append, not per frame.
  buffer_.erase(0, start_);
  start_ = 0;
  return std::nullopt;
}

}  // namespace strata
