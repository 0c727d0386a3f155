#include "proto/job_spec/parameter_groups.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

template <typename F>
void ForEachTensor(ModelLayout& layout, F f) {
  for (ParamUnit& unit : layout.units) {
    for (TensorInfo& tensor : unit.tensors) f(tensor);
  }
}

absl::Status NothingMatched(const std::string& field, const std::string& pattern, const ModelLayout& layout) {
  const ParamUnit& unit = layout.units[layout.units.size() / 2];
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": '", PrintableExcerpt(pattern), "' matches no tensor of the model; names are such as ",
      unit.tensors.back().name, ", * stands for any text, ? for one character"));
}

}  // namespace

// After a mismatch the last * takes one character more: earlier ones need no second look.
bool MatchesPattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0, star = absl::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::Status AssignGroups(const v1::TrainingSpec& training, ModelLayout& layout) {
  const auto& groups = training.optimizer().groups();
  std::vector<bool> matched(groups.size(), false), used(groups.size(), false);
  ForEachTensor(layout, [&](TensorInfo& tensor) {
    bool taken = false;
    for (int i = 0; i < groups.size(); ++i) {
      if (!MatchesPattern(groups[i].match(), tensor.name)) continue;
      matched[i] = true;
      if (taken) continue;
      taken = used[i] = true;
      tensor.group += 2 * (i + 1);
    }
  });
  for (int i = 0; i < groups.size(); ++i) {
    const std::string field = absl::StrCat("training.optimizer.groups[", i, "].match");
    if (!matched[i]) return NothingMatched(field, groups[i].match(), layout);
    if (used[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": every tensor that '", PrintableExcerpt(groups[i].match()),
                     "' matches belongs to an earlier group; put the narrower one first"));
  }
  for (int i = 0; i < training.freeze_size(); ++i) {
    bool any = false;
    ForEachTensor(layout, [&](TensorInfo& tensor) {
      if (!MatchesPattern(training.freeze(i), tensor.name)) return;
      any = tensor.frozen = true;
    });
    if (!any) return NothingMatched(absl::StrCat("training.freeze[", i, "]"), training.freeze(i), layout);
  }
  bool all_frozen = true;
  ForEachTensor(layout, [&](const TensorInfo& tensor) { all_frozen = all_frozen && tensor.frozen; });
  if (!all_frozen) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "training.freeze: freezes every tensor of the model: leave some to train");
}

std::vector<GroupSettings> GroupSettingsOf(const v1::TrainingSpec& training) {
  const v1::OptimizerSpec& optimizer = training.optimizer();
  GroupSettings matrices;
  matrices.hyper.beta1 = optimizer.betas(0);
  matrices.hyper.beta2 = optimizer.betas(1);
  matrices.hyper.eps = optimizer.eps();
  matrices.hyper.weight_decay = optimizer.weight_decay();
  GroupSettings rest = matrices;
  rest.hyper.weight_decay = 0;
  std::vector<GroupSettings> all = {matrices, rest};
  for (const v1::ParameterGroup& group : optimizer.groups()) {
    for (GroupSettings settings : {matrices, rest}) {
      if (group.has_lr_scale()) settings.lr_scale = group.lr_scale();
      if (group.betas_size() > 0) {
        settings.hyper.beta1 = group.betas(0);
        settings.hyper.beta2 = group.betas(1);
      }
      if (group.has_weight_decay()) settings.hyper.weight_decay = group.weight_decay();
      all.push_back(settings);
    }
  }
  return all;
}

}  // namespace strata
