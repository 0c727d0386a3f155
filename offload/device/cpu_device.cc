#include "offload/device/cpu_device.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"

namespace strata {
namespace {

// Reached when it is recorded.
class CpuEvent : public DeviceEvent {
 public:
  int64_t nanos = 0;
};

class CpuDevice : public Device {
 public:
  CpuDevice(std::unique_ptr<PinnedArena> arena, StateOps& state_ops)
      : arena_(std::move(arena)), state_ops_(state_ops) {}

  std::string description() const override {
    return absl::StrCat("cpu, arena of ", FormatBytes(arena_bytes()), " on ",
                        PageKindName(arena_->report().pages));
  }
  std::byte* arena() const override { return arena_->data(); }
  int64_t arena_bytes() const override { return static_cast<int64_t>(arena_->size()); }

  // Work runs at once on the caller's thread: all streams are the null stream, all events are reached.
  absl::Status RegisterHost(std::span<std::byte>) override { return absl::OkStatus(); }
  absl::StatusOr<std::span<std::byte>> AllocateResults(int64_t bytes) override {
    std::vector<std::byte>& results = results_.emplace_back(static_cast<size_t>(bytes));
    return std::span<std::byte>(results);
  }
  absl::StatusOr<Stream*> CreateStream() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return std::make_unique<CpuEvent>(); }
  absl::Status Record(Stream*, DeviceEvent* event) override {
    static_cast<CpuEvent*>(event)->nanos = Clock::Real().MonotonicNanos();
    return absl::OkStatus();
  }
  absl::Status Wait(Stream*, DeviceEvent*) override { return absl::OkStatus(); }
  absl::Status Synchronize(DeviceEvent*) override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> PassedNanos(DeviceEvent* event) override {
    return static_cast<CpuEvent*>(event)->nanos;
  }

  absl::Status CopyToDevice(Stream*, std::byte* device, const std::byte* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status CopyToHost(Stream*, std::byte* host, const std::byte* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<IoEngine>> CreateDirectEngine() override {
    return absl::FailedPreconditionError("the CPU's arena is host memory: GPUDirect Storage needs a GPU");
  }

  StateOps& state_ops() override { return state_ops_; }

 private:
  const std::unique_ptr<PinnedArena> arena_;
  StateOps& state_ops_;
  std::vector<std::vector<std::byte>> results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int64_t budget_bytes, StateOps& state_ops) {
  // The budget of a device is not host memory that the kernel may be asked to lock.
  STRATA_ASSIGN_OR_RETURN(
      auto arena,
      PinnedArena::Create(
          {.bytes = static_cast<uint64_t>(budget_bytes), .use_lock = false, .budget = "memory.device"}),
      "device arena of ", budget_bytes, " bytes");
  return std::make_unique<CpuDevice>(std::move(arena), state_ops);
}

}  // namespace strata
