#include <cstdio>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_util.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/job_file.h"
#include "client/cli/local_limits.h"
#include "client/cli/metric_names.h"
#include "client/cli/preflight.h"
#include "client/cli/run_view.h"
#include "client/cli/views.h"
#include "client/cli/watch.h"
#include "client/lib/names.h"
#include "common/status.h"
#include "proto/job_spec/plan_job.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

constexpr char kVersion[] = "0.1.0";

ExitCode PrintOne(const Globals& globals, const google::protobuf::Message& message,
                  const std::string& table) {
  PrintOut(Render(globals.format, {ToJson(message)}, true, [&] { return table; }));
  return ExitCode::kOk;
}

template <typename Message>
ExitCode PrintList(const Globals& globals, const std::vector<Message>& messages,
                   std::string (*table)(const std::vector<Message>&)) {
  std::vector<Json> items;
  for (const Message& message : messages) items.push_back(ToJson(message));
  PrintOut(Render(globals.format, items, false, [&] { return table(messages); }));
  return ExitCode::kOk;
}

// Watches until the job's end, or until Ctrl-C detaches.
ExitCode Follow(const Globals& globals, InterruptWatcher& interrupt, Client& client,
                const std::string& name) {
  RunView view({.out = stderr,
                .terminal = RunView::IsTerminal(stderr),
                .report_follows = globals.format != Format::kJsonl},
               Clock::Real());
  WatchOptions options = {.stop = interrupt.token()};
  if (globals.timeout_seconds > 0) options.timeout = absl::Seconds(globals.timeout_seconds);
  if (globals.format == Format::kJsonl) {
    options.on_row = [&](const v1::MetricRow& row) {
      if (!PrintOut(ToLine(MetricRowJson(row)) + "\n")) interrupt.RequestStop();
    };
  }
  const absl::StatusOr<v1::Job> job = WatchToEnd(client, name, view, options);
  if (job.ok()) return ReportEnd(globals, *job);
  if (!interrupt.token().stop_requested()) return Fail(job.status());
  PrintError(absl::StrCat("Detached; the job goes on. Watch it again with:\n  strata watch ", ShortName(name),
                          " --server ", globals.server, "\n"));
  return ExitCode::kOk;
}

// "": nothing is wrong.
std::string WrongMetricFlags(const MetricFlags& flags) {
  for (const std::string& name : flags.series) {
    if (!IsMetricName(name)) {
      return absl::StrCat(
          "--series: '", name,
          "' is not the name of a value of a step: `strata metrics JOB` names those of a job");
    }
  }
  if (flags.max_step > 0 && flags.min_step > flags.max_step)
    return absl::StrCat("--min-step ", flags.min_step, " is after --max-step ", flags.max_step);
  return "";
}

absl::StatusOr<v1::Job> Lookup(Client& client, const std::string& name) {
  return OnJob(client, name, [&](const std::string& full) { return client.GetJob(full); });
}

// Where the CPU would train: why no GPU would, and what else to plan for.
std::string WhyNoGpu(const PlanFlags& flags, const v1::JobPlan& plan) {
  if (!plan.machine().device_is_cpu()) return "";
  const std::string where = !flags.machine.empty() ? absl::StrCat("the machine of ", flags.machine)
                            : flags.worker.empty() ? "the worker that it was planned for"
                                                   : absl::StrCat("worker ", flags.worker);
  return absl::StrCat(where, " trains on its CPU (", plan.machine().source(),
                      "): plan for another with --worker or --machine");
}

// Prints the plan, or what refuses the job.
ExitCode PrintPlan(const Globals& globals, const LoadedJob& job, const v1::JobPlan& plan,
                   const std::string& why_no_gpu) {
  if (PrintViolations(job, CheckRequiredGpu(job.spec, why_no_gpu))) return ExitCode::kRejected;
  PrintOne(globals, plan, PlanText(plan));
  return plan.fits() ? ExitCode::kOk : ExitCode::kRejected;
}

ExitCode PlanHere(const Globals& globals, const LoadedJob& job) {
  const absl::StatusOr<LocalMachine> machine = LookAtMachine(globals.bin_dir);
  if (!machine.ok()) return Fail(machine.status());
  if (PrintViolations(job, CheckRequiredGpu(job.spec, machine->why_no_gpu)) ||
      PrintViolations(job, CheckFp8(job.spec, *machine))) {
    return ExitCode::kRejected;
  }
  absl::StatusOr<v1::ResourceRequest> limits = LocalLimits(job.spec, *machine, ".", kLocalRunBytes);
  if (!limits.ok()) return Fail(limits.status());
  *limits->mutable_machine() = LocalSpeeds(machine->gpu.get());
  if (machine->gpu != nullptr) {
    if (const absl::Status given_back = machine->gpu->Release(); !given_back.ok()) return Fail(given_back);
  }
  const absl::StatusOr<v1::JobPlan> plan = PlanJob(job.spec, *limits);
  if (!plan.ok()) return FailPlan(job, plan.status());
  return PrintPlan(globals, job, *plan, "");
}

}  // namespace

ExitCode RunSubmit(const Globals& globals, const SubmitFlags& flags) {
  const std::variant<LoadedJob, ExitCode> loaded = LoadJob(flags.file);
  if (const ExitCode* code = std::get_if<ExitCode>(&loaded)) return *code;
  const LoadedJob& job = std::get<LoadedJob>(loaded);
  // The worker reads the files; when it is (most likely) on this machine, say now what it would say later.
  if (IsLoopback(globals.server) && PrintViolations(job, CheckFiles(job.spec))) return ExitCode::kRejected;
  v1::CreateJobRequest request;
  request.set_parent("projects/default");
  request.set_job_id(flags.job_id);
  request.set_request_id(flags.request_id);
  request.set_validate_only(flags.validate_only);
  *request.mutable_spec() = job.spec;
  if (flags.state_hash) request.mutable_spec()->mutable_training()->set_report_state_hash(true);
  request.mutable_labels()->insert(flags.labels.begin(), flags.labels.end());
  InterruptWatcher interrupt;
  const std::unique_ptr<Client> client = Connect(globals, interrupt.token());
  const absl::StatusOr<v1::Job> created = client->CreateJob(request);
  if (!created.ok()) return FailJob(job, created.status());
  if (flags.validate_only) return PrintOne(globals, *created, "valid; nothing was created\n");
  if (!flags.watch) return PrintOne(globals, *created, ShortName(created->name()) + "\n");
  PrintError(absl::StrCat("submitted ", ShortName(created->name()), "\n"));
  return Follow(globals, interrupt, *client, created->name());
}

ExitCode RunPlan(const Globals& globals, const PlanFlags& flags) {
  const std::variant<LoadedJob, ExitCode> loaded = LoadJob(flags.file);
  if (const ExitCode* code = std::get_if<ExitCode>(&loaded)) return *code;
  const LoadedJob& job = std::get<LoadedJob>(loaded);
  if (!flags.machine.empty()) {
    const absl::StatusOr<v1::MachineFile> machine = LoadMachineFile(flags.machine);
    if (!machine.ok()) return PrintError(RenderError(machine.status())), ExitCode::kUsage;
    const absl::StatusOr<v1::JobPlan> plan = PlanJob(job.spec, LimitsOf(*machine));
    if (!plan.ok()) return FailPlan(job, plan.status());
    return PrintPlan(globals, job, *plan, WhyNoGpu(flags, *plan));
  }
  const bool asks_server = globals.server_given || !flags.worker.empty();
  const ExitCode code = [&] {
    if (!asks_server) return PlanHere(globals, job);
    const absl::StatusOr<v1::JobPlan> plan = Connect(globals)->PlanJob(job.spec, flags.worker);
    if (!plan.ok()) return FailJob(job, plan.status());
    return PrintPlan(globals, job, *plan, WhyNoGpu(flags, *plan));
  }();
  // How it would fit is worth knowing before its data is there.
  const bool files_missing =
      (!asks_server || IsLoopback(globals.server)) && PrintViolations(job, CheckFiles(job.spec));
  return code == ExitCode::kOk && files_missing ? ExitCode::kRejected : code;
}

ExitCode RunList(const Globals& globals, const ListFlags& flags) {
  const absl::StatusOr<std::vector<v1::Job>> jobs =
      Connect(globals)->ListJobs(absl::AsciiStrToUpper(flags.state), flags.limit);
  if (!jobs.ok()) return Fail(jobs.status());
  return PrintList(globals, *jobs, &JobTable);
}

ExitCode RunGet(const Globals& globals, const std::string& job) {
  const absl::StatusOr<std::string> name = JobName(job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  const absl::StatusOr<v1::Job> got = Lookup(*Connect(globals), *name);
  if (!got.ok()) return Fail(got.status());
  return PrintOne(globals, *got, JobText(*got));
}

ExitCode RunWatch(const Globals& globals, const std::string& job) {
  const absl::StatusOr<std::string> name = JobName(job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  InterruptWatcher interrupt;
  const std::unique_ptr<Client> client = Connect(globals, interrupt.token());
  const absl::StatusOr<v1::Job> got = Lookup(*client, *name);
  if (!got.ok()) return Fail(got.status());
  return Follow(globals, interrupt, *client, got->name());
}

ExitCode RunCancel(const Globals& globals, const std::string& job, const std::string& reason) {
  const absl::StatusOr<std::string> name = JobName(job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  const std::unique_ptr<Client> client = Connect(globals);
  const absl::StatusOr<v1::Job> got =
      OnJob(*client, *name, [&](const std::string& full) { return client->CancelJob(full, reason); });
  if (!got.ok()) return Fail(got.status());
  return PrintOne(globals, *got, absl::StrCat(ShortName(got->name()), " ", StateText(got->status()), "\n"));
}

ExitCode RunEvents(const Globals& globals, const std::string& job) {
  const absl::StatusOr<std::string> name = JobName(job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  const std::unique_ptr<Client> client = Connect(globals);
  const absl::StatusOr<std::vector<v1::JobEvent>> events =
      OnJob(*client, *name, [&](const std::string& full) { return client->ListJobEvents(full); });
  if (!events.ok()) return Fail(events.status());
  return PrintList(globals, *events, &EventTable);
}

ExitCode RunWorkerList(const Globals& globals) {
  const absl::StatusOr<std::vector<v1::Worker>> workers = Connect(globals)->ListWorkers();
  if (!workers.ok()) return Fail(workers.status());
  return PrintList(globals, *workers, &WorkerTable);
}

ExitCode RunWorkerDescribe(const Globals& globals, const std::string& worker) {
  const absl::StatusOr<v1::Worker> got = Connect(globals)->GetWorker(ShortName(worker));
  if (!got.ok()) return Fail(got.status());
  return PrintOne(globals, *got, WorkerText(*got));
}

ExitCode RunVersion(const Globals& globals) {
  const absl::StatusOr<v1::ServerInfo> info = Connect(globals, {}, false)->GetServerInfo();
  Json json = {{"client", kVersion}};
  std::string text = absl::StrCat("strata ", kVersion, "\n");
  if (info.ok()) {
    json["server"] = ToJson(*info);
    absl::StrAppend(&text, "server ", info->version(), " at ", globals.server, ", store ", info->store(),
                    "\n");
  }
  PrintOut(Render(globals.format, {json}, true, [&] { return text; }));
  return ExitCode::kOk;
}

ExitCode RunLogs(const Globals& globals, const LogFlags& flags) {
  const absl::StatusOr<std::string> name = JobName(flags.job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  const std::unique_ptr<Client> client = Connect(globals);
  const absl::StatusOr<v1::Job> job = Lookup(*client, *name);
  if (!job.ok()) return Fail(job.status());
  v1::ReadLogsRequest request;
  request.set_name(job->name());
  request.set_follow(flags.follow);
  request.set_attempt(flags.attempt);
  request.set_tail_lines(flags.tail_lines);
  const absl::Status status = client->ReadLogs(request, {}, [&](const v1::ReadLogsResponse& response) {
    if (response.has_gap()) {
      PrintError(
          absl::StrCat("[", response.gap().missing_bytes(), " bytes missing: ", response.gap().why(), "]\n"));
    }
    if (globals.format != Format::kTable)
      return !response.has_chunk() || PrintOut(ToLine(ToJson(response.chunk())) + "\n");
    return PrintOut(response.chunk().data());
  });
  return status.ok() ? ExitCode::kOk : Fail(status);
}

ExitCode RunMetrics(const Globals& globals, const MetricFlags& flags) {
  const absl::StatusOr<std::string> name = JobName(flags.job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  if (const std::string wrong = WrongMetricFlags(flags); !wrong.empty())
    return PrintError("error: " + wrong + "\n"), ExitCode::kUsage;
  const std::unique_ptr<Client> client = Connect(globals);
  const absl::StatusOr<v1::Job> job = Lookup(*client, *name);
  if (!job.ok()) return Fail(job.status());
  if (flags.follow || globals.format == Format::kJsonl) {
    // Rows as they come. Without --follow the stream is read up to what is there now.
    const int64_t last =
        IsTerminal(job->status().state()) || flags.follow ? INT64_MAX : job->status().progress().step();
    if (last == 0) return ExitCode::kOk;
    const std::set<std::string> wanted(flags.series.begin(), flags.series.end());
    const absl::Status status = client->StreamMetrics(job->name(), 0, {}, [&](const v1::MetricRow& row) {
      if (row.step() < flags.min_step || (flags.max_step > 0 && row.step() > flags.max_step))
        return row.step() < last;
      Json json = MetricRowJson(row);
      for (auto it = json.begin(); it != json.end() && !wanted.empty();) {
        it = it.key() == "step" || wanted.contains(it.key()) ? std::next(it) : json.erase(it);
      }
      return PrintOut(ToLine(json) + "\n") && row.step() < last;
    });
    return status.ok() ? ExitCode::kOk : Fail(status);
  }
  v1::QueryMetricsRequest request;
  request.set_name(job->name());
  for (const std::string& series : flags.series) request.add_series(series);
  request.set_min_step(flags.min_step);
  request.set_max_step(flags.max_step);
  request.set_max_points(flags.max_points);
  const absl::StatusOr<v1::QueryMetricsResponse> metrics = client->QueryMetrics(request);
  if (!metrics.ok()) return Fail(metrics.status());
  std::set<std::string> missing(flags.series.begin(), flags.series.end());
  for (const v1::Series& series : metrics->series()) missing.erase(series.name());
  if (!missing.empty())
    PrintError(absl::StrCat("note: ", ShortName(job->name()), " has no ", absl::StrJoin(missing, ", "),
                            " in these steps; texts (state_hash, ...) are in -o jsonl\n"));
  return PrintOne(globals, *metrics, MetricTable(*metrics, !flags.series.empty()));
}

}  // namespace strata
