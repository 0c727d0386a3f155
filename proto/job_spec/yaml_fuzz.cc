// Any bytes: reading never crashes, every violation says what is wrong, and what was accepted survives being
// written and read again.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/check.h"
#include "proto/job_spec/validate.h"
#include "proto/job_spec/yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::JobFile file = strata::ParseJobFile(absl::string_view(reinterpret_cast<const char*>(data), size));
  STRATA_CHECK(file.violations.size() <= 20);
  for (const strata::FieldViolation& violation : file.violations)
    STRATA_CHECK(!violation.description.empty());
  if (!file.violations.empty()) return 0;
  const strata::JobFile again = strata::ParseJobFile(strata::JobSpecToYaml(file.spec));
  STRATA_CHECK(again.violations.empty());
  STRATA_CHECK(again.spec.SerializeAsString() == file.spec.SerializeAsString());
  std::vector<strata::FieldViolation> violations = strata::Validate(file.spec);
  file.source.Locate(violations);
  for (const strata::FieldViolation& violation : violations) STRATA_CHECK(violation.line > 0);
  return 0;
}
