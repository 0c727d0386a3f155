// FieldViolation: one reason why a job specification is refused, by field path and, where the text of the
// job file is known, by place.
#ifndef PROTO_JOB_SPEC_VIOLATION_H_
#define PROTO_JOB_SPEC_VIOLATION_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

struct FieldViolation {
  std::string field;        // training.optimizer.betas[1]; "" is the file as a whole
  int line = 0;             // from 1; 0: not known
  int column = 0;           // from 1; 0: not known
  std::string description;  // what is wrong, and what to write instead
};

// Where each field stands in the text of a job file. A scalar's place is its value, a group's its key.
class SourceMap {
 public:
  struct Position {
    int line = 0;
    int column = 0;
  };

  void Add(const std::string& field, Position position);
  // The place of `field`, or of the nearest enclosing field that the file has; {0, 0} where there is none.
  Position Find(const std::string& field) const;
  // Fills in the place of every violation that has none.
  void Locate(std::vector<FieldViolation>& violations) const;

 private:
  std::map<std::string, Position> positions_;
};

// What a planner refuses is wrong with the job: its messages begin with the field's path ("model.from: ...");
// one that does not is of the file as a whole.
FieldViolation ViolationOf(absl::string_view message);

// One line per violation: "job.yaml:12:9: training.optimizer.lr: must be above 0 ...". A place that is not
// known is left out, as is an empty `file`.
std::string FormatViolations(const std::string& file, const std::vector<FieldViolation>& violations);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_VIOLATION_H_
