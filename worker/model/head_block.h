// The head: final norm, projection to the vocabulary, cross entropy. Works in chunks of rows, so the logits
// of a whole micro-batch never exist.
#ifndef WORKER_MODEL_HEAD_BLOCK_H_
#define WORKER_MODEL_HEAD_BLOCK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"
#include "offload/model/saved_layout.h"
#include "worker/model/block_math.h"

namespace strata {

class HeadBlock {
 public:
  // The layout and `ops` outlive the block.
  HeadBlock(const ModelLayout& layout, Ops& ops);

  // BlockCompute::Loss; arguments have been checked.
  absl::Status Loss(Stream* stream, const BlockArgs& args) const;

  const Norm& norm() const { return norm_; }
  const Linear& projection() const { return projection_; }

 private:
  // Rows [begin, begin + rows): loss and, with gradients, dW += and the gradient of the norm's output over
  // it.
  absl::Status LossOfChunk(BlockMath& math, const BlockArgs& args, int64_t begin, int64_t rows) const;

  const ParamUnit& norm_unit_;
  const ParamUnit& projection_unit_;
  Ops& ops_;
  int64_t rows_, hidden_, vocab_;
  Norm norm_;
  Linear projection_;
  HeadWorkspace work_;
};

}  // namespace strata

#endif  // WORKER_MODEL_HEAD_BLOCK_H_
