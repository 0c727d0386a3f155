// Logits, for generation and tests: what the head computes before the loss.
#ifndef WORKER_MODEL_LOGITS_H_
#define WORKER_MODEL_LOGITS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"

namespace strata {

// Workspace of LastLogits for `rows` rows.
int64_t LastLogitsWorkspaceBytes(const ModelLayout& layout, int64_t rows);

// logits (acc [rows, vocab]) = the head's logits of `rows` rows of the activation that enters it (T [rows,
// hidden]: usually the last positions only). `head_params`: the units of the head block. Device pointers,
// like those of BlockArgs. Unlike in the loss, logits are not rounded to the compute type.
absl::Status LastLogits(Ops& ops, Stream* stream, const ModelLayout& layout, int64_t rows,
                        const void* activation, std::span<const void* const> head_params, void* logits,
                        Workspace workspace);

// The forward pass of a whole model whose parameters lie in host memory, block after block: for generation
// from a small model and for tests. Owns the buffers of one pass. Ops of a CPU backend only. One thread at a
// time.
class HostForward {
 public:
  // Passes have layout.micro_batch sequences of layout.seq tokens. The layout is copied, `ops` outlives this.
  // kResourceExhausted if there is no memory for the buffers.
  static absl::StatusOr<std::unique_ptr<HostForward>> Create(const ModelLayout& layout, Ops& ops);

  const ModelLayout& layout() const { return layout_; }

  // logits [rows, vocab] of rows first_row .. first_row + rows - 1 (row = sequence * seq + position).
  // `unit_params`: per unit of the layout, compute dtype. `tokens`: [micro_batch * seq], each below vocab;
  // a shorter text is padded with any token at its end, since no position sees a later one.
  // kInvalidArgument names the argument that is wrong.
  absl::Status Logits(std::span<const void* const> unit_params, std::span<const int32_t> tokens,
                      int64_t first_row, int64_t rows, std::vector<float>* logits);

 private:
  struct FreeBuffer {
    void operator()(void* buffer) const;
  };
  using Buffer = std::unique_ptr<void, FreeBuffer>;

  HostForward(const ModelLayout& layout, Ops& ops);
  absl::Status Allocate(int64_t bytes, Buffer* buffer);

  const ModelLayout layout_;
  Ops& ops_;
  std::unique_ptr<BlockCompute> model_;
  Buffer activation_, next_, saved_, saved_rest_, workspace_, logits_;
  int64_t workspace_bytes_ = 0;
  int64_t logits_capacity_ = 0;  // bytes of logits_
};

// One pass as a function.
absl::StatusOr<std::vector<float>> ForwardLogits(const ModelLayout& layout, Ops& ops,
                                                 std::span<const void* const> unit_params,
                                                 std::span<const int32_t> tokens, int64_t first_row,
                                                 int64_t rows);

}  // namespace strata

#endif  // WORKER_MODEL_LOGITS_H_
