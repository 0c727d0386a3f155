#include "offload/plan/test_layouts.h"

#include "absl/strings/str_cat.h"

namespace strata {

ModelLayout MakeTestLayout(const TestShape& shape) {
  ModelLayout layout;
  layout.compute_dtype = shape.compute;
  layout.moments = shape.moments;
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
    if (kind == BlockKind::kTransformer) {
      block.saved_bytes = shape.saved_bytes;
      block.saved_rest_bytes = shape.saved_rest_bytes;
      block.rest_flops = 4e8;
    }
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
  for (size_t u = 0; u < layout.units.size(); ++u) {
    if ((shape.frozen_units >> u & 1) == 0) continue;
    ParamUnit& unit = layout.units[u];
    unit.tensors = {
        {.name = unit.name + ".weight", .shape = {unit.elements}, .elements = unit.elements, .frozen = true}};
  }
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

const std::vector<Holding>& Holdings() {
  using Saved = PlanChoice::Saved;
  static const std::vector<Holding> holdings = {
      {"recompute, activations on the device", Saved::kRecompute, Tier::kDevice, Tier::kDevice},
      {"recompute, activations in the host", Saved::kRecompute, Tier::kDevice, Tier::kHost},
      {"recompute, activations on nvme", Saved::kRecompute, Tier::kDevice, Tier::kNvme},
      {"keep on the device", Saved::kKeep, Tier::kDevice, Tier::kDevice},
      {"keep in the host", Saved::kKeep, Tier::kHost, Tier::kHost},
      {"keep on nvme", Saved::kKeep, Tier::kNvme, Tier::kNvme},
      {"selective on the device", Saved::kSelective, Tier::kDevice, Tier::kHost},
      {"selective in the host", Saved::kSelective, Tier::kHost, Tier::kDevice},
      {"selective on nvme", Saved::kSelective, Tier::kNvme, Tier::kHost},
      {"segments of two, checkpoints on the device", Saved::kRecompute, Tier::kDevice, Tier::kDevice, 2},
      {"segments of three, checkpoints in the host", Saved::kRecompute, Tier::kDevice, Tier::kHost, 3},
      {"segments of two, checkpoints on nvme", Saved::kRecompute, Tier::kDevice, Tier::kNvme, 2},
      {"one segment", Saved::kRecompute, Tier::kDevice, Tier::kHost, 1000},
      {"mixed with single blocks", Saved::kRecompute, Tier::kDevice, Tier::kHost, 1, true},
      {"mixed with segments of two", Saved::kRecompute, Tier::kDevice, Tier::kNvme, 2, true},
  };
  return holdings;
}

void Hold(const Holding& holding, PlanChoice* choice) {
  const int transformers = static_cast<int>(choice->blocks.size()) - 2;
  for (int i = 0; i < transformers; ++i) {
    PlanChoice::BlockChoice& block = choice->blocks[i + 1];
    block.saved = holding.saved;
    block.saved_home = holding.saved_home;
    block.activation = holding.activation;
    block.checkpoint = i % holding.segment == 0;
    if (!holding.mixed || i / holding.segment % 2 == 0) continue;
    block.saved = i % 4 < 2 ? PlanChoice::Saved::kSelective : PlanChoice::Saved::kKeep;
    block.saved_home = static_cast<Tier>(i % 3);
    block.activation = static_cast<Tier>((i / 2) % 3);
    block.checkpoint = true;
  }
}

TestShape RandomShape(TestRandom& random) {
  TestShape shape;
  shape.layers = 1 + random.Below(6);
  shape.tied = random.Below(2) == 0;
  shape.norm_elements = random.Below(2) == 0 ? 0 : 64;
  shape.edge_elements = 64 * (1 + random.Below(600));
  shape.layer_elements = 64 * (1 + random.Below(600));
  shape.units_per_layer = 1 + random.Below(2);
  shape.saved_bytes = random.Below(3) * 20000;
  shape.saved_rest_bytes = shape.saved_bytes == 0 ? 0 : random.Below(3) * 8000;
  shape.moments = random.Below(3) == 0 ? Moments::kCode8 : Moments::kF32;
  // About every fourth, in every other shape.
  for (int unit = 0; unit < 16 && shape.layers % 2 == 0; ++unit)
    shape.frozen_units |= static_cast<uint64_t>(random.Below(4) == 0) << unit;
  return shape;
}

PlanChoice RandomChoice(const ModelLayout& layout, TestRandom& random, bool minimum_slots) {
  using Saved = PlanChoice::Saved;
  PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
  choice.mode = static_cast<Mode>(random.Below(5));
  choice.clip = choice.mode != Mode::kOverlap && random.Below(2) == 0;
  choice.prefetch_depth = minimum_slots ? 1 : 1 + random.Below(4);
  choice.io_threads = 1 + random.Below(4);
  choice.micro_batches = 1 + random.Below(3);
  choice.chunk_elements = int64_t{2048} << random.Below(4);
  choice.direct = random.Below(2) == 0;
  for (PlanChoice::UnitHome& home : choice.units) {
    home.params = random.AnyTier();
    home.gradients = random.AnyTier();
    if (choice.mode == Mode::kDelayed && home.gradients == Tier::kNvme) home.gradients = Tier::kHost;
    home.record = random.AnyTier();
    if (home.record == Tier::kDevice && (home.params != Tier::kDevice || home.gradients != Tier::kDevice))
      home.record = random.Below(2) == 0 ? Tier::kHost : Tier::kNvme;
  }
  for (size_t b = 1; b + 1 < choice.blocks.size(); ++b) {
    PlanChoice::BlockChoice& block = choice.blocks[b];
    block.saved = static_cast<Saved>(random.Below(3));
    block.saved_home = random.AnyTier();
    block.activation = random.AnyTier();
    block.checkpoint = b == 1 || block.saved != Saved::kRecompute ||
                       choice.blocks[b - 1].saved != Saved::kRecompute || random.Below(3) == 0;
  }
  return choice;
}

}  // namespace strata
