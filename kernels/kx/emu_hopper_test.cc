// Faults planted in uses of mbarriers, TMA, wgmma and setmaxnreg: each reported at its line in every wake
// order.
#include <gtest/gtest.h>

#include "kernels/kx/emu_test_util.h"

namespace strata::kx {
namespace {

using emu::Buffer;
using emu::RangeKind;

constexpr int kTile = 64 * 64;  // of bf16: 64 rows of 128 bytes

struct Tensor {
  explicit Tensor(RangeKind kind) : data("tensor", std::vector<bf16>(kTile, bf16{0x3f80}), kind) {
    TensorMapSpec spec;
    spec.base = data.data();
    spec.extent[0] = spec.extent[1] = 64;
    spec.stride_bytes[0] = 128;
    spec.box[0] = spec.box[1] = 64;
    EXPECT_EQ(EncodeTensorMap(spec, &map).message, "");
  }
  Buffer<bf16> data;
  TensorMap map;
};

// --- mbarriers and TMA loads ---------------------------------------------------------------------
struct LoadFaults {
  bool fence_init = true, sync = true, wait = true;
  int bytes = kTile * 2, offset = 0;
};
struct LoadLines {
  int load = 0, read = 0, wait = 0, expect = 0;
};
// One thread loads a tile, all read it.
std::function<void()> LoadTile(const Tensor& in, LoadFaults faults, LoadLines* lines) {
  return [&in, faults, lines] {
    Smem smem;
    const auto a = smem.Alloc<bf16, 1024>(kTile);
    const auto bar = smem.Alloc<uint64_t, 8>(1);
    const int t = static_cast<int>(ThreadIdx().x);
    if (t == 0) {
      MbarInit(bar.Address(), 1);
      if (faults.fence_init) FenceMbarInit();
    }
    if (faults.sync) Sync();
    if (t == 0) {
      HERE(lines->expect) MbarArriveExpectTx(bar.Address(), faults.bytes);
      HERE(lines->load) TmaLoad(a.Address(faults.offset), in.map, bar.Address(), 0, 0);
    }
    if (faults.wait) {
      HERE(lines->wait) MbarWait(bar.Address(), 0);
    }
    HERE(lines->read) a.Load(t);
    if (!faults.wait) MbarWait(bar.Address(), 0);
  };
}
TEST(EmuHopper, TmaLoad) {
  const Tensor in(RangeKind::kInput);
  constexpr size_t kShared = kTile * 2 + 8;
  LoadLines lines;
  ExpectClean(64, kShared, LoadTile(in, {}, &lines));
  LoadFaults faults;
  faults.wait = false;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.read},
                  {"in flight", "uninitialized", "RACE"});
  faults = {};
  faults.fence_init = false;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.load}, {"no FenceMbarInit"});
  faults = {};
  faults.sync = false;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.wait},
                  {"RACE", "no mbarrier was initialized"});
  faults = {};
  faults.bytes *= 2;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.wait},
                  {"DEADLOCK: waits at an mbarrier"});
  faults.bytes = kTile;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.wait},
                  {"DEADLOCK: waits at an mbarrier"});
  faults = {};
  faults.offset = 64;
  ExpectComplaint(64, kShared, LoadTile(in, faults, &lines), {&lines.load}, {"multiple of 1024"});
}

TEST(EmuHopper, MbarrierPhasesOrderARingAndItsAbsenceIsARace) {
  const Tensor in(RangeKind::kInput);
  int load = 0, read = 0, arrive = 0;
  bool wait_empty = true;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<bf16, 1024>(kTile);
    const auto bars = smem.Alloc<uint64_t, 8>(2);
    const SharedAddress full = bars.Address(0), empty = bars.Address(1);
    const int t = static_cast<int>(ThreadIdx().x);
    if (t == 0) {
      MbarInit(full, 1);
      MbarInit(empty, 32);
      FenceMbarInit();
    }
    Sync();
    for (int i = 0; i < 5; ++i) {
      if (t == 0) {
        if (wait_empty) MbarWait(empty, (i & 1) ^ 1);
        HERE(arrive) MbarArriveExpectTx(full, kTile * 2);
        HERE(load) TmaLoad(a.Address(), in.map, full, 0, 0);
      } else if (t >= 32) {
        MbarWait(full, i & 1);
        HERE(read) a.Load(t);
        MbarArrive(empty);
      }
    }
  };
  ExpectClean(64, kTile * 2 + 16, body);
  wait_empty = false;
  ExpectComplaint(64, kTile * 2 + 16, body, {&load, &read, &arrive}, {"RACE", "in flight", "more arrivals"});
}

TEST(EmuHopper, TmaStoresZeroNothingOutsideAndLoadsZerosFromOutside) {
  Buffer<float> in("in", std::vector<float>(5 * 8, 2.f), RangeKind::kInput);
  Buffer<float> out("out", std::vector<float>(5 * 8, 7.f), RangeKind::kInOut);
  TensorMapSpec spec;
  spec.base = in.data();
  spec.element_bytes = 4;
  spec.extent[0] = 8;
  spec.extent[1] = 5;
  spec.stride_bytes[0] = 32;
  spec.box[0] = 4;
  spec.box[1] = 4;
  spec.swizzle128 = false;
  TensorMap min, mout;
  ASSERT_TRUE(EncodeTensorMap(spec, &min).ok());
  spec.base = out.data();
  ASSERT_TRUE(EncodeTensorMap(spec, &mout).ok());
  ExpectClean(32, 64 + 64 + 8, [&] {
    Smem smem;
    const auto a = smem.Alloc<float, 128>(16);
    const auto bar = smem.Alloc<uint64_t, 8>(1);
    if (LaneId() == 0) {
      MbarInit(bar.Address(), 1);
      FenceMbarInit();
      MbarArriveExpectTx(bar.Address(), 64);
      TmaLoad(a.Address(), min, bar.Address(), 6, -2);  // rows -2..1, columns 6..9
      MbarWait(bar.Address(), 0);
      for (int r = 0; r < 4; ++r) {
        for (int c = 0; c < 4; ++c) EXPECT_EQ(a.Load(4 * r + c), r >= 2 && c < 2 ? 2.f : 0.f);
      }
      TmaStore(mout, a.Address(), 6, 3);  // rows 3..6, columns 6..9
      BulkCommit();
      BulkWait<0>();
    }
  });
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < 8; ++c) EXPECT_EQ(out[r * 8 + c], c >= 6 && r >= 3 ? 0.f : 7.f) << r << " " << c;
  }
}

struct StoreFaults {
  bool fence = true, wait = true, reuse = false;
};
TEST(EmuHopper, TmaStore) {
  int store = 0, write = 0;
  const auto body = [&](const Tensor& out, StoreFaults faults) {
    return [&, faults] {
      Smem smem;
      const auto a = smem.Alloc<bf16, 1024>(kTile);
      for (int i = LaneId(); i < kTile; i += 32) {
        HERE(write) a.Store(i, bf16{0x4000});
      }
      if (faults.fence) FenceAsyncProxy();
      Syncwarp();
      if (LaneId() != 0) return;
      HERE(store) TmaStore(out.map, a.Address(), 0, 0);
      BulkCommit();
      if (faults.reuse) {
        HERE(write) a.Store(7, bf16{0});
      }
      if (faults.wait) BulkWaitRead<0>();
    };
  };
  for (const emu::Order order : emu::kAllOrders) {
    Tensor out(RangeKind::kOutput);
    EXPECT_EQ(RunInOrder(order, 32, kTile * 2, body(out, {}), 1).FirstError(), "");
    for (int i = 0; i < kTile; ++i) ASSERT_EQ(out.data[i].bits, 0x4000);
    StoreFaults faults;
    faults.fence = false;
    std::string error = RunInOrder(order, 32, kTile * 2, body(out, faults), 1).FirstError();
    EXPECT_TRUE(IsAt(error, {&store}, {"no FenceAsyncProxy"})) << error;
    faults = {};
    faults.wait = false;
    error = RunInOrder(order, 32, kTile * 2, body(out, faults), 1).FirstError();
    EXPECT_TRUE(IsAt(error, {&store}, {"exits before this TMA store has read"})) << error;
    faults = {};
    faults.reuse = true;
    error = RunInOrder(order, 32, kTile * 2, body(out, faults), 1).FirstError();
    EXPECT_TRUE(IsAt(error, {&store, &write}, {"RACE"})) << error;
  }
}

TEST(EmuHopper, MisusedMapsAndMbarriers) {
  const Tensor in(RangeKind::kInput);
  const TensorMap never = {};
  int line = 0;
  const auto setup = [&](const std::function<void(SharedAddress, SharedAddress)>& use) {
    return [use] {
      Smem smem;
      const auto a = smem.Alloc<bf16, 1024>(kTile);
      const auto bar = smem.Alloc<uint64_t, 8>(1);
      if (ThreadIdx().x != 0) return;
      MbarInit(bar.Address(), 1);
      FenceMbarInit();
      use(a.Address(), bar.Address());
    };
  };
  constexpr size_t kShared = kTile * 2 + 8;
  const auto rank = setup([&](SharedAddress a, SharedAddress bar) {
    line = __LINE__ + 1;
    TmaLoad(a, in.map, bar, 0, 0, 0);
  });
  ExpectComplaint(32, kShared, rank, {&line}, {"3 coordinates and a tensor map of rank 2"});
  const auto unencoded = setup([&](SharedAddress a, SharedAddress bar) {
    line = __LINE__ + 1;
    TmaLoad(a, never, bar, 0, 0);
  });
  ExpectComplaint(32, kShared, unencoded, {&line}, {"never encoded"});
  const auto arrivals = setup([&](SharedAddress, SharedAddress bar) {
    MbarArriveExpectTx(bar, 64);
    HERE(line) MbarArrive(bar);
  });
  ExpectComplaint(32, kShared, arrivals, {&line}, {"more arrivals"});
  const auto again = setup([&](SharedAddress, SharedAddress bar) { HERE(line) MbarInit(bar, 1); });
  ExpectComplaint(32, kShared, again, {&line}, {"initialized a second time"});
  const auto bytes = setup([&](SharedAddress, SharedAddress bar) {
    line = __LINE__ + 1;
    MbarArriveExpectTx(bar, 1 << 20);
  });
  ExpectComplaint(32, kShared, bytes, {&line}, {"expects 1048576 bytes"});
}

TEST(EmuHopper, TensorMapSpecsAreCheckedByField) {
  const auto wrong = [](const std::function<void(TensorMapSpec&)>& change) {
    alignas(16) static float memory[64];
    TensorMapSpec spec;
    spec.base = memory;
    spec.extent[0] = spec.extent[1] = 8;
    spec.stride_bytes[0] = 16;
    spec.box[0] = 64;
    spec.box[1] = 8;
    change(spec);
    TensorMap map;
    return EncodeTensorMap(spec, &map).message;
  };
  EXPECT_EQ(wrong([](TensorMapSpec&) {}), "");
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.rank = 5; }).find("rank"), std::string::npos);
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.element_bytes = 3; }).find("element_bytes"), std::string::npos);
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.base = static_cast<const char*>(s.base) + 2; }).find("base"),
            std::string::npos);
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.extent[1] = 0; }).find("extent[1]"), std::string::npos);
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.stride_bytes[0] = 24; }).find("stride_bytes[0]"),
            std::string::npos);
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.box[1] = 257; }).find("box[1]"), std::string::npos);
  for (const uint32_t columns : {32, 72}) {
    EXPECT_NE(wrong([&](TensorMapSpec& s) { s.box[0] = columns; }).find("box[0] must span 128 bytes"),
              std::string::npos);
  }
  EXPECT_EQ(wrong([](TensorMapSpec& s) { s.box[0] = 32, s.swizzle128 = false; }), "");
  EXPECT_NE(wrong([](TensorMapSpec& s) { s.box[0] = 4; }).find("box[0] must span a multiple"),
            std::string::npos);
}

// --- wgmma ---------------------------------------------------------------------------------------
struct WgmmaFaults {
  bool proxy_fence = true, sync = true, wgmma_fence = true, wait = true, touch = false, other_shape = false;
  bool overwrite_before_wait = false, clean = false;
  int groups_left_at_read = 0;
};
struct WgmmaLines {
  int wgmma = 0, store = 0, wait = 0, overwrite = 0;
};
// A warpgroup writes A and B by ordinary stores and multiplies them; all ones, so D is 16.
std::function<void()> Multiply(WgmmaFaults faults, WgmmaLines* lines) {
  return [faults, lines] {
    Smem smem;
    const auto a = smem.Alloc<bf16, 1024>(kTile), b = smem.Alloc<bf16, 1024>(kTile);
    const int t = static_cast<int>(ThreadIdx().x);
    for (int i = t; i < kTile; i += 128) {
      a.Store(i, bf16{0x3f80});
      HERE(lines->store) b.Store(i, bf16{0x3f80});
    }
    if (faults.proxy_fence) FenceAsyncProxy();
    if (faults.sync) Sync();
    float d[32];
    for (float& x : d) x = 0.f;
    const uint64_t da = SwizzledDescriptor(a.Address(), 16, 1024);
    const uint64_t db = SwizzledDescriptor(b.Address() + (faults.other_shape && t >= 64 ? 32 : 0), 16, 1024);
    if (faults.wgmma_fence) WgmmaFence();
    HERE(lines->wgmma) WgmmaSs<bf16>(d, da, db, false);
    WgmmaCommit();
    if (faults.touch) d[3] = 1.f;
    if (faults.overwrite_before_wait) {
      HERE(lines->overwrite) b.Store(t, bf16{0});
    }
    if (faults.groups_left_at_read == 0 && faults.wait) {
      HERE(lines->wait) WgmmaWait<0>(d);
    } else if (faults.wait) {
      HERE(lines->wait) WgmmaWait<1>(d);
    }
    for (const float x : d) {
      if (faults.clean) {
        EXPECT_EQ(x, 16.f);
      } else if (!faults.wait) {
        EXPECT_NE(x, x);  // poisoned until the wait
      }
    }
    if (faults.wait && faults.groups_left_at_read != 0) WgmmaWait<0>(d);
  };
}
TEST(EmuHopper, Wgmma) {
  constexpr size_t kShared = kTile * 4;
  WgmmaLines lines;
  WgmmaFaults faults;
  faults.clean = true;
  ExpectClean(128, kShared, Multiply(faults, &lines));
  faults = {};
  faults.wgmma_fence = false;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma}, {"does not begin with WgmmaFence"});
  faults = {};
  faults.proxy_fence = false;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma}, {"no FenceAsyncProxy"});
  faults = {};
  faults.wait = false;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma}, {"exits before this wgmma"});
  faults = {};
  faults.touch = true;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma},
                  {"accumulator register 3 was written"});
  faults = {};
  faults.other_shape = true;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma}, {"issue different wgmmas"});
  faults = {};
  faults.groups_left_at_read = 1;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wait}, {"hands over accumulators"});
}

// Rows of 128 ones of e4m3; how the operands may be misused.
struct Wgmma8Faults {
  bool fence = true, proxy_fence = true;
  int offset = 0;  // of B's descriptor, bytes
  bool written_in_flight = false;
};
std::function<void()> Multiply8(Wgmma8Faults faults, WgmmaLines* lines) {
  return [faults, lines] {
    Smem smem;
    const auto b = smem.Alloc<e4m3, 1024>(72 * 128);
    const int t = static_cast<int>(ThreadIdx().x);
    for (int i = t; i < b.count; i += 128) b.Store(i, e4m3{0x38});
    if (faults.proxy_fence) FenceAsyncProxy();
    Sync();
    float d[32];
    for (float& x : d) x = 0.f;
    uint32_t a[4] = {0x38383838, 0x38383838, 0x38383838, 0x38383838};
    if (faults.fence) WgmmaFence(a);
    const uint64_t rows = SwizzledDescriptor(b.Address() + faults.offset, 16, 1024);
    HERE(lines->wgmma) WgmmaRs<e4m3>(d, a, rows, false);
    WgmmaCommit();
    if (faults.written_in_flight) d[5] = 0.f;
    WgmmaWait<0>(d);
    if (faults.fence && faults.proxy_fence && faults.offset == 0 && !faults.written_in_flight) {
      for (const float x : d) EXPECT_EQ(x, 32.f);
    }
  };
}
TEST(EmuHopper, WgmmaOfE4m3) {
  constexpr size_t kShared = 72 * 128;
  WgmmaLines lines;
  ExpectClean(128, kShared, Multiply8({}, &lines));
  ExpectComplaint(128, kShared, Multiply8({.fence = false}, &lines), {&lines.wgmma},
                  {"does not begin with WgmmaFence"});
  ExpectComplaint(128, kShared, Multiply8({.proxy_fence = false}, &lines), {&lines.wgmma},
                  {"no FenceAsyncProxy"});
  ExpectComplaint(128, kShared, Multiply8({.offset = 128}, &lines), {&lines.wgmma},
                  {"must begin in the first row of 1024 aligned bytes"});
  ExpectComplaint(128, kShared, Multiply8({.written_in_flight = true}, &lines), {&lines.wgmma},
                  {"accumulator register 5 was written"});
  // A step of K past the first 128 bytes of the last rows: behind the array.
  ExpectComplaint(128, kShared, Multiply8({.offset = 2048}, &lines), {&lines.wgmma}, {"shared 0x"});
}
// Operands whose K is not along the rows do not compile, on either target (testdata/wgmma_e4m3_mn_major.cu).
template <class T, Major kA, Major kB>
constexpr bool kMultiplies = requires(float (&d)[32]) {
  WgmmaSs<T, kA, kB>(d, 0, 0, false);
};
template <class T, Major kB>
constexpr bool kMultipliesRegisters = requires(float (&d)[32], const uint32_t (&a)[4]) {
  WgmmaRs<T, kB>(d, a, 0, false);
};
static_assert(kMultiplies<bf16, Major::kMN, Major::kMN> && kMultiplies<e4m3, Major::kK, Major::kK>);
static_assert(!kMultiplies<e4m3, Major::kMN, Major::kK> && !kMultiplies<e4m3, Major::kK, Major::kMN>);
static_assert(kMultipliesRegisters<e4m3, Major::kK> && !kMultipliesRegisters<e4m3, Major::kMN>);
static_assert(!kMultiplies<e5m2, Major::kK, Major::kK> && !kMultiplies<float, Major::kK, Major::kK>);

TEST(EmuHopper, WgmmaReadsRaceWithUnorderedWrites) {
  constexpr size_t kShared = kTile * 4;
  WgmmaLines lines;
  WgmmaFaults faults;
  faults.sync = false;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma, &lines.store},
                  {"RACE", "uninitialized"});
  faults = {};
  faults.overwrite_before_wait = true;
  ExpectComplaint(128, kShared, Multiply(faults, &lines), {&lines.wgmma, &lines.overwrite}, {"RACE"});
}

TEST(EmuHopper, AFenceMayNotNameAccumulatorsInFlight) {
  int line = 0;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<bf16, 1024>(kTile);
    for (int i = static_cast<int>(ThreadIdx().x); i < kTile; i += 128) a.Store(i, bf16{0});
    FenceAsyncProxy();
    Sync();
    float d[32] = {}, other[32] = {};
    uint32_t registers[2][4] = {};
    const uint64_t operand = SwizzledDescriptor(a.Address(), 16, 1024);
    WgmmaFence(registers);
    HERE(line) WgmmaSs<bf16>(d, operand, operand, false);
    WgmmaCommit();
    WgmmaFence(other, d);
    WgmmaSs<bf16>(other, operand, operand, false);
    WgmmaCommit();
    WgmmaWait<0>(d, other);
  };
  ExpectComplaint(128, kTile * 2, body, {&line}, {"WgmmaFence names accumulators"});
}

// --- registers -----------------------------------------------------------------------------------
TEST(EmuHopper, RegistersMustFitAndBeSetByWholeWarpgroups) {
  int dec = 0, inc = 0;
  const auto fits = [] {
    if (ThreadIdx().x < 128) {
      SetMaxRegistersDec<24>();
    } else {
      SetMaxRegistersInc<240>();
    }
  };
  ExpectClean(384, 0, fits);
  const auto over = [&] {
    if (ThreadIdx().x < 128) {
      HERE(dec) SetMaxRegistersDec<40>();
    } else {
      HERE(inc) SetMaxRegistersInc<240>();
    }
  };
  ExpectComplaint(384, 0, over, {&inc, &dec}, {"it was launched with 64512"});
  // 65536 of them exist, but 384 threads are launched with 168 each.
  const auto over_the_launch = [&] {
    if (ThreadIdx().x < 128) {
      HERE(dec) SetMaxRegistersDec<32>();
    } else {
      HERE(inc) SetMaxRegistersInc<240>();
    }
  };
  ExpectComplaint(384, 0, over_the_launch, {&inc, &dec}, {"gives the block 65536 registers"});
  const auto part = [&] {
    if (ThreadIdx().x < 32) {
      HERE(dec) SetMaxRegistersDec<24>();
    } else {
      HERE(inc) SetMaxRegistersInc<40>();
    }
  };
  ExpectComplaint(128, 0, part, {&inc, &dec}, {"threads of one warpgroup"});
}

TEST(EmuHopper, RegistersAreRaisedFromLessAndLoweredFromMore) {
  int dec = 0, inc = 0, twice = 0;
  const auto raised_to_less = [&] {
    if (ThreadIdx().x < 128) {
      HERE(inc) SetMaxRegistersInc<160>();
    } else if (ThreadIdx().x < 256) {
      SetMaxRegistersInc<240>();
    } else {
      SetMaxRegistersDec<24>();
    }
  };
  ExpectComplaint(384, 0, raised_to_less, {&inc}, {"inc to 160 of a thread that was launched with 168"});
  const auto lowered_to_more = [&] { HERE(dec) SetMaxRegistersDec<136>(); };
  ExpectComplaint(512, 0, lowered_to_more, {&dec}, {"dec to 136 of a thread that was launched with 128"});
  // Not what the launch bound leaves, which is 256: no thread wants more than 160.
  const auto unequal = [&] {
    if (ThreadIdx().x < 128) {
      HERE(dec) SetMaxRegistersDec<168>();
    } else {
      SetMaxRegistersInc<160>();
    }
  };
  ExpectComplaint(256, 0, unequal, {&dec}, {"dec to 168 of a thread that was launched with 160"});
  const auto again = [&] {
    SetMaxRegistersDec<40>();
    HERE(twice) SetMaxRegistersDec<24>();
  };
  ExpectComplaint(128, 0, again, {&twice}, {"a second setmaxnreg"});
}

}  // namespace
}  // namespace strata::kx
