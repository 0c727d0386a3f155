// How fast an accelerator is at what a plan makes it do, by its own events.
#ifndef OFFLOAD_CALIBRATE_GPU_PROBE_H_
#define OFFLOAD_CALIBRATE_GPU_PROBE_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "offload/device/accelerator.h"
#include "offload/plan/machine_profile.h"

namespace strata {

// Fills in what a device that is not the CPU has numbers of its own for:
//  - both kinds of compute rates (fp32 as bf16 where the kernels take no fp32): products of blocks up to
//  those of a 7 B model (as large as fit into the device's
//    free memory and a slice of time), attention, and bytes per second of element-wise passes and AdamW
//    together;
//  - copies to and from `host`, as fast as each is while the other runs, where the two share a link;
//  - per_op_seconds gains what a kernel costs at least.
// Under two seconds. Takes up to 768 MiB of the device, for as long as it lasts; `host` (at least 32 MiB) is
// registered meanwhile, as a run's arena is, and overwritten. Returns what was measured, in words. Errors:
// the device's; kResourceExhausted where it has no memory for the smallest sizes.
absl::StatusOr<std::string> ProbeGpu(Accelerator& gpu, std::span<std::byte> host, MachineProfile* profile);

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_GPU_PROBE_H_
