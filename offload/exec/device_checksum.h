// DeviceChecksum: the checksum of device memory, computed by the device.
#ifndef OFFLOAD_EXEC_DEVICE_CHECKSUM_H_
#define OFFLOAD_EXEC_DEVICE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "offload/device/device.h"
#include "offload/store/nvme_store.h"

namespace strata {

// On a stream of its own: whoever has the memory summed has seen to it that all work on the device which
// writes it is done. Threads: one at a time.
class DeviceChecksum : public MemoryChecksum {
 public:
  // For memory of up to `bytes_max`. `device` outlives it.
  static absl::StatusOr<std::unique_ptr<DeviceChecksum>> Create(Device& device, int64_t bytes_max);

  // Errors are the device's.
  absl::StatusOr<uint32_t> Crc32c(std::span<const std::byte> memory, uint32_t crc) override;

 private:
  DeviceChecksum(Device& device, Stream* stream, std::unique_ptr<DeviceEvent> done,
                 std::span<std::byte> results)
      : device_(device), stream_(stream), done_(std::move(done)), results_(results) {}

  Device& device_;
  Stream* const stream_;
  const std::unique_ptr<DeviceEvent> done_;
  const std::span<std::byte> results_;  // the pieces' checksums
};

}  // namespace strata

#endif  // OFFLOAD_EXEC_DEVICE_CHECKSUM_H_
