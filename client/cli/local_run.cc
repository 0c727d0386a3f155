// `strata local run`: everything on one machine. In this order, so that a refusal leaves nothing behind:
//   1. read and check the job file; check files, storage and memory of this machine; plan; see by the note of
//      an earlier run whether its unfinished job is another;
//   2. start server and worker under the supervisor; wait until both answer;
//   3. show the plan; submit (or find the unfinished job of an earlier run of the same file); write the note;
//   4. watch to the end; report, export, sample; stop all.
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <optional>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/binaries.h"
#include "client/cli/checkpoints.h"
#include "client/cli/command_util.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/job_file.h"
#include "client/cli/local_limits.h"
#include "client/cli/preflight.h"
#include "client/cli/process.h"
#include "client/cli/run_view.h"
#include "client/cli/supervisor.h"
#include "client/cli/views.h"
#include "client/cli/watch.h"
#include "client/lib/names.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/status.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/job_spec/plan_job.h"

namespace strata {
namespace {

std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) == nullptr ? "" : real;
}

constexpr absl::Duration kServerStart = absl::Seconds(60);
constexpr absl::Duration kWorkerStart = absl::Seconds(60);
constexpr absl::Duration kSecondInterrupt = absl::Seconds(2);
constexpr char kLeaseTtl[] = "5s";
constexpr int64_t kNoteLimitBytes = 8 << 20;
constexpr const char* kExportFiles[] = {"config.json", "generation_config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json"};

struct LocalRun {
  const Globals& globals;
  const LocalRunFlags& flags;
  LoadedJob job;
  std::string state_dir;
  std::string nvme_path;
  bool state_dir_is_new = false;
  v1::JobPlan plan;  // made here, by the code that the coordinator and the trainer plan with
  LocalServiceOptions service;
};

std::string AbsolutePath(const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  char cwd[PATH_MAX];
  return getcwd(cwd, sizeof(cwd)) == nullptr ? path : absl::StrCat(cwd, "/", path);
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

struct BudgetFlag {
  const char* flag;
  const char* field;
  const std::string LocalRunFlags::*text;
  int64_t (v1::MemorySpec::*get)() const;
  void (v1::MemorySpec::*set)(int64_t);
};
constexpr BudgetFlag kBudgetFlags[] = {
    {"--device", "memory.device", &LocalRunFlags::device, &v1::MemorySpec::device,
     &v1::MemorySpec::set_device},
    {"--host", "memory.host", &LocalRunFlags::host, &v1::MemorySpec::host, &v1::MemorySpec::set_host},
    {"--nvme", "memory.nvme", &LocalRunFlags::nvme, &v1::MemorySpec::nvme, &v1::MemorySpec::set_nvme},
};

// kInvalidArgument for a budget that is no size.
absl::Status CheckBudgets(const LocalRunFlags& flags) {
  for (const BudgetFlag& budget : kBudgetFlags) {
    const std::string& text = flags.*budget.text;
    if (text.empty()) continue;
    STRATA_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text), budget.flag);
    if (bytes <= 0)
      return absl::InvalidArgumentError(absl::StrCat(budget.flag, ": ", text, " is not more than nothing"));
  }
  return absl::OkStatus();
}

// Writes the budgets that were given as flags into a job's memory. A job that has its own keeps them: it is
// the same job on any machine.
std::vector<FieldViolation> GiveBudgets(const LocalRunFlags& flags, v1::MemorySpec& memory) {
  std::vector<FieldViolation> violations;
  for (const BudgetFlag& budget : kBudgetFlags) {
    const std::string& text = flags.*budget.text;
    if (text.empty()) continue;
    if (const int64_t own = (memory.*budget.get)(); own > 0) {
      violations.push_back(
          {.field = budget.flag,
           .description = absl::StrCat("the job file has ", budget.field, ": ", FormatBytes(own),
                                       ": write auto there to give it here")});
    } else {
      (memory.*budget.set)(*ParseBytes(text));
    }
  }
  return violations;
}

// What is wrong with a budget that was given as a flag is wrong with the flag.
void NameFlags(const LocalRunFlags& flags, std::vector<FieldViolation>& violations) {
  for (FieldViolation& violation : violations) {
    for (const BudgetFlag& budget : kBudgetFlags) {
      if (violation.field == budget.field && !(flags.*budget.text).empty()) violation.field = budget.flag;
    }
  }
}

// Step 1. Creates nothing but the probe's unnamed file.
std::optional<ExitCode> Prepare(LocalRun& run) {
  if (const absl::Status sizes = CheckBudgets(run.flags); !sizes.ok())
    return PrintError(RenderError(sizes)), ExitCode::kUsage;
  v1::JobSpec spec = run.job.spec;
  std::vector<FieldViolation> violations = GiveBudgets(run.flags, *spec.mutable_memory());
  run.state_dir = AbsolutePath(run.flags.state_dir.empty() ? absl::StrCat("strata-runs/", spec.name())
                                                           : run.flags.state_dir);
  run.nvme_path = run.flags.nvme_path.empty() ? run.state_dir + "/nvme" : AbsolutePath(run.flags.nvme_path);
  run.state_dir_is_new = !Exists(run.state_dir);
  absl::StatusOr<LocalMachine> machine = LookAtMachine(run.globals.bin_dir);
  if (!machine.ok()) return Fail(machine.status());
  for (FieldViolation& violation : CheckFiles(spec)) violations.push_back(std::move(violation));
  const std::string storage_flag = run.flags.nvme_path.empty() ? "--state-dir" : "--nvme-path";
  for (FieldViolation& violation : CheckStorage(spec, run.nvme_path, storage_flag))
    violations.push_back(std::move(violation));
  if (!run.flags.nvme_path.empty()) {
    if (const absl::Status usable = CheckFolder(run.state_dir); !usable.ok())
      violations.push_back({.field = "--state-dir", .description = std::string(usable.message())});
  }
  for (FieldViolation& violation : CheckRequiredGpu(spec, machine->why_no_gpu))
    violations.push_back(std::move(violation));
  for (FieldViolation& violation : CheckFp8(spec, *machine)) violations.push_back(std::move(violation));
  for (FieldViolation& violation : CheckMemory(spec, *machine)) violations.push_back(std::move(violation));
  NameFlags(run.flags, violations);
  if (PrintViolations(run.job, violations)) return ExitCode::kRejected;
  const absl::StatusOr<v1::ResourceRequest> offered =
      LocalLimits(spec, *machine, run.nvme_path, kLocalRunBytes);
  if (!offered.ok()) return Fail(offered.status());
  const v1::ResourceRequest& limits = *offered;
  absl::StatusOr<v1::JobPlan> plan = PlanJob(run.job.spec, limits);
  if (!plan.ok()) return FailPlan(run.job, plan.status());
  if (!plan->fits()) {
    PrintError(absl::StrCat("error: ", run.job.path, ": ", PlanText(*plan)));
    return ExitCode::kRejected;
  }
  run.plan = *std::move(plan);
  const absl::StatusOr<std::string> server = FindProgram(Program::kServer, run.globals.bin_dir);
  if (!server.ok()) return Fail(server.status());
  const absl::StatusOr<std::string> worker = FindProgram(Program::kWorker, run.globals.bin_dir);
  if (!worker.ok()) return Fail(worker.status());
  // As the worker will find it; a worker that cannot start would be started again and again.
  if (run.flags.require_gpu && machine->gpu == nullptr)
    return Fail(absl::FailedPreconditionError(absl::StrCat("--require-gpu: ", machine->why_no_gpu)));
  if (machine->gpu != nullptr) {
    if (const absl::Status given_back = machine->gpu->Release(); !given_back.ok()) return Fail(given_back);
  }
  const std::string checkpoints = run.state_dir + "/checkpoints";
  run.service = {.state_dir = run.state_dir, .server_binary = *server, .worker_binary = *worker};
  run.service.server_args = {
      "--data-dir", run.state_dir + "/server", "--checkpoint-root", checkpoints, "--lease-ttl", kLeaseTtl};
  run.service.worker_args = {"--worker-id",       "local",
                             "--state-dir",       run.state_dir + "/worker",
                             "--nvme-path",       run.nvme_path,
                             "--checkpoint-root", checkpoints,
                             "--device-bytes",    absl::StrCat(limits.device_bytes()),
                             "--host-bytes",      absl::StrCat(limits.host_bytes()),
                             "--nvme-bytes",      absl::StrCat(limits.nvme_bytes())};
  if (run.flags.require_gpu) run.service.worker_args.push_back("--require-gpu");
  return std::nullopt;
}

// Whether the folder `path` holds no other name than `known`.
bool HoldsOnly(const std::string& path, std::span<const char* const> known) {
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return false;
  bool only_known = true;
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    const bool expected = std::find(known.begin(), known.end(), name) != known.end();
    only_known = only_known && (expected || name == "." || name == "..");
  }
  closedir(dir);
  return only_known;
}

// Decides before the training whether its result may be written: --export names a new or empty folder, where
// one can be made, or an earlier export inside the state folder, which is then replaced.
std::optional<ExitCode> CheckExportFolder(const LocalRun& run) {
  if (run.flags.export_dir.empty()) return std::nullopt;
  const std::string path = AbsolutePath(run.flags.export_dir);
  const bool is_ours =
      !run.state_dir_is_new && absl::StartsWith(RealPath(path), RealPath(run.state_dir) + "/");
  if (Exists(path) && !HoldsOnly(path, {}) && !(is_ours && HoldsOnly(path, kExportFiles))) {
    PrintError(absl::StrCat("error: --export ", path, " exists and is not an earlier export inside ",
                            run.state_dir, ": name a new folder\n"));
    return ExitCode::kConflict;
  }
  if (const absl::Status usable = CheckExportPath(path); !usable.ok())
    return Fail(Annotate(usable, "--export"));
  return std::nullopt;
}

// The old export stays until the new one is complete.
absl::Status ExportTo(const LocalCheckpoint& checkpoint, const std::string& path) {
  if (!Exists(path)) return ExportCheckpoint(checkpoint, path);
  const std::string fresh = path + ".new", old = path + ".old";
  STRATA_RETURN_IF_ERROR(RemoveTree(fresh));
  STRATA_RETURN_IF_ERROR(RemoveTree(old));
  STRATA_RETURN_IF_ERROR(ExportCheckpoint(checkpoint, fresh));
  if (rename(path.c_str(), old.c_str()) != 0 || rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("replacing ", path, " by ", fresh));
  }
  return RemoveTree(old);
}

// The last lines of a child's log, for an error that the child caused.
std::string LogTail(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, int64_t{64} << 20);
  if (!text.ok() || text->empty()) return "";
  size_t start = text->size() - 1;
  for (int lines = 0; lines < 10 && start > 0; ++lines)
    start = text->rfind('\n', start - 1) == std::string::npos ? 0 : text->rfind('\n', start - 1);
  return absl::StrCat("last lines of ", path, ":\n", text->substr(start), "\n");
}

// Step 2: until the worker has registered.
absl::Status WaitForWorker(LocalService& service, Client& client, std::stop_token stop) {
  const absl::Time deadline = absl::Now() + kWorkerStart;
  while (true) {
    STRATA_RETURN_IF_ERROR(service.TakeEvents([](const std::string& event) { PrintError(event + "\n"); }));
    if (stop.stop_requested()) return absl::CancelledError("interrupted");
    STRATA_ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client.ListWorkers());
    const bool ready = std::any_of(workers.begin(), workers.end(), [](const v1::Worker& worker) {
      return worker.state() == v1::Worker::READY;
    });
    if (ready) return absl::OkStatus();
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError("the local worker did not register in time");
    absl::SleepFor(absl::Milliseconds(50));
  }
}

// The first field in which two job files differ: "modified: training.steps: 3 -> 4".
std::string FirstDifference(const v1::JobSpec& before, const v1::JobSpec& now) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string text;
  differencer.ReportDifferencesToString(&text);
  differencer.Compare(before, now);
  return text.substr(0, text.find('\n'));
}

// Whether `unfinished`, of an earlier run in the state folder, is what the job file says.
absl::Status CheckUnchanged(const LocalRun& run, const v1::Job& unfinished) {
  if (ToJson(unfinished.spec()) == ToJson(run.job.spec)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      run.state_dir, " holds the unfinished job ", ShortName(unfinished.name()),
      ", which is not what the job file says now (", FirstDifference(unfinished.spec(), run.job.spec),
      "): add --restart to cancel it and begin anew, undo the change to go on with it, or choose another "
      "--state-dir"));
}

std::string UnfinishedPath(const LocalRun& run) { return run.state_dir + "/unfinished-job.pb"; }

// Step 1: what step 3 would say of an edited file, from the note that a run leaves beside its job and takes
// away once the job has ended or goes on without it.
absl::Status CheckNote(const LocalRun& run) {
  v1::Job unfinished;
  const absl::StatusOr<std::string> note = ReadFile(UnfinishedPath(run), kNoteLimitBytes);
  if (run.flags.restart || !note.ok() || !unfinished.ParseFromString(*note)) return absl::OkStatus();
  return CheckUnchanged(run, unfinished);
}

// Step 3: the unfinished job of an earlier run with the same file, or a new one.
absl::StatusOr<v1::Job> SubmitOrResume(const LocalRun& run, Client& client) {
  v1::CreateJobRequest request;
  request.set_parent("projects/default");
  *request.mutable_spec() = run.job.spec;
  request.mutable_labels()->insert(run.flags.labels.begin(), run.flags.labels.end());
  STRATA_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, client.ListJobs("", 0));
  for (const v1::Job& job : jobs) {
    if (IsTerminal(job.status().state())) continue;
    if (run.flags.restart) {
      STRATA_RETURN_IF_ERROR(client.CancelJob(job.name(), "strata local run --restart").status());
      (void)unlink(UnfinishedPath(run).c_str());
      PrintError(
          absl::StrCat("cancelled ", ShortName(job.name()), ", which an earlier run left unfinished\n"));
      continue;
    }
    STRATA_RETURN_IF_ERROR(CheckUnchanged(run, job));
    PrintError(absl::StrCat("going on with ", ShortName(job.name()),
                            ", which an earlier run of this file left unfinished\n"));
    return job;
  }
  absl::StatusOr<v1::Job> job = client.CreateJob(request);
  if (job.ok()) PrintError(absl::StrCat("submitted ", ShortName(job->name()), "\n"));
  return job;
}

std::string Summary(const LocalRun& run, const v1::Job& job) {
  const v1::RunResult& result = job.status().result();
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, absl::StrFormat("%-12s %s\n", label, value));
  };
  line("job", ShortName(job.name()));
  line("state", StateText(job.status()));
  line("why", WhyText(job.status()));
  if (job.status().has_result()) {
    line("train loss", absl::StrFormat("%.4f", result.train_loss()));
    if (result.has_eval_loss()) line("eval loss", absl::StrFormat("%.4f", result.eval_loss()));
    if (result.has_eval_perplexity()) line("perplexity", absl::StrFormat("%.3f", result.eval_perplexity()));
    line("trace", result.trace_path());
    line("checkpoint", result.checkpoint_path());
  }
  line("state dir", run.state_dir);
  return text;
}

// Step 4, after the job's end: export and sample of its last checkpoint.
absl::Status UseResult(const LocalRun& run, Client& client, const v1::Job& job) {
  if (run.flags.export_dir.empty() && run.flags.sample_bytes == 0) return absl::OkStatus();
  STRATA_ASSIGN_OR_RETURN(const LocalCheckpoint checkpoint,
                          FindCheckpoint(job.name(), [&]() -> absl::StatusOr<Client*> { return &client; }));
  if (!run.flags.export_dir.empty()) {
    STRATA_RETURN_IF_ERROR(ExportTo(checkpoint, AbsolutePath(run.flags.export_dir)), "exporting ",
                           checkpoint.path);
    PrintError(absl::StrCat("exported to ", run.flags.export_dir, "\n"));
  }
  if (run.flags.sample_bytes > 0) {
    STRATA_ASSIGN_OR_RETURN(const std::string trainer, FindProgram(Program::kTrainer, run.globals.bin_dir));
    PrintError("a sample of its text:\n");
    // In the formats for scripts stdout holds nothing else.
    const int out = run.globals.format == Format::kTable ? STDOUT_FILENO : STDERR_FILENO;
    const GenerateFlags sample = {.prompt = run.flags.prompt,
                                  .max_tokens = run.flags.sample_bytes,
                                  .seed = run.job.spec.training().seed()};
    STRATA_ASSIGN_OR_RETURN(const int code, RunProgram(GenerateCommand(trainer, checkpoint, sample), out));
    if (code != 0) return absl::InternalError(absl::StrCat(trainer, " generate ended with exit code ", code));
  }
  return absl::OkStatus();
}

// `service` is null, here and below, where it is the one of an earlier command that has detached.
absl::Status StopService(const LocalRun& run, LocalService* service) {
  return service != nullptr ? service->Stop() : StopLocalService(run.state_dir);
}

// After Ctrl-C: detach, unless a second one or a SIGTERM asks for the end.
ExitCode Leave(const LocalRun& run, LocalService* service, InterruptWatcher& interrupt,
               const std::string& address, const std::string& job) {
  if (interrupt.first_signal() != SIGTERM) {
    PrintError(absl::StrCat(
        "\nDetached; training goes on in the background. The same command watches it again, exports and\n"
        "samples at its end; another way to watch is:\n  strata watch ",
        ShortName(job), " --server ", address, "\nStop it with:\n  strata local stop --state-dir ",
        run.state_dir, "\nPress Ctrl-C again within 2 seconds to stop everything now.\n"));
    if (!interrupt.WaitForSecond(kSecondInterrupt)) {
      (void)unlink(UnfinishedPath(run).c_str());
      if (service != nullptr) service->Detach();
      return ExitCode::kOk;
    }
  }
  PrintError("Stopping; the same command goes on from the last checkpoint.\n");
  const absl::Status status = StopService(run, service);
  if (!status.ok()) return Fail(status);
  return ExitCode::kCancelled;
}

absl::StatusOr<v1::Job> Watch(const LocalRun& run, LocalService* service, InterruptWatcher& interrupt,
                              Client& client, const std::string& name) {
  RunView view({.out = stderr, .terminal = RunView::IsTerminal(stderr), .report_follows = true},
               Clock::Real());
  WatchOptions options = {.stop = interrupt.token()};
  if (run.globals.timeout_seconds > 0) options.timeout = absl::Seconds(run.globals.timeout_seconds);
  if (run.globals.format == Format::kJsonl) {
    options.on_row = [&](const v1::MetricRow& row) { PrintOut(ToLine(MetricRowJson(row)) + "\n"); };
  }
  if (service != nullptr) {
    options.on_tick = [&] {
      return service->TakeEvents([&](const std::string& event) { view.Note(event); });
    };
  }
  return WatchToEnd(client, name, view, options);
}

// Steps 3 (once there is a job) and 4. The caller stops the service unless `keep` is true then.
ExitCode Follow(const LocalRun& run, LocalService* service, InterruptWatcher& interrupt, Client& client,
                const std::string& address, const v1::Job& job, bool& keep) {
  // Without the note the server says it, as when this write fails.
  WriteFileDurably(UnfinishedPath(run), job.SerializeAsString()).IgnoreError();
  const absl::StatusOr<v1::Job> end = Watch(run, service, interrupt, client, job.name());
  if (!end.ok()) {
    if (!interrupt.token().stop_requested()) {
      const ExitCode code = Fail(end.status());
      if (code == ExitCode::kTimeout)
        PrintError("Stopping; the same command goes on from the last checkpoint.\n");
      return code;
    }
    keep = true;  // Leave decides.
    return Leave(run, service, interrupt, address, job.name());
  }
  (void)unlink(UnfinishedPath(run).c_str());
  const std::string summary = Summary(run, *end);
  switch (run.globals.format) {
    case Format::kTable:
      PrintOut("\n" + summary);
      break;
    case Format::kJsonl:
      PrintError(summary);
      break;
    default:
      PrintOut(Render(run.globals.format, {ToJson(*end)}, true, [] { return std::string(); }));
  }
  if (!end->status().last_failure().log_tail().empty() && end->status().state() == v1::Job::FAILED) {
    PrintError(absl::StrCat("last lines of the trainer:\n", end->status().last_failure().log_tail(), "\n"));
  }
  ExitCode code = ExitCodeOf(end->status().state());
  if (code == ExitCode::kOk) {
    const absl::Status used = UseResult(run, client, *end);
    if (!used.ok()) code = Fail(used);
  }
  if (run.flags.keep_running) {
    PrintError(absl::StrCat("server and worker keep running at ", address,
                            "; stop them with:\n  strata local stop --state-dir ", run.state_dir, "\n"));
    if (service != nullptr) service->Detach();
    keep = true;
  }
  return code;
}

// Steps 2 to 4 with a running service. The caller stops it unless `keep` is true then.
ExitCode RunWithService(const LocalRun& run, LocalService& service, InterruptWatcher& interrupt, bool& keep) {
  const absl::StatusOr<std::string> address = service.WaitForAddress(kServerStart, interrupt.token());
  if (!address.ok()) {
    PrintError(LogTail(run.state_dir + "/server.log"));
    return Fail(address.status());
  }
  Client client({.address = *address, .retry_for = kServerStart, .stop = interrupt.token()});
  const absl::Status ready = WaitForWorker(service, client, interrupt.token());
  if (!ready.ok()) {
    PrintError(LogTail(run.state_dir + "/worker.log"));
    return Fail(ready);
  }
  const absl::StatusOr<v1::JobPlan> plan = client.PlanJob(run.job.spec);
  if (!plan.ok()) return FailJob(run.job, plan.status());
  // A coordinator may plan by budgets alone; then the plan made here says more.
  const std::string shown = PlanText(plan->fits() && plan->placement().empty() ? run.plan : *plan) + "\n";
  run.globals.format == Format::kTable ? (void)PrintOut(shown) : PrintError(shown);
  if (!plan->fits()) return ExitCode::kRejected;
  const absl::StatusOr<v1::Job> job = SubmitOrResume(run, client);
  if (!job.ok()) return FailJob(run.job, job.status());
  return Follow(run, &service, interrupt, client, *address, *job, keep);
}

// This command from its beginning: nothing of an earlier one holds the state folder any more.
ExitCode BeginAgain() {
  const absl::StatusOr<std::string> line = ReadFile("/proc/self/cmdline", kNoteLimitBytes);
  if (!line.ok()) return Fail(line.status());
  std::vector<std::string> arguments =
      absl::StrSplit(absl::StripSuffix(*line, absl::string_view("\0", 1)), '\0');
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  return Fail(ErrnoStatus(errno, "beginning again"));
}

// Where an earlier command has detached: its job is watched again, with what this command does at its end.
// Where there is nothing to go on with, what is left of it is stopped, and this command begins anew.
ExitCode GoOnDetached(const LocalRun& run, const std::string& address) {
  if (!run.flags.restart) {
    InterruptWatcher interrupt;  // not beyond this: signals it blocks would stay so
    Client client({.address = address, .retry_for = kServerStart, .stop = interrupt.token()});
    const absl::StatusOr<std::vector<v1::Job>> jobs = client.ListJobs("", 0);
    if (!jobs.ok()) return Fail(jobs.status());
    for (const v1::Job& job : *jobs) {
      if (IsTerminal(job.status().state())) continue;
      if (const absl::Status unchanged = CheckUnchanged(run, job); !unchanged.ok()) return Fail(unchanged);
      PrintError(
          absl::StrCat("watching ", ShortName(job.name()), " again, which goes on in the background\n"));
      bool keep = false;
      const ExitCode code = Follow(run, nullptr, interrupt, client, address, job, keep);
      if (keep) return code;
      const absl::Status stopped = StopService(run, nullptr);
      return stopped.ok() ? code : Fail(stopped);
    }
  }
  PrintError(absl::StrCat("stopping the server and worker of an earlier run in ", run.state_dir, "\n"));
  if (const absl::Status stopped = StopLocalService(run.state_dir); !stopped.ok()) return Fail(stopped);
  return BeginAgain();
}

}  // namespace

ExitCode RunLocal(const Globals& globals, const LocalRunFlags& flags) {
  std::variant<LoadedJob, ExitCode> loaded = LoadJob(flags.file);
  if (const ExitCode* code = std::get_if<ExitCode>(&loaded)) return *code;
  LocalRun run = {.globals = globals, .flags = flags, .job = std::get<LoadedJob>(std::move(loaded))};
  if (flags.state_hash) run.job.spec.mutable_training()->set_report_state_hash(true);
  if (const std::optional<ExitCode> code = Prepare(run)) return *code;
  if (const std::optional<ExitCode> code = CheckExportFolder(run)) return *code;
  if (const absl::Status unchanged = CheckNote(run); !unchanged.ok()) return Fail(unchanged);
  if (const auto detached = DetachedAddress(run.state_dir); detached.ok())
    return GoOnDetached(run, *detached);
  const absl::Status folders = MakeDirectories(run.nvme_path);
  if (!folders.ok()) return Fail(folders);
  absl::StatusOr<LocalService> service = LocalService::Start(run.service);
  if (!service.ok()) return Fail(service.status());
  InterruptWatcher interrupt;
  bool keep = false;
  const ExitCode code = RunWithService(run, *service, interrupt, keep);
  if (keep) return code;
  const absl::Status stopped = service->Stop();
  if (!stopped.ok()) return Fail(stopped);
  // A job that was refused leaves nothing, not even the folder made for it.
  if (code == ExitCode::kRejected && run.state_dir_is_new) RemoveTree(run.state_dir).IgnoreError();
  return code;
}

ExitCode RunLocalStop(const std::string& state_dir) {
  const absl::Status status = StopLocalService(AbsolutePath(state_dir));
  if (!status.ok()) return Fail(status);
  PrintError("stopped\n");
  return ExitCode::kOk;
}

}  // namespace strata
