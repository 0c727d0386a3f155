#include "offload/exec/device_checksum.h"

#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "kernels/checksum/pieces.h"
#include "offload/exec/cause.h"

namespace strata {

absl::StatusOr<std::unique_ptr<DeviceChecksum>> DeviceChecksum::Create(Device& device, int64_t bytes_max) {
  STRATA_ASSIGN_OR_RETURN(Stream* const stream, device.CreateStream());
  STRATA_ASSIGN_OR_RETURN(auto done, device.CreateEvent());
  STRATA_ASSIGN_OR_RETURN(
      const std::span<std::byte> results,
      device.AllocateResults(ChecksumPieces(bytes_max) * static_cast<int64_t>(sizeof(uint32_t))));
  return std::unique_ptr<DeviceChecksum>(new DeviceChecksum(device, stream, std::move(done), results));
}

absl::StatusOr<uint32_t> DeviceChecksum::Crc32c(std::span<const std::byte> memory, uint32_t crc) {
  const auto bytes = static_cast<int64_t>(memory.size());
  const size_t result_bytes = static_cast<size_t>(ChecksumPieces(bytes)) * sizeof(uint32_t);
  STRATA_CHECK(result_bytes <= results_.size());
  auto* const crcs = reinterpret_cast<uint32_t*>(results_.data());
  absl::Status summed = device_.state_ops().Checksums(stream_, memory.data(), bytes, crcs);
  // A launch that failed is not told from a broken GPU.
  if (absl::IsInternal(summed)) summed = WithCause(std::move(summed), kCauseDeviceFault);
  STRATA_RETURN_IF_ERROR(summed, "checksum on the device");
  STRATA_RETURN_IF_ERROR(device_.Record(stream_, done_.get()), "checksum on the device");
  STRATA_RETURN_IF_ERROR(device_.Synchronize(done_.get()), "checksum on the device");
  device_.HostUsesResults(results_.first(result_bytes), /*write=*/false);
  return JoinPieces(crc, crcs, bytes);
}

}  // namespace strata
