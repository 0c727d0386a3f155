// The CPU as a device: "HBM" is an arena of exactly the budget on huge pages, streams run their work at once
// on the calling thread, so an event is reached when it is recorded.
#ifndef OFFLOAD_DEVICE_CPU_DEVICE_H_
#define OFFLOAD_DEVICE_CPU_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/arena/pinned_arena.h"
#include "offload/device/device.h"

namespace strata {

// `state_ops` outlives the device. `budget_bytes` must be a multiple of 4096; kResourceExhausted when the
// machine does not have them.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int64_t budget_bytes, StateOps& state_ops);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CPU_DEVICE_H_
