// Device: the seam for the memory and the queues of an accelerator. The CPU device is a real backend: its
// arena has exactly the budget and its copies are real. A CUDA device maps a Stream to a cudaStream_t and an
// Event to a cudaEvent_t.
#ifndef OFFLOAD_DEVICE_DEVICE_H_
#define OFFLOAD_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/state_ops.h"
#include "offload/io/io_engine.h"

namespace strata {

// A point in a stream's work, and when the device passed it. Owned by the executor, which has two per
// operation in flight.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Threads: the arena and the op tables may be used by any thread; a stream by one thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;

  // One allocation of exactly the budget, made when the device was created.
  virtual std::byte* arena() const = 0;
  virtual int64_t arena_bytes() const = 0;

  // Makes `memory` fast for copies. Errors are those of a machine that cannot (it has no room to lock, say):
  // copies then work all the same. The memory outlives the device. At most one call.
  virtual absl::Status RegisterHost(std::span<std::byte> memory) = 0;
  // Zeroed host memory that work on the device may write (losses, norms). The device owns it.
  virtual absl::StatusOr<std::span<std::byte>> AllocateResults(int64_t bytes) = 0;

  // The host reads, or with `write` writes, `results` of AllocateResults now; all work on the device that
  // uses these bytes is done, or has not been enqueued. For devices that check it; takes no locks of others
  // (the caller may hold one).
  virtual void HostUsesResults(std::span<const std::byte> results, bool write) {}

  // One stream per device lane; the device owns it, its users see that it is idle when they are gone.
  virtual absl::StatusOr<Stream*> CreateStream() = 0;
  // Not after the device's end.
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;
  // The event stands for all work enqueued on `stream` so far.
  virtual absl::Status Record(Stream* stream, DeviceEvent* event) = 0;
  // Later work on `stream` waits for the event, without blocking the caller.
  virtual absl::Status Wait(Stream* stream, DeviceEvent* event) = 0;
  // Blocks the calling thread until the event's work is done; the first error of that work surfaces here.
  virtual absl::Status Synchronize(DeviceEvent* event) = 0;
  // When the device passed the event, as last recorded, on the clock of Clock::Real().MonotonicNanos(): of
  // two events the difference is the device's own. Only of an event whose work is done; never waits. One
  // thread at a time.
  virtual absl::StatusOr<int64_t> PassedNanos(DeviceEvent* event) = 0;

  // `host` is memory of the pinned arena; it must stay untouched until the stream has passed the copy. With a
  // null stream the copy is done on return; no stream may have work on these bytes then.
  virtual absl::Status CopyToDevice(Stream* stream, std::byte* device, const std::byte* host,
                                    int64_t bytes) = 0;
  virtual absl::Status CopyToHost(Stream* stream, std::byte* host, const std::byte* device,
                                  int64_t bytes) = 0;

  // Moves bytes between files and the arena past the host's memory: GPUDirect Storage. Only between files
  // that RegisterFile of the engine has taken and the arena; gone before the device. kFailedPrecondition with
  // the remedy where it cannot be had.
  virtual absl::StatusOr<std::unique_ptr<IoEngine>> CreateDirectEngine() = 0;

  // Math on states that live in the arena.
  virtual StateOps& state_ops() = 0;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_DEVICE_H_
