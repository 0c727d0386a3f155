// The folders of a bench's NVMe paths, made where they are missing and removed at its end.
#ifndef CLIENT_CLI_NVME_FOLDERS_H_
#define CLIENT_CLI_NVME_FOLDERS_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "offload/store/store_folder.h"

namespace strata {

// Several processes may make, use and remove the same folders: each keeps a locked store folder
// (offload/store/store_folder.h) in every one it uses, so none goes while somebody uses it, and what a killed
// process leaves is swept like any store's. Thread-safe.
class NvmeFolders {
 public:
  // Makes `path`, with the folders above it. One that cannot be made or locked is left to the store, whose
  // opening tells why.
  void Make(const std::string& path);

  // Removes those that were not there before, but for any that holds something: another process's data.
  // Idempotent.
  void RemoveEmpty();

 private:
  Mutex mu_;
  std::vector<StoreFolder> held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> made_ ABSL_GUARDED_BY(mu_);  // deepest first, path by path
};

}  // namespace strata

#endif  // CLIENT_CLI_NVME_FOLDERS_H_
