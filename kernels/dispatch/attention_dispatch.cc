#include "kernels/dispatch/attention_dispatch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace strata {
namespace {

constexpr int kHopper = 90;
constexpr int kFa2DimMaxForward = 256, kFa2DimMaxBackward = 128;

// As its engines said when asked without a GPU (cudnn_attention_test, 9.19).
int CudnnDimMax(const AttentionProblem& problem) {
  return problem.backward && problem.arch != kHopper ? 128 : 256;
}

std::string Capability(int arch) { return absl::StrCat(arch / 10, ".", arch % 10); }

bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

}  // namespace

const char* Name(AttentionProvider provider) {
  switch (provider) {
    case AttentionProvider::kFa3:
      return "fa3";
    case AttentionProvider::kFa2:
      return "fa2";
    case AttentionProvider::kCudnn:
      return "cudnn";
    case AttentionProvider::kFa3Fp8:
      return "fa3-fp8";
  }
  return "unknown";
}

absl::StatusOr<AttentionProvider> TrainingProviderOf(const std::string& name) {
  if (name == Name(AttentionProvider::kFa3Fp8)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has no backward pass, and a training needs one: force fa3, fa2 or cudnn, or none"));
  }
  for (const AttentionProvider provider : kAttentionProviders) {
    if (name == Name(provider)) return provider;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not fa3, fa2 or cudnn: force one, or none"));
}

std::string ToText(const AttentionProblem& problem) {
  return absl::StrCat("attention ", problem.backward ? "backward" : "forward", " of ", Name(problem.dtype),
                      ", head dim ", problem.head_dim, ", ", problem.heads, "/", problem.kv_heads, " heads",
                      problem.packed ? ", packed" : "", problem.window ? ", window" : "",
                      " on compute capability ", Capability(problem.arch));
}

std::string WhyNot(AttentionProvider provider, const AttentionProblem& problem,
                   const std::string& cudnn_why_not) {
  const int dim = problem.head_dim;
  if (provider == AttentionProvider::kCudnn && !cudnn_why_not.empty()) return cudnn_why_not;
  if (!IsHalf(problem.dtype)) return absl::StrCat("takes bf16 and f16, not ", Name(problem.dtype));
  if (dim <= 0 || dim % 8 != 0) return absl::StrCat("head dim ", dim, " is no multiple of 8");
  if (problem.kv_heads <= 0 || problem.heads % problem.kv_heads != 0)
    return absl::StrCat(problem.heads, " heads are no multiple of ", problem.kv_heads, " kv heads");
  switch (provider) {
    case AttentionProvider::kFa3Fp8:
      if (problem.backward) return "has no backward pass: e4m3 is too coarse for gradients, train with fa3";
      [[fallthrough]];
    case AttentionProvider::kFa3:
      if (problem.arch != kHopper) return "needs compute capability 9.0 (wgmma and TMA)";
      if (dim == 64 || dim == 96 || dim == 128 || (dim == 256 && !problem.backward)) return "";
      return absl::StrCat("has no kernel for head dim ", dim,
                          problem.backward ? " (64, 96, 128)" : " (64, 96, 128, 256)");
    case AttentionProvider::kFa2: {
      if (problem.arch / 10 != 8 && problem.arch != kHopper)
        return "is built for compute capability 8.x and 9.0";
      const int most = problem.backward ? kFa2DimMaxBackward : kFa2DimMaxForward;
      return dim <= most ? "" : absl::StrCat("takes a head dim of at most ", most);
    }
    case AttentionProvider::kCudnn:
      if (problem.arch < 80) return "needs compute capability 8.0";
      if (problem.packed) return "is not used for packed sequences";
      return dim <= CudnnDimMax(problem) ? ""
                                         : absl::StrCat("takes a head dim of at most ", CudnnDimMax(problem));
  }
  return "is not known";
}

absl::StatusOr<AttentionProvider> AttentionDispatch::Choose(const AttentionProblem& problem) {
  MutexLock lock(mu_);
  if (const auto found = choices_.find(problem); found != choices_.end()) return found->second.provider;
  std::vector<std::string> passed_over;
  for (const AttentionProvider provider : kAttentionProviders) {
    if (options_.forced.has_value() && provider != *options_.forced) continue;
    const bool coarse = provider == AttentionProvider::kFa3Fp8 && !options_.forced.has_value();
    const std::string why = coarse ? "rounds q, k and v to eight bits, so it is taken only when it is forced"
                                   : WhyNot(provider, problem, options_.cudnn_why_not);
    if (!why.empty()) {
      passed_over.push_back(absl::StrCat(Name(provider), ": ", why));
      continue;
    }
    Choice choice{problem, provider, absl::StrJoin(passed_over, "; ")};
    if (options_.log) {
      options_.log(
          absl::StrCat(ToText(problem), ": ", Name(provider),
                       choice.passed_over.empty() ? "" : absl::StrCat(", because ", choice.passed_over)));
    }
    choices_.emplace(problem, std::move(choice));
    return provider;
  }
  const std::string reasons = absl::StrJoin(passed_over, "; ");
  if (options_.forced.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(ToText(problem), ": the provider ", Name(*options_.forced),
                     " is forced and cannot: ", reasons, "; take another one, or leave the choice free"));
  }
  return absl::UnimplementedError(absl::StrCat(ToText(problem), ": nobody can: ", reasons));
}

std::vector<AttentionDispatch::Choice> AttentionDispatch::Choices() const {
  MutexLock lock(mu_);
  std::vector<Choice> choices;
  for (const auto& [problem, choice] : choices_) choices.push_back(choice);
  return choices;
}

}  // namespace strata
