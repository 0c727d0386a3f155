// The GPU side of kx_hopper.h. Only nvcc reads this file.
#ifndef KERNELS_KX_PTX_HOPPER_H_
#define KERNELS_KX_PTX_HOPPER_H_

#include "kernels/kx/kx.h"
#include "kernels/kx/tensor_map.h"

namespace strata::kx {

KX_DEVICE void MbarInit(SharedAddress bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
KX_DEVICE void FenceMbarInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
KX_DEVICE void MbarArrive(SharedAddress bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
KX_DEVICE void MbarArriveExpectTx(SharedAddress bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Each lane asks for itself, and may be told later than its neighbour: no branch here is bra.uni.
KX_DEVICE void MbarWait(SharedAddress bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred P;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
KX_DEVICE void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

KX_DEVICE void TmaPrefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
KX_DEVICE void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1)
      : "memory");
}
KX_DEVICE void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
KX_DEVICE void TmaLoad(SharedAddress to, const TensorMap& map, SharedAddress bar, int c0, int c1, int c2,
                       int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
KX_DEVICE void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1)
               : "memory");
}
KX_DEVICE void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
KX_DEVICE void TmaStore(const TensorMap& map, SharedAddress from, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
KX_DEVICE void BulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
KX_DEVICE void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroupsLeft) : "memory");
}
template <int kGroupsLeft>
KX_DEVICE void BulkWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

KX_DEVICE void StMatrixX4(SharedAddress row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
KX_DEVICE void StMatrixX4Trans(SharedAddress row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
KX_DEVICE void StMatrixX2(SharedAddress row, const uint32_t (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(row), "r"(r[0]), "r"(r[1])
               : "memory");
}
KX_DEVICE void StMatrixX2Trans(SharedAddress row, const uint32_t (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(row), "r"(r[0]),
               "r"(r[1])
               : "memory");
}

template <int kRegisters>
KX_DEVICE void SetMaxRegistersInc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
KX_DEVICE void SetMaxRegistersDec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

namespace ptx {
// cvt converts two at a time.
template <class T>
KX_DEVICE uint16_t PackTwo(float lo, float hi) {
  static_assert(std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>);
  uint16_t pair;
  if constexpr (std::is_same_v<T, e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  }
  return pair;
}
template <class T>
KX_DEVICE float ToFloat8(T x) {
  uint32_t halves;
  if constexpr (std::is_same_v<T, e4m3>) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(x.bits)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(x.bits)));
  }
  return UnpackLo<f16>(halves);
}
}  // namespace ptx

KX_DEVICE float ToFloat(e4m3 x) { return ptx::ToFloat8(x); }
KX_DEVICE float ToFloat(e5m2 x) { return ptx::ToFloat8(x); }
template <>
KX_DEVICE e4m3 FromFloat<e4m3>(float f) {
  return {static_cast<uint8_t>(ptx::PackTwo<e4m3>(f, 0.f))};
}
template <>
KX_DEVICE e5m2 FromFloat<e5m2>(float f) {
  return {static_cast<uint8_t>(ptx::PackTwo<e5m2>(f, 0.f))};
}
template <class T>
KX_DEVICE uint32_t PackFour(float a, float b, float c, float d) {
  return static_cast<uint32_t>(ptx::PackTwo<T>(a, b)) | static_cast<uint32_t>(ptx::PackTwo<T>(c, d)) << 16;
}

namespace ptx {
// Tells the compiler that something here changes these registers, so that it moves no use of them across.
KX_DEVICE void Pin(float& r) { asm volatile("" : "+f"(r)::"memory"); }
KX_DEVICE void Pin(uint32_t& r) { asm volatile("" : "+r"(r)::"memory"); }
template <class T, int kCount>
KX_DEVICE void Pin(T (&registers)[kCount]) {
  KX_UNROLL
  for (int i = 0; i < kCount; ++i) Pin(registers[i]);
}
}  // namespace ptx

template <class... Registers>
KX_DEVICE void WgmmaFence(Registers&... written) {
  (ptx::Pin(written), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
KX_DEVICE void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroupsLeft, class... Registers>
KX_DEVICE void WgmmaWait(Registers&... d) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
  (ptx::Pin(d), ...);
}

// One instruction per N and type. Its operands: the accumulators, then A (a descriptor or four registers),
// the descriptor of B, whether to accumulate, and the majors as immediates. The numbers of the operands after
// the accumulators are passed as strings: the preprocessor cannot add.
// clang-format off
#define KX_S0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KX_S1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KX_S2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KX_S3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KX_S4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define KX_S5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KX_S6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define KX_S7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KX_LIST_32 KX_S0 ", " KX_S1
#define KX_LIST_48 KX_LIST_32 ", " KX_S2
#define KX_LIST_64 KX_LIST_48 ", " KX_S3
#define KX_LIST_96 KX_LIST_64 ", " KX_S4 ", " KX_S5
#define KX_LIST_128 KX_LIST_96 ", " KX_S6 ", " KX_S7
#define KX_D16(o) "+f"(d[o + 0]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), "+f"(d[o + 6]), "+f"(d[o + 7]), "+f"(d[o + 8]), "+f"(d[o + 9]), "+f"(d[o + 10]), "+f"(d[o + 11]), "+f"(d[o + 12]), "+f"(d[o + 13]), "+f"(d[o + 14]), "+f"(d[o + 15])
#define KX_OUT_32 KX_D16(0), KX_D16(16)
#define KX_OUT_48 KX_OUT_32, KX_D16(32)
#define KX_OUT_64 KX_OUT_48, KX_D16(48)
#define KX_OUT_96 KX_OUT_64, KX_D16(64), KX_D16(80)
#define KX_OUT_128 KX_OUT_96, KX_D16(96), KX_D16(112)
#define KX_WGMMA_SS(N, TYPE, LIST, OUT, A, B, SCALE, MAJOR_A, MAJOR_B)                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" SCALE ", 0;\n"                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, %" A ", %" B            \
               ", p, 1, 1, %" MAJOR_A ", %" MAJOR_B ";}\n"                                                          \
               : OUT                                                                                                \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define KX_WGMMA_RS(N, TYPE, LIST, OUT, A0, A1, A2, A3, B, SCALE, MAJOR_B)                                          \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" SCALE ", 0;\n"                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, {%" A0 ", %" A1 ", %" A2 \
               ", %" A3 "}, %" B ", p, 1, 1, %" MAJOR_B ";}\n"                                                      \
               : OUT                                                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),              \
                 "n"(static_cast<int>(kB)))
// Eight bits: twice the K, and no majors to choose.
#define KX_WGMMA8_SS(N, LIST, OUT, A, B, SCALE)                                                                     \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" SCALE ", 0;\n"                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" LIST "}, %" A ", %" B ", p, 1, 1;}\n"   \
               : OUT                                                                                                \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define KX_WGMMA8_RS(N, LIST, OUT, A0, A1, A2, A3, B, SCALE)                                                        \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" SCALE ", 0;\n"                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" LIST "}, {%" A0 ", %" A1 ", %" A2        \
               ", %" A3 "}, %" B ", p, 1, 1;}\n"                                                                    \
               : OUT                                                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

template <class T, Major kA = Major::kK, Major kB = Major::kK, int kCount>
KX_DEVICE void WgmmaSs(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(WgmmaTakes<T, kA, kB>, "wgmma takes bf16 and f16 of any major, e4m3 of K-major operands");
  static_assert(WgmmaHas<kCount>, "N = 2 * kCount is 64, 96, 128, 192 or 256");
  if constexpr (std::is_same_v<T, bf16>) {
    if constexpr (kCount == 32) KX_WGMMA_SS(64, "bf16", KX_LIST_32, KX_OUT_32, "32", "33", "34", "35", "36");
    else if constexpr (kCount == 48) KX_WGMMA_SS(96, "bf16", KX_LIST_48, KX_OUT_48, "48", "49", "50", "51", "52");
    else if constexpr (kCount == 64) KX_WGMMA_SS(128, "bf16", KX_LIST_64, KX_OUT_64, "64", "65", "66", "67", "68");
    else if constexpr (kCount == 96) KX_WGMMA_SS(192, "bf16", KX_LIST_96, KX_OUT_96, "96", "97", "98", "99", "100");
    else if constexpr (kCount == 128) KX_WGMMA_SS(256, "bf16", KX_LIST_128, KX_OUT_128, "128", "129", "130", "131", "132");
  } else if constexpr (std::is_same_v<T, e4m3>) {
    if constexpr (kCount == 32) KX_WGMMA8_SS(64, KX_LIST_32, KX_OUT_32, "32", "33", "34");
    else if constexpr (kCount == 48) KX_WGMMA8_SS(96, KX_LIST_48, KX_OUT_48, "48", "49", "50");
    else if constexpr (kCount == 64) KX_WGMMA8_SS(128, KX_LIST_64, KX_OUT_64, "64", "65", "66");
    else if constexpr (kCount == 96) KX_WGMMA8_SS(192, KX_LIST_96, KX_OUT_96, "96", "97", "98");
    else if constexpr (kCount == 128) KX_WGMMA8_SS(256, KX_LIST_128, KX_OUT_128, "128", "129", "130");
  } else {
    if constexpr (kCount == 32) KX_WGMMA_SS(64, "f16", KX_LIST_32, KX_OUT_32, "32", "33", "34", "35", "36");
    else if constexpr (kCount == 48) KX_WGMMA_SS(96, "f16", KX_LIST_48, KX_OUT_48, "48", "49", "50", "51", "52");
    else if constexpr (kCount == 64) KX_WGMMA_SS(128, "f16", KX_LIST_64, KX_OUT_64, "64", "65", "66", "67", "68");
    else if constexpr (kCount == 96) KX_WGMMA_SS(192, "f16", KX_LIST_96, KX_OUT_96, "96", "97", "98", "99", "100");
    else if constexpr (kCount == 128) KX_WGMMA_SS(256, "f16", KX_LIST_128, KX_OUT_128, "128", "129", "130", "131", "132");
  }
}

template <class T, Major kB = Major::kK, int kCount>
KX_DEVICE void WgmmaRs(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(WgmmaTakes<T, Major::kK, kB>, "wgmma takes bf16 and f16 of any major, e4m3 of K-major operands");
  static_assert(WgmmaHas<kCount>, "N = 2 * kCount is 64, 96, 128, 192 or 256");
  if constexpr (std::is_same_v<T, bf16>) {
    if constexpr (kCount == 32) KX_WGMMA_RS(64, "bf16", KX_LIST_32, KX_OUT_32, "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (kCount == 48) KX_WGMMA_RS(96, "bf16", KX_LIST_48, KX_OUT_48, "48", "49", "50", "51", "52", "53", "54");
    else if constexpr (kCount == 64) KX_WGMMA_RS(128, "bf16", KX_LIST_64, KX_OUT_64, "64", "65", "66", "67", "68", "69", "70");
    else if constexpr (kCount == 96) KX_WGMMA_RS(192, "bf16", KX_LIST_96, KX_OUT_96, "96", "97", "98", "99", "100", "101", "102");
    else if constexpr (kCount == 128) KX_WGMMA_RS(256, "bf16", KX_LIST_128, KX_OUT_128, "128", "129", "130", "131", "132", "133", "134");
  } else if constexpr (std::is_same_v<T, e4m3>) {
    if constexpr (kCount == 32) KX_WGMMA8_RS(64, KX_LIST_32, KX_OUT_32, "32", "33", "34", "35", "36", "37");
    else if constexpr (kCount == 48) KX_WGMMA8_RS(96, KX_LIST_48, KX_OUT_48, "48", "49", "50", "51", "52", "53");
    else if constexpr (kCount == 64) KX_WGMMA8_RS(128, KX_LIST_64, KX_OUT_64, "64", "65", "66", "67", "68", "69");
    else if constexpr (kCount == 96) KX_WGMMA8_RS(192, KX_LIST_96, KX_OUT_96, "96", "97", "98", "99", "100", "101");
    else if constexpr (kCount == 128) KX_WGMMA8_RS(256, KX_LIST_128, KX_OUT_128, "128", "129", "130", "131", "132", "133");
  } else {
    if constexpr (kCount == 32) KX_WGMMA_RS(64, "f16", KX_LIST_32, KX_OUT_32, "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (kCount == 48) KX_WGMMA_RS(96, "f16", KX_LIST_48, KX_OUT_48, "48", "49", "50", "51", "52", "53", "54");
    else if constexpr (kCount == 64) KX_WGMMA_RS(128, "f16", KX_LIST_64, KX_OUT_64, "64", "65", "66", "67", "68", "69", "70");
    else if constexpr (kCount == 96) KX_WGMMA_RS(192, "f16", KX_LIST_96, KX_OUT_96, "96", "97", "98", "99", "100", "101", "102");
    else if constexpr (kCount == 128) KX_WGMMA_RS(256, "f16", KX_LIST_128, KX_OUT_128, "128", "129", "130", "131", "132", "133", "134");
  }
}
#undef KX_S0
#undef KX_S1
#undef KX_S2
#undef KX_S3
#undef KX_S4
#undef KX_S5
#undef KX_S6
#undef KX_S7
#undef KX_D16
#undef KX_WGMMA_SS
#undef KX_WGMMA8_SS
#undef KX_WGMMA_RS
#undef KX_WGMMA8_RS
#undef KX_LIST_32
#undef KX_OUT_32
#undef KX_LIST_48
#undef KX_OUT_48
#undef KX_LIST_64
#undef KX_OUT_64
#undef KX_LIST_96
#undef KX_OUT_96
#undef KX_LIST_128
#undef KX_OUT_128
// clang-format on

}  // namespace strata::kx

#endif  // KERNELS_KX_PTX_HOPPER_H_
