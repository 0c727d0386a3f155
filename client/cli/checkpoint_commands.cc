#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/binaries.h"
#include "client/cli/checkpoints.h"
#include "client/cli/command_util.h"
#include "client/cli/commands.h"
#include "client/cli/process.h"
#include "client/cli/views.h"
#include "client/lib/names.h"
#include "common/status.h"
#include "offload/checkpoint/checkpoint_reader.h"

namespace strata {
namespace {

constexpr int64_t kTextLimitBytes = int64_t{1} << 30;  // a token is not always a byte

// A client made when it is first needed: a folder needs no server.
class LazyClient {
 public:
  explicit LazyClient(const Globals& globals) : globals_(globals) {}
  absl::StatusOr<Client*> Get() {
    if (client_ == nullptr) client_ = Connect(globals_);
    return client_.get();
  }

 private:
  const Globals& globals_;
  std::unique_ptr<Client> client_;
};

absl::StatusOr<LocalCheckpoint> Find(const Globals& globals, const std::string& what) {
  LazyClient client(globals);
  return FindCheckpoint(what, [&] { return client.Get(); });
}

}  // namespace

ExitCode RunCheckpointList(const Globals& globals, const std::string& job) {
  const absl::StatusOr<std::string> name = JobName(job);
  if (!name.ok()) return PrintError(RenderError(name.status())), ExitCode::kUsage;
  const std::unique_ptr<Client> client = Connect(globals);
  const absl::StatusOr<std::vector<v1::Checkpoint>> checkpoints =
      OnJob(*client, *name, [&](const std::string& full) { return client->ListCheckpoints(full); });
  if (!checkpoints.ok()) return Fail(checkpoints.status());
  std::vector<Json> items;
  for (const v1::Checkpoint& checkpoint : *checkpoints) items.push_back(ToJson(checkpoint));
  PrintOut(Render(globals.format, items, false, [&] { return CheckpointTable(*checkpoints); }));
  return ExitCode::kOk;
}

ExitCode RunCheckpointVerify(const Globals& globals, const std::string& checkpoint) {
  const absl::StatusOr<LocalCheckpoint> found = Find(globals, checkpoint);
  if (!found.ok()) return Fail(found.status());
  const absl::Status status = VerifyCheckpoint(found->path, found->digest);
  if (!status.ok()) return Fail(status);
  const Json json = {{"checkpoint", found->path}, {"valid", true}};
  PrintOut(Render(globals.format, {json}, true,
                  [&] { return absl::StrCat(found->path, ": every byte is as it was written\n"); }));
  return ExitCode::kOk;
}

ExitCode RunCheckpointExport(const Globals& globals, const std::string& checkpoint,
                             const std::string& out_dir) {
  const absl::Status usable = CheckExportPath(out_dir);
  if (!usable.ok()) return Fail(Annotate(usable, "--out"));
  const absl::StatusOr<LocalCheckpoint> found = Find(globals, checkpoint);
  if (!found.ok()) return Fail(found.status());
  const absl::Status status = ExportCheckpoint(*found, out_dir);
  if (!status.ok()) return Fail(status);
  const Json json = {{"checkpoint", found->path}, {"exported", out_dir}};
  PrintOut(Render(globals.format, {json}, true, [&] { return out_dir + "\n"; }));
  return ExitCode::kOk;
}

ExitCode RunGenerate(const Globals& globals, const GenerateFlags& flags) {
  const absl::StatusOr<std::string> trainer = FindProgram(Program::kTrainer, globals.bin_dir);
  if (!trainer.ok()) return Fail(trainer.status());
  const absl::StatusOr<LocalCheckpoint> found = Find(globals, flags.checkpoint);
  if (!found.ok()) return Fail(found.status());
  const std::vector<std::string> command = GenerateCommand(*trainer, *found, flags);
  if (globals.format == Format::kTable) {  // piece by piece, as it is made
    const absl::StatusOr<int> code = RunProgram(command, STDOUT_FILENO);
    return code.ok() ? static_cast<ExitCode>(*code) : Fail(code.status());
  }
  const auto reader = CheckpointReader::Open(found->path, found->digest);
  if (!reader.ok()) return Fail(reader.status());
  const absl::StatusOr<ProgramOutput> output = RunProgramForOutput(command, kTextLimitBytes);
  if (!output.ok()) return Fail(output.status());
  if (output->exit_code != 0) return static_cast<ExitCode>(output->exit_code);
  const Json json = {{"checkpoint", found->path},
                     {"step", (*reader)->manifest().step},
                     {"prompt", flags.prompt},
                     {"text", std::string(absl::StripSuffix(output->text, "\n"))},
                     {"tokens", flags.max_tokens}};
  PrintOut(Render(globals.format, {json}, true, [] { return std::string(); }));
  return ExitCode::kOk;
}

}  // namespace strata
