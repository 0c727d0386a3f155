// Checks of arguments that every backend makes before it touches memory: kInvalidArgument naming the op,
// the shape and what is wrong with it.
#ifndef KERNELS_VALIDATE_H_
#define KERNELS_VALIDATE_H_

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// Largest head dimension the attention and rope kernels take.
constexpr int64_t kHeadDimMax = 256;
// What every size of a product in fp8 is a multiple of.
constexpr int64_t kFp8Unit = 16;

absl::Status Validate(DType compute, const GemmArgs& args);
absl::Status Validate(DType compute, const NormArgs& args);
absl::Status Validate(DType compute, const NormBackwardArgs& args);
absl::Status Validate(const DropoutArgs& args);
absl::Status Validate(DType compute, const RopeArgs& args);
absl::Status Validate(DType compute, const AttentionArgs& args);
absl::Status Validate(DType compute, const AttentionBackwardArgs& args);
absl::Status Validate(DType compute, const CrossEntropyArgs& args);
absl::Status ValidateBiasBackward(DType compute, int64_t rows, int64_t n, int64_t ldy,
                                  const Workspace& workspace);
// Every dimension at least 1; `op` names the kernel in the message.
absl::Status ValidatePositive(const char* op, std::initializer_list<int64_t> dims);

}  // namespace strata

#endif  // KERNELS_VALIDATE_H_
