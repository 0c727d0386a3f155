// The emulated side of kx_hopper.h.
#ifndef KERNELS_KX_EMU_HOPPER_H_
#define KERNELS_KX_EMU_HOPPER_H_

#include "kernels/kx/kx.h"
#include "kernels/kx/tensor_map.h"

namespace strata::kx {

namespace emu {
struct WgmmaOperands {
  const uint32_t* a_registers;  // or null
  uint64_t a, b;
  bool a_mn_major, b_mn_major, accumulate;
  Elements elements;
};
void InitMbarrier(SharedAddress bar, int arrivals, Where where);
void FenceMbarriers();
void ArriveMbarrier(SharedAddress bar, int bytes, Where where);
void WaitMbarrier(SharedAddress bar, int parity, Where where);
void FenceProxy();
void LoadTensor(SharedAddress to, const TensorMap& map, SharedAddress bar, int rank, const int* at,
                Where where);
void StoreTensor(const TensorMap& map, SharedAddress from, int rank, const int* at, Where where);
void CommitStores();
void WaitStores(int groups_left, bool only_read);
void SetRegisters(int registers, bool more, Where where);
void FenceWgmma();
void CheckFree(const void* registers);
void IssueWgmma(float* d, int n, const WgmmaOperands& operands, Where where);
void CommitWgmma();
void CheckComplete(const float* d, Where where);
}  // namespace emu

inline void MbarInit(SharedAddress bar, int arrivals, KX_WHERE) { emu::InitMbarrier(bar, arrivals, where); }
inline void FenceMbarInit() { emu::FenceMbarriers(); }
inline void MbarArrive(SharedAddress bar, KX_WHERE) { emu::ArriveMbarrier(bar, 0, where); }
inline void MbarArriveExpectTx(SharedAddress bar, int bytes, KX_WHERE) {
  emu::ArriveMbarrier(bar, bytes, where);
}
inline void MbarWait(SharedAddress bar, int parity, KX_WHERE) { emu::WaitMbarrier(bar, parity, where); }
inline void FenceAsyncProxy() { emu::FenceProxy(); }

inline void TmaPrefetch(const TensorMap&) {}
inline void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1, KX_WHERE) {
  const int at[] = {c0, c1};
  emu::LoadTensor(to, map, bar, 2, at, where);
}
inline void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1, int c2,
                    KX_WHERE) {
  const int at[] = {c0, c1, c2};
  emu::LoadTensor(to, map, bar, 3, at, where);
}
inline void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1, int c2, int c3,
                    KX_WHERE) {
  const int at[] = {c0, c1, c2, c3};
  emu::LoadTensor(to, map, bar, 4, at, where);
}
inline void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1, KX_WHERE) {
  const int at[] = {c0, c1};
  emu::StoreTensor(map, from, 2, at, where);
}
inline void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1, int c2, KX_WHERE) {
  const int at[] = {c0, c1, c2};
  emu::StoreTensor(map, from, 3, at, where);
}
inline void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1, int c2, int c3, KX_WHERE) {
  const int at[] = {c0, c1, c2, c3};
  emu::StoreTensor(map, from, 4, at, where);
}
inline void BulkCommit() { emu::CommitStores(); }
template <int kGroupsLeft>
void BulkWaitRead() {
  emu::WaitStores(kGroupsLeft, true);
}
template <int kGroupsLeft>
void BulkWait() {
  emu::WaitStores(kGroupsLeft, false);
}

namespace emu {
template <int kMatrices>
void StoreMatrix(SharedAddress row, const uint32_t (&r)[kMatrices], bool transposed, Where where) {
  uint32_t registers[kMatrices];
  memcpy(registers, r, sizeof registers);
  Matrix(Collective::kStMatrix, registers, row, transposed, where);
}
}  // namespace emu

inline void StMatrixX4(SharedAddress row, const uint32_t (&r)[4], KX_WHERE) {
  emu::StoreMatrix(row, r, false, where);
}
inline void StMatrixX4Trans(SharedAddress row, const uint32_t (&r)[4], KX_WHERE) {
  emu::StoreMatrix(row, r, true, where);
}
inline void StMatrixX2(SharedAddress row, const uint32_t (&r)[2], KX_WHERE) {
  emu::StoreMatrix(row, r, false, where);
}
inline void StMatrixX2Trans(SharedAddress row, const uint32_t (&r)[2], KX_WHERE) {
  emu::StoreMatrix(row, r, true, where);
}

template <int kRegisters>
void SetMaxRegistersInc(KX_WHERE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emu::SetRegisters(kRegisters, true, where);
}
template <int kRegisters>
void SetMaxRegistersDec(KX_WHERE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emu::SetRegisters(kRegisters, false, where);
}

// What the kernel wrote matters to nvcc only; naming registers that a wgmma in flight owns would be wrong
// there.
template <class... Registers>
void WgmmaFence(Registers&... written) {
  (emu::CheckFree(&written), ...);
  emu::FenceWgmma();
}
inline void WgmmaCommit() { emu::CommitWgmma(); }
// A pack cannot be followed by a defaulted argument, so the place comes with the first accumulator; up to
// three are enough for every kernel here.
namespace emu {
template <int kGroupsLeft>
void WaitWgmma(Where where) {
  int groups_left = kGroupsLeft;
  RunCollective(Collective::kWgmmaWait, &groups_left, where);
}
}  // namespace emu
template <int kGroupsLeft>
void WgmmaWait(KX_WHERE) {
  emu::WaitWgmma<kGroupsLeft>(where);
}
template <int kGroupsLeft, int kCount>
void WgmmaWait(float (&d)[kCount], KX_WHERE) {
  emu::WaitWgmma<kGroupsLeft>(where);
  emu::CheckComplete(d, where);
}
template <int kGroupsLeft, int kCount0, int kCount1>
void WgmmaWait(float (&d0)[kCount0], float (&d1)[kCount1], KX_WHERE) {
  WgmmaWait<kGroupsLeft>(d0, where);
  emu::CheckComplete(d1, where);
}
template <int kGroupsLeft, int kCount0, int kCount1, int kCount2>
void WgmmaWait(float (&d0)[kCount0], float (&d1)[kCount1], float (&d2)[kCount2], KX_WHERE) {
  WgmmaWait<kGroupsLeft>(d0, d1, where);
  emu::CheckComplete(d2, where);
}

template <class T, Major kA = Major::kK, Major kB = Major::kK, int kCount>
requires WgmmaTakes<T, kA, kB> && WgmmaHas<kCount>
void WgmmaSs(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate, KX_WHERE) {
  emu::IssueWgmma(d, 2 * kCount,
                  {nullptr, a, b, kA == Major::kMN, kB == Major::kMN, accumulate, emu::kElementsOf<T>},
                  where);
}
template <class T, Major kB = Major::kK, int kCount>
requires WgmmaTakes<T, Major::kK, kB> && WgmmaHas<kCount>
void WgmmaRs(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate, KX_WHERE) {
  emu::IssueWgmma(d, 2 * kCount, {a, 0, b, false, kB == Major::kMN, accumulate, emu::kElementsOf<T>}, where);
}

float ToFloat(e4m3 x);
float ToFloat(e5m2 x);
template <>
e4m3 FromFloat<e4m3>(float f);
template <>
e5m2 FromFloat<e5m2>(float f);
template <class T>
uint32_t PackFour(float a, float b, float c, float d) {
  static_assert(sizeof(T) == 1);
  const auto bits = [](float f) { return static_cast<uint32_t>(FromFloat<T>(f).bits); };
  return bits(a) | bits(b) << 8 | bits(c) << 16 | bits(d) << 24;
}

}  // namespace strata::kx

#endif  // KERNELS_KX_EMU_HOPPER_H_
