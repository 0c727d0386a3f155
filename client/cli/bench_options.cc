#include "client/cli/bench_options.h"

#include <unistd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/local_limits.h"
#include "client/cli/preflight.h"
#include "common/bytes.h"
#include "common/status.h"
#include "offload/model/moments.h"
#include "offload/plan/chunk_size.h"
#include "offload/store/nvme_store.h"
#include "proto/job_spec/validate.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

absl::Status Bad(const char* flag, const std::string& value, const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": '", value, "' is not ", expected));
}

// "": absent.
absl::StatusOr<std::optional<Tier>> ParseTier(const char* flag, const std::string& text) {
  if (text.empty()) return std::optional<Tier>();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    if (text == Name(tier)) return std::optional<Tier>(tier);
  }
  return Bad(flag, text, "device, host or nvme");
}

absl::StatusOr<int64_t> ParseBudget(const char* flag, const std::string& text) {
  if (text.empty()) return 0;
  STRATA_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text), flag);
  if (bytes <= 0) return Bad(flag, text, "more than nothing");
  return bytes;
}

absl::StatusOr<std::optional<Mode>> ParseMode(const std::string& text) {
  if (text.empty()) return std::optional<Mode>();
  for (const Mode mode :
       {Mode::kSync, Mode::kOverlap, Mode::kForwardOverlap, Mode::kSpeculative, Mode::kDelayed}) {
    if (text == Name(mode)) return std::optional<Mode>(mode);
  }
  return Bad("--mode", text, "sync, overlap, forward-overlap, speculative or delayed");
}

absl::StatusOr<Isa> ParseIsa(const std::string& text) {
  if (text == "auto") return BestIsa();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (text != Name(isa)) continue;
    if (!Supported(isa)) return Bad("--isa", text, "what this processor has; auto takes the fastest");
    return isa;
  }
  return Bad("--isa", text, "scalar, avx2, avx512 or auto");
}

absl::StatusOr<DType> ParsePrecision(const std::string& text) {
  if (text == "bf16") return DType::kBF16;
  if (text == "fp16") return DType::kF16;
  if (text == "fp32") return DType::kF32;
  return Bad("--precision", text, "bf16, fp16 or fp32");
}

absl::StatusOr<Moments> ParseOptimizer(const std::string& text) {
  const std::optional<Moments> moments = MomentsOfOptimizer(text);
  if (!moments.has_value()) return Bad("--optimizer", text, absl::StrCat("one of ", kOptimizerNames).c_str());
  return *moments;
}

absl::Status ParseDelay(const std::string& text, OffloadBenchOptions& options) {
  if (text.empty()) return absl::OkStatus();
  constexpr char kBusy[] = "busy:";
  options.compute_busy = text.rfind(kBusy, 0) == 0;
  const std::string duration = options.compute_busy ? text.substr(sizeof(kBusy) - 1) : text;
  if (!absl::ParseDuration(duration, &options.shape.compute_delay) ||
      options.shape.compute_delay < absl::ZeroDuration() || options.shape.compute_delay > absl::Minutes(10)) {
    return Bad("--compute-delay", text, "a duration such as 5ms, or busy:5ms, of at most 10 minutes");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<BenchInjection>> ParseInjection(const std::string& text) {
  if (text.empty()) return std::optional<BenchInjection>();
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  BenchInjection injection;
  if (parts.size() != 3 || (parts[0] != "inf" && parts[0] != "-inf" && parts[0] != "nan") ||
      !absl::SimpleAtoi(parts[1], &injection.step) || parts[2].empty()) {
    return Bad("--inject", text, "KIND:STEP:TENSOR, such as inf:2:first or nan:3:layers.0.qkv");
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  injection.value = parts[0] == "nan"   ? std::numeric_limits<float>::quiet_NaN()
                    : parts[0] == "inf" ? kInfinity
                                        : -kInfinity;
  injection.tensor = parts[2];
  return std::optional<BenchInjection>(injection);
}

absl::Status FillBudgets(const BenchOffloadFlags& flags, OffloadBenchOptions& options) {
  // A path that cannot be used would else be told as a budget of nothing.
  for (const std::string& path : flags.nvme_paths)
    STRATA_RETURN_IF_ERROR(CheckFolder(path), "--nvme-path ", path);
  v1::JobSpec wishes;
  STRATA_ASSIGN_OR_RETURN(const int64_t device, ParseBudget("--device", flags.device));
  STRATA_ASSIGN_OR_RETURN(const int64_t host, ParseBudget("--host", flags.host));
  STRATA_ASSIGN_OR_RETURN(const int64_t nvme, ParseBudget("--nvme", flags.nvme));
  wishes.mutable_memory()->set_device(device);
  wishes.mutable_memory()->set_host(host);
  wishes.mutable_memory()->set_nvme(nvme);
  LocalMachine machine;  // its math is the CPU's
  STRATA_ASSIGN_OR_RETURN(machine.memory, ReadMemoryLimits());
  STRATA_ASSIGN_OR_RETURN(const v1::ResourceRequest limits,
                          LocalLimits(wishes, machine, flags.nvme_paths.front(), kBenchBytes));
  options.request.budget = {limits.device_bytes(), limits.host_bytes(), limits.nvme_bytes()};
  return absl::OkStatus();
}

absl::Status FillPaths(const BenchOffloadFlags& flags, OffloadBenchOptions& options) {
  if (!flags.nvme_weights.empty() && flags.nvme_weights.size() != flags.nvme_paths.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--nvme-weight: ", flags.nvme_weights.size(),
                                                   " weights for ", flags.nvme_paths.size(), " paths"));
  }
  for (const double weight : flags.nvme_weights) {
    if (!IsNvmeWeight(weight))
      return absl::InvalidArgumentError(absl::StrCat("--nvme-weight: ", weight, " is not ", kNvmeWeightText));
  }
  for (size_t i = 0; i < flags.nvme_paths.size(); ++i) {
    options.engine.store.paths.push_back(
        {flags.nvme_paths[i], flags.nvme_weights.empty() ? 1.0 : flags.nvme_weights[i]});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseCount(const std::string& text) {
  double scale = 1;
  std::string digits = text;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        scale = 1e3;
        break;
      case 'M':
        scale = 1e6;
        break;
      case 'B':
      case 'G':
        scale = 1e9;
        break;
      default:
        break;
    }
    if (scale > 1) digits.pop_back();
  }
  double value;
  if (!absl::SimpleAtod(digits, &value) || !std::isfinite(value) || value < 0 || value * scale > 1e15 ||
      value * scale != std::floor(value * scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a count: write a whole number, or one with k, M or B, such as 350M"));
  }
  return static_cast<int64_t>(value * scale);
}

absl::StatusOr<OffloadBenchOptions> BenchOptionsOf(const BenchOffloadFlags& flags) {
  OffloadBenchOptions options;
  STRATA_ASSIGN_OR_RETURN(options.shape.parameters, ParseCount(flags.params), "--params");
  options.shape.layers = flags.layers;
  options.shape.rows = flags.tokens;
  STRATA_ASSIGN_OR_RETURN(options.shape.compute_dtype, ParsePrecision(flags.precision));
  STRATA_ASSIGN_OR_RETURN(options.shape.moments, ParseOptimizer(flags.optimizer));
  STRATA_RETURN_IF_ERROR(ParseDelay(flags.compute_delay, options));
  STRATA_RETURN_IF_ERROR(FillBudgets(flags, options));
  PlanRequest& request = options.request;
  request.profile = WithThreads(FromProto(LocalSpeeds(/*gpu=*/nullptr)), flags.threads);
  request.micro_batches = flags.micro_batches;
  STRATA_ASSIGN_OR_RETURN(request.params, ParseTier("--params-home", flags.params_home));
  STRATA_ASSIGN_OR_RETURN(request.gradients, ParseTier("--gradients-home", flags.gradients_home));
  STRATA_ASSIGN_OR_RETURN(request.optimizer, ParseTier("--optimizer-home", flags.optimizer_home));
  STRATA_ASSIGN_OR_RETURN(request.activations, ParseTier("--activations-home", flags.activations_home));
  STRATA_ASSIGN_OR_RETURN(request.mode, ParseMode(flags.mode));
  request.prefetch_depth = flags.depth;
  STRATA_ASSIGN_OR_RETURN(const int64_t chunk, ParseBudget("--chunk", flags.chunk));
  request.chunk_elements = ChunkElements(chunk);
  request.io_threads = flags.io_threads;
  if (flags.clip != 0 && !(flags.clip >= kGradClipMin && flags.clip <= kGradClipMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--clip: ", flags.clip, " is neither 0, for none, nor from 1e-12 to 1e12"));
  }
  options.clip_norm = flags.clip;
  options.steps = flags.steps;
  options.threads = flags.threads;
  STRATA_ASSIGN_OR_RETURN(options.isa, ParseIsa(flags.isa));
  options.seed = flags.seed;
  STRATA_ASSIGN_OR_RETURN(options.injection, ParseInjection(flags.inject));
  options.state_hash = flags.state_hash;
  STRATA_RETURN_IF_ERROR(FillPaths(flags, options));
  options.engine.store.owner = absl::StrCat("bench-", getpid());
  options.engine.store.direct = flags.direct_io ? DirectIo::kAuto : DirectIo::kBuffered;
  STRATA_ASSIGN_OR_RETURN(options.engine.io_backend, ParseIoBackend(flags.io_backend), "--io-backend");
  options.engine.read_depth = options.engine.write_depth = static_cast<unsigned>(flags.io_depth);
  options.engine.train.trace_capacity = 0;
  return options;
}

}  // namespace strata
