#include "client/cli/nvme_folders.h"

#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli/preflight.h"
#include "common/fd.h"

namespace strata {
namespace {

// Each round lost means that another process removed the folder between two system calls of this one.
constexpr int kRounds = 1000;

}  // namespace

void NvmeFolders::Make(const std::string& path) {
  MutexLock lock(mu_);
  const std::string existing = NearestExisting(path);
  for (int round = 0; round < kRounds; ++round) {
    const absl::Status made = MakeDirectories(path);
    if (absl::IsNotFound(made)) continue;
    if (!made.ok()) return;
    absl::StatusOr<StoreFolder> held = StoreFolder::Lock(path, absl::StrCat("bench-folder-", getpid()));
    if (held.ok()) held_.push_back(*std::move(held));
    if (held.ok() || !absl::IsNotFound(held.status())) break;
  }
  for (std::string folder = path; folder != existing; folder.resize(folder.rfind('/'))) {
    made_.push_back(folder);
    if (folder.find('/', 1) == std::string::npos) break;
  }
}

void NvmeFolders::RemoveEmpty() {
  MutexLock lock(mu_);
  held_.clear();
  for (const std::string& folder : made_) (void)rmdir(folder.c_str());
  made_.clear();
}

}  // namespace strata
