#include "offload/plan/test_layouts.h"

#include "absl/strings/str_cat.h"

namespace strata {

ModelLayout MakeTestLayout(const TestShape& shape) {
  ModelLayout layout;
  layout.compute_dtype = shape.compute;
  layout.micro_batch = 2;
  layout.seq = 16;
  layout.activation_bytes = shape.activation_bytes;
  layout.token_bytes = 256;
  const auto add_unit = [&](std::string name, int64_t elements) {
    ParamUnit unit;
    unit.name = std::move(name);
    unit.elements = elements;
    layout.units.push_back(std::move(unit));
    return static_cast<int>(layout.units.size() - 1);
  };
  const auto add_block = [&](BlockKind kind, int layer, std::vector<int> units) {
    Block block;
    block.kind = kind;
    block.layer = layer;
    block.units = std::move(units);
    block.forward_workspace_bytes = 3000;
    block.backward_workspace_bytes = 5000;
    block.forward_flops = 1e9;
    block.backward_flops = 2e9;
    if (kind == BlockKind::kTransformer) block.saved_bytes = shape.saved_bytes;
    layout.blocks.push_back(std::move(block));
  };
  const int embedding = add_unit("wte", shape.edge_elements);
  add_block(BlockKind::kEmbedding, -1, {embedding});
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<int> units;
    for (int i = 0; i < shape.units_per_layer; ++i)
      units.push_back(add_unit(absl::StrCat("layers.", layer, i > 0 ? "b" : ""), shape.layer_elements));
    add_block(BlockKind::kTransformer, layer, std::move(units));
  }
  std::vector<int> head;
  if (shape.norm_elements > 0) head.push_back(add_unit("final_norm", shape.norm_elements));
  head.push_back(shape.tied ? embedding : add_unit("lm_head", shape.edge_elements));
  add_block(BlockKind::kHead, -1, std::move(head));
  return layout;
}

PlanChoice UniformChoice(const ModelLayout& layout, Tier params, Tier gradients, Tier record,
                         Tier activations, bool keep_saved) {
  PlanChoice choice;
  choice.mode = Mode::kForwardOverlap;
  choice.chunk_elements = 4096;
  choice.units.assign(layout.units.size(), PlanChoice::UnitHome{params, gradients, record});
  choice.blocks.assign(
      layout.blocks.size(),
      PlanChoice::BlockChoice{.saved = keep_saved ? PlanChoice::Saved::kKeep : PlanChoice::Saved::kRecompute,
                              .activation = activations});
  return choice;
}

}  // namespace strata
