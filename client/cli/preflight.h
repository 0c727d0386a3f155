// What can be known about a job on this machine before anything is created: its files and its storage. Cheap:
// looks at sizes and headers, reads no data file, and ends within a second.
#ifndef CLIENT_CLI_PREFLIGHT_H_
#define CLIENT_CLI_PREFLIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job_spec/violation.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// Data files exist, are regular, readable and hold at least one sequence of seq_len + 1 tokens; both parts of
// an eval_fraction do; the folder of model.from has config.json and weights. `spec` has absolute paths and
// passed Validate.
std::vector<FieldViolation> CheckFiles(const v1::JobSpec& spec);

// The nearest existing folder of `nvme_path` is writable, has O_DIRECT if memory.require has it, and
// has room for an explicit memory.nvme. Writes one probe file there that never has a name. `field` is what
// the violation blames: --nvme-path or --state-dir.
std::vector<FieldViolation> CheckStorage(const v1::JobSpec& spec, const std::string& nvme_path,
                                         const std::string& field);

// `path` itself or its nearest parent that exists.
std::string NearestExisting(const std::string& path);

// kFailedPrecondition, with the reason and a remedy, unless `path` can be made a folder with files of this
// user or is one.
absl::Status CheckFolder(const std::string& path);

// Free bytes for this user on the file system of the nearest existing folder; 0 when that cannot be told.
int64_t FreeBytes(const std::string& path);

}  // namespace strata

#endif  // CLIENT_CLI_PREFLIGHT_H_
