#include "worker/agent/recalibration.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// A busy machine is made no less so: each pause is twice the one before.
constexpr int64_t kFirstPauseNanos = 30'000'000'000, kLongestPauseNanos = 900'000'000'000;

}  // namespace

Recalibration::Recalibration(Measure measure, std::function<void()> done)
    : measure_(std::move(measure)), done_(std::move(done)) {}

Recalibration::~Recalibration() {
  if (thread_.joinable()) thread_.Join();
}

std::optional<v1::MachineProfile> Recalibration::Poll(bool idle, const v1::MachineProfile& speeds,
                                                      int64_t now_nanos) {
  {
    MutexLock lock(mu_);
    if (running_) return std::nullopt;
    if (std::optional<v1::MachineProfile> found = std::exchange(found_, std::nullopt); found.has_value())
      return found;
  }
  if (pause_nanos_ == 0) {
    pause_nanos_ = kFirstPauseNanos;
    next_nanos_ = now_nanos + pause_nanos_;
  }
  if (!idle || !(speeds.measured_while_busy() || speeds.guessed()) || now_nanos < next_nanos_)
    return std::nullopt;
  next_nanos_ = now_nanos + pause_nanos_;
  pause_nanos_ = std::min(2 * pause_nanos_, kLongestPauseNanos);
  if (thread_.joinable()) thread_.Join();
  {
    MutexLock lock(mu_);
    running_ = true;
  }
  thread_ = Thread("recalibrate", [this] { Run(); });
  return std::nullopt;
}

bool Recalibration::running() {
  MutexLock lock(mu_);
  return running_;
}

void Recalibration::Run() {
  absl::StatusOr<v1::MachineProfile> measured = measure_();
  // A machine without the memory for it stays one for long.
  if (!measured.ok() && warned_ != measured.status().message()) {
    warned_ = std::string(measured.status().message());
    spdlog::warn("measuring this machine again: {}", measured.status().ToString());
  }
  {
    MutexLock lock(mu_);
    running_ = false;
    if (measured.ok()) found_ = *std::move(measured);
  }
  done_();
}

}  // namespace strata
