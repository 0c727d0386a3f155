#include "client/cli/checkpoints.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_util.h"
#include "client/cli/exit_code.h"
#include "client/cli/preflight.h"
#include "client/cli/views.h"
#include "client/lib/names.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/export.h"
#include "offload/checkpoint/file_ops.h"

namespace strata {
namespace {

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// A path inside the checkpoint's folder: relative, without "..".
bool IsInside(const std::string& path) {
  if (path.empty() || path[0] == '/') return false;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

absl::StatusOr<LocalCheckpoint> Download(Client& client, const v1::Checkpoint& checkpoint) {
  STRATA_ASSIGN_OR_RETURN(TempFolder temp, TempFolder::Create());
  // The reader knows a checkpoint by its folder's name, step-<number>.
  const std::string folder = absl::StrCat(temp.path(), "/", ShortName(checkpoint.path()));
  STRATA_RETURN_IF_ERROR(MakeDirectories(folder));
  for (const v1::CheckpointFile& file : checkpoint.files()) {
    if (!IsInside(file.path())) {
      return absl::DataLossError(
          absl::StrCat("the server lists a file outside the checkpoint: ", file.path()));
    }
    const std::string out = absl::StrCat(folder, "/", file.path());
    STRATA_RETURN_IF_ERROR(MakeDirectories(out.substr(0, out.rfind('/'))));
    STRATA_RETURN_IF_ERROR(client.DownloadCheckpointFile(checkpoint.name(), file, out));
  }
  return LocalCheckpoint{
      .path = folder, .digest = checkpoint.digest(), .temp = std::make_unique<TempFolder>(std::move(temp))};
}

// Why there is none, by the job's state.
absl::Status NoCheckpoint(Client& client, const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(const v1::Job job,
                          OnJob(client, name, [&](const std::string& full) { return client.GetJob(full); }));
  const std::string job_name = ShortName(job.name());
  const std::string is = absl::StrCat(job_name, " is ", StateText(job.status()), " and has ");
  if (!IsTerminal(job.status().state()))
    return absl::NotFoundError(absl::StrCat(is, "no committed checkpoint yet: wait for the first"));
  return absl::NotFoundError(absl::StrCat(is, "left no checkpoint: `strata get ", job_name,
                                          "` says why it ended; its job file can be submitted again"));
}

absl::StatusOr<v1::Checkpoint> Lookup(Client& client, const std::string& what) {
  const absl::StatusOr<std::string> job = JobName(what);
  if (!job.ok()) {
    STRATA_ASSIGN_OR_RETURN(const std::string name, CheckpointName(what));
    const size_t tail = name.rfind("/checkpoints/");
    return OnJob(client, name.substr(0, tail),
                 [&](const std::string& full) { return client.GetCheckpoint(full + name.substr(tail)); });
  }
  STRATA_ASSIGN_OR_RETURN(
      const std::vector<v1::Checkpoint> checkpoints,
      OnJob(client, *job, [&](const std::string& full) { return client.ListCheckpoints(full); }));
  const v1::Checkpoint* newest = nullptr;
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    if (newest == nullptr || checkpoint.step() > newest->step()) newest = &checkpoint;
  }
  if (newest == nullptr) return NoCheckpoint(client, *job);
  return client.GetCheckpoint(newest->name());  // The list may leave out the files.
}

}  // namespace

absl::StatusOr<TempFolder> TempFolder::Create() {
  const char* base = std::getenv("TMPDIR");
  std::string path = absl::StrCat(base != nullptr && *base != 0 ? base : "/tmp", "/strata-checkpoint-XXXXXX");
  if (mkdtemp(path.data()) == nullptr)
    return ErrnoStatus(errno, absl::StrCat("making a temporary folder ", path));
  return TempFolder(path);
}

TempFolder::~TempFolder() {
  if (!path_.empty()) RemoveTree(path_).IgnoreError();
}

absl::StatusOr<LocalCheckpoint> FindCheckpoint(const std::string& what,
                                               const std::function<absl::StatusOr<Client*>()>& connect) {
  if (IsFolder(what)) {
    if (IsFile(what + "/manifest.json")) return LocalCheckpoint{.path = what};
    STRATA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(what));
    if (!entries.empty()) return LocalCheckpoint{.path = entries[0].path};
    return absl::NotFoundError(
        absl::StrCat(what, " is no checkpoint and holds none (a step-* folder with a manifest.json)"));
  }
  if (absl::StartsWith(what, "/") || absl::StartsWith(what, ".")) {
    return absl::NotFoundError(
        absl::StrCat(what, " does not exist: give a checkpoint's folder, a job's name or JOB/STEP"));
  }
  STRATA_ASSIGN_OR_RETURN(Client * client, connect());
  STRATA_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, Lookup(*client, what));
  if (IsFolder(checkpoint.path()))
    return LocalCheckpoint{.path = checkpoint.path(), .digest = checkpoint.digest()};
  return Download(*client, checkpoint);
}

std::vector<std::string> GenerateCommand(const std::string& trainer, const LocalCheckpoint& checkpoint,
                                         const GenerateFlags& flags) {
  return {trainer,         "generate",
          "--checkpoint",  checkpoint.path,
          "--digest",      checkpoint.digest,
          "--prompt",      flags.prompt,
          "--max-tokens",  absl::StrCat(flags.max_tokens),
          "--seed",        absl::StrCat(flags.seed),
          "--temperature", absl::StrCat(flags.temperature)};
}

absl::Status CheckExportPath(const std::string& path) { return CheckFolder(path + "/.."); }

absl::Status ExportCheckpoint(const LocalCheckpoint& checkpoint, const std::string& out_dir) {
  return ExportHuggingFace(FileOps::Real(), checkpoint.path, out_dir, {.digest = checkpoint.digest});
}

}  // namespace strata
