// How many bytes jobs have written to each NVMe path over this worker's life: drives wear out by that. Kept
// in a file of the state folder; what a killed agent had not saved yet is lost, which is a few seconds of
// writing.
#ifndef WORKER_AGENT_WEAR_LOG_H_
#define WORKER_AGENT_WEAR_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace strata {

// Thread-safe, but for Save, which one thread calls.
class WearLog {
 public:
  // A missing file is an empty log; kDataLoss: it is not one of ours.
  static absl::StatusOr<std::unique_ptr<WearLog>> Open(const std::string& file);

  void Add(const std::string& path, int64_t bytes);
  int64_t Written(const std::string& path) const;  // 0 for a path never written to
  // Durable when it returns; does nothing when nothing was added since.
  absl::Status Save();

 private:
  explicit WearLog(std::string file) : file_(std::move(file)) {}

  const std::string file_;
  mutable Mutex mu_;
  std::map<std::string, int64_t> written_ ABSL_GUARDED_BY(mu_);
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace strata

#endif  // WORKER_AGENT_WEAR_LOG_H_
