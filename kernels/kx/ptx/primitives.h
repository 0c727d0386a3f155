// The GPU side of kx.h. Only nvcc reads this file.
#ifndef KERNELS_KX_PTX_PRIMITIVES_H_
#define KERNELS_KX_PTX_PRIMITIVES_H_

#include <type_traits>

#include "kernels/kx/types.h"

namespace strata::kx {

KX_DEVICE Dim3 ThreadIdx() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
KX_DEVICE Dim3 BlockIdx() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
KX_DEVICE Dim3 BlockDim() { return {blockDim.x, blockDim.y, blockDim.z}; }
KX_DEVICE Dim3 GridDim() { return {gridDim.x, gridDim.y, gridDim.z}; }
KX_DEVICE int LaneId() { return static_cast<int>(threadIdx.x % 32); }
// Through a shuffle, so that the compiler knows it to be the same in all lanes.
KX_DEVICE int WarpId() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0); }

KX_DEVICE void Sync() { __syncthreads(); }
KX_DEVICE void Syncwarp() { __syncwarp(); }
KX_DEVICE void BarSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
KX_DEVICE void BarArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <class T>
KX_DEVICE T ShflXor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
KX_DEVICE T ShflDown(T value, int delta) {
  return __shfl_down_sync(0xffffffffu, value, delta);
}
template <class T>
KX_DEVICE T ShflIdx(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
KX_DEVICE uint32_t Ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
KX_DEVICE bool Any(bool predicate) { return __any_sync(0xffffffffu, predicate); }
KX_DEVICE bool All(bool predicate) { return __all_sync(0xffffffffu, predicate); }

// --- memory --------------------------------------------------------------------------------------
namespace ptx {
template <int kBytes>
struct Raw;
template <>
struct Raw<4> {
  using Type = uint32_t;
};
template <>
struct Raw<8> {
  using Type = uint2;
};
template <>
struct Raw<16> {
  using Type = uint4;
};
// Through the builtin vector types: an aggregate would be moved member by member.
template <class T, int kBytes>
KX_DEVICE Vec<T, kBytes> LoadVec(const void* p) {
  const auto raw = *reinterpret_cast<const typename Raw<kBytes>::Type*>(p);
  Vec<T, kBytes> out;
  memcpy(&out, &raw, kBytes);
  return out;
}
template <class T, int kBytes>
KX_DEVICE void StoreVec(void* p, const Vec<T, kBytes>& value) {
  typename Raw<kBytes>::Type raw;
  memcpy(&raw, &value, kBytes);
  *reinterpret_cast<typename Raw<kBytes>::Type*>(p) = raw;
}
}  // namespace ptx

template <class T>
struct Gmem {
  using Value = std::remove_const_t<T>;
  T* p = nullptr;

  Gmem() = default;
  KX_HOST_DEVICE Gmem(T* pointer) : p(pointer) {}  // NOLINT: kernels' parameters are filled from pointers
  KX_DEVICE Gmem operator+(int64_t n) const { return Gmem(p + n); }
  KX_HOST_DEVICE bool IsNull() const { return p == nullptr; }
  KX_DEVICE bool Aligned16() const { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
  template <class U>
  KX_DEVICE Gmem<U> As() const {
    return Gmem<U>(reinterpret_cast<U*>(p));
  }
  KX_DEVICE Value Load(int64_t i) const { return p[i]; }
  KX_DEVICE void Store(int64_t i, Value value) const { p[i] = value; }
  template <int kBytes = 16>
  KX_DEVICE Vec<Value, kBytes> LoadVec(int64_t i) const {
    return ptx::LoadVec<Value, kBytes>(p + i);
  }
  template <int kBytes>
  KX_DEVICE void StoreVec(int64_t i, const Vec<Value, kBytes>& value) const {
    ptx::StoreVec(p + i, value);
  }
};

template <class T>
struct SmemArray {
  T* p;
  KX_DEVICE T Load(int i) const { return p[i]; }
  KX_DEVICE void Store(int i, T value) const { p[i] = value; }
  template <int kBytes = 16>
  KX_DEVICE Vec<T, kBytes> LoadVec(int i) const {
    return ptx::LoadVec<T, kBytes>(p + i);
  }
  template <int kBytes>
  KX_DEVICE void StoreVec(int i, const Vec<T, kBytes>& value) const {
    ptx::StoreVec(p + i, value);
  }
  KX_DEVICE SharedAddress Address(int i = 0) const {
    return static_cast<SharedAddress>(__cvta_generic_to_shared(p + i));
  }
  template <class U>
  KX_DEVICE SmemArray<U> As() const {
    return {reinterpret_cast<U*>(p)};
  }
  KX_DEVICE SmemArray Slice(int first, int) const { return {p + first}; }
};

extern __shared__ __align__(1024) unsigned char kx_dynamic_smem[];

struct Smem {
  uint32_t offset = 0;
  template <class T, int kAlign = 128>
  KX_DEVICE SmemArray<T> Alloc(int n) {
    offset = (offset + kAlign - 1) / kAlign * kAlign;
    const SmemArray<T> array{reinterpret_cast<T*>(kx_dynamic_smem + offset)};
    offset += static_cast<uint32_t>(n * sizeof(T));
    return array;
  }
};

// --- tensor cores --------------------------------------------------------------------------------
KX_DEVICE void LdMatrixX4(uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
KX_DEVICE void LdMatrixX4Trans(uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
KX_DEVICE void LdMatrixX2(uint32_t (&r)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
KX_DEVICE void LdMatrixX2Trans(uint32_t (&r)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
template <class T>
KX_DEVICE void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// --- asynchronous copies -------------------------------------------------------------------------
template <class T>
KX_DEVICE void CpAsync16(SharedAddress to, Gmem<T> from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from.p), "r"(bytes) : "memory");
}
KX_DEVICE void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
KX_DEVICE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

// --- conversions ---------------------------------------------------------------------------------
KX_DEVICE float ToFloat(float x) { return x; }
KX_DEVICE float ToFloat(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
KX_DEVICE float ToFloat(f16 x) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
  return f;
}
template <class T>
KX_DEVICE T FromFloat(float f) {
  if constexpr (std::is_same_v<T, float>) {
    return f;
  } else if constexpr (std::is_same_v<T, bf16>) {
    T x;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(f));
    return x;
  } else {
    T x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(f));
    return x;
  }
}
template <class T>
KX_DEVICE uint32_t Pack(float lo, float hi) {
  static_assert(sizeof(T) == 2);
  uint32_t d;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  }
  return d;
}
template <class T>
KX_DEVICE float UnpackLo(uint32_t pair) {
  return ToFloat(T{static_cast<uint16_t>(pair & 0xffff)});
}
template <class T>
KX_DEVICE float UnpackHi(uint32_t pair) {
  return ToFloat(T{static_cast<uint16_t>(pair >> 16)});
}

// --- arithmetic ----------------------------------------------------------------------------------
KX_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KX_DEVICE float MulRn(float a, float b) { return __fmul_rn(a, b); }
KX_DEVICE float AddRn(float a, float b) { return __fadd_rn(a, b); }
KX_DEVICE float SubRn(float a, float b) { return __fsub_rn(a, b); }
KX_DEVICE float DivRn(float a, float b) { return __fdiv_rn(a, b); }
KX_DEVICE float SqrtRn(float a) { return __fsqrt_rn(a); }
KX_DEVICE double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }
KX_DEVICE double MulRn(double a, double b) { return __dmul_rn(a, b); }
KX_DEVICE double AddRn(double a, double b) { return __dadd_rn(a, b); }
KX_DEVICE double SubRn(double a, double b) { return __dsub_rn(a, b); }
KX_DEVICE double DivRn(double a, double b) { return __ddiv_rn(a, b); }
KX_DEVICE double SqrtRn(double a) { return __dsqrt_rn(a); }

KX_DEVICE float Ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KX_DEVICE float Lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KX_DEVICE float Rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KX_DEVICE float Rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- atomics -------------------------------------------------------------------------------------
namespace ptx {
// CUDA's builtins know unsigned long long, not uint64_t.
template <class T>
KX_DEVICE auto* Word(T* p) {
  if constexpr (sizeof(T) == 8) {
    return reinterpret_cast<unsigned long long*>(p);
  } else {
    return p;
  }
}
}  // namespace ptx

template <class T>
KX_DEVICE T AtomicAdd(Gmem<T> g, int64_t i, T value) {
  static_assert(std::is_integral_v<T>, "a float sum depends on the order: AtomicAddUnordered");
  return static_cast<T>(atomicAdd(ptx::Word(g.p + i), value));
}
template <class T>
KX_DEVICE T AtomicMax(Gmem<T> g, int64_t i, T value) {
  static_assert(std::is_integral_v<T>);
  return static_cast<T>(atomicMax(ptx::Word(g.p + i), value));
}
template <class T>
KX_DEVICE T AtomicMin(Gmem<T> g, int64_t i, T value) {
  static_assert(std::is_integral_v<T>);
  return static_cast<T>(atomicMin(ptx::Word(g.p + i), value));
}
template <class T>
KX_DEVICE T AtomicOr(Gmem<T> g, int64_t i, T value) {
  static_assert(std::is_integral_v<T>);
  return static_cast<T>(atomicOr(ptx::Word(g.p + i), value));
}
template <class T>
KX_DEVICE T AtomicCas(Gmem<T> g, int64_t i, T expected, T desired) {
  static_assert(std::is_integral_v<T>);
  return static_cast<T>(atomicCAS(ptx::Word(g.p + i), expected, desired));
}
KX_DEVICE uint32_t AtomicAddAcqRel(Gmem<uint32_t> g, int64_t i, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(g.p + i), "r"(value)
               : "memory");
  return old;
}
KX_DEVICE void AtomicAddUnordered(Gmem<float> g, int64_t i, float value) { atomicAdd(g.p + i, value); }

}  // namespace strata::kx

#endif  // KERNELS_KX_PTX_PRIMITIVES_H_
