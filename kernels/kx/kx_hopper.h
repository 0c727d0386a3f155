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
//              length of d: 64, 96, 128, 192, 256) [+]= A (64 x 16) B (16 x N); T = bf16 or f16.
//              Every batch begins with a fence; it names the accumulators and A registers that the thread
//              has written since they were last in flight, and none that still are. The wait names the
//              accumulators that may be read afterwards. Naming keeps the compiler from moving a use of
//              them to the wrong side.
//              Lane layout of d: row 16 * (warp % 4) + lane / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) +
//              2 * (lane % 4) + i % 2. `a` of WgmmaRs is laid out as in Mma, rows of this warp.
//              Operands in shared memory are SwizzledDescriptor(address, leading_bytes, stride_bytes):
//              Major::kK: rows of 64 K-elements (128 bytes), 8 rows to 1024 bytes. stride_bytes between
//              groups of 8 rows, leading_bytes unused (16); the next 16 of K are 32 bytes on.
//              Major::kMN: rows of 64 M- or N-elements, 8 of K to 1024 bytes. leading_bytes between
//              groups of 64 M or N, stride_bytes between groups of 8 of K.
// stmatrix     StMatrixX4, StMatrixX2 and ...Trans: the inverse of ldmatrix.
// Registers    SetMaxRegistersInc<n>(), SetMaxRegistersDec<n>(): by whole warpgroups, n a multiple of 8.
#ifndef KERNELS_KX_KX_HOPPER_H_
#define KERNELS_KX_KX_HOPPER_H_

#include "kernels/kx/kx.h"
#include "kernels/kx/tensor_map.h"

namespace strata::kx {

// Which index of an operand runs along the 128-byte rows.
enum class Major : uint8_t { kK, kMN };

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
