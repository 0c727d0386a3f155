// Device primitives of sm_90a, with the two targets of kx.h.
//
// Mbarriers    A uint64_t in shared memory (8-byte aligned). One thread calls MbarInit(bar, arrivals) for
//              each, then FenceMbarInit(), then all Sync(). MbarArrive(bar). MbarArriveExpectTx(bar, bytes):
//              an arrival that also promises bytes of TMA loads. MbarWait(bar, parity): until the phase of
//              that parity (0 first) is complete. Waiting for parity 1 on a fresh barrier returns at once.
// Proxies      FenceAsyncProxy(): own stores to shared memory become visible to TMA and wgmma. Whoever
//              wrote calls it, before the barrier that tells the reader.
// TMA          TmaLoad(to, map, bar, c0, c1[, c2[, c3]]), TmaStore(map, from, c0, c1[, ...]): one box of
//              the tensor, coordinates in elements, innermost first; outside the tensor zeros are loaded
//              and nothing is stored. One thread issues. Stores: BulkCommit(), then
//              BulkWaitRead<kGroupsLeft>() before the shared bytes are reused (or the thread exits),
//              BulkWait<kGroupsLeft>() before the global bytes are read. TmaPrefetch(map). With the
//              128-byte swizzle `to` is a multiple of 1024 and byte (row, b) of a 128-byte-wide box is at
//              Swizzle128(row * 128 + b).
// wgmma        By the 128 threads of a warpgroup: WgmmaFence(registers...), any number of WgmmaSs and
//              WgmmaRs, WgmmaCommit(), later WgmmaWait<kGroupsLeft>(d...). D (64 x N, N = 2 R with R the
//              length of d: 64, 96, 128, 192, 256) [+]= A (64 x K) B (K x N); K = 16 of T = bf16 or f16, 32
//              of T = e4m3. Sums of e4m3 products are float, but hardware keeps fewer of their bits than a
//              float has (emu/emu.h, Accumulate). Every batch begins with a fence; it names the accumulators
//              and A registers that the thread has written since they were last in flight, and none that
//              still are. The wait names the accumulators that may be read afterwards. Naming keeps the
//              compiler from moving a use of them to the wrong side. Lane layout of d: row 16 * (warp % 4) +
//              lane / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (lane % 4) + i % 2. `a` of WgmmaRs is
//              laid out as in Mma, rows of this warp; of e4m3, byte i of register r is row lane / 4 + 8 * (r
//              % 2), column 4 * (lane % 4) + i + 16 * (r / 2): what LdMatrixX4 reads of rows of 32 bytes.
//              Operands in shared memory are SwizzledDescriptor(address, leading_bytes, stride_bytes):
//              Major::kK: rows of 128 bytes of K (64 elements, or 128 of e4m3), 8 rows to 1024 bytes from a
//              multiple of 1024 on. stride_bytes between groups of 8 rows, leading_bytes unused (16); the
//              next step's K is 32 bytes on. e4m3 has no other.
//              Major::kMN: rows of 64 M- or N-elements, 8 of K to 1024 bytes. leading_bytes between
//              groups of 64 M or N, stride_bytes between groups of 8 of K.
// fp8          ToFloat, FromFloat<T>, T = e4m3 or e5m2 (types.h). PackFour<T>(a, b, c, d): four in a
// uint32_t,
//              a in its lowest byte. Compute capability 8.9 and newer.
// stmatrix     StMatrixX4, StMatrixX2 and ...Trans: the inverse of ldmatrix.
// Registers    SetMaxRegistersInc<n>(), SetMaxRegistersDec<n>(): by whole warpgroups, n a multiple of 8.
#ifndef KERNELS_KX_KX_HOPPER_H_
#define KERNELS_KX_KX_HOPPER_H_

#include <type_traits>

#include "kernels/kx/kx.h"
#include "kernels/kx/tensor_map.h"

namespace strata::kx {

// Which index of an operand runs along the 128-byte rows.
enum class Major : uint8_t { kK, kMN };

// wgmma multiplies T, and takes operands of these majors: those of eight bits are K-major by nature.
template <class T, Major kA, Major kB>
concept WgmmaTakes = std::is_same_v<T, bf16> || std::is_same_v<T, f16> ||
    (std::is_same_v<T, e4m3>&& kA == Major::kK && kB == Major::kK);
// Accumulators of a lane: N / 2.
template <int kCount>
concept WgmmaHas = kCount == 32 || kCount == 48 || kCount == 64 || kCount == 96 || kCount == 128;

// Byte offset of a 1024-byte-aligned, 128-byte-swizzled array: 16-byte pieces exchanged with their row.
KX_HOST_DEVICE constexpr uint32_t Swizzle128(uint32_t offset) { return offset ^ ((offset >> 7 & 7) << 4); }

// PTX ISA, "Matrix Descriptor Format": address, leading and stride offset in units of 16 bytes at bits 0, 16
// and 32; 1 at bit 62 for the 128-byte swizzle.
KX_HOST_DEVICE constexpr uint64_t SwizzledDescriptor(SharedAddress address, uint32_t leading_bytes,
                                                     uint32_t stride_bytes) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>((leading_bytes & 0x3ffff) >> 4) << 16 |
         static_cast<uint64_t>((stride_bytes & 0x3ffff) >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

}  // namespace strata::kx

#if KX_GPU
#include "kernels/kx/ptx/hopper.h"
#else
#include "kernels/kx/emu/hopper.h"
#endif

#endif  // KERNELS_KX_KX_HOPPER_H_
