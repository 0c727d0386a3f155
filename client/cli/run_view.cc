#include "client/cli/run_view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/exit_code.h"
#include "client/cli/output.h"
#include "client/cli/views.h"
#include "client/lib/names.h"
#include "common/bytes.h"
#include "common/seconds.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

constexpr double kAverageWeight = 0.1;  // of the newest step in the moving average
constexpr int kBarWidth = 20;
constexpr int kBarWidthMin = 5;
constexpr const char* kTiers[] = {"device", "host", "nvme"};

int TerminalWidth(std::FILE* out) {
  winsize size = {};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

}  // namespace

RunView::RunView(Options options, Clock& clock) : options_(options), clock_(clock) {}

bool RunView::IsTerminal(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

void RunView::OnJob(const v1::Job& job) {
  MutexLock lock(mu_);
  name_ = ShortName(job.name());
  const v1::JobStatus& status = job.status();
  for (const v1::TierRow& tier : status.plan().tiers()) budgets_[tier.tier()] = tier.budget_bytes();
  total_ = std::max<int64_t>(status.progress().total_steps(), job.spec().training().steps());
  // Metric rows are fresher than the status, except after a failed attempt.
  if (status.progress().step() > step_ || status.state() != v1::Job::RUNNING)
    step_ = status.progress().step();
  if (step_ == status.progress().step() && step_ > 0) {
    loss_ = status.progress().loss();
    if (tokens_per_s_ == 0) tokens_per_s_ = status.progress().tokens_per_second();
  }
  phase_ = status.tasks().empty() ? "" : status.tasks(0).phase();
  const std::string state = StateText(status);
  const std::string why = WhyText(status);
  if (state != state_ || why != why_) {
    state_ = state;
    why_ = why;
    const bool told_later = options_.report_follows && strata::IsTerminal(status.state());
    PrintLine(absl::StrCat(name_, ": ", state, why.empty() || told_later ? "" : ": " + why));
  }
  Show(false);
}

void RunView::OnRow(const v1::MetricRow& row) {
  const auto value = [&](const char* name) {
    const auto found = row.values().find(name);
    return found == row.values().end() ? 0.0 : found->second;
  };
  MutexLock lock(mu_);
  step_ = row.step();
  if (row.values().contains("loss")) loss_ = value("loss");
  if (row.values().contains("tokens_per_s")) tokens_per_s_ = value("tokens_per_s");
  const double seconds = value("step_ms") / 1e3;
  if (seconds > 0) {
    step_seconds_ = step_seconds_ == 0 ? seconds : step_seconds_ + kAverageWeight * (seconds - step_seconds_);
  }
  for (const char* tier : kTiers) {
    const std::string key = absl::StrCat(tier, "_peak_bytes");
    if (row.values().contains(key)) peaks_[tier] = static_cast<int64_t>(row.values().at(key));
  }
  Show(step_ >= total_);
}

void RunView::Note(const std::string& line) {
  MutexLock lock(mu_);
  PrintLine(line);
}

void RunView::Finish() {
  MutexLock lock(mu_);
  if (live_) std::fputs("\n", options_.out);
  live_ = false;
  std::fflush(options_.out);
}

void RunView::PrintLine(const std::string& line) {
  std::fputs(absl::StrCat(live_ ? "\r\033[K" : "", Printable(line), "\n").c_str(), options_.out);
  live_ = false;
  std::fflush(options_.out);
}

void RunView::Show(bool now) {
  // A row may come before the job: then there is no total to hold it against.
  if (step_ == 0 || total_ == 0) return;
  const int64_t nanos = clock_.MonotonicNanos();
  const int64_t every_ms = options_.terminal ? options_.live_every_ms : options_.plain_every_ms;
  if (!now && shown_nanos_ != 0 && nanos - shown_nanos_ < every_ms * 1'000'000) return;
  shown_nanos_ = nanos;
  if (!options_.terminal) {
    PrintLine(Line(0));
    return;
  }
  std::fputs(absl::StrCat("\r", Line(TerminalWidth(options_.out)), "\033[K").c_str(), options_.out);
  std::fflush(options_.out);
  live_ = true;
}

// `width` 0: no bar, no limit. On a terminal the bar takes what the text leaves.
std::string RunView::Line(int width) const {
  std::string text = absl::StrFormat(" step %d/%d", step_, total_);
  // A coordinator may know the step and not yet what it gave.
  if (loss_ != 0) absl::StrAppend(&text, absl::StrFormat("  loss %.4f", loss_));
  if (tokens_per_s_ > 0) absl::StrAppend(&text, "  ", FormatCount(tokens_per_s_), " tok/s");
  if (step_seconds_ > 0 && step_ < total_) {
    absl::StrAppend(&text, "  ETA ", FormatSeconds(step_seconds_ * static_cast<double>(total_ - step_)));
  }
  absl::StrAppend(&text, TierText(width > 0));
  std::string bar;
  const int64_t room =
      std::min<int64_t>(kBarWidth, width - 4 - static_cast<int64_t>(name_.size() + text.size()));
  if (room >= kBarWidthMin && total_ > 0) {
    const int64_t full = std::clamp<int64_t>(step_ * room / total_, 0, room);
    bar = absl::StrCat(" [", std::string(full, '#'), std::string(room - full, '.'), "]");
  }
  std::string line = absl::StrCat(name_, bar, text);
  if (width > 0 && line.size() >= static_cast<size_t>(width)) line.resize(static_cast<size_t>(width) - 1);
  return line;
}

// Peak against budget: in bytes, or short, in percent.
std::string RunView::TierText(bool brief) const {
  std::string text;
  for (const char* tier : kTiers) {
    const auto peak = peaks_.find(tier);
    if (peak == peaks_.end() || peak->second <= 0) continue;
    const auto budget = budgets_.find(tier);
    const bool bounded = budget != budgets_.end() && budget->second > 0;
    if (brief && bounded) {
      absl::StrAppend(&text, "  ", tier, " ", peak->second * 100 / budget->second, "%");
    } else {
      absl::StrAppend(&text, "  ", tier, " ", FormatBytes(peak->second));
      if (bounded) absl::StrAppend(&text, "/", FormatBytes(budget->second));
    }
  }
  return text;
}

}  // namespace strata
