// The emulator's fragment and shared-memory layouts against a second source: CuTe's layout algebra, its
// formulas written out here from its atom traits (mma_traits_sm80, copy_traits_sm75, mma_traits_sm90_gmma).
// The emulator was written from the tables of the PTX ISA.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/kx/emu_test_util.h"

namespace strata::kx {
namespace {

// A CuTe layout, flattened: the first mode runs fastest.
struct Layout {
  std::vector<int> shape, stride;
  int operator()(int index) const {
    int offset = 0;
    for (size_t mode = 0; mode < shape.size(); ++mode) {
      offset += index % shape[mode] * stride[mode];
      index /= shape[mode];
    }
    return offset;
  }
};
// (thread, value) -> coordinate.
struct ThreadValue {
  Layout thread, value;
  int operator()(int t, int v) const { return thread(t) + value(v); }
};

struct Matrices {
  Matrices(uint64_t seed, int m, int n, int depth = 16)
      : a(m * depth), b(n * depth), m(m), n(n), depth(depth) {
    std::mt19937_64 random(seed);
    for (float& x : a) x = static_cast<float>(random() % 17) - 8.f;
    for (float& x : b) x = static_cast<float>(random() % 17) - 8.f;
  }
  // Column-major, as CuTe's coordinates count: A(m, k) = a[m + M k], B(n, k) = b[n + N k].
  std::vector<float> a, b;
  int m, n, depth;
  float Product(int i, int j) const {
    float sum = 0;
    for (int k = 0; k < depth; ++k) sum += a[i + m * k] * b[j + n * k];
    return sum;
  }
};

template <class T>
void TestMma() {
  // SM80_16x8x16_F32{BF16BF16,F16F16}F32_TN.
  const ThreadValue kA{{{4, 8}, {32, 1}}, {{2, 2, 2}, {16, 8, 128}}};
  const ThreadValue kB{{{4, 8}, {16, 1}}, {{2, 2}, {8, 64}}};
  const ThreadValue kC{{{4, 8}, {32, 1}}, {{2, 2}, {16, 8}}};
  const Matrices x(1, 16, 8);
  std::vector<float> c(16 * 8, NAN);
  ExpectClean(32, 0, [&] {
    const int t = LaneId();
    uint32_t a[4], b[2];
    for (int r = 0; r < 4; ++r) a[r] = Pack<T>(x.a[kA(t, 2 * r)], x.a[kA(t, 2 * r + 1)]);
    for (int r = 0; r < 2; ++r) b[r] = Pack<T>(x.b[kB(t, 2 * r)], x.b[kB(t, 2 * r + 1)]);
    float d[4] = {1.f, 1.f, 1.f, 1.f};
    Mma<T>(d, a, b[0], b[1]);
    for (int v = 0; v < 4; ++v) c[kC(t, v)] = d[v];
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) EXPECT_EQ(c[i + 16 * j], x.Product(i, j) + 1.f) << i << " " << j;
  }
}
TEST(Layouts, Mma) {
  TestMma<bf16>();
  TestMma<f16>();
}

// SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T map (thread, bit) to a bit of the 32 rows of 128 bits that the
// lanes' addresses name; here in 16-bit elements. x2 is the first half of x4; stmatrix is the inverse.
const ThreadValue kLdsmN{{{32}, {2}}, {{2, 4}, {1, 64}}};
const ThreadValue kLdsmT{{{4, 8}, {16, 1}}, {{2, 4}, {8, 64}}};

TEST(Layouts, LdMatrixAndStMatrix) {
  ExpectClean(32, 2 * 256 * 2, [] {
    Smem smem;
    const auto in = smem.Alloc<uint16_t>(256), out = smem.Alloc<uint16_t>(256);
    const int t = LaneId();
    // Rows in an order of their own: a lane's address is its row, wherever it lies.
    const int row = (t * 5 + 3) % 32;
    for (int i = 0; i < 8; ++i) in.Store(row * 8 + i, static_cast<uint16_t>(t * 8 + i));
    Syncwarp();
    const auto check = [&](const uint32_t* r, int count, const ThreadValue& layout) {
      for (int v = 0; v < 2 * count; ++v) EXPECT_EQ(r[v / 2] >> (16 * (v % 2)) & 0xffff, layout(t, v));
    };
    uint32_t r[4], half[2];
    LdMatrixX4(r, in.Address(row * 8));
    check(r, 4, kLdsmN);
    LdMatrixX4Trans(r, in.Address(row * 8));
    check(r, 4, kLdsmT);
    LdMatrixX2(half, in.Address(row * 8));
    check(half, 2, kLdsmN);
    LdMatrixX2Trans(half, in.Address(row * 8));
    check(half, 2, kLdsmT);

    const auto store = [&](const ThreadValue& layout, bool trans, bool four) {
      uint32_t s[4];
      for (int q = 0; q < 4; ++q) {
        s[q] = static_cast<uint32_t>(layout(t, 2 * q)) | static_cast<uint32_t>(layout(t, 2 * q + 1)) << 16;
      }
      const uint32_t two[2] = {s[0], s[1]};
      const SharedAddress to = out.Address(row * 8);
      if (four && trans) {
        StMatrixX4Trans(to, s);
      } else if (four) {
        StMatrixX4(to, s);
      } else if (trans) {
        StMatrixX2Trans(to, two);
      } else {
        StMatrixX2(to, two);
      }
      Syncwarp();
      for (int i = 0; i < 8 && t < (four ? 32 : 16); ++i) EXPECT_EQ(out.Load(row * 8 + i), t * 8 + i);
      Syncwarp();
      for (int i = 0; i < 8; ++i) out.Store(row * 8 + i, 0);
      Syncwarp();
    };
    store(kLdsmN, false, true);
    store(kLdsmT, true, true);
    store(kLdsmN, false, false);
    store(kLdsmT, true, false);
  });
}

// The canonical layouts of GMMA with SW128 (16-bit types, in elements; T = 8): K-major ((8,n),(T,2)) :
// ((8T,SBO),(1,T)); MN-major ((T,8,m),(8,k)) : ((1,T,LBO),(8T,SBO)); then Swizzle<3,4,3> of the byte address.
int Place(bool mn_major, int extent, int lbo, int sbo, int mn, int k) {
  const Layout mn_mode =
      mn_major ? Layout{{8, 8, (extent + 63) / 64}, {1, 8, lbo}} : Layout{{8, extent / 8}, {64, sbo}};
  const Layout k_mode = mn_major ? Layout{{8, 2}, {64, sbo}} : Layout{{8, 2}, {1, 8}};
  const int offset = mn_mode(mn) + k_mode(k);
  return offset ^ (offset >> 6 & 7) << 3;
}

// Eight-bit types, K-major: T = 16.
int Place8(int extent, int sbo, int mn, int k) {
  const Layout mn_mode{{8, extent / 8}, {128, sbo}}, k_mode{{16, 2}, {1, 16}};
  const int offset = mn_mode(mn) + k_mode(k);
  return offset ^ (offset >> 7 & 7) << 4;
}

// kRs: A by registers (then A is K-major by nature). Offsets between groups are chosen larger than needed,
// so that the leading and the stride offset cannot be mistaken for each other.
template <class T, int kN, bool kAMn, bool kBMn, bool kRs>
void TestWgmma() {
  // SM90_64xNx16_F32...: ALayout of _RS and CLayout_64xN.
  const ThreadValue kA{{{4, 8, 4}, {128, 1, 16}}, {{2, 2, 2}, {64, 8, 512}}};
  const ThreadValue kC{{{4, 8, 4}, {128, 1, 16}}, {{2, 2, kN / 8}, {64, 8, 512}}};
  const Matrices x(kN, 64, kN);
  std::vector<float> c(64 * kN, NAN);
  const int sbo_a = kAMn ? 1024 : 512, lbo_a = 4096, sbo_b = kBMn ? 512 : 1024, lbo_b = 2048;
  const int elements_a = 8 * 1024, elements_b = 32 * 1024;
  ExpectClean(128, (elements_a + elements_b) * 2, [&] {
    Smem smem;
    const auto a = smem.Alloc<T, 1024>(elements_a), b = smem.Alloc<T, 1024>(elements_b);
    const int t = static_cast<int>(ThreadIdx().x);
    for (int i = t; i < 64 * 16; i += 128) {
      a.Store(Place(kAMn, 64, lbo_a, sbo_a, i % 64, i / 64), FromFloat<T>(x.a[i]));
    }
    for (int i = t; i < kN * 16; i += 128) {
      b.Store(Place(kBMn, kN, lbo_b, sbo_b, i % kN, i / kN), FromFloat<T>(x.b[i]));
    }
    FenceAsyncProxy();
    Sync();
    float d[kN / 2];
    for (float& value : d) value = 1.f;
    const uint64_t da = SwizzledDescriptor(a.Address(), lbo_a * 2, sbo_a * 2);
    const uint64_t db = SwizzledDescriptor(b.Address(), lbo_b * 2, sbo_b * 2);
    WgmmaFence();
    if constexpr (kRs) {
      uint32_t r[4];
      for (int i = 0; i < 4; ++i) r[i] = Pack<T>(x.a[kA(t, 2 * i)], x.a[kA(t, 2 * i + 1)]);
      WgmmaRs<T, kBMn ? Major::kMN : Major::kK>(d, r, db, true);
    } else {
      WgmmaSs<T, kAMn ? Major::kMN : Major::kK, kBMn ? Major::kMN : Major::kK>(d, da, db, true);
    }
    WgmmaCommit();
    WgmmaWait<0>(d);
    for (int v = 0; v < kN / 2; ++v) c[kC(t, v)] = d[v];
  });
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) ASSERT_EQ(c[i + 64 * j], x.Product(i, j) + 1.f) << i << " " << j;
  }
}
template <int kN>
void TestWgmmas() {
  SCOPED_TRACE(kN);
  TestWgmma<bf16, kN, false, false, false>();
  TestWgmma<f16, kN, true, false, false>();
  TestWgmma<bf16, kN, false, false, true>();
  if constexpr (kN % 64 == 0) {
    TestWgmma<f16, kN, false, true, false>();
    TestWgmma<bf16, kN, true, true, false>();
    TestWgmma<f16, kN, false, true, true>();
  }
}
// SM90_64xNx32_F32E4M3E4M3: ALayout_64x32 of _RS and CLayout_64xN; K = 32.
template <int kN, bool kRs>
void TestWgmma8() {
  const ThreadValue kA{{{4, 8, 4}, {256, 1, 16}}, {{4, 2, 2}, {64, 8, 1024}}};
  const ThreadValue kC{{{4, 8, 4}, {128, 1, 16}}, {{2, 2, kN / 8}, {64, 8, 512}}};
  const Matrices x(kN, 64, kN, 32);
  std::vector<float> c(64 * kN, NAN);
  const int sbo_a = 1024, sbo_b = 2048;  // of B larger than needed
  ExpectClean(128, 8 * sbo_a + kN / 8 * sbo_b, [&] {
    Smem smem;
    const auto a = smem.Alloc<e4m3, 1024>(8 * sbo_a), b = smem.Alloc<e4m3, 1024>(kN / 8 * sbo_b);
    const int t = static_cast<int>(ThreadIdx().x);
    for (int i = t; i < 64 * 32; i += 128) {
      a.Store(Place8(64, sbo_a, i % 64, i / 64), FromFloat<e4m3>(x.a[i]));
    }
    for (int i = t; i < kN * 32; i += 128) {
      b.Store(Place8(kN, sbo_b, i % kN, i / kN), FromFloat<e4m3>(x.b[i]));
    }
    FenceAsyncProxy();
    Sync();
    float d[kN / 2];
    for (float& value : d) value = 1.f;
    const uint64_t db = SwizzledDescriptor(b.Address(), 16, sbo_b);
    WgmmaFence();
    if constexpr (kRs) {
      uint32_t r[4];
      for (int i = 0; i < 4; ++i) {
        r[i] = PackFour<e4m3>(x.a[kA(t, 4 * i)], x.a[kA(t, 4 * i + 1)], x.a[kA(t, 4 * i + 2)],
                              x.a[kA(t, 4 * i + 3)]);
      }
      WgmmaRs<e4m3>(d, r, db, true);
    } else {
      WgmmaSs<e4m3>(d, SwizzledDescriptor(a.Address(), 16, sbo_a), db, true);
    }
    WgmmaCommit();
    WgmmaWait<0>(d);
    for (int v = 0; v < kN / 2; ++v) c[kC(t, v)] = d[v];
  });
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) ASSERT_EQ(c[i + 64 * j], x.Product(i, j) + 1.f) << i << " " << j;
  }
}
TEST(Layouts, WgmmaOfE4m3) {
  TestWgmma8<64, false>();
  TestWgmma8<96, true>();
  TestWgmma8<128, false>();
  TestWgmma8<192, true>();
  TestWgmma8<256, false>();
}
TEST(Layouts, Wgmma64And96) {
  TestWgmmas<64>();
  TestWgmmas<96>();
}
TEST(Layouts, Wgmma128) { TestWgmmas<128>(); }
TEST(Layouts, Wgmma192) { TestWgmmas<192>(); }
TEST(Layouts, Wgmma256) { TestWgmmas<256>(); }

TEST(Layouts, AccumulationsDifferWhereTheyMayAndAgreeWhereSumsAreExact) {
  const auto sum = [](emu::Accumulate how, float first, float step) {
    emu::Options options;
    options.accumulate = how;
    const emu::Session session(options);
    float result = 0;
    emu::RunLaunch({}, {32}, 0, [&] {
      const uint32_t one = Pack<bf16>(1.f, 1.f), small = Pack<bf16>(step, step);
      const uint32_t a[4] = {one, one, one, one};
      float d[4] = {first, first, first, first};
      Mma<bf16>(d, a, small, small);
      result = d[0];
    });
    return result;
  };
  for (const auto how :
       {emu::Accumulate::kFloatChain, emu::Accumulate::kDouble, emu::Accumulate::kTruncate}) {
    EXPECT_EQ(sum(how, 3.f, 2.f), 35.f);
  }
  // Of e4m3 only 13 bits behind the largest addend's first are left: 2^14 and 32 ones.
  emu::Options chopped;
  chopped.accumulate = emu::Accumulate::kTruncate;
  const emu::Session session(chopped);
  const auto sum8 = [](float first, float step) {
    float result = 0;
    emu::RunLaunch({}, {128}, 64 * 128, [&] {
      Smem smem;
      const auto ones = smem.Alloc<e4m3, 1024>(64 * 128);
      for (int i = static_cast<int>(ThreadIdx().x); i < ones.count; i += 128)
        ones.Store(i, FromFloat<e4m3>(1.f));
      FenceAsyncProxy();
      Sync();
      const uint32_t small = PackFour<e4m3>(step, step, step, step), a[4] = {small, small, small, small};
      float d[32];
      for (float& x : d) x = first;
      WgmmaFence();
      WgmmaRs<e4m3>(d, a, SwizzledDescriptor(ones.Address(), 16, 1024), true);
      WgmmaCommit();
      WgmmaWait<0>(d);
      result = d[0];
    });
    return result;
  };
  EXPECT_EQ(sum8(0x1p13f, 1.f), 0x1p13f + 32);
  EXPECT_EQ(sum8(0x1p14f, 1.f), 0x1p14f);
  EXPECT_EQ(sum8(0.f, 1.f), 32.f);
  // 16 steps of 0.75 ulp of 1: each rounds up to one ulp, all together are 12 ulp, chopped none.
  const float ulp = 0x1p-23f;
  EXPECT_EQ(sum(emu::Accumulate::kFloatChain, 1.f, 0.75f * ulp), 1.f + 16 * ulp);
  EXPECT_EQ(sum(emu::Accumulate::kDouble, 1.f, 0.75f * ulp), 1.f + 12 * ulp);
  EXPECT_EQ(sum(emu::Accumulate::kTruncate, 1.f, 0.75f * ulp), 1.f);
}

}  // namespace
}  // namespace strata::kx
