// Parameter groups and frozen tensors: what a job file says by patterns, as numbers of the layout's tensors.
#ifndef PROTO_JOB_SPEC_PARAMETER_GROUPS_H_
#define PROTO_JOB_SPEC_PARAMETER_GROUPS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "offload/exec/step_source.h"
#include "offload/model/model_layout.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// The whole name: * stands for any text, ? for one character.
bool MatchesPattern(absl::string_view pattern, absl::string_view name);

// Sets TensorInfo::group and frozen of every tensor. Each group of the job comes twice, with the weight decay
// of matrices and without: group k of training.optimizer.groups (from 1; 0: tensors that none matches) has
// the numbers 2 k + kDecayGroup and 2 k + kPlainGroup. kInvalidArgument, naming the field, for a pattern that
// matches no tensor, a group that gets none, and when nothing is left to train.
absl::Status AssignGroups(const v1::TrainingSpec& training, ModelLayout& layout);

struct GroupSettings {
  double lr_scale = 1;
  AdamWHyper hyper;  // lr is the schedule's
};

// By TensorInfo::group. `training` as ApplyDefaults leaves it.
std::vector<GroupSettings> GroupSettingsOf(const v1::TrainingSpec& training);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_PARAMETER_GROUPS_H_
