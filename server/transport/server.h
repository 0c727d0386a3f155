// Server: the listening gRPC server of a coordinator.
#ifndef SERVER_TRANSPORT_SERVER_H_
#define SERVER_TRANSPORT_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/transport/services.h"

namespace strata::server {

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0 is chosen by the kernel
  int streams_max = 256;               // watches, logs, metrics, files and telemetry together
  std::chrono::seconds write_timeout{20};
};

class Server {
 public:
  // Serves from its return on. kUnavailable when the address cannot be bound. The coordinator outlives it.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Coordinator& coordinator);
  ~Server();

  int port() const { return port_; }
  CallStats& stats() { return transport_.stats; }

  // In this order: health says NOT_SERVING, the coordinator drains (which ends its streams with
  // SERVER_DRAINING), streams that wait for their peer are cancelled, and what is left after `grace` is cut
  // off. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  Server(const ServerOptions& options, Coordinator& coordinator);

  Transport transport_;
  JobServiceImpl jobs_;
  LogServiceImpl logs_;
  MetricServiceImpl metrics_;
  CheckpointServiceImpl checkpoints_;
  FleetServiceImpl fleet_;
  WorkerServiceImpl workers_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  bool down_ = false;
};

}  // namespace strata::server

#endif  // SERVER_TRANSPORT_SERVER_H_
