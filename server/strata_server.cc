// strata_server: the coordinator. Flags, wiring, signals; every decision is elsewhere.
//
// Exit codes: 0 ended by a signal as it should, or --check-config found nothing; 2 the flags or the
// environment are wrong; 3 the data folder is damaged or in use; 5 the address cannot be served.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"
#include "server/service/coordinator.h"
#include "server/store/sqlite_state_store.h"
#include "server/telemetry/telemetry.h"
#include "server/transport/self_check.h"
#include "server/transport/server.h"

namespace strata::server {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitStorage = 3;
constexpr int kExitAddress = 5;
constexpr int kExitDeaf = 6;
constexpr std::chrono::seconds kSelfCheckEvery{15};
constexpr int kSelfCheckFailures = 4;
constexpr auto kShutdownGrace = std::chrono::seconds(5);

struct Flags {
  std::string listen = "127.0.0.1:7411";
  std::string data_dir;
  std::string checkpoint_root;
  std::string port_file;
  std::string lease_ttl = "10s";
  std::string log_quota = "64MiB";
  bool check_config = false;

  absl::Duration lease;         // of lease_ttl
  int64_t log_quota_bytes = 0;  // of log_quota
};

int Fail(int code, absl::string_view message) {
  absl::FPrintF(stderr, "strata_server: %s\n", message);
  return code;
}

void Log(absl::string_view message) {
  absl::FPrintF(stderr, "%s strata_server: %s\n",
                absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()), message);
}

absl::Status CheckFlags(Flags& flags) {
  if (!absl::ParseDuration(flags.lease_ttl, &flags.lease) || flags.lease < absl::Milliseconds(100) ||
      flags.lease > absl::Hours(1)) {
    return absl::InvalidArgumentError("--lease-ttl: must be a duration of 100ms to 1h, as in 10s");
  }
  STRATA_ASSIGN_OR_RETURN(flags.log_quota_bytes, ParseBytes(flags.log_quota), "--log-quota");
  if (flags.log_quota_bytes < (2 << 20))
    return absl::InvalidArgumentError("--log-quota: must be at least 2MiB");
  // gRPC would take port 99999 for 34463.
  const size_t colon = flags.listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(flags.listen.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError("--listen: must be host:port, as in 127.0.0.1:7411 or 0.0.0.0:7411");
  }
  if (!flags.checkpoint_root.empty()) {
    if (flags.checkpoint_root[0] != '/')
      return absl::InvalidArgumentError("--checkpoint-root: must be absolute");
    while (flags.checkpoint_root.size() > 1 && flags.checkpoint_root.back() == '/')
      flags.checkpoint_root.pop_back();
  }
  return absl::OkStatus();
}

// Connections that are open when the limit is reached make gRPC's listener stop accepting for good.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096) {
    Log(absl::StrCat("the limit of open files is only ", limit.rlim_cur,
                     "; raise it (ulimit -n) to at least 4096"));
  }
}

// One coordinator per data folder. The kernel drops the lock with the process, however it ends.
absl::StatusOr<Fd> LockDataDir(const std::string& data_dir) {
  STRATA_RETURN_IF_ERROR(MakeDirectories(data_dir));
  const std::string path = absl::StrCat(data_dir, "/LOCK");
  STRATA_ASSIGN_OR_RETURN(Fd lock, OpenFile(path, O_RDWR | O_CREAT));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is held: another strata_server uses this folder"));
  }
  return lock;
}

std::vector<SpecProblem> CheckSpec(v1::JobSpec& spec) {
  ApplyDefaults(spec);
  std::vector<SpecProblem> problems;
  for (const FieldViolation& violation : Validate(spec))
    problems.push_back({violation.field, violation.description});
  return problems;
}

int Serve(const Flags& flags, int signals) {
  absl::StatusOr<Fd> lock = LockDataDir(flags.data_dir);
  if (!lock.ok()) return Fail(kExitStorage, lock.status().message());
  absl::StatusOr<std::unique_ptr<SqliteStateStore>> store =
      SqliteStateStore::Open(absl::StrCat(flags.data_dir, "/state.db"), Clock::Real());
  if (!store.ok()) return Fail(kExitStorage, store.status().message());
  absl::StatusOr<std::unique_ptr<Telemetry>> telemetry =
      Telemetry::Open(absl::StrCat(flags.data_dir, "/telemetry"), flags.log_quota_bytes);
  if (!telemetry.ok()) return Fail(kExitStorage, telemetry.status().message());

  CoordinatorOptions options;
  options.lease_ttl = flags.lease;
  options.lease_grace = flags.lease / 2;
  options.restart_wait = std::max(options.restart_wait, flags.lease * 2);
  options.checkpoint_root = flags.checkpoint_root;
  options.free_bytes = [data_dir = flags.data_dir] {
    struct statvfs disk = {};
    if (statvfs(data_dir.c_str(), &disk) != 0) return INT64_MAX;
    return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  };
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator =
      Coordinator::Create(options, Clock::Real(), **store, **telemetry, PlanJob, CheckSpec);
  if (!coordinator.ok()) return Fail(kExitStorage, coordinator.status().message());

  ServerOptions server_options;
  server_options.listen = flags.listen;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(server_options, **coordinator);
  if (!server.ok()) return Fail(kExitAddress, server.status().message());
  if (!flags.port_file.empty()) {
    const absl::Status written = WriteFileDurably(flags.port_file, absl::StrCat((*server)->port(), "\n"));
    if (!written.ok()) return Fail(kExitUsage, absl::StrCat("--port-file: ", written.message()));
  }
  Log(absl::StrCat("serving ", flags.listen, " (port ", (*server)->port(), "), data in ", flags.data_dir));
  if (!IsLoopback(flags.listen)) {
    Log(absl::StrCat(
        "warning: --listen ", flags.listen,
        " can be reached from other machines, and nobody is asked who they are: whoever reaches it can "
        "submit and cancel jobs and read checkpoints; let only trusted machines through, or listen on "
        "127.0.0.1"));
  }

  std::atomic<bool> deaf = false;
  std::optional<SelfCheck> self_check;
  self_check.emplace(LocalAddress(flags.listen, (*server)->port()), kSelfCheckEvery, kSelfCheckFailures,
                     [&deaf] {
                       deaf = true;
                       (void)kill(getpid(), SIGTERM);
                     });
  signalfd_siginfo info{};
  while (read(signals, &info, sizeof(info)) != sizeof(info)) {
  }
  Log(deaf ? "our own port does not answer: shutting down"
           : absl::StrCat("signal ", info.ssi_signo, ": shutting down"));
  self_check.reset();
  (*server)->Shutdown(kShutdownGrace);
  for (const auto& [key, entry] : (*server)->stats().Snapshot()) {
    Log(absl::StrFormat("%s code %d: %d calls, mean %.1f ms, longest %.1f ms", key.first, key.second,
                        entry.calls, 1e3 * entry.seconds / entry.calls, 1e3 * entry.seconds_max));
  }
  return deaf ? kExitDeaf : 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Coordinator of Strata: takes training jobs over gRPC and hands them to workers."};
  app.name("strata_server");
  app.set_version_flag("--version", std::string("strata_server 0.1.0"));
  app.add_option("--listen", flags.listen, "host:port to serve; port 0 picks a free one")
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir, "folder of the coordinator's databases and logs")->required();
  app.add_option("--checkpoint-root", flags.checkpoint_root,
                 "folder that workers keep checkpoints in, the same path here and there; default: what each "
                 "worker says");
  app.add_option("--port-file", flags.port_file, "file that receives the port once it is served");
  app.add_option("--lease-ttl", flags.lease_ttl, "how long a worker's word is good, as in 10s")
      ->capture_default_str();
  app.add_option("--log-quota", flags.log_quota, "bytes of trainer output kept per job")
      ->capture_default_str();
  app.add_flag("--check-config", flags.check_config, "check the flags, start nothing, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (const absl::Status status = CheckFlags(flags); !status.ok()) return Fail(kExitUsage, status.message());
  if (flags.check_config) return 0;

  // Before any thread exists, so that every thread inherits the mask and the signals reach the descriptor.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return Fail(kExitUsage, "cannot block signals");
  (void)std::signal(SIGPIPE, SIG_IGN);
  const Fd signals(signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals.valid()) return Fail(kExitUsage, "cannot create a signalfd");
  RaiseFileLimit();
  return Serve(flags, signals.get());
}

}  // namespace
}  // namespace strata::server

int main(int argc, char** argv) { return strata::server::Main(argc, argv); }
