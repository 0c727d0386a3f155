#include "offload/model/model_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "offload/model/saved_layout.h"

namespace strata {
namespace {

ModelConfig Llama() {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.layers = 6;
  c.hidden = 384;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.ffn = 1024;
  c.vocab = 2048;
  c.max_seq = 256;
  return c;
}

ModelConfig Gpt2() {
  ModelConfig c = Llama();
  c.architecture = Architecture::kGpt2;
  c.layers = 12;
  c.hidden = 768;
  c.heads = c.kv_heads = 12;
  c.ffn = 3072;
  c.vocab = 50257;
  c.max_seq = 1024;
  c.activation = Activation::kGeluTanh;
  c.tied_head = true;
  return c;
}

TEST(ModelLayout, CountsTheParametersOfGpt2Small) {
  const auto layout = BuildModelLayout(Gpt2(), DType::kF32, 4, 256);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->parameter_count(), 124'439'808);
  ASSERT_EQ(layout->units.size(), 15u);
  EXPECT_EQ(layout->units[0].tensors[0].name, "transformer.wte.weight");
  EXPECT_EQ(layout->units[1].tensors[0].name, "transformer.wpe.weight");
  EXPECT_EQ(layout->units[2].name, "layers.0");
  EXPECT_EQ(layout->units[13].name, "layers.11");
  EXPECT_EQ(layout->units[14].tensors[1].name, "transformer.ln_f.bias");
  ASSERT_EQ(layout->units[2].tensors.size(), static_cast<size_t>(kGpt2TensorCount));
  EXPECT_EQ(layout->units[2].tensors[kGpt2AttnWeight].name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(layout->units[2].tensors[kGpt2AttnWeight].shape, (std::vector<int64_t>{768, 2304}));
  EXPECT_EQ(layout->units[2].tensors[kGpt2MlpProjBias].name, "transformer.h.0.mlp.c_proj.bias");
  EXPECT_NEAR(layout->units[2].tensors[kGpt2MlpProjWeight].init_std, 0.02 / std::sqrt(24.0), 1e-12);
  EXPECT_EQ(layout->blocks.back().units, (std::vector<int>{14, 0}));
  EXPECT_EQ(layout->blocks.front().units, (std::vector<int>{0, 1}));
}

TEST(ModelLayout, PutsQkvAndGateUpTogetherForLlama) {
  const auto layout = BuildModelLayout(Llama(), DType::kBF16, 8, 256);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->units.size(), 9u);
  EXPECT_EQ(layout->units.back().name, "lm_head");
  EXPECT_EQ(layout->blocks.back().units, (std::vector<int>{7, 8}));
  const auto& t = layout->units[1].tensors;
  ASSERT_EQ(t.size(), static_cast<size_t>(kLlamaTensorCount));
  EXPECT_TRUE(QkvIsOneMatrix(layout->config));
  EXPECT_EQ(t[kLlamaK].offset, t[kLlamaQ].offset + t[kLlamaQ].elements);
  EXPECT_EQ(t[kLlamaV].offset, t[kLlamaK].offset + t[kLlamaK].elements);
  EXPECT_TRUE(GateUpIsOneMatrix(layout->config));
  EXPECT_EQ(t[kLlamaUp].offset, t[kLlamaGate].offset + t[kLlamaGate].elements);
  EXPECT_EQ(t[kLlamaDown].name, "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(layout->parameter_count(),
            6 * (384 * (384 + 128 + 128 + 384 + 3 * 1024) + 2 * 384) + 384 + 2 * 2048 * 384);
}

TEST(ModelLayout, AlignsEveryTensorAndGroupsMatricesApart) {
  ModelConfig odd = Llama();
  odd.hidden = 30;
  odd.heads = 3;
  odd.kv_heads = 1;
  odd.head_dim = 10;
  odd.ffn = 37;
  odd.vocab = 11;
  EXPECT_FALSE(QkvIsOneMatrix(odd));
  EXPECT_FALSE(GateUpIsOneMatrix(odd));
  ModelConfig odd_gpt2 = Gpt2();
  odd_gpt2.hidden = 30;
  odd_gpt2.heads = odd_gpt2.kv_heads = 3;
  odd_gpt2.head_dim = 10;
  odd_gpt2.tied_head = false;
  for (const ModelConfig& config : {Llama(), Gpt2(), odd, odd_gpt2}) {
    const auto layout = BuildModelLayout(config, DType::kF32, 1, 8);
    ASSERT_TRUE(layout.ok()) << layout.status();
    for (const ParamUnit& unit : layout->units) {
      int64_t end = 0;
      for (const TensorInfo& tensor : unit.tensors) {
        EXPECT_EQ(tensor.offset % kTensorAlignment, 0) << tensor.name;
        EXPECT_GE(tensor.offset, end) << tensor.name;
        EXPECT_LT(tensor.offset - end, kTensorAlignment) << tensor.name;
        int64_t elements = 1;
        for (const int64_t extent : tensor.shape) elements *= extent;
        EXPECT_EQ(tensor.elements, elements) << tensor.name;
        EXPECT_EQ(tensor.group, tensor.shape.size() == 2 ? kDecayGroup : kPlainGroup) << tensor.name;
        EXPECT_FALSE(tensor.frozen);
        end = tensor.offset + tensor.elements;
      }
      EXPECT_GE(unit.elements, end);
      EXPECT_EQ(unit.elements % kTensorAlignment, 0);
    }
  }
}

TEST(ModelLayout, MemoryOfABlockDoesNotDependOnTheNumberOfLayers) {
  ModelConfig config = Llama();
  const auto six = BuildModelLayout(config, DType::kBF16, 8, 256);
  config.layers = 24;
  const auto more = BuildModelLayout(config, DType::kBF16, 8, 256);
  ASSERT_TRUE(six.ok() && more.ok());
  EXPECT_EQ(more->blocks.size(), 26u);
  EXPECT_EQ(six->blocks[1].saved_bytes, more->blocks[24].saved_bytes);
  EXPECT_EQ(six->blocks[1].backward_workspace_bytes, more->blocks[24].backward_workspace_bytes);
  EXPECT_EQ(six->activation_bytes, 8 * 256 * 384 * 2);
  EXPECT_EQ(six->token_bytes, 2 * 8 * 256 * 4);
}

TEST(ModelLayout, FlopsFollowTheSixPRule) {
  const auto layout = BuildModelLayout(Gpt2(), DType::kF32, 4, 256);
  ASSERT_TRUE(layout.ok());
  double flops = 0;
  for (const Block& block : layout->blocks) {
    flops += block.backward_flops;
    if (block.kind == BlockKind::kTransformer) flops += block.forward_flops;
  }
  const double rule = 6.0 * 124'439'808 * 4 * 256;
  EXPECT_GT(flops, 0.98 * rule);
  EXPECT_LT(flops, 1.1 * rule);
}

TEST(ModelLayout, LogitsChunksCoverTheRowsEvenly) {
  EXPECT_EQ(LogitsChunkRows(DType::kBF16, 2048, 256), 2048);
  EXPECT_EQ(LogitsChunkRows(DType::kBF16, 2048, 2048), 1024);
  EXPECT_EQ(LogitsChunkRows(DType::kBF16, 1024, 50257), 128);
  EXPECT_EQ(LogitsChunkRows(DType::kF32, 130, 50257), 80);  // 80 + 50, not 128 + 2
  EXPECT_EQ(LogitsChunkRows(DType::kF32, 1, 1 << 24), 1);
  for (int64_t rows = 1; rows < 700; ++rows) {
    const int64_t chunk = LogitsChunkRows(DType::kF32, rows, 50257);
    EXPECT_GE(chunk, 1);
    EXPECT_LE(chunk, rows);
    EXPECT_LE(chunk, 128);
    EXPECT_TRUE(chunk == rows || chunk % 16 == 0) << rows;
  }
}

TEST(ModelLayout, BuffersAreAlignedAndInsideTheirArea) {
  for (const ModelConfig& config : {Llama(), Gpt2()}) {
    const auto saved = MakeTransformerSaved(config, DType::kBF16, 3, 17);
    const auto forward = MakeTransformerForwardWorkspace(config, DType::kBF16, 3, 17);
    const auto backward = MakeTransformerBackwardWorkspace(config, DType::kBF16, 3, 17);
    const auto head = MakeHeadWorkspace(config, DType::kBF16, 3, 17);
    const auto check = [](const BufferRange& range, int64_t bytes) {
      EXPECT_EQ(range.offset % kBufferAlignment, 0);
      EXPECT_LE(range.offset + range.bytes, bytes);
    };
    for (const auto& r : {saved.qkv, saved.attention, saved.lse, saved.residual}) check(r, saved.bytes);
    check(saved.ffn_in, saved.rest_bytes);
    for (const auto& r : {forward.normed, forward.activated, forward.mean, forward.rstd, forward.op}) {
      check(r, forward.bytes);
    }
    for (const auto& r :
         {backward.activated, backward.ffn_grad, backward.mlp_normed, backward.mlp_normed_grad,
          backward.attention_grad, backward.qkv_grad, backward.attn_normed, backward.attn_normed_grad,
          backward.mean, backward.rstd, backward.op}) {
      check(r, backward.bytes);
    }
    for (const auto& r : {head.normed, head.mean, head.rstd, head.logits, head.op}) check(r, head.bytes);
  }
}

// Masks are drawn again, and masked gradients pass through places that nothing else needs yet.
TEST(ModelLayout, DropoutNeedsNoMemory) {
  ModelConfig config = Gpt2();
  const auto plain = BuildModelLayout(config, DType::kBF16, 4, 256);
  config.dropout = {.embedding = 0.1, .residual = 0.1};
  const auto dropping = BuildModelLayout(config, DType::kBF16, 4, 256);
  ASSERT_TRUE(plain.ok() && dropping.ok());
  const auto most = [](const ModelLayout& layout) {
    int64_t bytes = 0;
    for (const Block& block : layout.blocks) {
      if (block.kind != BlockKind::kHead) bytes = std::max(bytes, block.backward_workspace_bytes);
    }
    return bytes;
  };
  EXPECT_EQ(most(*dropping), most(*plain));
  const auto elements = static_cast<double>(4 * 256 * config.hidden);
  EXPECT_EQ(dropping->blocks.front().dropout_elements, elements);
  EXPECT_EQ(dropping->blocks[1].dropout_elements, 2 * elements);
  EXPECT_EQ(dropping->blocks.back().dropout_elements, 0);
  EXPECT_EQ(plain->blocks[1].dropout_elements, 0);
  for (size_t i = 0; i < plain->blocks.size(); ++i) {
    EXPECT_EQ(dropping->blocks[i].saved_bytes, plain->blocks[i].saved_bytes);
    EXPECT_EQ(dropping->blocks[i].saved_rest_bytes, plain->blocks[i].saved_rest_bytes);
    EXPECT_EQ(dropping->blocks[i].forward_workspace_bytes, plain->blocks[i].forward_workspace_bytes);
  }
  const auto work = MakeTransformerBackwardWorkspace(config, DType::kBF16, 4, 256);
  const auto apart = [](const BufferRange& a, const BufferRange& b) {
    return a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
  };
  const int64_t bytes = 4 * 256 * config.hidden * SizeOf(DType::kBF16);
  EXPECT_EQ(work.mlp_branch_grad.bytes, bytes);
  EXPECT_EQ(work.attn_branch_grad.bytes, bytes);
  EXPECT_TRUE(apart(work.mlp_branch_grad, work.activated));
  EXPECT_TRUE(apart(work.attn_branch_grad, work.attention_grad));
}

TEST(ModelLayout, Fp8NeedsSizesOf16AndRoomForCodes) {
  const auto bf16 = BuildModelLayout(Gpt2(), DType::kBF16, 4, 256);
  const auto fp8 = BuildModelLayout(Gpt2(), DType::kBF16, 4, 256, GemmLibrary::kCpu, /*fp8=*/true);
  ASSERT_TRUE(bf16.ok() && fp8.ok()) << fp8.status();
  EXPECT_FALSE(bf16->fp8);
  EXPECT_TRUE(fp8->fp8);
  // The head's products are in bf16, and so is the embedding.
  for (const Block& block : fp8->blocks) EXPECT_EQ(block.fp8, block.kind == BlockKind::kTransformer);
  EXPECT_FALSE(bf16->blocks[1].fp8);
  EXPECT_EQ(fp8->blocks[1].saved_bytes, bf16->blocks[1].saved_bytes);
  EXPECT_GT(fp8->blocks[1].forward_workspace_bytes, bf16->blocks[1].forward_workspace_bytes);
  EXPECT_GE(fp8->blocks[1].backward_workspace_bytes, bf16->blocks[1].backward_workspace_bytes);
  // The head stays in bf16.
  EXPECT_EQ(fp8->blocks.back().backward_workspace_bytes, bf16->blocks.back().backward_workspace_bytes);
  const auto error = [](ModelConfig config, DType dtype, int64_t seq) {
    return std::string(BuildModelLayout(config, dtype, 1, seq, GemmLibrary::kCpu, true).status().message());
  };
  EXPECT_EQ(error(Gpt2(), DType::kF16, 16), "precision: fp8 is for a model in bf16, not in f16");
  EXPECT_EQ(
      error(Gpt2(), DType::kBF16, 17),
      "micro_batch times seq_len: 17 is no multiple of 16, which products in fp8 need; change it or use "
      "precision bf16");
  ModelConfig odd = Gpt2();
  odd.ffn = 3000;
  EXPECT_EQ(error(odd, DType::kBF16, 16).substr(0, 9), "ffn: 3000");
}

TEST(ModelLayout, RefusesImpossibleConfigurationsNamingTheField) {
  const auto error = [](ModelConfig config, int64_t micro_batch = 1, int64_t seq = 8) {
    const auto layout = BuildModelLayout(config, DType::kF32, micro_batch, seq);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(layout.status().message());
    return message.substr(0, message.find(':'));
  };
  ModelConfig c = Llama();
  c.layers = 0;
  EXPECT_EQ(error(c), "layers");
  c = Llama();
  c.hidden = -1;
  EXPECT_EQ(error(c), "hidden");
  c = Llama();
  c.kv_heads = 4;
  EXPECT_EQ(error(c), "kv_heads");
  c = Llama();
  c.head_dim = 63;
  EXPECT_EQ(error(c), "head_dim");
  c = Llama();
  c.head_dim = INT64_MAX / 2;
  EXPECT_EQ(error(c), "head_dim");
  c = Llama();
  c.vocab = INT64_MAX;
  EXPECT_EQ(error(c), "vocab");
  c = Llama();
  c.activation = Activation::kGeluErf;
  EXPECT_EQ(error(c), "activation");
  c = Llama();
  c.norm_eps = 0;
  EXPECT_EQ(error(c), "norm_eps");
  c = Llama();
  c.rope_theta = -1;
  EXPECT_EQ(error(c), "rope_theta");
  c = Gpt2();
  c.heads = c.kv_heads = 7;
  EXPECT_EQ(error(c), "heads");
  c = Gpt2();
  c.kv_heads = 6;
  EXPECT_EQ(error(c), "kv_heads");
  c = Gpt2();
  c.activation = Activation::kSwiglu;
  EXPECT_EQ(error(c), "activation");
  EXPECT_EQ(error(Llama(), 1, 257), "seq");
  EXPECT_EQ(error(Llama(), 0, 8), "micro_batch");
  EXPECT_EQ(error(Llama(), INT64_MAX, 8), "micro_batch");
  c = Gpt2();
  c.dropout.embedding = 1;
  EXPECT_EQ(error(c), "dropout.embedding");
  c = Gpt2();
  c.dropout.residual = -0.1;
  EXPECT_EQ(error(c), "dropout.residual");
  c = Gpt2();
  c.dropout.attention = 0.1;
  EXPECT_EQ(error(c), "dropout.attention");
  c = Llama();
  c.dropout.residual = 0.1;
  EXPECT_EQ(error(c), "dropout.residual");
  c = Llama();
  c.layers = 1 << 14;
  c.hidden = 1 << 20;
  c.ffn = 1 << 20;
  EXPECT_EQ(error(c), "layers");
}

}  // namespace
}  // namespace strata
