// Checkpoints as commands need them: a verified folder on this machine, whatever the person named.
#ifndef CLIENT_CLI_CHECKPOINTS_H_
#define CLIENT_CLI_CHECKPOINTS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/commands.h"
#include "client/lib/client.h"

namespace strata {

// A folder that is removed with its owner.
class TempFolder {
 public:
  static absl::StatusOr<TempFolder> Create();
  ~TempFolder();
  TempFolder(TempFolder&& other) : path_(std::move(other.path_)) { other.path_.clear(); }
  TempFolder& operator=(TempFolder&&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TempFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct LocalCheckpoint {
  std::string path;
  std::string digest;                // sha256 of the manifest; "" for a folder that was named directly
  std::unique_ptr<TempFolder> temp;  // holds a downloaded one
};

// `what` is a checkpoint's folder, a folder of checkpoints (the newest is taken), a job's name (its latest)
// or JOB/STEP. For the last two, `connect` is called for a client; the folder the server names is used if it
// is on this machine, else the files are downloaded and their checksums compared.
absl::StatusOr<LocalCheckpoint> FindCheckpoint(const std::string& what,
                                               const std::function<absl::StatusOr<Client*>()>& connect);

// The command line of the trainer's program that continues a text on stdout.
std::vector<std::string> GenerateCommand(const std::string& trainer, const LocalCheckpoint& checkpoint,
                                         const GenerateFlags& flags);

// kFailedPrecondition unless an export named `path` could be written: it is made beside it, and renamed.
absl::Status CheckExportPath(const std::string& path);

// Writes `checkpoint` as a Hugging Face folder.
absl::Status ExportCheckpoint(const LocalCheckpoint& checkpoint, const std::string& out_dir);

}  // namespace strata

#endif  // CLIENT_CLI_CHECKPOINTS_H_
