// Any bytes at all into the frame decoder: it must not crash, must not hold more than it was given, and what
// it returns must be what a whole-buffer read of the same stream gives.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/check.h"
#include "proto/strata/v1/trainer.pb.h"
#include "worker/trainer_channel/frame.h"

namespace {

// The bodies found when the stream arrives in pieces of `piece` bytes; `failed` tells whether it ended in
// an error.
std::vector<std::string> Decode(const std::string& stream, size_t piece, bool* failed) {
  strata::FrameDecoder decoder;
  std::vector<std::string> bodies;
  for (size_t at = 0; at < stream.size(); at += piece) {
    decoder.Append(absl::string_view(stream).substr(at, piece));
    while (true) {
      auto body = decoder.Next();
      if (!body.ok()) {
        *failed = true;
        return bodies;
      }
      if (!body->has_value()) break;
      bodies.push_back(**std::move(body));
    }
    STRATA_CHECK(decoder.pending_bytes() <= strata::kMaxFrameBytes + strata::kFrameHeaderBytes);
  }
  *failed = false;
  return bodies;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string stream(reinterpret_cast<const char*>(data), size);
  bool whole_failed = false, pieces_failed = false;
  const auto whole = Decode(stream, size == 0 ? 1 : size, &whole_failed);
  const auto pieces = Decode(stream, 7, &pieces_failed);
  STRATA_CHECK(whole == pieces && whole_failed == pieces_failed);
  for (const std::string& body : whole) {
    strata::v1::TrainerMessage from_trainer;
    strata::v1::AgentMessage from_agent;
    if (strata::ParseFrameBody(body, &from_trainer).ok()) (void)strata::EncodeFrame(from_trainer);
    (void)strata::ParseFrameBody(body, &from_agent);
  }
  return 0;
}
