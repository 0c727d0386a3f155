// Initial weights. A value is a pure function of (seed, tensor name, element index), so it depends neither on
// the order nor on the pieces in which weights are made.
#ifndef WORKER_MODEL_INIT_H_
#define WORKER_MODEL_INIT_H_

#include <cstdint>
#include <span>

#include "offload/model/model_layout.h"

namespace strata {

// out[i] = the initial master weight of element `element + i` of the tensor, by its InitKind: normal values
// with the standard deviation init_std (rounded to float), ones, or zeros.
void InitializeTensor(const TensorInfo& tensor, uint64_t seed, int64_t element, std::span<float> out);

}  // namespace strata

#endif  // WORKER_MODEL_INIT_H_
