#include "client/cli/watch.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/exit_code.h"
#include "common/mutex.h"
#include "common/thread.h"

namespace strata {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);
// Rows of a finished job are on their way for at most this long.
constexpr absl::Duration kDrain = absl::Seconds(10);

// What the two reading threads leave for the waiting one.
struct Shared {
  Mutex mu;
  CondVar changed;
  std::optional<v1::Job> job ABSL_GUARDED_BY(mu);
  std::optional<absl::Status> watch_end ABSL_GUARDED_BY(mu);
  std::optional<absl::Status> rows_end ABSL_GUARDED_BY(mu);
};

// Waits for the end of both streams; returns why it stopped waiting.
absl::Status WaitForEnd(Shared& shared, const WatchOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  absl::Time drain_deadline = absl::InfiniteFuture();
  while (true) {
    if (options.on_tick) {
      const absl::Status status = options.on_tick();
      if (!status.ok()) return status;
    }
    if (options.stop.stop_requested()) return absl::CancelledError("interrupted");
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(
          absl::StrCat("the job did not end within ", absl::FormatDuration(options.timeout)));
    MutexLock lock(shared.mu);
    if (shared.watch_end.has_value() && !shared.watch_end->ok()) return *shared.watch_end;
    if (shared.watch_end.has_value() && shared.rows_end.has_value()) return absl::OkStatus();
    if (shared.watch_end.has_value() && drain_deadline == absl::InfiniteFuture())
      drain_deadline = absl::Now() + kDrain;
    if (absl::Now() >= drain_deadline) return absl::OkStatus();
    shared.changed.WaitFor(shared.mu, absl::ToChronoNanoseconds(kTick));
  }
}

}  // namespace

absl::StatusOr<v1::Job> WatchToEnd(Client& client, const std::string& name, RunView& view,
                                   const WatchOptions& options) {
  Shared shared;
  std::stop_source streams;
  Thread watcher("watch", [&] {
    const absl::Status status = client.WatchJob(name, streams.get_token(), [&](const v1::Job& job) {
      view.OnJob(job);
      MutexLock lock(shared.mu);
      shared.job = job;
      return !IsTerminal(job.status().state());
    });
    MutexLock lock(shared.mu);
    shared.watch_end = status;
    shared.changed.SignalAll();
  });
  Thread rows("metrics", [&] {
    const absl::Status status =
        client.StreamMetrics(name, 0, streams.get_token(), [&](const v1::MetricRow& row) {
          view.OnRow(row);
          if (options.on_row) options.on_row(row);
          return true;
        });
    if (!status.ok() && !streams.stop_requested()) {
      view.Note(absl::StrCat("the rest of the metrics cannot be shown: ", std::string(status.message())));
    }
    MutexLock lock(shared.mu);
    shared.rows_end = status;
    shared.changed.SignalAll();
  });
  const absl::Status end = WaitForEnd(shared, options);
  streams.request_stop();
  watcher.Join();
  rows.Join();
  view.Finish();
  if (!end.ok()) return end;
  MutexLock lock(shared.mu);
  if (!shared.job.has_value() || !IsTerminal(shared.job->status().state())) {
    return absl::UnavailableError("the server ended the watch before the job ended");
  }
  return *std::move(shared.job);
}

}  // namespace strata
