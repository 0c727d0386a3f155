// SelfCheck: asks our own port, over a new connection each time, whether it still serves. gRPC's listener
// stops accepting for good once the process has run out of file descriptors, even after they are free again;
// nothing inside the process notices, so it is asked from outside and the supervisor starts us anew.
#ifndef SERVER_TRANSPORT_SELF_CHECK_H_
#define SERVER_TRANSPORT_SELF_CHECK_H_

#include <chrono>
#include <functional>
#include <string>

#include "common/mutex.h"
#include "common/thread.h"

namespace strata::server {

// Whether a new connection to `address` gets SERVING from grpc.health.v1 within `timeout`.
bool IsServing(const std::string& address, std::chrono::milliseconds timeout);

// Where a server that listens on `listen` and got `port` can be asked from this machine.
std::string LocalAddress(const std::string& listen, int port);

// Whether only this machine reaches a server that listens on `listen`, host:port.
bool IsLoopback(const std::string& listen);

class SelfCheck {
 public:
  // Calls `failed` once, from its own thread, after `failures_max` checks in a row have failed.
  SelfCheck(std::string address, std::chrono::milliseconds every, int failures_max,
            std::function<void()> failed);
  ~SelfCheck();

 private:
  void Loop();

  const std::string address_;
  const std::chrono::milliseconds every_;
  const int failures_max_;
  const std::function<void()> failed_;
  Mutex mu_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace strata::server

#endif  // SERVER_TRANSPORT_SELF_CHECK_H_
