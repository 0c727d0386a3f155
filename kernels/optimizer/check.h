// What every StateOps does with its arguments before it computes.
#ifndef KERNELS_OPTIMIZER_CHECK_H_
#define KERNELS_OPTIMIZER_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/state_ops.h"

namespace strata {

// kInvalidArgument for n < 0, for a dtype that parameters cannot have, and for a step below 1; `op` names the
// call in the message.
absl::Status CheckElements(const char* op, int64_t n);
absl::Status CheckParamsDType(const char* op, DType dtype);
absl::Status CheckAdamWStep(const char* op, const AdamWStep& step);
// Of Checksums.
absl::Status CheckChecksumRange(const char* op, const void* data, int64_t bytes);

// Of a step that has been checked.
AdamWScalars ScalarsOf(const AdamWStep& step);
AdamWRange RangeOf(const AdamWStep& step);
AdamW8Range RangeOf(const AdamWStep& step, const Code8Moments& moments);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_CHECK_H_
