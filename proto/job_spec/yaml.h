// The job file: JobSpec as people write it in YAML, read strictly along the message descriptor.
//
// Beyond plain YAML maps, lists and scalars there are these shorthands, declared by the options of
// spec.proto: enum values in lower case with dashes (forward-overlap); 48MiB for byte sizes; `auto` where a
// default is chosen for you; one value in place of a list of one. Everything else is refused with its place:
// unknown and repeated keys, values of the wrong type or out of range, empty values, anchors, aliases, tags,
// several documents, text that is not UTF-8.
//
// Only the shape is checked here; whether the values make sense is validate.h.
#ifndef PROTO_JOB_SPEC_YAML_H_
#define PROTO_JOB_SPEC_YAML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "proto/job_spec/violation.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

inline constexpr int64_t kJobFileMaxBytes = int64_t{1} << 20;

struct JobFile {
  v1::JobSpec spec;  // what could be read; complete only without violations
  SourceMap source;
  std::vector<FieldViolation> violations;  // at most 20, in the order of the text
};

// Reads the text of a job file. Never fails as a whole: what is wrong is in `violations`.
JobFile ParseJobFile(absl::string_view text);

// Reads the text along any message whose fields carry the options of spec.proto; what is wrong is returned.
std::vector<FieldViolation> ParseYamlMessage(absl::string_view text, google::protobuf::Message* message);

// ParseJobFile for a file of at most kJobFileMaxBytes; a Status only when it cannot be read.
absl::StatusOr<JobFile> LoadJobFile(const std::string& path);

// Makes every relative path of `spec` (fields with the option `path`) absolute: it starts at `folder`, an
// absolute path without symbolic links (so that a leading ../ is its parent). Empty paths stay empty.
void ResolvePaths(const std::string& folder, v1::JobSpec& spec);

// A job file that ParseJobFile reads back to an equal spec. Needs a spec with known enum values only.
std::string JobSpecToYaml(const v1::JobSpec& spec);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_YAML_H_
