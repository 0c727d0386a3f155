#include "worker/agent/telemetry_sender.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "common/clock.h"

namespace strata {
namespace {

constexpr absl::Duration kAckTimeout = absl::Seconds(30);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

}  // namespace

TelemetrySender::TelemetrySender(Coordinator* coordinator, TelemetryBuffer* buffer)
    : coordinator_(coordinator), buffer_(buffer) {
  thread_ = Thread("telemetry", [this] { Loop(); });
}

TelemetrySender::~TelemetrySender() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    changed_.SignalAll();
  }
  stop_.Cancel();
  buffer_->Interrupt();
  thread_.Join();
}

void TelemetrySender::SetWorker(const std::string& worker) {
  MutexLock lock(mu_);
  worker_ = worker;
  changed_.SignalAll();
}

std::string TelemetrySender::WaitForWorker() {
  MutexLock lock(mu_);
  while (worker_.empty() && !stopping_) changed_.Wait(mu_);
  return worker_;
}

void TelemetrySender::Loop() {
  absl::Duration backoff = absl::Milliseconds(100);
  while (!stop_.cancelled()) {
    const std::string worker = WaitForWorker();
    if (stop_.cancelled()) return;
    const int64_t began = Clock::Real().MonotonicNanos();
    RunStream(worker);
    // A stream that lived for a while was good: its end is news, not a series.
    if (Clock::Real().MonotonicNanos() - began > 10'000'000'000) backoff = absl::Milliseconds(100);
    if (stop_.WaitFor(backoff)) return;
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

void TelemetrySender::RunStream(const std::string& worker) {
  const std::unique_ptr<TelemetryStream> stream = coordinator_->OpenTelemetry();
  {
    MutexLock lock(mu_);
    if (stopping_) stream->Cancel();
    stream_ = stream.get();
  }
  buffer_->Rewind();
  std::atomic<int64_t> last_progress{Clock::Real().MonotonicNanos()};
  std::atomic<bool> ended{false};
  Thread reader("telemetry-acks", [&] {
    v1::TelemetryAck ack;
    while (stream->Read(&ack)) {
      last_progress.store(Clock::Real().MonotonicNanos());
      buffer_->Ack(ack.sequence());
    }
    ended.store(true);
    buffer_->Interrupt();  // wakes the writer below
  });
  v1::TelemetryBatch batch;
  while (!ended.load()) {
    if (buffer_->NextBatch(&batch, absl::Seconds(1))) {
      batch.set_worker(worker);
      if (!stream->Write(batch)) break;
    } else if (!buffer_->HasUnacked()) {
      last_progress.store(Clock::Real().MonotonicNanos());
    }
    if (Clock::Real().MonotonicNanos() - last_progress.load() > absl::ToInt64Nanoseconds(kAckTimeout)) {
      spdlog::warn("telemetry: no ack for {} s, opening a new stream", absl::ToInt64Seconds(kAckTimeout));
      break;
    }
  }
  stream->Cancel();
  reader.Join();
  {
    MutexLock lock(mu_);
    stream_ = nullptr;
  }
  const absl::Status status = stream->Finish();
  spdlog::debug("telemetry stream ended: {}", status.ToString());
}

}  // namespace strata
