#include "worker/trainer/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "common/random.h"
#include "common/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "nlohmann/json.hpp"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/export.h"
#include "offload/model/model_layout.h"
#include "worker/data/tokenizer.h"
#include "worker/model/logits.h"

namespace strata {
namespace {

// Index drawn from softmax(logits / temperature); `uniform` in [0, 1).
int32_t Sample(std::span<const float> logits, double temperature, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  double total = 0;
  for (const float logit : logits) total += std::exp((logit - *best) / temperature);
  double left = uniform * total;
  for (size_t i = 0; i < logits.size(); ++i) {
    left -= std::exp((logits[i] - *best) / temperature);
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(logits.size() - 1);
}

// Every unit's parameters in the compute type, read from the checkpoint's master weights.
absl::StatusOr<std::vector<std::vector<std::byte>>> LoadUnits(CheckpointReader& reader,
                                                              const ModelLayout& layout, StateOps& math) {
  std::vector<std::vector<std::byte>> units;
  std::vector<float> master;
  for (const ParamUnit& unit : layout.units) {
    master.assign(unit.elements, 0.0f);
    for (const TensorInfo& tensor : unit.tensors) {
      STRATA_RETURN_IF_ERROR(reader.ReadRange(StateClass::kMaster, tensor.name, 0,
                                              std::span(master).subspan(tensor.offset, tensor.elements)));
    }
    units.emplace_back(unit.elements * SizeOf(layout.compute_dtype));
    STRATA_RETURN_IF_ERROR(
        math.CastParams(nullptr, master.data(), units.back().data(), layout.compute_dtype, unit.elements));
  }
  return units;
}

}  // namespace

absl::Status Generate(const GenerateOptions& options, const std::function<void(absl::string_view)>& emit) {
  STRATA_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(options.checkpoint, options.digest));
  const Manifest& manifest = reader->manifest();
  STRATA_ASSIGN_OR_RETURN(const ModelConfig config, ModelOf(*reader));
  const auto extra = nlohmann::json::parse(manifest.state.extra_json, nullptr, false);
  const bool known = extra.is_object() && extra.contains("tokenizer") && extra["tokenizer"].is_string();
  STRATA_ASSIGN_OR_RETURN(const auto tokenizer,
                          MakeTokenizer(known ? extra["tokenizer"].get<std::string>() : "bytes"));
  STRATA_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                          tokenizer->Encode(options.prompt.empty() ? "\n" : options.prompt));
  if (tokenizer->vocab() > config.vocab) {
    return absl::FailedPreconditionError(absl::StrCat("the model has ", config.vocab,
                                                      " token ids, tokenizer ", tokenizer->name(), " makes ",
                                                      tokenizer->vocab()));
  }

  STRATA_ASSIGN_OR_RETURN(const ModelLayout layout, BuildModelLayout(config, DType::kF32, 1, config.max_seq));
  const std::unique_ptr<StateOps> math = MakeCpuStateOps(options.threads);
  const std::unique_ptr<Ops> ops = MakeCpuOps(layout.compute_dtype, options.threads);
  STRATA_ASSIGN_OR_RETURN(const auto units, LoadUnits(*reader, layout, *math));
  std::vector<const void*> pointers;
  for (const auto& unit : units) pointers.push_back(unit.data());
  STRATA_ASSIGN_OR_RETURN(const auto forward, HostForward::Create(layout, *ops));

  const CounterRandom random(options.seed, /*stream=*/0);
  std::vector<float> logits;
  for (int64_t made = 0; made < options.max_tokens; ++made) {
    const int64_t used = std::min<int64_t>(tokens.size(), config.max_seq);
    std::vector<int32_t> window(tokens.end() - used, tokens.end());
    window.resize(config.max_seq, 0);
    STRATA_RETURN_IF_ERROR(forward->Logits(pointers, window, used - 1, 1, &logits));
    // Ids above the tokenizer's have no text.
    const std::span<const float> candidates(logits.data(), static_cast<size_t>(tokenizer->vocab()));
    tokens.push_back(Sample(candidates, options.temperature, random.Uniform(static_cast<uint64_t>(made))));
    STRATA_ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(std::span(tokens).last(1)));
    emit(text);
  }
  return absl::OkStatus();
}

}  // namespace strata
