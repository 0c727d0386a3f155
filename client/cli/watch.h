// Follows one job to its end: its states and its metric rows side by side.
#ifndef CLIENT_CLI_WATCH_H_
#define CLIENT_CLI_WATCH_H_

#include <functional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/run_view.h"
#include "client/lib/client.h"

namespace strata {

struct WatchOptions {
  std::stop_token stop;  // ends the watch; the job goes on
  absl::Duration timeout = absl::InfiniteDuration();
  std::function<void(const v1::MetricRow&)> on_row;  // every row, in order; called on one other thread
  std::function<absl::Status()> on_tick;             // several times a second; an error ends the watch
};

// Returns the job in its terminal state, with all its rows delivered. kCancelled after `stop`,
// kDeadlineExceeded after `timeout`, or why it cannot be watched.
absl::StatusOr<v1::Job> WatchToEnd(Client& client, const std::string& name, RunView& view,
                                   const WatchOptions& options);

}  // namespace strata

#endif  // CLIENT_CLI_WATCH_H_
