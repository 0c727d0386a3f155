// RunView: the progress of one job on stderr. On a terminal one live line with a bar; elsewhere a plain line
// every few seconds. Changes of state are lines of their own in both.
#ifndef CLIENT_CLI_RUN_VIEW_H_
#define CLIENT_CLI_RUN_VIEW_H_

#include <cstdio>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/metrics.pb.h"

namespace strata {

// Thread-safe.
class RunView {
 public:
  struct Options {
    std::FILE* out = stderr;
    bool terminal = false;        // `out` understands \r and \033[K
    bool report_follows = false;  // the caller prints the job at its end, with the reason of that
    int64_t plain_every_ms = 5000;
    int64_t live_every_ms = 100;
  };
  RunView(Options options, Clock& clock);

  void OnJob(const v1::Job& job);
  void OnRow(const v1::MetricRow& row);
  // A line of its own, above the live one.
  void Note(const std::string& line);
  // Ends the live line, so that what follows starts on a fresh one.
  void Finish();

  // Whether `out` is a terminal that can show a live line.
  static bool IsTerminal(std::FILE* out);

 private:
  void Show(bool now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PrintLine(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Line(int width) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string TierText(bool brief) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  Clock& clock_;
  Mutex mu_;
  std::string name_ ABSL_GUARDED_BY(mu_);
  std::string state_ ABSL_GUARDED_BY(mu_);
  std::string why_ ABSL_GUARDED_BY(mu_);
  std::string phase_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> budgets_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> peaks_ ABSL_GUARDED_BY(mu_);
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  double loss_ ABSL_GUARDED_BY(mu_) = 0;
  double tokens_per_s_ ABSL_GUARDED_BY(mu_) = 0;
  double step_seconds_ ABSL_GUARDED_BY(mu_) = 0;  // moving average
  int64_t shown_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  bool live_ ABSL_GUARDED_BY(mu_) = false;  // a live line stands on the terminal
};

}  // namespace strata

#endif  // CLIENT_CLI_RUN_VIEW_H_
