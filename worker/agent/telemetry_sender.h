// Moves a TelemetryBuffer to the coordinator over PushTelemetry, for ever: opens the stream, sends, takes the
// acks, and begins again (everything unacknowledged anew) when the stream breaks or acks stop coming.
#ifndef WORKER_AGENT_TELEMETRY_SENDER_H_
#define WORKER_AGENT_TELEMETRY_SENDER_H_

#include <string>

#include "common/mutex.h"
#include "common/thread.h"
#include "worker/agent/coordinator.h"
#include "worker/agent/telemetry_buffer.h"

namespace strata {

class TelemetrySender {
 public:
  // Both outlive the sender.
  TelemetrySender(Coordinator* coordinator, TelemetryBuffer* buffer);
  ~TelemetrySender();  // ends the stream, sent or not

  // The name the coordinator gave this worker; nothing is sent before the first call.
  void SetWorker(const std::string& worker);

 private:
  void Loop();
  // One stream from opening to end.
  void RunStream(const std::string& worker);
  std::string WaitForWorker();

  Coordinator* const coordinator_;
  TelemetryBuffer* const buffer_;
  Cancellation stop_;
  Mutex mu_;
  CondVar changed_;
  std::string worker_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  TelemetryStream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // while RunStream runs
  Thread thread_;
};

}  // namespace strata

#endif  // WORKER_AGENT_TELEMETRY_SENDER_H_
