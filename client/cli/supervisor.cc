#include "client/cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr int kTickMs = 20;
constexpr int kRestartsMax = 12;
// A server that never opened its port will not do so at the tenth try.
constexpr int kFirstStartsMax = 3;
constexpr absl::Duration kBackoffFirst = absl::Milliseconds(200);
constexpr absl::Duration kBackoffMax = absl::Seconds(5);
// A child that lived this long was healthy: its restarts count from zero again.
constexpr absl::Duration kHealthy = absl::Seconds(60);
// The worker may write a checkpoint before it ends.
constexpr absl::Duration kWorkerGrace = absl::Seconds(60);
constexpr absl::Duration kServerGrace = absl::Seconds(10);
constexpr absl::Duration kOrphanGrace = absl::Seconds(2);
const absl::Duration kStopTimeout = kWorkerGrace + kServerGrace + absl::Seconds(20);

std::string LockPath(const std::string& state_dir) { return state_dir + "/lock"; }
std::string PidPath(const std::string& state_dir) { return state_dir + "/supervisor.pid"; }
std::string PortPath(const std::string& state_dir) { return state_dir + "/server.port"; }
// Behind the number in that file: no command watches.
constexpr char kDetached[] = " detached";

std::string ExitText(int status) {
  if (WIFSIGNALED(status))
    return absl::StrCat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

// The supervisor process: one thread, one poll loop. It never returns to its caller's code.
class Supervisor {
 public:
  Supervisor(const LocalServiceOptions& options, Fd control, Fd lock)
      : options_(options), control_(std::move(control)), lock_(std::move(lock)) {
    server_ = {.name = "server", .binary = options.server_binary};
    worker_ = {.name = "worker", .binary = options.worker_binary};
  }

  // `ready` is written to once signals are handled and the state files are there.
  int Run() {
    setsid();
    prctl(PR_SET_NAME, "strata-local");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    signal(SIGPIPE, SIG_IGN);
    if (!signals_.valid() || !RedirectOutput().ok()) return 1;
    unlink(PortPath(options_.state_dir).c_str());
    while (!done_) Step();
    unlink(PidPath(options_.state_dir).c_str());
    return failure_.empty() ? 0 : 1;
  }

 private:
  struct Child {
    std::string name;
    std::string binary;
    pid_t pid = -1;
    int restarts = 0;
    int64_t started_nanos = 0;
    int64_t next_start_nanos = 0;
    bool was_started = false;
    std::string last_end;
  };
  enum class Stage { kRunning, kStoppingWorker, kStoppingServer, kReaping };

  static int64_t Now() { return Clock::Real().MonotonicNanos(); }

  absl::Status RedirectOutput() {
    STRATA_ASSIGN_OR_RETURN(const Fd null, OpenFile("/dev/null", O_RDONLY));
    STRATA_ASSIGN_OR_RETURN(const Fd log,
                            OpenFile(options_.state_dir + "/supervisor.log", O_WRONLY | O_CREAT | O_APPEND));
    dup2(null.get(), STDIN_FILENO);
    dup2(log.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    return absl::OkStatus();
  }

  void Log(const std::string& line) {
    const std::string text =
        absl::StrCat(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()), " ", line, "\n");
    (void)WriteAll(Fd(dup(STDERR_FILENO)), text, "supervisor.log");
  }

  // One line to the CLI. A CLI that does not read, or is gone, holds nothing up.
  void Tell(const std::string& line) {
    Log(line);
    if (!control_.valid()) return;
    const std::string text = line + "\n";
    (void)send(control_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void Step() {
    pollfd fds[] = {{.fd = signals_.get(), .events = POLLIN}, {.fd = control_.get(), .events = POLLIN}};
    const bool waiting = stage_ != Stage::kRunning || address_.empty() || server_.pid < 0 || worker_.pid < 0;
    poll(fds, control_.valid() ? 2 : 1, waiting ? kTickMs : -1);
    ReadSignals();
    ReadControl();
    Reap();
    if (stage_ == Stage::kRunning) {
      KeepRunning();
    } else {
      KeepStopping();
    }
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) BeginStop(absl::StrCat("signal ", info.ssi_signo));
    }
  }

  void ReadControl() {
    if (!control_.valid()) return;
    char command = 0;
    const ssize_t got = recv(control_.get(), &command, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got == 1 && command == 'd') {
      Log("detached");
      std::move(control_).Close().IgnoreError();
      control_ = Fd();
    } else if (got == 1) {
      BeginStop("asked to stop");
    } else {
      control_ = Fd();
      BeginStop("the command line program is gone");
    }
  }

  void Reap() {
    int status = 0;
    while (true) {
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) {
        no_children_ = pid < 0 && errno == ECHILD;
        return;
      }
      for (Child* child : {&server_, &worker_}) {
        if (child->pid == pid) Ended(*child, status);
      }
    }
  }

  void Ended(Child& child, int status) {
    child.pid = -1;
    child.last_end = ExitText(status);
    Log(absl::StrCat(child.name, " ", child.last_end));
    if (stage_ != Stage::kRunning) return;
    if (absl::Nanoseconds(Now() - child.started_nanos) > kHealthy) child.restarts = 0;
    const int limit = address_.empty() ? kFirstStartsMax : kRestartsMax;
    if (++child.restarts > limit) {
      failure_ = absl::StrCat("failed ", child.name, ": ", child.last_end, ", at try ", child.restarts,
                              "; see ", LogPath(child));
      Tell(failure_);
      BeginStop("gave up");
      return;
    }
    const absl::Duration backoff =
        std::min(kBackoffFirst * (1 << std::min(child.restarts - 1, 10)), kBackoffMax);
    child.next_start_nanos = Now() + absl::ToInt64Nanoseconds(backoff);
  }

  std::string LogPath(const Child& child) const {
    return absl::StrCat(options_.state_dir, "/", child.name, ".log");
  }

  void KeepRunning() {
    if (server_.pid < 0 && Now() >= server_.next_start_nanos) StartServer();
    if (address_.empty()) ReadPort();
    if (!address_.empty() && worker_.pid < 0 && Now() >= worker_.next_start_nanos) StartWorker();
  }

  void StartServer() {
    std::vector<std::string> args = options_.server_args;
    // A restarted server keeps its port: clients and the worker know no other.
    args.insert(args.end(), {"--listen", address_.empty() ? "127.0.0.1:0" : address_, "--port-file",
                             PortPath(options_.state_dir)});
    StartChild(server_, args);
  }

  void StartWorker() {
    std::vector<std::string> args = options_.worker_args;
    args.insert(args.end(), {"--server", address_});
    StartChild(worker_, args);
  }

  // The port file holds the port, or host:port, and a newline once it is complete.
  void ReadPort() {
    const absl::StatusOr<std::string> text = ReadFile(PortPath(options_.state_dir), 256);
    if (!text.ok() || text->empty() || text->back() != '\n') return;
    const absl::string_view trimmed = absl::StripAsciiWhitespace(*text);
    const size_t colon = trimmed.rfind(':');
    int port = 0;
    if (!absl::SimpleAtoi(colon == absl::string_view::npos ? trimmed : trimmed.substr(colon + 1), &port))
      return;
    address_ = absl::StrCat("127.0.0.1:", port);
    Tell("address " + address_);
  }

  void StartChild(Child& child, const std::vector<std::string>& args) {
    std::vector<char*> argv = {child.binary.data()};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const absl::StatusOr<Fd> log = OpenFile(LogPath(child), O_WRONLY | O_CREAT | O_APPEND);
    const pid_t parent = getpid();
    const pid_t pid = log.ok() ? fork() : -1;
    if (pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // It died before the line above.
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      signal(SIGPIPE, SIG_DFL);
      dup2(log->get(), STDOUT_FILENO);
      dup2(log->get(), STDERR_FILENO);
      close(lock_.get());  // The lock is the supervisor's alone.
      if (control_.valid()) close(control_.get());
      execv(child.binary.c_str(), argv.data());
      dprintf(STDERR_FILENO, "cannot run %s: %s\n", child.binary.c_str(), strerror(errno));
      _exit(127);
    }
    child.started_nanos = Now();
    if (pid < 0) {
      child.next_start_nanos = Now() + absl::ToInt64Nanoseconds(kBackoffMax);
      Log(absl::StrCat("cannot start ", child.name));
      return;
    }
    child.pid = pid;
    const std::string what = absl::StrCat(child.name, " (process ", pid, ")");
    if (child.was_started) {
      Tell(absl::StrCat("restarted ", what, ": it ", child.last_end));
    } else {
      Log("started " + what);
    }
    child.was_started = true;
  }

  void BeginStop(const std::string& why) {
    if (stage_ != Stage::kRunning) return;
    Log("stopping: " + why);
    Enter(Stage::kStoppingWorker, worker_, kWorkerGrace);
  }

  void Enter(Stage stage, const Child& child, absl::Duration grace) {
    stage_ = stage;
    deadline_nanos_ = Now() + absl::ToInt64Nanoseconds(grace);
    if (child.pid > 0) kill(child.pid, SIGTERM);
  }

  void KeepStopping() {
    const bool late = Now() >= deadline_nanos_;
    if (stage_ == Stage::kStoppingWorker) {
      if (worker_.pid > 0 && late) kill(-worker_.pid, SIGKILL);
      if (worker_.pid < 0) Enter(Stage::kStoppingServer, server_, kServerGrace);
    } else if (stage_ == Stage::kStoppingServer) {
      if (server_.pid > 0 && late) kill(-server_.pid, SIGKILL);
      if (server_.pid < 0) {
        stage_ = Stage::kReaping;
        deadline_nanos_ = Now() + absl::ToInt64Nanoseconds(kOrphanGrace);
      }
    } else if (no_children_) {
      done_ = true;
    } else if (late) {
      KillOrphans();
    }
  }

  // What our children left behind is our child now.
  void KillOrphans() {
    const absl::StatusOr<std::string> children =
        ReadFile(absl::StrCat("/proc/self/task/", getpid(), "/children"), 1 << 20);
    if (!children.ok()) return;
    for (const absl::string_view word : absl::StrSplit(*children, ' ', absl::SkipWhitespace())) {
      pid_t pid = 0;
      if (absl::SimpleAtoi(word, &pid) && pid > 1) kill(pid, SIGKILL);
    }
  }

  const LocalServiceOptions& options_;
  Fd control_;
  Fd lock_;
  Fd signals_;
  Child server_, worker_;
  Stage stage_ = Stage::kRunning;
  int64_t deadline_nanos_ = 0;
  std::string address_;
  std::string failure_;
  bool no_children_ = false;
  bool done_ = false;
};

absl::StatusOr<Fd> LockFolder(const std::string& state_dir) {
  STRATA_ASSIGN_OR_RETURN(Fd lock, OpenFile(LockPath(state_dir), O_RDWR | O_CREAT));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + LockPath(state_dir));
  return absl::AbortedError(absl::StrCat(
      "another run uses ", state_dir, ": its server's port is in ", state_dir, "/server.port, stop it with ",
      "`strata local stop --state-dir ", state_dir, "`, or choose another --state-dir"));
}

}  // namespace

absl::StatusOr<LocalService> LocalService::Start(const LocalServiceOptions& options) {
  STRATA_RETURN_IF_ERROR(MakeDirectories(options.state_dir), "making the state folder");
  STRATA_ASSIGN_OR_RETURN(Fd lock, LockFolder(options.state_dir));
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoStatus(errno, "socketpair");
  Fd ours(pair[0]), theirs(pair[1]);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "starting the supervisor");
  if (pid == 0) {
    ours = Fd();
    _exit(Supervisor(options, std::move(theirs), std::move(lock)).Run());
  }
  LocalService service(std::move(ours), pid, options.state_dir);
  STRATA_RETURN_IF_ERROR(WriteFileDurably(PidPath(options.state_dir), absl::StrCat(pid, "\n")));
  return service;
}

LocalService::LocalService(LocalService&& other)
    : control_(std::move(other.control_)),
      supervisor_(std::exchange(other.supervisor_, -1)),
      state_dir_(std::move(other.state_dir_)),
      partial_(std::move(other.partial_)),
      lines_(std::move(other.lines_)),
      address_(std::move(other.address_)),
      failure_(std::move(other.failure_)) {}

LocalService::~LocalService() { Stop().IgnoreError(); }

bool LocalService::Receive(absl::Duration timeout) {
  pollfd fd = {.fd = control_.get(), .events = POLLIN};
  if (poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return true;
  char buffer[4096];
  const ssize_t got = recv(control_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  partial_.append(buffer, static_cast<size_t>(got));
  for (size_t end; (end = partial_.find('\n')) != std::string::npos; partial_.erase(0, end + 1)) {
    const std::string line = partial_.substr(0, end);
    if (absl::StartsWith(line, "address ")) {
      address_ = line.substr(8);
    } else {
      if (absl::StartsWith(line, "failed ")) failure_ = line.substr(7);
      lines_.push_back(line);
    }
  }
  return true;
}

absl::StatusOr<std::string> LocalService::WaitForAddress(absl::Duration timeout, std::stop_token stop) {
  const absl::Time deadline = absl::Now() + timeout;
  bool alive = true;
  while (address_.empty()) {
    if (stop.stop_requested()) return absl::CancelledError("interrupted");
    if (!failure_.empty()) return absl::UnavailableError(failure_);
    if (!alive)
      return absl::UnavailableError("the local supervisor ended: see supervisor.log in the state folder");
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(
          "the local server did not start in time: see server.log in the state folder");
    alive = Receive(absl::Milliseconds(100));
  }
  return address_;
}

absl::Status LocalService::TakeEvents(const std::function<void(const std::string&)>& on_event) {
  const bool alive = Receive(absl::ZeroDuration());
  for (const std::string& line : std::exchange(lines_, {})) on_event(line);
  if (!failure_.empty()) return absl::UnavailableError(failure_);
  if (!alive)
    return absl::UnavailableError("the local supervisor ended: see supervisor.log in the state folder");
  return absl::OkStatus();
}

pid_t LocalService::Detach() {
  // Without the word the next command takes the folder for one that is in use, and says so.
  WriteFileDurably(PidPath(state_dir_), absl::StrCat(supervisor_, kDetached, "\n")).IgnoreError();
  (void)send(control_.get(), "d", 1, MSG_NOSIGNAL);
  return std::exchange(supervisor_, -1);
}

absl::Status LocalService::Stop() {
  if (supervisor_ < 0) return absl::OkStatus();
  const pid_t pid = std::exchange(supervisor_, -1);
  (void)send(control_.get(), "s", 1, MSG_NOSIGNAL);
  const absl::Time deadline = absl::Now() + kStopTimeout;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (absl::Now() < deadline) {
      // The control socket ends with the process: waiting on it is waiting for the process.
      if (!Receive(absl::Milliseconds(50))) absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    kill(pid, SIGKILL);  // Its children follow by PR_SET_PDEATHSIG.
    waitpid(pid, &status, 0);
    return absl::DeadlineExceededError("the local processes did not stop in time and were killed");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DetachedAddress(const std::string& state_dir) {
  const absl::Status none = absl::NotFoundError(absl::StrCat("no detached run uses ", state_dir));
  const absl::StatusOr<std::string> text = ReadFile(PidPath(state_dir), 64);
  if (!text.ok() || !absl::StrContains(*text, kDetached)) return none;
  STRATA_ASSIGN_OR_RETURN(const Fd lock, OpenFile(LockPath(state_dir), O_RDWR));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return none;  // killed
  STRATA_ASSIGN_OR_RETURN(const std::string port, ReadFile(PortPath(state_dir), 64));
  return absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(port));
}

absl::Status StopLocalService(const std::string& state_dir) {
  const absl::StatusOr<std::string> text = ReadFile(PidPath(state_dir), 64);
  const absl::Status none = absl::NotFoundError(absl::StrCat("no local run uses ", state_dir));
  pid_t pid = 0;
  if (!text.ok() ||
      !absl::SimpleAtoi(
          absl::StripAsciiWhitespace(absl::StripSuffix(absl::StripAsciiWhitespace(*text), kDetached)),
          &pid) ||
      pid <= 1) {
    return none;
  }
  STRATA_ASSIGN_OR_RETURN(const Fd lock, OpenFile(LockPath(state_dir), O_RDWR));
  // Only while the lock is held does the number name the supervisor.
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
    unlink(PidPath(state_dir).c_str());
    return absl::NotFoundError(absl::StrCat("nothing is left to stop: the run in ", state_dir,
                                            " was killed (process ", pid,
                                            " is gone, and its server and worker with it); `strata local "
                                            "run` with the same file and --state-dir ",
                                            state_dir, " goes on from the last checkpoint"));
  }
  if (kill(pid, SIGTERM) != 0) return ErrnoStatus(errno, absl::StrCat("stopping process ", pid));
  const absl::Time deadline = absl::Now() + kStopTimeout;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(absl::StrCat("process ", pid, " did not stop in time"));
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::OkStatus();
}

}  // namespace strata
