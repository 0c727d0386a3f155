// What every handler goes through: RunUnary or RunStream bounds the call, counts it and turns the Status of
// the service into the one of gRPC, with its details. gRPC types stop in this folder.
#ifndef SERVER_TRANSPORT_CALL_H_
#define SERVER_TRANSPORT_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "server/service/coordinator.h"

namespace strata::server {

// The payloads of `status` become google.rpc.Status in grpc-status-details-bin. Messages and details are cut
// to what fits into a client's metadata limit.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Calls by method and result, with their durations.
class CallStats {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
    double seconds_max = 0;
  };
  void Record(const std::string& method, grpc::StatusCode code, std::chrono::nanoseconds duration);
  // By (method, code).
  std::map<std::pair<std::string, int>, Entry> Snapshot();

 private:
  Mutex mu_;
  std::map<std::pair<std::string, int>, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

// Every stream, so that their number is bounded (each holds a thread of the server, and unary calls must find
// one), a peer that does not read is cut off, and shutdown can end those that wait for their peer.
class StreamRegistry {
 public:
  StreamRegistry(int streams_max, std::chrono::seconds write_timeout);
  ~StreamRegistry();

  class Ticket {
   public:
    Ticket(StreamRegistry& registry, grpc::ServerContext* context, bool reads);
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    bool admitted() const { return admitted_; }
    // Around every blocking write.
    template <typename Writer, typename Message>
    bool Write(Writer& writer, const Message& message) {
      write_since_ = std::chrono::steady_clock::now().time_since_epoch().count();
      const bool ok = writer.Write(message);
      write_since_ = 0;
      return ok;
    }

   private:
    friend class StreamRegistry;
    StreamRegistry& registry_;
    grpc::ServerContext* const context_;
    const bool reads_;
    bool admitted_ = false;
    std::atomic<int64_t> write_since_ = 0;
  };

  // Cancels the streams that wait for messages of their peer; the others end by themselves.
  void EndReaders();

 private:
  void Watch();

  const int streams_max_;
  const std::chrono::nanoseconds write_timeout_;
  Mutex mu_;
  CondVar stop_changed_;
  std::set<Ticket*> tickets_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread watchdog_;
};

// What the services share.
struct Transport {
  Coordinator& coordinator;
  CallStats stats;
  StreamRegistry streams;
};

// Unary calls end within a minute, whatever deadline the client asks for.
inline constexpr std::chrono::seconds kUnaryMax{60};

CallContext MakeCallContext(grpc::ServerContext* context);

// `handler(call)` returns StatusOr<Response>.
template <typename Response, typename Handler>
grpc::Status RunUnary(Transport& transport, grpc::ServerContext* context, const char* method,
                      Response* response, Handler handler) {
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<Response> result = handler(MakeCallContext(context));
  grpc::Status status = result.ok() ? grpc::Status::OK : ToGrpcStatus(result.status());
  if (result.ok()) *response = *std::move(result);
  transport.stats.Record(method, status.error_code(), std::chrono::steady_clock::now() - start);
  return status;
}

// `handler(call, ticket)` returns Status and may run until the peer is gone.
template <typename Handler>
grpc::Status RunStream(Transport& transport, grpc::ServerContext* context, const char* method, bool reads,
                       Handler handler) {
  const auto start = std::chrono::steady_clock::now();
  StreamRegistry::Ticket ticket(transport.streams, context, reads);
  grpc::Status status;
  if (!ticket.admitted()) {
    status = ToGrpcStatus(WithRetry(MakeError(absl::StatusCode::kResourceExhausted, "RATE_LIMITED",
                                              "too many streams are open; close some"),
                                    absl::Seconds(5)));
  } else {
    const absl::Status result = handler(MakeCallContext(context), ticket);
    status = result.ok() ? grpc::Status::OK : ToGrpcStatus(result);
  }
  transport.stats.Record(method, status.error_code(), std::chrono::steady_clock::now() - start);
  return status;
}

}  // namespace strata::server

#endif  // SERVER_TRANSPORT_CALL_H_
