// strata: the command line. Flags are declared here; what they do is in client/cli.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "client/cli/command_util.h"
#include "client/cli/commands.h"
#include "client/cli/completion.h"
#include "common/number_flags.h"
#include "proto/job_spec/validate.h"

namespace strata {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 ok, 1 job failed, 2 usage, 3 not found, 4 auth, 5 unavailable, 6 timeout, 7 cancelled,\n"
    "8 rejected, 9 conflict. Data goes to stdout, progress and errors to stderr. Ctrl-C of a watch "
    "detaches:\n"
    "the job goes on (exit code 0).";

constexpr double kTimeoutMaxSeconds = 1e9;

// All flags of all commands, and the action that the chosen command set.
struct CommandLine {
  Globals globals;
  SubmitFlags submit;
  PlanFlags plan;
  ListFlags list;
  LogFlags logs;
  MetricFlags metrics;
  GenerateFlags generate;
  LocalRunFlags local;
  BenchOffloadFlags bench;
  std::string format = "table", job, worker, reason, checkpoint, out_dir, state_dir, shell;
  std::vector<std::string> labels;
  std::function<ExitCode()> action;
  bool offline =
      false;  // asks no server: an address in the environment, dead or misspelt, is none of its business
};

// KEY=VALUE pairs; throws CLI11's own error, which CLI11 turns into a usage message.
std::map<std::string, std::string> ParseLabels(const std::vector<std::string>& pairs) {
  std::map<std::string, std::string> labels;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw CLI::ValidationError("--label", pair + " is not KEY=VALUE");
    labels[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return labels;
}

// What is wrong with a server's address; empty: nothing.
std::string CheckAddress(const std::string& address) {
  if (address.size() > 5 && address.rfind("unix:", 0) == 0) return "";
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) &&
      port > 0 && port < 65536) {
    return "";
  }
  return "'" + address + "' is not an address: write HOST:PORT, such as 127.0.0.1:7411, or unix:PATH";
}

CommandNode Describe(const CLI::App& app) {
  CommandNode node = {.name = app.get_name(), .help = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) node.options.push_back("--" + name);
    const std::string& positional = option->get_name(true, false);
    if (option->get_positional() && (positional == "FILE" || positional == "CHECKPOINT"))
      node.takes_file = true;
  }
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    node.commands.push_back(Describe(*child));
  }
  return node;
}

void AddJobCommands(CLI::App& app, CommandLine& line) {
  CLI::App* submit = app.add_subcommand("submit", "Send a job file to the server");
  submit->add_option("FILE", line.submit.file, "The job file (YAML)")->required();
  submit->add_option("--id", line.submit.job_id, "Name of the job; default: made from the file's name field");
  submit->add_option("--request-id", line.submit.request_id,
                     "Idempotency key: the same key never makes a second job");
  submit->add_option("--label", line.labels, "KEY=VALUE, may be repeated");
  submit->add_flag("--state-hash", line.submit.state_hash,
                   "Report a SHA-256 of all training states with every step (slow)");
  submit->add_flag("--validate-only", line.submit.validate_only, "Check everything, create nothing");
  submit->add_flag("--watch", line.submit.watch, "Follow the job to its end");
  submit->callback([&] {
    line.submit.labels = ParseLabels(line.labels);
    line.action = [&] { return RunSubmit(line.globals, line.submit); };
  });

  CLI::App* plan =
      app.add_subcommand("plan", "Show how a job would fit: what lives where, peaks, predicted time");
  plan->add_option("FILE", line.plan.file, "The job file (YAML)")->required();
  CLI::Option* planned_worker =
      plan->add_option("--worker", line.plan.worker, "For this worker of the server, at its measured speed");
  plan->add_option("--machine", line.plan.machine,
                   "For a machine that is not here: a file (YAML) with what it has and how fast it is")
      ->excludes(planned_worker);
  plan->callback([&] {
    line.offline = !line.plan.machine.empty();
    line.action = [&] { return RunPlan(line.globals, line.plan); };
  });

  CLI::App* ls = app.add_subcommand("ls", "List jobs");
  ls->add_option("--state", line.list.state, "Only jobs in this state, such as running");
  ls->add_option("--limit", line.list.limit, "At most this many")->transform(WholeNumber<int64_t>(0));
  ls->callback([&] { line.action = [&] { return RunList(line.globals, line.list); }; });

  const auto add_one_job = [&](const char* name, const char* help,
                               ExitCode (*run)(const Globals&, const std::string&)) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("JOB", line.job, "The job's name, such as austen-ab12")->required();
    command->callback([&line, run] { line.action = [&line, run] { return run(line.globals, line.job); }; });
    return command;
  };
  add_one_job("get", "Show one job", &RunGet);
  add_one_job("watch", "Follow a job to its end; Ctrl-C detaches", &RunWatch);
  add_one_job("events", "Show the history of a job's states", &RunEvents);

  CLI::App* cancel = app.add_subcommand("cancel", "Cancel a job; harmless when it has ended");
  cancel->add_option("JOB", line.job, "The job's name")->required();
  cancel->add_option("--reason", line.reason, "Kept in the job's history");
  cancel->callback([&] { line.action = [&] { return RunCancel(line.globals, line.job, line.reason); }; });

  CLI::App* logs = app.add_subcommand("logs", "Print the output of a job's processes");
  logs->add_option("JOB", line.logs.job, "The job's name")->required();
  logs->add_flag("-f,--follow", line.logs.follow, "Until the job has ended");
  logs->add_option("--tail", line.logs.tail_lines, "Only the last lines of each process")
      ->transform(WholeNumber<int64_t>(0));
  logs->add_option("--attempt", line.logs.attempt, "Only this attempt; default: all")
      ->transform(WholeNumber<int32_t>(0));
  logs->callback([&] { line.action = [&] { return RunLogs(line.globals, line.logs); }; });

  CLI::App* metrics = app.add_subcommand("metrics", "Print what was measured in each step");
  metrics->add_option("JOB", line.metrics.job, "The job's name")->required();
  metrics->add_option("--series", line.metrics.series, "Names, such as loss,grad_norm; default: all")
      ->delimiter(',');
  metrics->add_option("--min-step", line.metrics.min_step, "From this step")
      ->transform(WholeNumber<int64_t>(0));
  metrics->add_option("--max-step", line.metrics.max_step, "Up to this step")
      ->transform(WholeNumber<int64_t>(0));
  metrics->add_option("--max-points", line.metrics.max_points, "Thin each series to this many")
      ->transform(WholeNumber<int32_t>(0));
  metrics->add_flag("-f,--follow", line.metrics.follow,
                    "One JSON line per step as it comes, until the job has ended");
  metrics->callback([&] { line.action = [&] { return RunMetrics(line.globals, line.metrics); }; });
}

void AddCheckpointCommands(CLI::App& app, CommandLine& line) {
  const char* what = "A checkpoint's folder, a job's name (its latest) or JOB/STEP";
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "List, verify and export checkpoints");
  checkpoint->require_subcommand(1);
  CLI::App* list = checkpoint->add_subcommand("list", "Committed checkpoints of a job");
  list->add_option("JOB", line.job, "The job's name")->required();
  list->callback([&] { line.action = [&] { return RunCheckpointList(line.globals, line.job); }; });
  CLI::App* verify = checkpoint->add_subcommand("verify", "Read every byte against its checksums");
  verify->add_option("CHECKPOINT", line.checkpoint, what)->required();
  verify->callback([&] { line.action = [&] { return RunCheckpointVerify(line.globals, line.checkpoint); }; });
  CLI::App* export_command = checkpoint->add_subcommand("export", "Write a Hugging Face folder");
  export_command->add_option("CHECKPOINT", line.checkpoint, what)->required();
  export_command->add_option("--out", line.out_dir, "The new folder")->required();
  export_command->callback([&] {
    line.action = [&] { return RunCheckpointExport(line.globals, line.checkpoint, line.out_dir); };
  });

  CLI::App* generate = app.add_subcommand("generate", "Continue a text with a trained model");
  generate->add_option("CHECKPOINT", line.generate.checkpoint, what)->required();
  generate->add_option("--prompt", line.generate.prompt, "The text to continue");
  generate->add_option("--max-tokens", line.generate.max_tokens, "How many tokens to write")
      ->capture_default_str()
      ->transform(WholeNumber<int64_t>(1, 1 << 20));
  generate->add_option("--seed", line.generate.seed, "The same seed gives the same text")
      ->capture_default_str()
      ->transform(WholeNumber<uint64_t>(0));
  generate->add_option("--temperature", line.generate.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->transform(RealNumber(0, 100));
  generate->callback([&] { line.action = [&] { return RunGenerate(line.globals, line.generate); }; });
}

void AddLocalCommands(CLI::App& app, CommandLine& line) {
  CLI::App* local = app.add_subcommand("local", "Everything on this machine, with nothing set up before");
  local->require_subcommand(1);
  CLI::App* run = local->add_subcommand(
      "run", "Train a job file here: starts a server and a worker, watches, stops them");
  run->add_option("FILE", line.local.file, "The job file (YAML)")->required();
  run->add_option("--state-dir", line.local.state_dir,
                  "Folder for everything of this run; default: ./strata-runs/NAME");
  run->add_option("--nvme-path", line.local.nvme_path,
                  "Folder for offloaded states; default: STATE-DIR/nvme");
  const char* budget =
      "What this machine gives a job file that leaves it open; may differ from run to run of a job";
  run->add_option("--device", line.local.device, budget)->option_text("BYTES");
  run->add_option("--host", line.local.host, budget)->option_text("BYTES");
  run->add_option("--nvme", line.local.nvme, budget)->option_text("BYTES");
  run->add_flag("--restart", line.local.restart,
                "Cancel the job that an earlier run in the state folder left unfinished, and begin anew");
  run->add_option("--export", line.local.export_dir, "Export the trained model as a Hugging Face folder");
  run->add_option("--sample", line.local.sample_bytes, "Print a generated text of this many bytes at the end")
      ->transform(WholeNumber<int64_t>(0, 1 << 20));
  run->add_option("--prompt", line.local.prompt, "What the sample continues");
  run->add_option("--label", line.labels, "KEY=VALUE, may be repeated");
  run->add_flag("--state-hash", line.local.state_hash,
                "Report a SHA-256 of all training states with every step (slow)");
  run->add_flag("--require-gpu", line.local.require_gpu, "Fail when there is no GPU to train on");
  run->add_flag("--keep-running", line.local.keep_running, "Leave server and worker running afterwards");
  run->callback([&] {
    line.local.labels = ParseLabels(line.labels);
    line.offline = true;
    line.action = [&] { return RunLocal(line.globals, line.local); };
  });
  CLI::App* stop = local->add_subcommand("stop", "Stop the server and worker of a detached run");
  stop->add_option("--state-dir", line.state_dir, "The run's state folder")->required();
  stop->callback([&] {
    line.offline = true;
    line.action = [&] { return RunLocalStop(line.state_dir); };
  });
}

void AddBenchCommands(CLI::App& app, CommandLine& line) {
  BenchOffloadFlags& f = line.bench;
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  CLI::App* offload =
      bench->add_subcommand("offload", "Train a synthetic model: all of the engine, none of the mathematics");
  offload->footer(
      "Gradients are pseudo-random numbers keyed by step, micro-batch and element, so results do not depend "
      "on\n"
      "where states live; the model checks every buffer it is given. What is not given, the planner "
      "chooses.\n"
      "-o json and yaml print one report at the end, jsonl one object per step and then the summary. The\n"
      "averages leave out the first step, which fills the pipeline. Fields: deploy/docs/metrics.md.");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return offload->add_option(name, value, help);
  };
  add("--params", f.params, "Parameters, such as 1B, 350M or 20k")->capture_default_str();
  add("--layers", f.layers, "Layers that share them, with an embedding of a layer's size")
      ->capture_default_str()
      ->transform(WholeNumber(1));
  add("--tokens", f.tokens, "Tokens of a micro-batch: activations grow with them")
      ->capture_default_str()
      ->transform(WholeNumber<int64_t>(1));
  add("--micro-batches", f.micro_batches, "Of an optimizer step")
      ->capture_default_str()
      ->transform(WholeNumber<int64_t>(1, 1 << 20));
  add("--steps", f.steps, "Optimizer steps")
      ->capture_default_str()
      ->transform(WholeNumber<int64_t>(1, 1 << 20));
  add("--precision", f.precision, "bf16, fp16 (with a dynamic loss scale) or fp32")->capture_default_str();
  add("--optimizer", f.optimizer, "adamw or adamw8bit")->capture_default_str();
  add("--clip", f.clip, "Global norm to clip gradients to, 1e-12 to 1e12; 0: none")
      ->capture_default_str()
      ->transform(RealNumber(0, kGradClipMax));
  add("--mode", f.mode, "sync, overlap, forward-overlap, speculative or delayed, which changes results");
  add("--params-home", f.params_home, "device, host or nvme");
  add("--gradients-home", f.gradients_home, "device, host or nvme");
  add("--optimizer-home", f.optimizer_home, "device, host or nvme");
  add("--activations-home", f.activations_home, "device, host or nvme");
  add("--device", f.device, "Budget of device memory, such as 512MiB");
  add("--host", f.host, "Budget of host memory");
  add("--nvme", f.nvme, "Budget of NVMe space");
  add("--nvme-path", f.nvme_paths, "Folder for states on NVMe, made when it is missing; may be repeated")
      ->capture_default_str();
  add("--nvme-weight", f.nvme_weights,
      "Part of the bytes of the path in its place, in order; default: equal");
  add("--chunk", f.chunk, "Bytes of a chunk's fp32 elements, such as 4MiB");
  add("--depth", f.depth, "Units fetched ahead")->transform(WholeNumber(0, 64));
  add("--io-threads", f.io_threads, "NVMe lanes of each direction")->transform(WholeNumber(0, 64));
  add("--io-depth", f.io_depth, "Requests of a lane that are out at a time")
      ->capture_default_str()
      ->transform(WholeNumber(1, 1024));
  add("--io-backend", f.io_backend, "auto, io_uring or threads")->capture_default_str();
  offload->add_flag("!--buffered", f.direct_io, "Through the page cache instead of O_DIRECT");
  add("--threads", f.threads, "Of AdamW, norms and accumulation")
      ->capture_default_str()
      ->transform(WholeNumber(1, 256));
  add("--isa", f.isa, "What AdamW runs on: scalar, avx2, avx512 or auto")->capture_default_str();
  add("--compute-delay", f.compute_delay,
      "What each block's forward and backward takes at least, such as 5ms: asleep, as while an accelerator "
      "computes; busy:5ms takes a core")
      ->option_text("DURATION");
  add("--inject", f.inject,
      "A gradient that is not finite: KIND:STEP:TENSOR, such as inf:2:first, nan:3:last")
      ->option_text("KIND:STEP:TENSOR");
  add("--seed", f.seed, "Of weights and gradients")
      ->capture_default_str()
      ->transform(WholeNumber<uint64_t>(0));
  offload->add_flag("--state-hash", f.state_hash,
                    "SHA-256 of all states after every step; steps then run one by one");
  offload->callback([&] {
    line.offline = true;
    line.action = [&] { return RunBenchOffload(line.globals, line.bench); };
  });
}

void AddOtherCommands(CLI::App& app, CommandLine& line) {
  CLI::App* worker = app.add_subcommand("worker", "The machines that train");
  worker->require_subcommand(1);
  worker->add_subcommand("list", "All workers with their capacity")->callback([&] {
    line.action = [&] { return RunWorkerList(line.globals); };
  });
  CLI::App* describe = worker->add_subcommand("describe", "One worker: what it has and how fast it is");
  describe->add_option("WORKER", line.worker, "The worker's name, as `worker list` shows it")->required();
  describe->callback([&] { line.action = [&] { return RunWorkerDescribe(line.globals, line.worker); }; });
  app.add_subcommand("version", "Version of this program and of the server")->callback([&] {
    line.action = [&] { return RunVersion(line.globals); };
  });
  CLI::App* completion = app.add_subcommand("completion", "Print a completion script: bash, zsh or fish");
  completion->add_option("SHELL", line.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&] {
    line.offline = true;
    line.action = [&] {
      const absl::StatusOr<std::string> script = CompletionScript(line.shell, Describe(app));
      if (!script.ok()) return Fail(script.status());
      PrintOut(*script);
      return ExitCode::kOk;
    };
  });
}

int Main(int argc, char** argv) {
  CommandLine line;
  CLI::App app("Strata trains language models that are larger than the memory of the device they run on.",
               "strata");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  const CLI::Option* server =
      app.add_option("--server", line.globals.server, "Address of the server, host:port")
          ->capture_default_str()
          ->envname("STRATA_SERVER");
  app.add_option("-o,--output", line.format, "table, json, yaml or jsonl")
      ->check(CLI::IsMember({"table", "json", "yaml", "jsonl"}))
      ->option_text("FORMAT");
  app.add_option("--timeout", line.globals.timeout_seconds,
                 "Seconds to watch, or to wait for a change to be confirmed, at most; the job goes on after "
                 "that, but "
                 "`local run` stops. 0: no limit of a watch")
      ->transform(RealNumber(0, kTimeoutMaxSeconds));
  app.add_option("--bin-dir", line.globals.bin_dir,
                 "Folder of strata_server, strata_worker and strata_trainer");
  AddLocalCommands(app, line);
  AddJobCommands(app, line);
  AddCheckpointCommands(app, line);
  AddBenchCommands(app, line);
  AddOtherCommands(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  // Not a check of the option: CLI11 does not run those on an empty text.
  const std::string wrong = line.offline ? "" : CheckAddress(line.globals.server);
  if (!wrong.empty()) {
    PrintError("error: --server or STRATA_SERVER: " + wrong + "\n");
    return static_cast<int>(ExitCode::kUsage);
  }
  const std::map<std::string, Format> formats = {
      {"table", Format::kTable}, {"json", Format::kJson}, {"yaml", Format::kYaml}, {"jsonl", Format::kJsonl}};
  line.globals.format = formats.at(line.format);
  line.globals.server_given = server->count() > 0;
  return static_cast<int>(line.action());
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Main(argc, argv); }
