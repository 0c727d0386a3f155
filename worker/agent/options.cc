#include "worker/agent/options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/number_flags.h"
#include "common/status.h"
#include "offload/store/nvme_store.h"
#include "offload/store/store_layout.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

absl::Status FlagError(absl::string_view flag, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", problem));
}

absl::StatusOr<int64_t> ParseSizeFlag(absl::string_view flag, const std::string& text) {
  if (text == "auto") return 0;
  auto bytes = ParseBytes(text);
  if (!bytes.ok())
    return FlagError(flag, absl::StrCat(bytes.status().message(), "; write e.g. 24GiB, or auto"));
  return *bytes;
}

bool IsValidWorkerId(const std::string& id) {
  return !id.empty() && id.size() <= 63 && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
  });
}

absl::Status MakeAbsolute(absl::string_view flag, std::string* path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(*path, error);
  if (error) return FlagError(flag, absl::StrCat(*path, ": ", error.message()));
  *path = absolute.lexically_normal().string();
  while (path->size() > 1 && path->back() == '/') path->pop_back();
  return absl::OkStatus();
}

// The nearest ancestor that exists must be a folder.
absl::Status CheckCouldStand(absl::string_view flag, const std::string& path) {
  for (fs::path at = path;; at = at.parent_path()) {
    struct stat info;
    if (stat(at.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) return absl::OkStatus();
      return FlagError(flag, absl::StrCat(path, " cannot be a folder, because ", at.string(),
                                          " is a file: name another path"));
    }
    if (errno == ENOTDIR && at.has_parent_path() && at != at.parent_path()) continue;
    if (errno != ENOENT) {
      return FlagError(flag, absl::StrCat(ErrnoStatus(errno, at.string()).message(),
                                          ": give this user access, or name another path"));
    }
  }
}

absl::Status MakeWritable(absl::string_view flag, const std::string& path) {
  STRATA_RETURN_IF_ERROR(CheckCouldStand(flag, path));
  const absl::Status made = MakeDirectories(path);
  if (!made.ok()) {
    return absl::Status(made.code(), absl::StrCat(flag, ": ", made.message(),
                                                  ": make it for this user, or name another path"));
  }
  if (access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
    const absl::Status denied = ErrnoStatus(errno, absl::StrCat("using ", path));
    return absl::Status(denied.code(), absl::StrCat(flag, ": ", denied.message(),
                                                    ": give this user rwx on it, or name another path"));
  }
  return absl::OkStatus();
}

absl::Status ResolveNvmePaths(AgentOptions* options) {
  std::vector<std::string>& paths = options->nvme_paths;
  if (paths.empty()) paths.push_back(options->state_dir + "/nvme");
  if (paths.size() > kNvmePathsMax)
    return FlagError("--nvme-path", absl::StrCat("given ", paths.size(), " times: at most ", kNvmePathsMax));
  for (size_t i = 0; i < paths.size(); ++i) {
    STRATA_RETURN_IF_ERROR(MakeAbsolute("--nvme-path", &paths[i]));
    if (std::find(paths.begin(), paths.begin() + i, paths[i]) != paths.begin() + i)
      return FlagError("--nvme-path", absl::StrCat(paths[i], " is given twice"));
  }
  const std::vector<double>& weights = options->nvme_weights;
  if (!weights.empty() && weights.size() != paths.size()) {
    return FlagError("--nvme-weight", absl::StrCat("given ", weights.size(), " times for ", paths.size(),
                                                   " paths: give one per --nvme-path, or none"));
  }
  for (const double weight : weights) {
    if (!IsNvmeWeight(weight))
      return FlagError("--nvme-weight", absl::StrCat(weight, " is not ", kNvmeWeightText));
  }
  return absl::OkStatus();
}

absl::Status FindTrainer(std::string* trainer) {
  if (!trainer->empty()) {
    STRATA_RETURN_IF_ERROR(MakeAbsolute("--trainer", trainer));
    if (access(trainer->c_str(), X_OK) != 0) {
      return FlagError("--trainer", absl::StrCat(ErrnoStatus(errno, *trainer).message(),
                                                 ": name the strata_trainer executable"));
    }
    return absl::OkStatus();
  }
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return FlagError("--trainer", "cannot find this executable's folder: name the trainer");
  // Installed beside this program, or where Bazel puts it.
  for (const char* candidate : {"strata_trainer", "strata_trainer", "trainer/strata_trainer",
                                "../worker/strata_trainer", "../worker/trainer/strata_trainer"}) {
    const fs::path path = (self.parent_path() / candidate).lexically_normal();
    if (access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, error)) {
      *trainer = path.string();
      return absl::OkStatus();
    }
  }
  return FlagError("--trainer", absl::StrCat("no strata_trainer beside ", self.string(),
                                             ": build //worker:strata_trainer, or name the trainer"));
}

}  // namespace

absl::StatusOr<std::optional<AgentOptions>> ParseAgentOptions(int argc, const char* const* argv) {
  AgentOptions options;
  std::string device = "auto", host = "auto", nvme = "auto";
  double stop_grace_s = 10, checkpoint_grace_s = 120;
  CLI::App app("strata_worker: runs training jobs for a Strata coordinator on this machine", "strata_worker");
  app.add_option("--server", options.server, "Coordinator address, host:port or unix:path")->required();
  app.add_option("--worker-id", options.worker_id, "Name of this worker; default: the host's name");
  app.add_option("--state-dir", options.state_dir, "Folder for this agent's durable state")->required();
  app.add_option("--nvme-path", options.nvme_paths,
                 "Folder for jobs' NVMe scratch; default: STATE_DIR/nvme. May be repeated, once per drive: "
                 "scratch is "
                 "striped over them")
      ->allow_extra_args(false);
  app.add_option("--nvme-weight", options.nvme_weights,
                 "Share of the scratch of each --nvme-path, in their order; default: by measured speed")
      ->allow_extra_args(false);
  app.add_option("--checkpoint-root", options.checkpoint_root,
                 "Folder for checkpoints, shared by all workers; default: STATE_DIR/checkpoints");
  app.add_option(
      "--device-bytes", device,
      "Device memory for jobs; auto: 90 % of what is free of the GPU's, or without one 25 % of the memory");
  app.add_option("--host-bytes", host, "Pinned host memory for jobs; auto: 60 % of the memory");
  app.add_option("--nvme-bytes", nvme, "Scratch bytes for jobs; auto: 80 % of what is free");
  app.add_option("--trainer", options.trainer, "Trainer executable; default: beside this one");
  app.add_flag("--require-gpu", options.require_gpu, "Do not start without a GPU that jobs can train on");
  app.add_option("--stop-grace", stop_grace_s, "Seconds from a stop message to SIGTERM")
      ->transform(RealNumber(0, 86400));
  app.add_option("--checkpoint-grace", checkpoint_grace_s, "Seconds a job may take to checkpoint and stop")
      ->transform(RealNumber(0, 86400));
  app.add_flag("--check-config", options.check_config,
               "Check flags and paths, and with --require-gpu the GPU, then exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see strata_worker --help)"));
  }
  STRATA_ASSIGN_OR_RETURN(options.device_bytes, ParseSizeFlag("--device-bytes", device));
  STRATA_ASSIGN_OR_RETURN(options.host_bytes, ParseSizeFlag("--host-bytes", host));
  STRATA_ASSIGN_OR_RETURN(options.nvme_bytes, ParseSizeFlag("--nvme-bytes", nvme));
  options.stop_grace = absl::Seconds(stop_grace_s);
  options.checkpoint_grace = absl::Seconds(checkpoint_grace_s);
  return options;
}

absl::Status ResolveAgentOptions(AgentOptions* options) {
  if (options->server.empty()) return FlagError("--server", "is missing: name the coordinator's host:port");
  if (options->worker_id.empty()) {
    char name[256] = {};
    if (gethostname(name, sizeof(name) - 1) != 0) {
      return FlagError("--worker-id", "the host has no name: give this worker one");
    }
    options->worker_id = std::string(name).substr(0, 63);
  }
  if (!IsValidWorkerId(options->worker_id)) {
    return FlagError("--worker-id", absl::StrCat("\"", options->worker_id,
                                                 "\" must be 1 to 63 letters, digits, '-', '.' or '_'"));
  }
  if (options->state_dir.empty()) return FlagError("--state-dir", "is missing: name a folder");
  STRATA_RETURN_IF_ERROR(MakeAbsolute("--state-dir", &options->state_dir));
  STRATA_RETURN_IF_ERROR(ResolveNvmePaths(options));
  if (options->checkpoint_root.empty()) options->checkpoint_root = options->state_dir + "/checkpoints";
  return MakeAbsolute("--checkpoint-root", &options->checkpoint_root);
}

absl::Status PreparePaths(AgentOptions* options) {
  std::vector<std::pair<const char*, std::string>> folders = {
      {"--state-dir", options->state_dir}, {"--checkpoint-root", options->checkpoint_root}};
  for (const std::string& path : options->nvme_paths) folders.emplace_back("--nvme-path", path);
  for (const auto& [flag, path] : folders) {
    if (options->check_config) {
      STRATA_RETURN_IF_ERROR(CheckCouldStand(flag, path));
    } else {
      STRATA_RETURN_IF_ERROR(MakeWritable(flag, path));
    }
  }
  // A configuration is also checked where it was written, not only on the machine that has the program; but a
  // GPU is looked for beside the trainer.
  const bool elsewhere = options->check_config && !options->require_gpu;
  return elsewhere ? absl::OkStatus() : FindTrainer(&options->trainer);
}

}  // namespace strata
