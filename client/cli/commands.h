// The commands of the CLI, one function each: flags are parsed, nothing else has happened yet.
#ifndef CLIENT_CLI_COMMANDS_H_
#define CLIENT_CLI_COMMANDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/cli/exit_code.h"
#include "client/cli/output.h"

namespace strata {

inline constexpr char kDefaultServer[] = "127.0.0.1:7411";

struct Globals {
  std::string server = kDefaultServer;
  bool server_given = false;  // by --server or STRATA_SERVER
  Format format = Format::kTable;
  double timeout_seconds = 0;  // of watching; 0: none
  std::string bin_dir;
};

struct SubmitFlags {
  std::string file;
  std::string job_id;
  std::string request_id;
  std::map<std::string, std::string> labels;
  bool state_hash = false;
  bool validate_only = false;
  bool watch = false;
};
ExitCode RunSubmit(const Globals& globals, const SubmitFlags& flags);

struct PlanFlags {
  std::string file;
  std::string worker;   // plan for this worker of the server
  std::string machine;  // file: plan for a machine that is not here
};
// For `machine` here, asking nobody, and its data may be elsewhere. Else asks the server that was given;
// without one, plans for a local run on this machine.
ExitCode RunPlan(const Globals& globals, const PlanFlags& flags);

struct ListFlags {
  std::string state;
  int64_t limit = 0;
};
ExitCode RunList(const Globals& globals, const ListFlags& flags);
ExitCode RunGet(const Globals& globals, const std::string& job);
ExitCode RunWatch(const Globals& globals, const std::string& job);
ExitCode RunCancel(const Globals& globals, const std::string& job, const std::string& reason);
ExitCode RunEvents(const Globals& globals, const std::string& job);
ExitCode RunWorkerList(const Globals& globals);
ExitCode RunWorkerDescribe(const Globals& globals, const std::string& worker);
ExitCode RunVersion(const Globals& globals);

struct LogFlags {
  std::string job;
  bool follow = false;
  int64_t tail_lines = 0;
  int32_t attempt = 0;
};
ExitCode RunLogs(const Globals& globals, const LogFlags& flags);

struct MetricFlags {
  std::string job;
  std::vector<std::string> series;
  int64_t min_step = 0;
  int64_t max_step = 0;
  int32_t max_points = 0;
  bool follow = false;
};
ExitCode RunMetrics(const Globals& globals, const MetricFlags& flags);

ExitCode RunCheckpointList(const Globals& globals, const std::string& job);
ExitCode RunCheckpointExport(const Globals& globals, const std::string& checkpoint,
                             const std::string& out_dir);
ExitCode RunCheckpointVerify(const Globals& globals, const std::string& checkpoint);

struct GenerateFlags {
  std::string checkpoint;
  std::string prompt;
  int64_t max_tokens = 256;
  uint64_t seed = 0;
  double temperature = 0.8;
};
ExitCode RunGenerate(const Globals& globals, const GenerateFlags& flags);

struct LocalRunFlags {
  std::string file;
  std::string state_dir;  // "": ./strata-runs/<name>
  std::string nvme_path;  // "": <state-dir>/nvme
  std::string export_dir;
  int64_t sample_bytes = 0;
  std::string prompt;
  std::map<std::string, std::string> labels;
  // What this machine gives where the job file leaves it open; "": a share of what is free.
  std::string device, host, nvme;
  bool restart = false;  // cancels the unfinished job of an earlier run
  bool state_hash = false;
  bool keep_running = false;
  bool require_gpu = false;
};
ExitCode RunLocal(const Globals& globals, const LocalRunFlags& flags);
ExitCode RunLocalStop(const std::string& state_dir);

struct BenchOffloadFlags {
  std::string params = "100M";
  int layers = 24;
  int64_t tokens = 64;
  int64_t micro_batches = 1;
  int64_t steps = 4;
  std::string precision = "bf16";
  std::string optimizer = "adamw";
  double clip = 1;
  std::string mode;  // "": the planner chooses, as with all that is empty or 0 here
  std::string chunk;
  int depth = 0;
  int io_threads = 0;
  std::string io_backend = "auto";
  int io_depth = 32;
  bool direct_io = true;
  int threads = 1;
  std::string isa = "auto";
  std::string params_home, gradients_home, optimizer_home, activations_home;
  std::string device, host, nvme;
  std::vector<std::string> nvme_paths = {"strata-runs/bench"};
  std::vector<double> nvme_weights;  // by path; none: equal
  std::string compute_delay;
  std::string inject;
  uint64_t seed = 1;
  bool state_hash = false;
};
ExitCode RunBenchOffload(const Globals& globals, const BenchOffloadFlags& flags);

}  // namespace strata

#endif  // CLIENT_CLI_COMMANDS_H_
