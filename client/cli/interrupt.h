// Ctrl-C as a stop_token: the first SIGINT or SIGTERM asks what runs to stop, and the program goes on in an
// orderly way; a later one can be waited for.
#ifndef CLIENT_CLI_INTERRUPT_H_
#define CLIENT_CLI_INTERRUPT_H_

#include <functional>
#include <stop_token>

#include "absl/time/time.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/thread.h"

namespace strata {

// At most one at a time. Blocks SIGINT and SIGTERM in the calling thread and in all that it starts later, so
// construct it before other threads exist (gRPC starts some with the first channel).
class InterruptWatcher {
 public:
  InterruptWatcher();
  ~InterruptWatcher();

  // Stop is requested by the first signal, or by RequestStop.
  std::stop_token token() const { return source_.get_token(); }
  void RequestStop() { source_.request_stop(); }

  // The first signal, 0 before it.
  int first_signal();
  // Whether a second signal comes within `duration`.
  bool WaitForSecond(absl::Duration duration);

 private:
  void Run();

  std::stop_source source_;
  Fd signals_;
  Fd wake_;
  Mutex mu_;
  CondVar changed_;
  int first_ ABSL_GUARDED_BY(mu_) = 0;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_;
};

// Runs `body` on a thread of its own and returns when it has returned. When `stop` was requested and the body
// is still at work after `grace` (it waits for a slow disk, or for who reads its output), calls `abandon` on
// the calling thread and ends the program with exit code `code`: nothing else is destroyed, so `abandon`
// removes what must not stay. It must not wait for anything that the body may hold.
void RunUntilAbandoned(const std::function<void()>& body, std::stop_token stop, absl::Duration grace,
                       const std::function<void()>& abandon, int code);

}  // namespace strata

#endif  // CLIENT_CLI_INTERRUPT_H_
