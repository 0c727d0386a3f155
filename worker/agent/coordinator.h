// The agent's view of the coordinator: one method per RPC, statuses instead of gRPC types. The only place of
// the agent that knows gRPC.
#ifndef WORKER_AGENT_COORDINATOR_H_
#define WORKER_AGENT_COORDINATOR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/strata/v1/worker.pb.h"

namespace strata {

// Lets another thread end a blocking call. Cancel is sticky: a call begun afterwards ends at once.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel();
  bool cancelled();
  // Waits for Cancel, at most `timeout`; true when cancelled. For pauses between retries.
  bool WaitFor(absl::Duration timeout);

  // For implementations: what a Cancel must stop, while attached. The function must not block.
  void Attach(void (*stop)(void*), void* argument);
  void Detach();

 private:
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  void (*stop_)(void*) ABSL_GUARDED_BY(mu_) = nullptr;
  void* argument_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// One PushTelemetry stream. One thread writes, one reads; Cancel from any thread ends both.
class TelemetryStream {
 public:
  virtual ~TelemetryStream() = default;
  virtual bool Write(const v1::TelemetryBatch& batch) = 0;  // false: the stream is broken
  virtual bool Read(v1::TelemetryAck* ack) = 0;             // false: the stream has ended
  virtual void Cancel() = 0;
  virtual absl::Status Finish() = 0;  // after Read returned false and no Write runs
};

// Thread-safe. Every call has a deadline. Errors keep the canonical code; ErrorReason gives the
// google.rpc.ErrorInfo reason, e.g. "STALE_ATTEMPT".
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual absl::Status Register(const v1::RegisterRequest& request, absl::Duration timeout,
                                Cancellation* cancellation, v1::RegisterResponse* response) = 0;
  virtual absl::Status Sync(const v1::SyncRequest& request, absl::Duration timeout,
                            Cancellation* cancellation, v1::SyncResponse* response) = 0;
  virtual absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request, absl::Duration timeout,
                                        Cancellation* cancellation, v1::Checkpoint* response) = 0;
  virtual absl::Status Rendezvous(const v1::RendezvousRequest& request, absl::Duration timeout,
                                  Cancellation* cancellation, v1::RendezvousResponse* response) = 0;
  virtual std::unique_ptr<TelemetryStream> OpenTelemetry() = 0;

  virtual bool IsConnected() = 0;
  // Drives the connection for at most `timeout`; true as soon as it stands. gRPC makes progress on a
  // connection only while somebody waits on the channel: pauses between calls belong in here.
  virtual bool WaitConnected(absl::Duration timeout) = 0;
};

// Connects lazily and again for ever; never blocks. `address` as gRPC takes it: host:port, unix:path.
std::unique_ptr<Coordinator> ConnectCoordinator(const std::string& address);

// "" when the error carries none.
std::string ErrorReason(const absl::Status& status);
// When the coordinator said to ask again (google.rpc.RetryInfo); zero when the error does not say.
absl::Duration RetryDelay(const absl::Status& status);

// Whether asking again cannot change the answer: the attempt is fenced, or the request is one that the
// coordinator will never take.
bool IsFinal(const absl::Status& status);

}  // namespace strata

#endif  // WORKER_AGENT_COORDINATOR_H_
