#include "offload/bench/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checked.h"

namespace strata {
namespace {

constexpr int64_t kRowsMin = 2;  // a micro-batch carries its number in its first two tokens
// Writing gradients costs time too; only a prediction, so one machine's figure will do.
constexpr double kGradientBytesPerSecond = 6e9;

void AddTensor(ParamUnit& unit, std::string name, std::vector<int64_t> shape, int group) {
  TensorInfo tensor;
  tensor.name = absl::StrCat(unit.name, ".", name);
  tensor.elements = 1;
  for (const int64_t size : shape) tensor.elements *= size;
  tensor.shape = std::move(shape);
  tensor.offset = unit.elements;
  tensor.group = group;
  unit.elements += RoundUp(tensor.elements, kTensorAlignment);
  unit.tensors.push_back(std::move(tensor));
}

// About 12 h^2 parameters, and no size that a power of two divides.
ParamUnit LayerUnit(int layer, int64_t h, bool frozen) {
  ParamUnit unit;
  unit.name = absl::StrCat("layers.", layer);
  AddTensor(unit, "norm1", {h}, kPlainGroup);
  AddTensor(unit, "qkv", {3 * h, h}, kDecayGroup);
  AddTensor(unit, "qkv_bias", {3 * h}, kPlainGroup);
  AddTensor(unit, "out", {h, h}, kDecayGroup);
  AddTensor(unit, "norm2", {h}, kPlainGroup);
  unit.tensors.back().frozen = layer % 2 == 1;
  AddTensor(unit, "up", {4 * h + 1, h}, kDecayGroup);
  AddTensor(unit, "up_bias", {4 * h + 1}, kPlainGroup);
  AddTensor(unit, "down", {h, 4 * h + 1}, kDecayGroup);
  for (TensorInfo& tensor : unit.tensors) tensor.frozen |= frozen;
  return unit;
}

}  // namespace

absl::StatusOr<ModelLayout> MakeSyntheticLayout(const SyntheticShape& shape) {
  if (shape.layers < 1 || shape.layers > 1000) {
    return absl::InvalidArgumentError(absl::StrCat("layers: ", shape.layers, " is not between 1 and 1000"));
  }
  if (shape.rows < kRowsMin || shape.rows > (1 << 24)) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", shape.rows, " is not between 2 and 16777216"));
  }
  // An embedding as large as a layer, and one more for the small parts.
  const double per_layer = static_cast<double>(shape.parameters) / (shape.layers + 1);
  const int64_t h = (static_cast<int64_t>(std::sqrt(std::max(0.0, per_layer) / 12)) - 1) / 2 * 2 + 1;
  if (h < 9) {
    return absl::InvalidArgumentError(absl::StrCat("params: ", shape.parameters, " in ", shape.layers,
                                                   " layers leave too few for each; ",
                                                   2000 * (shape.layers + 1), " would do"));
  }
  if (per_layer > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("params: ", shape.parameters, " in ", shape.layers,
                                                   " layers are more than 2^32 in a layer; use more layers"));
  }
  ModelLayout layout;
  layout.config.layers = shape.layers;
  layout.config.hidden = h;
  layout.config.tied_head = true;
  layout.compute_dtype = shape.compute_dtype;
  layout.moments = shape.moments;
  layout.micro_batch = 1;
  layout.seq = shape.rows;
  layout.activation_bytes = RoundUp<int64_t>(shape.rows * h * SizeOf(shape.compute_dtype), 64);
  layout.token_bytes = 2 * static_cast<int64_t>(sizeof(int32_t)) * shape.rows;

  for (int layer = 0; layer < shape.layers; ++layer)
    layout.units.push_back(LayerUnit(layer, h, layer < 64 && (shape.frozen_layers >> layer & 1) != 0));
  int64_t so_far = h;
  for (const ParamUnit& unit : layout.units) {
    for (const TensorInfo& tensor : unit.tensors) so_far += tensor.elements;
  }
  ParamUnit embedding;
  embedding.name = "embedding";
  const int64_t rows = std::max<int64_t>(1, (shape.parameters - so_far) / h);
  AddTensor(embedding, "weight", {rows, h}, kDecayGroup);
  ParamUnit norm;
  norm.name = "final_norm";
  AddTensor(norm, "weight", {h}, kPlainGroup);
  layout.config.vocab = rows;
  layout.units.insert(layout.units.begin(), std::move(embedding));
  layout.units.push_back(std::move(norm));

  const double delay = absl::ToDoubleSeconds(shape.compute_delay) * kSyntheticFlopsPerSecond;
  const auto add_block = [&](BlockKind kind, int layer, std::vector<int> units) {
    Block block;
    block.kind = kind;
    block.layer = layer;
    int64_t elements = 0;
    for (const int unit : units) elements += layout.units[unit].elements;
    block.units = std::move(units);
    const double writing =
        4.0 * static_cast<double>(elements) / kGradientBytesPerSecond * kSyntheticFlopsPerSecond;
    // LOSS is one call; its two halves add up in a plan.
    block.forward_flops = kind == BlockKind::kHead ? 0 : delay;
    block.backward_flops = std::max(delay, writing);
    if (kind == BlockKind::kTransformer) {
      block.saved_bytes = 2 * layout.activation_bytes;
      block.saved_rest_bytes = 2 * layout.activation_bytes;
    }
    layout.blocks.push_back(std::move(block));
  };
  const int last = static_cast<int>(layout.units.size()) - 1;
  add_block(BlockKind::kEmbedding, -1, {0});
  for (int layer = 0; layer < shape.layers; ++layer) add_block(BlockKind::kTransformer, layer, {layer + 1});
  add_block(BlockKind::kHead, -1, {last, 0});
  return layout;
}

ComputeRates SyntheticRates() {
  ComputeRates rates;
  rates.forward_gemm = rates.backward_gemm = {{1, kSyntheticFlopsPerSecond}};
  return rates;
}

}  // namespace strata
