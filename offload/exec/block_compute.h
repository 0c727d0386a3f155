// BlockCompute: the seam between the offload engine and a model. The engine brings every buffer to the
// device and calls; the model does the math of one block and keeps no state between calls.
#ifndef OFFLOAD_EXEC_BLOCK_COMPUTE_H_
#define OFFLOAD_EXEC_BLOCK_COMPUTE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops.h"

namespace strata {

// Whose random numbers a call of a training step draws (dropout). FORWARD, the same again and BACKWARD of a
// micro-batch have the same, and no two micro-batches of a run do.
struct DrawKey {
  int64_t step = 0;       // iterations before it, skipped ones included
  int64_t first_row = 0;  // of the micro-batch in the step's global batch: rows [first_row, first_row + rows)
};

// All pointers are device pointers (loss: host). Which are set depends on the call.
struct BlockArgs {
  int block = 0;                        // index into ModelLayout::blocks
  std::span<const void* const> params;  // per unit of the block: compute dtype, unit layout
  std::span<void* const> grads;     // per unit of the block: acc dtype, unit layout; overwritten, padding too
  const int32_t* tokens = nullptr;  // [rows] embedding only
  const int32_t* targets = nullptr;  // [rows] head only; -1 is masked
  const void* input = nullptr;       // the activation that entered the block
  void* output = nullptr;            // Forward: the activation that leaves it
  // Forward writes both, Backward reads both; RecomputeRest reads the first and writes the second.
  void* saved = nullptr;       // Block::saved_bytes
  void* saved_rest = nullptr;  // Block::saved_rest_bytes
  void* grad = nullptr;        // Backward: in d(output), out d(input), in place; Loss: out d(input)
  Workspace workspace;
  double* loss = nullptr;     // double[2]: += {sum of token losses, unmasked tokens}
  double gradient_scale = 1;  // Loss: loss scale / tokens of the whole optimizer step
  std::optional<DrawKey>
      draw;  // Forward, Backward: absent in evaluation and generation, where nothing is dropped
};

class BlockCompute {
 public:
  virtual ~BlockCompute() = default;
  // Embedding and transformer blocks: input -> output, saved, saved_rest. Called again with the same
  // arguments (recompute) it produces the same bits.
  virtual absl::Status Forward(Stream* stream, const BlockArgs& args) = 0;
  // Transformer blocks: saved -> saved_rest, the bits of Forward, in Forward's workspace. No input, no
  // output.
  virtual absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) = 0;
  // Embedding and transformer blocks.
  virtual absl::Status Backward(Stream* stream, const BlockArgs& args) = 0;
  // The head: loss only (`grads` empty, `grad` null) or loss and all gradients.
  virtual absl::Status Loss(Stream* stream, const BlockArgs& args) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_EXEC_BLOCK_COMPUTE_H_
