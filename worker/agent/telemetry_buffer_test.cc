#include "worker/agent/telemetry_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/time/time.h"
#include "common/thread.h"

namespace strata {
namespace {

v1::LogCursor At(int64_t offset, const std::string& stream = "stdout") {
  v1::LogCursor at;
  at.set_attempt(1);
  at.set_stream(stream);
  at.set_offset(offset);
  return at;
}

v1::MetricRow Row(int64_t step) {
  v1::MetricRow row;
  row.set_step(step);
  return row;
}

constexpr absl::Duration kNow = absl::ZeroDuration();

TEST(TelemetryBufferTest, SendsInOrderAndOnceAndPopsOnAck) {
  TelemetryBuffer buffer(100, {});
  buffer.AddLog(At(0), "job", "abc", absl::UnixEpoch());
  const int64_t last = buffer.AddMetrics(Row(1));
  v1::TelemetryBatch batch;
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  EXPECT_EQ(batch.logs_size(), 1);
  EXPECT_EQ(batch.metrics_size(), 1);
  EXPECT_EQ(batch.sequence(), last);
  EXPECT_GT(batch.sequence(), 100);
  EXPECT_FALSE(buffer.NextBatch(&batch, kNow));
  EXPECT_FALSE(buffer.WaitAcked(last, kNow));
  buffer.Ack(last);
  EXPECT_TRUE(buffer.WaitAcked(last, kNow));
  EXPECT_FALSE(buffer.HasUnacked());
}

TEST(TelemetryBufferTest, RewindSendsAgainWhatWasNotAcknowledged) {
  TelemetryBuffer buffer(0, {});
  v1::TelemetryBatch batch;
  const int64_t first = buffer.AddMetrics(Row(1));
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  buffer.AddMetrics(Row(2));
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  buffer.Ack(first);
  buffer.Rewind();
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  ASSERT_EQ(batch.metrics_size(), 1);
  EXPECT_EQ(batch.metrics(0).step(), 2);
}

TEST(TelemetryBufferTest, JoinsSmallChunksOfOneStreamWhileUnsent) {
  TelemetryBuffer buffer(0, {});
  buffer.AddLog(At(0), "job", "ab", absl::UnixEpoch());
  buffer.AddLog(At(2), "job", "cd", absl::UnixEpoch());
  buffer.AddLog(At(9), "job", "gap", absl::UnixEpoch());
  buffer.AddLog(At(0, "stderr"), "job", "err", absl::UnixEpoch());
  v1::TelemetryBatch batch;
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  ASSERT_EQ(batch.logs_size(), 3);
  EXPECT_EQ(batch.logs(0).data(), "abcd");
  EXPECT_EQ(batch.logs(1).at().offset(), 9);
  // What was sent is never changed.
  buffer.AddLog(At(3, "stderr"), "job", "or", absl::UnixEpoch());
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  ASSERT_EQ(batch.logs_size(), 1);
  EXPECT_EQ(batch.logs(0).at().offset(), 3);
}

TEST(TelemetryBufferTest, FullLogsDropTheOldestAndNeverMetrics) {
  TelemetryBuffer::Limits limits;
  limits.log_bytes = 100'000;
  limits.batch_bytes = 1 << 30;
  limits.window_bytes = 1 << 30;
  TelemetryBuffer buffer(0, limits);
  buffer.AddMetrics(Row(1));
  for (int i = 0; i < 100; ++i) {
    buffer.AddLog(At(i * 20'000), "job", std::string(10'000, 'x'), absl::UnixEpoch());  // gaps: no joining
  }
  v1::TelemetryBatch batch;
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  EXPECT_EQ(batch.metrics_size(), 1);
  EXPECT_EQ(batch.logs_size(), 9);
  EXPECT_EQ(batch.logs(8).at().offset(), 99 * 20'000);
  EXPECT_EQ(buffer.dropped().log_bytes, 91 * 10'000);
  EXPECT_EQ(buffer.dropped().metric_rows, 0);
}

TEST(TelemetryBufferTest, FullMetricsDropTheOldestRows) {
  TelemetryBuffer::Limits limits;
  limits.metric_bytes = 5000;
  TelemetryBuffer buffer(0, limits);
  for (int i = 1; i <= 100; ++i) buffer.AddMetrics(Row(i));
  v1::TelemetryBatch batch;
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  EXPECT_LE(batch.metrics_size(), 20);
  EXPECT_EQ(batch.metrics(batch.metrics_size() - 1).step(), 100);
  EXPECT_EQ(buffer.dropped().metric_rows, 100 - batch.metrics_size());
}

TEST(TelemetryBufferTest, WindowHoldsBackUntilAcksCome) {
  TelemetryBuffer::Limits limits;
  limits.batch_bytes = 1000;
  limits.window_bytes = 2000;
  TelemetryBuffer buffer(0, limits);
  for (int i = 0; i < 10; ++i) buffer.AddLog(At(i * 2000), "job", std::string(1000, 'x'), absl::UnixEpoch());
  v1::TelemetryBatch batch;
  int sent = 0;
  while (buffer.NextBatch(&batch, kNow)) sent += batch.logs_size();
  EXPECT_EQ(sent, 2);
  buffer.Ack(batch.sequence() == 0 ? 2 : batch.sequence());
  while (buffer.NextBatch(&batch, kNow)) sent += batch.logs_size();
  EXPECT_EQ(sent, 4);
}

TEST(TelemetryBufferTest, AckOfWhatWasNeverSentDropsNothing) {
  TelemetryBuffer buffer(0, {});
  buffer.AddMetrics(Row(1));
  buffer.Ack(1'000'000);
  v1::TelemetryBatch batch;
  ASSERT_TRUE(buffer.NextBatch(&batch, kNow));
  EXPECT_EQ(batch.metrics_size(), 1);
}

TEST(TelemetryBufferTest, DropsOfSentItemsKeepTheWindowRight) {
  TelemetryBuffer::Limits limits;
  limits.log_bytes = 5000;
  limits.window_bytes = 3000;
  limits.batch_bytes = 1;
  TelemetryBuffer buffer(0, limits);
  v1::TelemetryBatch batch;
  for (int i = 0; i < 100; ++i) {
    buffer.AddLog(At(i * 2000), "job", std::string(1000, 'x'), absl::UnixEpoch());
    (void)buffer.NextBatch(&batch, kNow);
  }
  buffer.Ack(buffer.last_sequence());
  while (buffer.NextBatch(&batch, kNow)) buffer.Ack(batch.sequence());
  EXPECT_FALSE(buffer.HasUnacked());
}

TEST(TelemetryBufferTest, InterruptEndsAWaitAndRewindAllowsTheNext) {
  TelemetryBuffer buffer(0, {});
  v1::TelemetryBatch batch;
  Thread waiter("waiter", [&] { EXPECT_FALSE(buffer.NextBatch(&batch, absl::Hours(1))); });
  buffer.Interrupt();
  waiter.Join();
  buffer.AddMetrics(Row(1));
  EXPECT_FALSE(buffer.NextBatch(&batch, kNow));
  buffer.Rewind();
  EXPECT_TRUE(buffer.NextBatch(&batch, kNow));
}

}  // namespace
}  // namespace strata
