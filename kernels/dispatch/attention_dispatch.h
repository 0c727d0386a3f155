// Who computes attention: the choice among providers by architecture, type and shape. The table of choices is
// pinned by attention_dispatch_test.cc. Own kernels come first; cuDNN is the second opinion that a user can
// force, and what is left where no own kernel fits. What rounds more than the type does is never chosen, only
// forced.
#ifndef KERNELS_DISPATCH_ATTENTION_DISPATCH_H_
#define KERNELS_DISPATCH_ATTENTION_DISPATCH_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/dtype.h"

namespace strata {

enum class AttentionProvider : uint8_t {
  kFa3,     // kernels/attention for sm_90a: TMA, wgmma, warp specialisation
  kFa2,     // kernels/attention for sm_80 and later: mma.sync, cp.async
  kCudnn,   // cuDNN's fused attention
  kFa3Fp8,  // as kFa3 with products of e4m3: forward, for inference and evaluation
};
inline constexpr AttentionProvider kAttentionProviders[] = {  // in the order of preference
    AttentionProvider::kFa3, AttentionProvider::kFa2, AttentionProvider::kCudnn, AttentionProvider::kFa3Fp8};
const char* Name(AttentionProvider provider);  // "fa3", "fa2", "cudnn", "fa3-fp8"
// The provider that a training is forced to use. kInvalidArgument for the name of none, and for one that has
// no backward pass.
absl::StatusOr<AttentionProvider> TrainingProviderOf(const std::string& name);

struct AttentionProblem {
  int arch = 0;  // 10 * major + minor of the compute capability
  DType dtype = DType::kBF16;
  bool backward = false;
  int head_dim = 0;
  int heads = 0, kv_heads = 0;
  bool packed = false;  // sequences of several lengths, one after another
  bool window = false;  // keys far before a query are not seen

  auto operator<=>(const AttentionProblem&) const = default;
};
std::string ToText(const AttentionProblem& problem);

struct AttentionDispatchOptions {
  std::optional<AttentionProvider> forced;
  std::string cudnn_why_not = "not looked for";  // "": it is there
  std::function<void(const std::string&)> log;   // a line for each new choice
};

// "" when `provider` can, or why not.
std::string WhyNot(AttentionProvider provider, const AttentionProblem& problem,
                   const std::string& cudnn_why_not);

class AttentionDispatch {
 public:
  explicit AttentionDispatch(AttentionDispatchOptions options) : options_(std::move(options)) {}

  // kUnimplemented when nobody can, kFailedPrecondition when the forced provider cannot: the message has the
  // reasons. The same problem gets the same answer. Threads: any.
  absl::StatusOr<AttentionProvider> Choose(const AttentionProblem& problem) ABSL_LOCKS_EXCLUDED(mu_);

  struct Choice {
    AttentionProblem problem;
    AttentionProvider provider;
    std::string passed_over;  // "fa3: needs compute capability 9.0, ..."; "" when the first one was taken
  };
  std::vector<Choice> Choices() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const AttentionDispatchOptions options_;
  mutable Mutex mu_;
  std::map<AttentionProblem, Choice> choices_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // KERNELS_DISPATCH_ATTENTION_DISPATCH_H_
