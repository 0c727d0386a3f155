// The models: BlockCompute of a GPT-2 or Llama kind of transformer, forward and backward written by hand as a
// sequence of Ops calls. A model keeps no state between calls, allocates no buffers, and touches only what
// BlockArgs lends it, in the places that offload/model/saved_layout.h gives.
#ifndef WORKER_MODEL_MODEL_H_
#define WORKER_MODEL_MODEL_H_

#include <cstdint>
#include <memory>

#include "kernels/ops.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"

namespace strata {

// The layout is copied; `ops` outlives the model and computes in the layout's type (checked: anything else is
// a bug of the caller). Calls from several threads are as safe as those of `ops`.
//
// Calls return kInvalidArgument, naming the block and the argument, when `args` lack a buffer that the
// operation needs or the workspace is smaller than the layout declares, and otherwise the errors of `ops`
// with the block and the step of the math.
//
// `seed`: of the run, for dropout; calls without BlockArgs::draw drop nothing.
std::unique_ptr<BlockCompute> MakeModel(const ModelLayout& layout, Ops& ops, uint64_t seed = 0);

}  // namespace strata

#endif  // WORKER_MODEL_MODEL_H_
