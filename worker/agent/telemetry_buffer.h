// What trainers said and the coordinator has not acknowledged yet, in bounded memory.
//
// Every item gets a sequence number; a batch carries the number of its last item, so an ack of N means that
// all items up to N are durable. After a reconnect everything unacknowledged is sent again (the coordinator
// drops what it has by (attempt, rank, step) or by log offset).
//
// Bounds: logs and metrics each have their own. A full log queue drops its oldest chunk: the offsets of the
// next one then jump, which the coordinator shows as a gap. A full metrics queue (32 MiB are about 50,000
// steps, hours without a coordinator) drops its oldest row. Neither ever blocks a trainer.
#ifndef WORKER_AGENT_TELEMETRY_BUFFER_H_
#define WORKER_AGENT_TELEMETRY_BUFFER_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/strata/v1/worker.pb.h"

namespace strata {

// All methods are thread-safe.
class TelemetryBuffer {
 public:
  struct Limits {
    int64_t log_bytes = 16 << 20;
    int64_t metric_bytes = 32 << 20;
    int64_t batch_bytes = 512 << 10;  // a batch stays under gRPC's 4 MiB and our 1 MiB rule
    int64_t window_bytes = 4 << 20;   // sent and not acknowledged
  };
  struct Dropped {
    int64_t log_bytes = 0;
    int64_t metric_rows = 0;
  };

  // Sequence numbers start above `base`, so that those of a later incarnation are larger.
  TelemetryBuffer(int64_t base, const Limits& limits) : limits_(limits), last_(base), sent_(base) {}

  // `data` at most 64 KiB; consecutive small chunks of one stream are joined while unsent. Both return the
  // number to wait for.
  int64_t AddLog(const v1::LogCursor& at, const std::string& job_uid, std::string data, absl::Time time);
  int64_t AddMetrics(v1::MetricRow row);

  // Waits up to `timeout` for something to send within the window; false when there is none or after
  // Interrupt. What it returns counts as sent.
  bool NextBatch(v1::TelemetryBatch* batch, absl::Duration timeout);
  void Ack(int64_t sequence);
  // Everything unacknowledged is to be sent again, on a new stream.
  void Rewind();
  // Ends current and later waits of NextBatch, until Rewind.
  void Interrupt();

  // Waits until everything up to `sequence` is acknowledged (or was dropped), at most `timeout`.
  bool WaitAcked(int64_t sequence, absl::Duration timeout);
  bool IsAcked(int64_t sequence);
  // The last number given out.
  int64_t last_sequence();
  // Sent, not acknowledged.
  bool HasUnacked();
  Dropped dropped();

 private:
  template <typename T>
  struct Item {
    int64_t sequence;
    int64_t bytes;
    T value;
  };
  void PopAcked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  Mutex mu_;
  CondVar changed_;
  // Both in order of sequence.
  std::deque<Item<v1::LogChunk>> logs_ ABSL_GUARDED_BY(mu_);
  std::deque<Item<v1::MetricRow>> metrics_ ABSL_GUARDED_BY(mu_);
  int64_t log_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t metric_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_ ABSL_GUARDED_BY(mu_);       // last number given out
  int64_t sent_ ABSL_GUARDED_BY(mu_);       // all up to here were sent on the current stream
  int64_t acked_ ABSL_GUARDED_BY(mu_) = 0;  // all up to here are durable
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  Dropped dropped_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // WORKER_AGENT_TELEMETRY_BUFFER_H_
