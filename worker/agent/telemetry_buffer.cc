#include "worker/agent/telemetry_buffer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/clock.h"

namespace strata {
namespace {

constexpr size_t kMaxChunkBytes = 64 << 10;
// What an item costs beyond its payload: message objects, strings, deque nodes.
constexpr int64_t kItemOverheadBytes = 256;

void SetTime(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t nanos = absl::ToUnixNanos(time);
  out->set_seconds(nanos / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

int64_t NowNanos() { return Clock::Real().MonotonicNanos(); }

// The first item of `items` with a number above `sequence`.
template <typename Items>
auto FirstAfter(Items& items, int64_t sequence) {
  return std::upper_bound(items.begin(), items.end(), sequence,
                          [](int64_t value, const auto& item) { return value < item.sequence; });
}

}  // namespace

int64_t TelemetryBuffer::AddLog(const v1::LogCursor& at, const std::string& job_uid, std::string data,
                                absl::Time time) {
  STRATA_CHECK(data.size() <= kMaxChunkBytes);
  MutexLock lock(mu_);
  if (!logs_.empty() && logs_.back().sequence > sent_) {
    Item<v1::LogChunk>& last = logs_.back();
    const v1::LogCursor& before = last.value.at();
    if (last.value.job_uid() == job_uid && before.attempt() == at.attempt() && before.rank() == at.rank() &&
        before.stream() == at.stream() &&
        before.offset() + static_cast<int64_t>(last.value.data().size()) == at.offset() &&
        last.value.data().size() + data.size() <= kMaxChunkBytes) {
      last.value.mutable_data()->append(data);
      last.bytes += static_cast<int64_t>(data.size());
      log_bytes_ += static_cast<int64_t>(data.size());
      return last.sequence;
    }
  }
  Item<v1::LogChunk> item;
  item.sequence = ++last_;
  item.bytes = static_cast<int64_t>(data.size()) + kItemOverheadBytes;
  *item.value.mutable_at() = at;
  item.value.set_job_uid(job_uid);
  item.value.set_data(std::move(data));
  SetTime(time, item.value.mutable_time());
  log_bytes_ += item.bytes;
  logs_.push_back(std::move(item));
  while (log_bytes_ > limits_.log_bytes && logs_.size() > 1) {
    Item<v1::LogChunk>& oldest = logs_.front();
    log_bytes_ -= oldest.bytes;
    if (oldest.sequence <= sent_) in_flight_bytes_ -= oldest.bytes;
    dropped_.log_bytes += static_cast<int64_t>(oldest.value.data().size());
    logs_.pop_front();
  }
  changed_.SignalAll();
  return last_;
}

int64_t TelemetryBuffer::AddMetrics(v1::MetricRow row) {
  MutexLock lock(mu_);
  Item<v1::MetricRow> item;
  item.sequence = ++last_;
  item.bytes = static_cast<int64_t>(row.ByteSizeLong()) + kItemOverheadBytes;
  item.value = std::move(row);
  metric_bytes_ += item.bytes;
  metrics_.push_back(std::move(item));
  while (metric_bytes_ > limits_.metric_bytes && metrics_.size() > 1) {
    Item<v1::MetricRow>& oldest = metrics_.front();
    metric_bytes_ -= oldest.bytes;
    if (oldest.sequence <= sent_) in_flight_bytes_ -= oldest.bytes;
    ++dropped_.metric_rows;
    metrics_.pop_front();
  }
  changed_.SignalAll();
  return last_;
}

bool TelemetryBuffer::NextBatch(v1::TelemetryBatch* batch, absl::Duration timeout) {
  batch->Clear();
  const int64_t deadline = NowNanos() + absl::ToInt64Nanoseconds(timeout);
  MutexLock lock(mu_);
  while (true) {
    if (interrupted_) return false;
    const bool unsent = (!logs_.empty() && logs_.back().sequence > sent_) ||
                        (!metrics_.empty() && metrics_.back().sequence > sent_);
    if (unsent && in_flight_bytes_ < limits_.window_bytes) break;
    const int64_t left = deadline - NowNanos();
    if (left <= 0) return false;
    changed_.WaitFor(mu_, std::chrono::nanoseconds(left));
  }
  auto log = FirstAfter(logs_, sent_);
  auto row = FirstAfter(metrics_, sent_);
  int64_t bytes = 0;
  while (bytes < limits_.batch_bytes && (log != logs_.end() || row != metrics_.end())) {
    if (row == metrics_.end() || (log != logs_.end() && log->sequence < row->sequence)) {
      *batch->add_logs() = log->value;
      bytes += log->bytes;
      sent_ = log->sequence;
      ++log;
    } else {
      *batch->add_metrics() = row->value;
      bytes += row->bytes;
      sent_ = row->sequence;
      ++row;
    }
  }
  in_flight_bytes_ += bytes;
  batch->set_sequence(sent_);
  return true;
}

void TelemetryBuffer::PopAcked() {
  while (!logs_.empty() && logs_.front().sequence <= acked_) {
    log_bytes_ -= logs_.front().bytes;
    in_flight_bytes_ -= logs_.front().bytes;
    logs_.pop_front();
  }
  while (!metrics_.empty() && metrics_.front().sequence <= acked_) {
    metric_bytes_ -= metrics_.front().bytes;
    in_flight_bytes_ -= metrics_.front().bytes;
    metrics_.pop_front();
  }
}

void TelemetryBuffer::Ack(int64_t sequence) {
  MutexLock lock(mu_);
  // An ack of what was never sent on this stream is a confused peer: it must not drop anything unsent.
  acked_ = std::max(acked_, std::min(sequence, sent_));
  PopAcked();
  changed_.SignalAll();
}

void TelemetryBuffer::Rewind() {
  MutexLock lock(mu_);
  // Numbers between the last ack and the oldest item belong to dropped items.
  sent_ = std::max(acked_, std::min(logs_.empty() ? last_ : logs_.front().sequence - 1,
                                    metrics_.empty() ? last_ : metrics_.front().sequence - 1));
  in_flight_bytes_ = 0;
  interrupted_ = false;
  changed_.SignalAll();
}

void TelemetryBuffer::Interrupt() {
  MutexLock lock(mu_);
  interrupted_ = true;
  changed_.SignalAll();
}

bool TelemetryBuffer::IsAcked(int64_t sequence) {
  MutexLock lock(mu_);
  // What is no longer held was acknowledged or dropped: there is nothing left to wait for.
  return (logs_.empty() || logs_.front().sequence > sequence) &&
         (metrics_.empty() || metrics_.front().sequence > sequence);
}

bool TelemetryBuffer::WaitAcked(int64_t sequence, absl::Duration timeout) {
  const int64_t deadline = NowNanos() + absl::ToInt64Nanoseconds(timeout);
  MutexLock lock(mu_);
  while ((!logs_.empty() && logs_.front().sequence <= sequence) ||
         (!metrics_.empty() && metrics_.front().sequence <= sequence)) {
    const int64_t left = deadline - NowNanos();
    if (left <= 0) return false;
    changed_.WaitFor(mu_, std::chrono::nanoseconds(left));
  }
  return true;
}

int64_t TelemetryBuffer::last_sequence() {
  MutexLock lock(mu_);
  return last_;
}

bool TelemetryBuffer::HasUnacked() {
  MutexLock lock(mu_);
  return in_flight_bytes_ > 0;
}

TelemetryBuffer::Dropped TelemetryBuffer::dropped() {
  MutexLock lock(mu_);
  return dropped_;
}

}  // namespace strata
