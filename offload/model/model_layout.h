// ModelLayout: everything the planner must know of a model, in numbers, and the one definition of where
// each tensor lies that planner, model code and checkpoints share.
//
// Units hold parameters; blocks compute. A block reads one or more units and a unit may be read by more
// than one block (a tied embedding). Parameters of one unit live in one flat range of elements; each
// tensor starts at a multiple of kTensorAlignment elements, and the padding is zero and stays zero.
// Buffers of a unit: low-precision parameters (compute dtype), gradients (acc dtype), and optimizer
// records {master, m, v} (moments.h), all indexed by the same flat element.
#ifndef OFFLOAD_MODEL_MODEL_LAYOUT_H_
#define OFFLOAD_MODEL_MODEL_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/gemm_workspace.h"
#include "kernels/optimizer/code8.h"
#include "offload/model/model_config.h"
#include "offload/model/moments.h"

namespace strata {

// Elements: 128 bytes of bf16.
inline constexpr int64_t kTensorAlignment = 64;
// Tensors of a unit begin with a block of eight-bit states, and units end with one.
static_assert(kTensorAlignment % kCode8Block == 0);

inline constexpr int kDecayGroup = 0;
inline constexpr int kPlainGroup = 1;

enum class InitKind : uint8_t { kNormal, kZero, kOne };

struct TensorInfo {
  std::string name;            // the Hugging Face name
  std::vector<int64_t> shape;  // Hugging Face layout (GPT-2 matrices are [in, out], Llama's [out, in])
  int64_t offset = 0;          // first element in the unit
  int64_t elements = 0;
  // Of hyper-parameters (StepSource::Hyper). BuildModelLayout knows two: kDecayGroup for matrices and
  // embeddings, kPlainGroup for the rest.
  int group = 0;
  bool frozen = false;  // never updated, and no part of the gradient's norm
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
};

struct ParamUnit {
  std::string name;  // "layers.3", "wte", ...
  std::vector<TensorInfo> tensors;
  int64_t elements = 0;  // padded to kTensorAlignment

  // Nothing of it is ever updated: its gradient is nobody's business, its states stay as they were loaded.
  bool frozen() const {
    return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(),
                                           [](const TensorInfo& tensor) { return tensor.frozen; });
  }
};

enum class BlockKind : uint8_t {
  kEmbedding,    // tokens -> activation
  kTransformer,  // activation -> activation
  kHead,         // activation, targets -> loss; forward and backward in one operation (LOSS)
};

struct Block {
  BlockKind kind = BlockKind::kTransformer;
  int layer = -1;  // transformer blocks: 0-based
  // Indices into ModelLayout::units, in the order in which the model code expects them.
  std::vector<int> units;
  // What FORWARD leaves for BACKWARD besides the block's input, in two areas (saved_layout.h): the second can
  // be computed again from the first.
  int64_t saved_bytes = 0;
  int64_t saved_rest_bytes = 0;
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;  // BACKWARD, or LOSS for the head
  double forward_flops = 0;              // the head: LOSS without gradients
  double rest_flops = 0;                 // of computing the second saved area again
  double backward_flops = 0;             // the head: LOSS with gradients, so its forward part too
  // Of these, what attention does: other kernels, other speeds. And bytes that norms, activations and sums
  // move beside the matrix products. For predictions.
  double forward_attention_flops = 0, backward_attention_flops = 0;
  double forward_touched_bytes = 0, backward_touched_bytes = 0;
  double dropout_elements = 0;  // of FORWARD, and of BACKWARD once more
  bool fp8 = false;             // its matrix products round their operands to fp8
};

// All byte sizes are for one micro-batch of `micro_batch` sequences of `seq` tokens.
struct ModelLayout {
  ModelConfig config;
  DType compute_dtype = DType::kBF16;
  Moments moments = Moments::kF32;  // of optimizer records; BuildModelLayout leaves it to its caller
  // The projections of transformer blocks round their operands to fp8 (GemmArgs); the head does not.
  bool fp8 = false;
  int64_t micro_batch = 0;
  int64_t seq = 0;
  GemmLibrary gemm_library = GemmLibrary::kCpu;  // of the device: how much workspace its products are lent
  std::vector<ParamUnit> units;
  std::vector<Block> blocks;  // embedding, transformer 0..layers-1, head
  // One residual-stream activation: compute dtype [micro_batch * seq, hidden].
  int64_t activation_bytes = 0;
  int64_t token_bytes = 0;  // tokens and targets: 2 x int32 [micro_batch * seq]

  DType acc_dtype() const { return compute_dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  int64_t total_elements() const;   // padded
  int64_t parameter_count() const;  // without padding, tied tensors once
};

// kInvalidArgument names the field for a configuration no layout exists for (sizes that overflow, heads that
// do not divide, seq > max_seq).
absl::StatusOr<ModelLayout> BuildModelLayout(const ModelConfig& config, DType compute_dtype,
                                             int64_t micro_batch, int64_t seq,
                                             GemmLibrary gemm_library = GemmLibrary::kCpu, bool fp8 = false);

}  // namespace strata

#endif  // OFFLOAD_MODEL_MODEL_LAYOUT_H_
