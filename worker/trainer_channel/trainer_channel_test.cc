#include "worker/trainer_channel/trainer_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/thread.h"
#include "proto/strata/v1/trainer.pb.h"
#include "worker/trainer_channel/frame.h"

namespace strata {
namespace {

std::pair<Fd, Fd> SocketPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

v1::TrainerMessage Phase(const std::string& phase, int64_t step) {
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(phase);
  message.mutable_phase()->set_step(step);
  return message;
}

TEST(TrainerChannelTest, DeliversMessagesInOrderAndThenTheEndOfFile) {
  auto [a, b] = SocketPair();
  TrainerChannel reader(std::move(b));
  {
    TrainerChannel writer(std::move(a));
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(writer.Send(Phase("STEPPING", i)).ok());
  }
  v1::TrainerMessage message;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(reader.Receive(&message).ok());
    EXPECT_EQ(message.phase().step(), i);
  }
  EXPECT_EQ(reader.Receive(&message).code(), absl::StatusCode::kUnavailable);
}

TEST(TrainerChannelTest, MessagesOfSeveralThreadsNeverInterleave) {
  auto [a, b] = SocketPair();
  TrainerChannel writer(std::move(a));
  TrainerChannel reader(std::move(b));
  constexpr int kThreads = 4, kMessages = 200;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(std::make_unique<Thread>("sender", [&writer, t] {
      for (int i = 0; i < kMessages; ++i) {
        EXPECT_TRUE(writer.Send(Phase(std::string(3000, static_cast<char>('a' + t)), i)).ok());
      }
    }));
  }
  std::vector<int> next(kThreads, 0);
  for (int i = 0; i < kThreads * kMessages; ++i) {
    v1::TrainerMessage message;
    ASSERT_TRUE(reader.Receive(&message).ok());
    const std::string& text = message.phase().phase();
    ASSERT_EQ(text, std::string(3000, text[0]));
    EXPECT_EQ(message.phase().step(), next[text[0] - 'a']++);
  }
  for (auto& thread : threads) thread->Join();
}

TEST(TrainerChannelTest, SendToADeadPeerIsUnavailableNotASignal) {
  auto [a, b] = SocketPair();
  TrainerChannel writer(std::move(a));
  b = Fd();
  EXPECT_EQ(writer.Send(Phase("x", 1)).code(), absl::StatusCode::kUnavailable);
}

TEST(TrainerChannelTest, PeerThatDiesInsideAFrameIsUnavailable) {
  auto [a, b] = SocketPair();
  const std::string frame = *EncodeFrame(Phase("STEPPING", 1));
  ASSERT_EQ(write(a.get(), frame.data(), frame.size() - 1), static_cast<ssize_t>(frame.size()) - 1);
  a = Fd();
  TrainerChannel reader(std::move(b));
  v1::TrainerMessage message;
  EXPECT_EQ(reader.Receive(&message).code(), absl::StatusCode::kUnavailable);
}

TEST(TrainerChannelTest, MessageAboveTheLimitIsRefusedAndTheChannelStaysGood) {
  auto [a, b] = SocketPair();
  TrainerChannel writer(std::move(a));
  TrainerChannel reader(std::move(b));
  EXPECT_EQ(writer.Send(Phase(std::string(kMaxFrameBytes + 1, 'x'), 1)).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer.Send(Phase("small", 2)).ok());
  v1::TrainerMessage message;
  ASSERT_TRUE(reader.Receive(&message).ok());
  EXPECT_EQ(message.phase().step(), 2);
}

TEST(TrainerChannelTest, LengthAboveTheLimitIsDataLossBeforeAnyAllocation) {
  auto [a, b] = SocketPair();
  ASSERT_EQ(write(a.get(), "\xff\xff\xff\x7f", 4), 4);
  TrainerChannel reader(std::move(b));
  v1::TrainerMessage message;
  EXPECT_EQ(reader.Receive(&message).code(), absl::StatusCode::kDataLoss);
}

TEST(TrainerChannelTest, BytesThatAreNoMessageAreDataLoss) {
  auto [a, b] = SocketPair();
  ASSERT_EQ(write(a.get(), "\x03\x00\x00\x00\xff\xff\xff", 7), 7);
  TrainerChannel reader(std::move(b));
  v1::TrainerMessage message;
  EXPECT_EQ(reader.Receive(&message).code(), absl::StatusCode::kDataLoss);
}

TEST(TrainerChannelTest, ShutdownWakesABlockedReceive) {
  auto [a, b] = SocketPair();
  TrainerChannel reader(std::move(b));
  absl::Status status;
  Thread thread("receiver", [&] {
    v1::TrainerMessage message;
    status = reader.Receive(&message);
  });
  reader.Shutdown();
  thread.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

TEST(FrameDecoderTest, FindsFramesHoweverTheStreamIsCut) {
  std::string stream;
  for (int i = 0; i < 5; ++i) stream += *EncodeFrame(Phase(std::string(i * 10, 'p'), i));
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameDecoder decoder;
    int found = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.Append(absl::string_view(stream).substr(at, piece));
      while (true) {
        auto body = decoder.Next();
        ASSERT_TRUE(body.ok());
        if (!body->has_value()) break;
        v1::TrainerMessage message;
        ASSERT_TRUE(ParseFrameBody(**body, &message).ok());
        EXPECT_EQ(message.phase().step(), found++);
      }
    }
    EXPECT_EQ(found, 5);
    EXPECT_EQ(decoder.pending_bytes(), 0u);
  }
}

TEST(FrameDecoderTest, StaysBrokenAfterABadLength) {
  FrameDecoder decoder;
  decoder.Append("\xff\xff\xff\xff");
  EXPECT_EQ(decoder.Next().status().code(), absl::StatusCode::kDataLoss);
  decoder.Append(std::string(64, '\0'));
  EXPECT_EQ(decoder.Next().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace strata
