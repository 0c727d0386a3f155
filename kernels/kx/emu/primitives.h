// The emulated side of kx.h: each primitive reports to the emulator with the place it was called from.
#ifndef KERNELS_KX_EMU_PRIMITIVES_H_
#define KERNELS_KX_EMU_PRIMITIVES_H_

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/kx/types.h"

namespace strata::kx {

namespace emu {

// Where in a kernel's source a primitive was called.
struct Where {
  const char* file;
  int line;
};
// As a default argument it is evaluated at the call.
#define KX_WHERE ::strata::kx::emu::Where where = {__builtin_FILE(), __builtin_LINE()}

struct Indices {
  Dim3 thread, block, block_dim, grid_dim;
  uint32_t linear;  // of the thread in its block
};
const Indices& Self();

enum class Collective : uint8_t { kShuffle, kBallot, kSyncwarp, kLdMatrix, kStMatrix, kMma, kWgmmaWait };

struct ShuffleArgs {
  uint64_t value, result;
  int source;  // lane, already computed; outside 0..31 means the own lane
};
struct BallotArgs {
  bool predicate;
  uint32_t result;
};
struct MatrixArgs {
  SharedAddress row;
  uint32_t* registers;
  int matrices;  // 1, 2, 4
  bool transposed;
};
// What a tensor core multiplies.
enum class Elements : uint8_t { kBf16, kF16, kE4m3 };
template <class T>
inline constexpr Elements kElementsOf = std::is_same_v<T, bf16>  ? Elements::kBf16
                                        : std::is_same_v<T, f16> ? Elements::kF16
                                                                 : Elements::kE4m3;
struct MmaArgs {
  float* c;
  const uint32_t* a;
  uint32_t b0, b1;
  Elements elements;
};

void CheckedLoadShared(SharedAddress address, void* value, uint32_t bytes, Where where);
void CheckedStoreShared(SharedAddress address, const void* value, uint32_t bytes, Where where);
void CheckedLoadGlobal(const void* address, void* value, uint32_t bytes, Where where);
void CheckedStoreGlobal(void* address, const void* value, uint32_t bytes, Where where);
enum class AtomicOrder : uint8_t { kRelaxed, kAcqRel };
// Checks an atomic of `bytes`; false: out of bounds, do nothing.
bool CheckedAtomic(void* address, uint32_t bytes, AtomicOrder order, Where where);
void CheckIndex(int64_t index, int64_t count, int64_t limit, Where where);
SharedAddress AllocShared(uint32_t nth, uint32_t bytes, uint32_t align, Where where);
void Barrier(int id, int threads, bool wait, Where where);
void RunCollective(Collective op, void* lane_args, Where where);
void CpAsync(SharedAddress to, const void* from, bool valid, Where where);
void CommitCopies();
void WaitCopies(int groups_left);

}  // namespace emu

inline Dim3 ThreadIdx() { return emu::Self().thread; }
inline Dim3 BlockIdx() { return emu::Self().block; }
inline Dim3 BlockDim() { return emu::Self().block_dim; }
inline Dim3 GridDim() { return emu::Self().grid_dim; }
inline int LaneId() { return static_cast<int>(emu::Self().linear % 32); }
inline int WarpId() { return static_cast<int>(emu::Self().linear / 32); }

inline void Sync(KX_WHERE) { emu::Barrier(0, 0, true, where); }
inline void Syncwarp(KX_WHERE) { emu::RunCollective(emu::Collective::kSyncwarp, nullptr, where); }
inline void BarSync(int id, int threads, KX_WHERE) { emu::Barrier(id, threads, true, where); }
inline void BarArrive(int id, int threads, KX_WHERE) { emu::Barrier(id, threads, false, where); }

namespace emu {
template <class T>
T Shuffle(T value, int source, Where where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  ShuffleArgs args{0, 0, source};
  memcpy(&args.value, &value, sizeof(T));
  RunCollective(Collective::kShuffle, &args, where);
  memcpy(&value, &args.result, sizeof(T));
  return value;
}
inline uint32_t Vote(bool predicate, Where where) {
  BallotArgs args{predicate, 0};
  RunCollective(Collective::kBallot, &args, where);
  return args.result;
}
}  // namespace emu

template <class T>
T ShflXor(T value, int mask, KX_WHERE) {
  return emu::Shuffle(value, LaneId() ^ mask, where);
}
template <class T>
T ShflDown(T value, int delta, KX_WHERE) {
  return emu::Shuffle(value, LaneId() + delta, where);
}
template <class T>
T ShflIdx(T value, int lane, KX_WHERE) {
  return emu::Shuffle(value, lane & 31, where);
}
inline uint32_t Ballot(bool predicate, KX_WHERE) { return emu::Vote(predicate, where); }
inline bool Any(bool predicate, KX_WHERE) { return emu::Vote(predicate, where) != 0; }
inline bool All(bool predicate, KX_WHERE) { return emu::Vote(predicate, where) == 0xffffffffu; }

// --- memory --------------------------------------------------------------------------------------
// The pointer is private to the emulator: a kernel that dereferenced it would escape the checks.
template <class T>
class Gmem {
 public:
  using Value = std::remove_const_t<T>;

  Gmem() = default;
  Gmem(T* pointer) : p_(pointer) {}  // NOLINT: kernels' parameters are filled from pointers
  Gmem operator+(int64_t n) const { return Gmem(p_ + n); }
  bool IsNull() const { return p_ == nullptr; }
  bool Aligned16() const { return reinterpret_cast<uintptr_t>(p_) % 16 == 0; }
  template <class U>
  Gmem<U> As() const {
    return Gmem<U>(reinterpret_cast<U*>(p_));
  }
  Value Load(int64_t i, KX_WHERE) const {
    Value value;
    emu::CheckedLoadGlobal(p_ + i, &value, sizeof(Value), where);
    return value;
  }
  void Store(int64_t i, Value value, KX_WHERE) const {
    static_assert(!std::is_const_v<T>, "store to a const array");
    emu::CheckedStoreGlobal(const_cast<Value*>(p_) + i, &value, sizeof(Value), where);
  }
  template <int kBytes = 16>
  Vec<Value, kBytes> LoadVec(int64_t i, KX_WHERE) const {
    Vec<Value, kBytes> value;
    emu::CheckedLoadGlobal(p_ + i, &value, kBytes, where);
    return value;
  }
  template <int kBytes>
  void StoreVec(int64_t i, const Vec<Value, kBytes>& value, KX_WHERE) const {
    static_assert(!std::is_const_v<T>, "store to a const array");
    emu::CheckedStoreGlobal(const_cast<Value*>(p_) + i, &value, kBytes, where);
  }
  T* RawForEmulator() const { return p_; }

 private:
  T* p_ = nullptr;
};

template <class T>
struct SmemArray {
  SharedAddress base;
  int count;
  T Load(int i, KX_WHERE) const {
    T value;
    emu::CheckIndex(i, 1, count, where);
    emu::CheckedLoadShared(Address(i), &value, sizeof(T), where);
    return value;
  }
  void Store(int i, T value, KX_WHERE) const {
    emu::CheckIndex(i, 1, count, where);
    emu::CheckedStoreShared(Address(i), &value, sizeof(T), where);
  }
  template <int kBytes = 16>
  Vec<T, kBytes> LoadVec(int i, KX_WHERE) const {
    Vec<T, kBytes> value;
    emu::CheckIndex(i, Vec<T, kBytes>::kCount, count, where);
    emu::CheckedLoadShared(Address(i), &value, kBytes, where);
    return value;
  }
  template <int kBytes>
  void StoreVec(int i, const Vec<T, kBytes>& value, KX_WHERE) const {
    emu::CheckIndex(i, Vec<T, kBytes>::kCount, count, where);
    emu::CheckedStoreShared(Address(i), &value, kBytes, where);
  }
  SharedAddress Address(int i = 0) const { return base + static_cast<uint32_t>(i) * sizeof(T); }
  template <class U>
  SmemArray<U> As() const {
    return {base, static_cast<int>(count * sizeof(T) / sizeof(U))};
  }
  SmemArray Slice(int first, int n, KX_WHERE) const {
    emu::CheckIndex(first, n, count, where);
    return {Address(first), n};
  }
};

struct Smem {
  uint32_t arrays = 0;
  template <class T, int kAlign = 128>
  SmemArray<T> Alloc(int n, KX_WHERE) {
    return {emu::AllocShared(arrays++, static_cast<uint32_t>(n * sizeof(T)), kAlign, where), n};
  }
};

// --- tensor cores --------------------------------------------------------------------------------
namespace emu {
template <int kMatrices>
void Matrix(Collective op, uint32_t (&r)[kMatrices], SharedAddress row, bool transposed, Where where) {
  MatrixArgs args{row, r, kMatrices, transposed};
  RunCollective(op, &args, where);
}
}  // namespace emu

inline void LdMatrixX4(uint32_t (&r)[4], SharedAddress row, KX_WHERE) {
  emu::Matrix(emu::Collective::kLdMatrix, r, row, false, where);
}
inline void LdMatrixX4Trans(uint32_t (&r)[4], SharedAddress row, KX_WHERE) {
  emu::Matrix(emu::Collective::kLdMatrix, r, row, true, where);
}
inline void LdMatrixX2(uint32_t (&r)[2], SharedAddress row, KX_WHERE) {
  emu::Matrix(emu::Collective::kLdMatrix, r, row, false, where);
}
inline void LdMatrixX2Trans(uint32_t (&r)[2], SharedAddress row, KX_WHERE) {
  emu::Matrix(emu::Collective::kLdMatrix, r, row, true, where);
}
template <class T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, KX_WHERE) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  emu::MmaArgs args{c, a, b0, b1, emu::kElementsOf<T>};
  emu::RunCollective(emu::Collective::kMma, &args, where);
}

// --- asynchronous copies -------------------------------------------------------------------------
template <class T>
void CpAsync16(SharedAddress to, Gmem<T> from, bool valid, KX_WHERE) {
  emu::CpAsync(to, from.RawForEmulator(), valid, where);
}
inline void CpAsyncCommit() { emu::CommitCopies(); }
template <int kGroupsLeft>
void CpAsyncWait() {
  emu::WaitCopies(kGroupsLeft);
}

// --- conversions ---------------------------------------------------------------------------------
inline float ToFloat(float x) { return x; }
inline float ToFloat(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float ToFloat(f16 x);
template <class T>
T FromFloat(float f);
template <>
inline float FromFloat<float>(float f) {
  return f;
}
template <>
bf16 FromFloat<bf16>(float f);
template <>
f16 FromFloat<f16>(float f);
template <class T>
uint32_t Pack(float lo, float hi) {
  static_assert(sizeof(T) == 2);
  return static_cast<uint32_t>(FromFloat<T>(lo).bits) | static_cast<uint32_t>(FromFloat<T>(hi).bits) << 16;
}
template <class T>
float UnpackLo(uint32_t pair) {
  return ToFloat(T{static_cast<uint16_t>(pair & 0xffff)});
}
template <class T>
float UnpackHi(uint32_t pair) {
  return ToFloat(T{static_cast<uint16_t>(pair >> 16)});
}

// --- arithmetic ----------------------------------------------------------------------------------
// Out of line, in a file without contraction, whatever options the kernel's emulation is compiled with.
float Fma(float a, float b, float c);
float MulRn(float a, float b);
float AddRn(float a, float b);
float SubRn(float a, float b);
float DivRn(float a, float b);
float SqrtRn(float a);
double Fma(double a, double b, double c);
double MulRn(double a, double b);
double AddRn(double a, double b);
double SubRn(double a, double b);
double DivRn(double a, double b);
double SqrtRn(double a);
float Ex2(float x);
float Lg2(float x);
float Rsqrt(float x);
float Rcp(float x);

// --- atomics -------------------------------------------------------------------------------------
namespace emu {
template <class T, class F>
T Atomic(Gmem<T> g, int64_t i, AtomicOrder order, Where where, F&& change) {
  static_assert(std::is_integral_v<T> || std::is_same_v<T, float>);
  T* p = g.RawForEmulator() + i;
  if (!CheckedAtomic(p, sizeof(T), order, where)) return T{};
  const T old = *p;
  *p = change(old);
  return old;
}
}  // namespace emu

template <class T>
T AtomicAdd(Gmem<T> g, int64_t i, T value, KX_WHERE) {
  static_assert(std::is_integral_v<T>, "a float sum depends on the order: AtomicAddUnordered");
  return emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where,
                     [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T AtomicMax(Gmem<T> g, int64_t i, T value, KX_WHERE) {
  static_assert(std::is_integral_v<T>);
  return emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where,
                     [&](T old) { return old < value ? value : old; });
}
template <class T>
T AtomicMin(Gmem<T> g, int64_t i, T value, KX_WHERE) {
  static_assert(std::is_integral_v<T>);
  return emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where,
                     [&](T old) { return value < old ? value : old; });
}
template <class T>
T AtomicOr(Gmem<T> g, int64_t i, T value, KX_WHERE) {
  static_assert(std::is_integral_v<T>);
  return emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where, [&](T old) { return old | value; });
}
template <class T>
T AtomicCas(Gmem<T> g, int64_t i, T expected, T desired, KX_WHERE) {
  static_assert(std::is_integral_v<T>);
  return emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where,
                     [&](T old) { return old == expected ? desired : old; });
}
inline uint32_t AtomicAddAcqRel(Gmem<uint32_t> g, int64_t i, uint32_t value, KX_WHERE) {
  return emu::Atomic(g, i, emu::AtomicOrder::kAcqRel, where, [&](uint32_t old) { return old + value; });
}
inline void AtomicAddUnordered(Gmem<float> g, int64_t i, float value, KX_WHERE) {
  emu::Atomic(g, i, emu::AtomicOrder::kRelaxed, where, [&](float old) { return old + value; });
}

}  // namespace strata::kx

#endif  // KERNELS_KX_EMU_PRIMITIVES_H_
