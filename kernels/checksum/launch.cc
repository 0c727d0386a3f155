#include "kernels/checksum/launch.h"

#include "kernels/checksum/checksum.h"
#include "kernels/checksum/pieces.h"
#include "kernels/gpu/launch_elements.h"

namespace strata::gpu {

LaunchStatus Checksums(kx::Stream stream, const void* data, int64_t bytes, uint32_t* crcs) {
  constexpr int64_t kRowBytes = kCrcRowWords * sizeof(uint32_t);
  static_assert(kChecksumBlockBytes == kRowBytes && kChecksumPieceBytes % kRowBytes == 0);
  if (bytes <= 0) return {};
  constexpr uint32_t kShared = (4 * 256 + kBlockThreads / 32) * sizeof(uint32_t);
  const LaunchConfig config = {{Blocks(bytes, kChecksumPieceBytes)}, {kBlockThreads}, kShared, stream};
  return Launch(config, Crc32cPieces, static_cast<const uint32_t*>(data), bytes / kRowBytes,
                kChecksumPieceBytes / kRowBytes, crcs);
}

}  // namespace strata::gpu
