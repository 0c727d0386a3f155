#include "worker/agent/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/trainer_channel/trainer_channel.h"

namespace strata {
namespace {

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

// The child's descriptors are first moved here, so that placing them at 0-3 never overwrites one of them.
constexpr int kFirstParkedFd = 16;

// All a child needs between fork and exec, made before the fork: there only async-signal-safe calls are
// allowed, because other threads of this process may have held any lock.
struct ChildPlan {
  pid_t parent;
  int stdin_fd, stdout_fd, stderr_fd, channel_fd;
  int go_fd;     // one byte: recorded, go on; end of file: the agent gave up or died
  int error_fd;  // errno of a failed exec; closed by a successful one
  const char* oom_score_adj;
  char* const* argv;
  char* const* envp;
};

// Where memory ends, the kernel kills who has most of it, this number in thousandths of the limit added. A
// trainer goes on from its checkpoint; an agent or a coordinator that is killed takes all trainers with it.
constexpr int kTrainerOomScore = 500;
constexpr int kOomScoreMax = 1000;

std::string OomScoreOfTrainers() {
  int own = 0;
  if (const auto text = ReadFile("/proc/self/oom_score_adj", 64); text.ok())
    (void)absl::SimpleAtoi(*text, &own);
  return absl::StrCat(std::min(own + kTrainerOomScore, kOomScoreMax));
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The agent may have died before PDEATHSIG was set.
  if (getppid() != plan.parent) _exit(126);
  char go;
  ssize_t n;
  do {
    n = read(plan.go_fd, &go, 1);
  } while (n < 0 && errno == EINTR);
  if (n != 1) _exit(126);
  int error = 0;
  if (dup2(plan.stdin_fd, 0) < 0 || dup2(plan.stdout_fd, 1) < 0 || dup2(plan.stderr_fd, 2) < 0 ||
      dup2(plan.channel_fd, kTrainerAgentFd) < 0) {
    error = errno;
  } else {
    // Libraries may have opened descriptors without close-on-exec. Fails on old kernels; ours all have it.
    (void)syscall(SYS_close_range, kTrainerAgentFd + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    for (int signal_number = 1; signal_number < NSIG; ++signal_number) signal(signal_number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // A core file of a trainer is as large as its arenas.
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    // Raising it needs no privilege; without /proc a trainer runs as well.
    if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
      (void)!write(score, plan.oom_score_adj, strlen(plan.oom_score_adj));
      close(score);
    }
    execve(plan.argv[0], plan.argv, plan.envp);
    error = errno;
  }
  (void)!write(plan.error_fd, &error, sizeof(error));
  _exit(127);
}

struct PipeEnds {
  Fd read_end;
  Fd write_end;
};

absl::StatusOr<PipeEnds> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for a trainer");
  return PipeEnds{Fd(fds[0]), Fd(fds[1])};
}

absl::StatusOr<Fd> Park(Fd fd) {
  const int parked = fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstParkedFd);
  if (parked < 0) return ErrnoStatus(errno, "descriptor for a trainer");
  return Fd(parked);
}

absl::Status SetNonBlocking(const Fd& fd) {
  if (fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "O_NONBLOCK for a trainer's pipe");
  }
  return absl::OkStatus();
}

std::vector<char*> PointersOf(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs on the spawner's thread.
absl::StatusOr<ChildProcess> ForkAndExec(const SpawnRequest& request,
                                         const std::function<absl::Status(const ProcessIdentity&)>& record) {
  ChildProcess child;
  STRATA_ASSIGN_OR_RETURN(PipeEnds out, MakePipe());
  STRATA_ASSIGN_OR_RETURN(PipeEnds err, MakePipe());
  STRATA_ASSIGN_OR_RETURN(PipeEnds go, MakePipe());
  STRATA_ASSIGN_OR_RETURN(PipeEnds exec_error, MakePipe());
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socket pair for a trainer");
  }
  child.channel = Fd(pair[0]);
  STRATA_ASSIGN_OR_RETURN(Fd channel, Park(Fd(pair[1])));
  STRATA_ASSIGN_OR_RETURN(Fd stdin_file, OpenFile("/dev/null", O_RDONLY));
  STRATA_ASSIGN_OR_RETURN(Fd stdin_parked, Park(std::move(stdin_file)));
  STRATA_ASSIGN_OR_RETURN(Fd stdout_parked, Park(std::move(out.write_end)));
  STRATA_ASSIGN_OR_RETURN(Fd stderr_parked, Park(std::move(err.write_end)));
  STRATA_ASSIGN_OR_RETURN(Fd go_read, Park(std::move(go.read_end)));
  STRATA_ASSIGN_OR_RETURN(Fd error_write, Park(std::move(exec_error.write_end)));
  child.stdout_pipe = std::move(out.read_end);
  child.stderr_pipe = std::move(err.read_end);
  STRATA_RETURN_IF_ERROR(SetNonBlocking(child.channel));
  STRATA_RETURN_IF_ERROR(SetNonBlocking(child.stdout_pipe));
  STRATA_RETURN_IF_ERROR(SetNonBlocking(child.stderr_pipe));

  const std::vector<char*> argv = PointersOf(request.argv);
  const std::vector<char*> envp = PointersOf(request.environment);
  const std::string oom_score_adj = OomScoreOfTrainers();
  const ChildPlan plan = {getpid(),      stdin_parked.get(), stdout_parked.get(), stderr_parked.get(),
                          channel.get(), go_read.get(),      error_write.get(),   oom_score_adj.c_str(),
                          argv.data(),   envp.data()};
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, absl::StrCat("fork for ", request.argv[0]));
  if (pid == 0) RunChild(plan);

  setpgid(pid, pid);  // also done by the child: whoever is first
  // From here on an error leaves through this: the child sees the end of `go` or the signal, and is reaped.
  auto abandon = [&](const absl::Status& why) {
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return Annotate(why, absl::StrCat("starting ", request.argv[0]));
  };
  const auto stat = ReadProcessStat(pid);
  if (!stat.ok()) return abandon(stat.status());
  child.identity = stat->identity;
  child.pidfd = OpenPidfd(pid);
  const absl::Status recorded = record(child.identity);
  if (!recorded.ok()) return abandon(recorded);
  error_write = Fd();
  go_read = Fd();
  if (write(go.write_end.get(), "g", 1) != 1) return abandon(ErrnoStatus(errno, "releasing the child"));
  int error = 0;
  ssize_t n;
  do {
    n = read(exec_error.read_end.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == sizeof(error)) return abandon(ErrnoStatus(error, "exec"));
  return child;
}

}  // namespace

absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  auto text = ReadFile(path, 1 << 16);
  // A process that ends while it is read gives ESRCH.
  if (!text.ok()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  // The second field is the program's name in parentheses and may itself hold spaces and parentheses.
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return absl::NotFoundError(absl::StrCat("no process ", pid));
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*text).substr(name_end + 1), ' ', absl::SkipWhitespace());
  ProcessStat stat;
  stat.identity.pid = pid;
  int parent = 0, group = 0;
  // fields[0] is field 3 of proc(5).
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[1], &parent) || !absl::SimpleAtoi(fields[2], &group) ||
      !absl::SimpleAtoi(fields[19], &stat.identity.start_ticks)) {
    return absl::InternalError(absl::StrCat(path, " has an unknown format"));
  }
  stat.parent = parent;
  stat.group = group;
  stat.zombie = fields[0] == "Z" || fields[0] == "X";
  return stat;
}

std::vector<ProcessStat> ListProcesses() {
  std::vector<ProcessStat> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return processes;
  while (const dirent* entry = readdir(proc.get())) {
    pid_t pid;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    auto stat = ReadProcessStat(pid);
    if (stat.ok()) processes.push_back(*stat);
  }
  return processes;
}

// Raw system calls: glibc 2.36 declares these two without C linkage for C++.
Fd OpenPidfd(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

void KillExactly(const ProcessIdentity& identity) {
  const Fd pidfd = OpenPidfd(identity.pid);
  const auto now = ReadProcessStat(identity.pid);
  if (!now.ok() || now->identity.start_ticks != identity.start_ticks) return;
  if (pidfd.valid()) {
    (void)syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  } else {
    (void)kill(identity.pid, SIGKILL);  // a kernel without pidfds
  }
}

std::string BootId() {
  auto text = ReadFile("/proc/sys/kernel/random/boot_id", 256);
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

Spawner::Spawner() {
  thread_ = Thread("spawner", [this] { Loop(); });
}

Spawner::~Spawner() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.SignalAll();
  thread_.Join();
}

void Spawner::Loop() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mu_);
      while (work_.empty() && !stop_) wake_.Wait(mu_);
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

absl::StatusOr<ChildProcess> Spawner::Spawn(
    const SpawnRequest& request, const std::function<absl::Status(const ProcessIdentity&)>& record) {
  absl::StatusOr<ChildProcess> result = absl::UnknownError("not run");
  Mutex mu;
  CondVar done_changed;
  bool done = false;
  {
    MutexLock lock(mu_);
    work_.push_back([&] {
      auto child = ForkAndExec(request, record);
      MutexLock done_lock(mu);
      result = std::move(child);
      done = true;
      // Under the lock: the waiter owns the CondVar and may be gone right after.
      done_changed.SignalAll();
    });
  }
  wake_.SignalAll();
  MutexLock lock(mu);
  while (!done) done_changed.Wait(mu);
  return result;
}

void SignalGroup(pid_t group, int signal) {
  if (group > 1) (void)kill(-group, signal);
}

bool HasEnded(pid_t child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child;
}

bool EndGroup(pid_t leader, int* wait_status) {
  SignalGroup(leader, SIGKILL);
  bool others = false;
  for (const ProcessStat& process : ListProcesses()) {
    if (process.group != leader || process.identity.pid == leader) continue;
    if (process.zombie && process.parent == getpid()) {
      (void)waitpid(process.identity.pid, nullptr, WNOHANG);
      continue;
    }
    others = others || !process.zombie;
  }
  if (others) return false;
  pid_t reaped;
  do {
    reaped = waitpid(leader, wait_status, 0);
  } while (reaped < 0 && errno == EINTR);
  return true;
}

}  // namespace strata
