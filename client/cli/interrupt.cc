#include "client/cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "absl/time/clock.h"
#include "common/check.h"

namespace strata {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

InterruptWatcher::InterruptWatcher() {
  const sigset_t set = Signals();
  STRATA_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_ = Fd(eventfd(0, EFD_CLOEXEC));
  STRATA_CHECK(signals_.valid() && wake_.valid());
  thread_ = Thread("interrupt", [this] { Run(); });
}

InterruptWatcher::~InterruptWatcher() {
  const uint64_t one = 1;
  STRATA_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.Join();
  const sigset_t set = Signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int InterruptWatcher::first_signal() {
  MutexLock lock(mu_);
  return first_;
}

bool InterruptWatcher::WaitForSecond(absl::Duration duration) {
  const absl::Time deadline = absl::Now() + duration;
  MutexLock lock(mu_);
  while (count_ < 2 && absl::Now() < deadline)
    changed_.WaitFor(mu_, absl::ToChronoNanoseconds(deadline - absl::Now()));
  return count_ >= 2;
}

void InterruptWatcher::Run() {
  pollfd fds[] = {{.fd = signals_.get(), .events = POLLIN}, {.fd = wake_.get(), .events = POLLIN}};
  while (true) {
    poll(fds, 2, -1);
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    {
      MutexLock lock(mu_);
      if (count_++ == 0) first_ = static_cast<int>(info.ssi_signo);
      changed_.SignalAll();
    }
    source_.request_stop();
  }
}

void RunUntilAbandoned(const std::function<void()>& body, std::stop_token stop, absl::Duration grace,
                       const std::function<void()>& abandon, int code) {
  std::mutex mu;
  std::condition_variable_any changed;
  bool done = false;
  Thread thread("abandonable", [&] {
    body();
    const std::lock_guard<std::mutex> lock(mu);
    done = true;
    changed.notify_all();
  });
  {
    std::unique_lock<std::mutex> lock(mu);
    const bool ended = changed.wait(lock, stop, [&] { return done; }) ||
                       changed.wait_for(lock, absl::ToChronoNanoseconds(grace), [&] { return done; });
    if (!ended) {
      abandon();
      _exit(code);
    }
  }
  thread.Join();
}

}  // namespace strata
