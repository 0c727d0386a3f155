#include "offload/calibrate/cpu_share.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/fd.h"

namespace strata {
namespace {

// "cpu3 user nice system idle iowait irq softirq steal guest ...": guest time is in user time too.
constexpr size_t kColumns = 8;
constexpr size_t kIdle = 3, kIoWait = 4;

std::optional<int64_t> BusyTicksNow(const std::vector<int>& cpus) {
  const absl::StatusOr<std::string> text = ReadFile("/proc/stat", 4 << 20);
  return text.ok() ? BusyTicks(*text, cpus) : std::nullopt;
}

double OwnSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::optional<int64_t> BusyTicks(absl::string_view proc_stat, const std::vector<int>& cpus) {
  int64_t busy = 0;
  size_t found = 0;
  for (absl::string_view line : absl::StrSplit(proc_stat, '\n')) {
    if (!absl::ConsumePrefix(&line, "cpu")) continue;
    const std::vector<absl::string_view> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int cpu = 0;
    // The first line, of all CPUs, has no number.
    if (columns.size() <= kColumns || line[0] == ' ' || !absl::SimpleAtoi(columns[0], &cpu)) continue;
    if (std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) continue;
    ++found;
    for (size_t i = 0; i < kColumns; ++i) {
      int64_t ticks = 0;
      if (!absl::SimpleAtoi(columns[i + 1], &ticks)) return std::nullopt;
      if (i != kIdle && i != kIoWait) busy += ticks;
    }
  }
  if (found == 0 || found != cpus.size()) return std::nullopt;
  return busy;
}

OthersShare::OthersShare()
    : cpus_(AllowedCpus()),
      busy_ticks_(BusyTicksNow(cpus_)),
      own_seconds_(OwnSeconds()),
      begin_nanos_(Clock::Real().MonotonicNanos()) {}

double OthersShare::Now() const {
  const std::optional<int64_t> now = BusyTicksNow(cpus_);
  const double elapsed = static_cast<double>(Clock::Real().MonotonicNanos() - begin_nanos_) * 1e-9;
  if (!busy_ticks_ || !now || elapsed <= 0) return 0;
  const double busy = static_cast<double>(*now - *busy_ticks_) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double others = busy - (OwnSeconds() - own_seconds_);
  return std::clamp(others / (elapsed * static_cast<double>(cpus_.size())), 0.0, 1.0);
}

}  // namespace strata
