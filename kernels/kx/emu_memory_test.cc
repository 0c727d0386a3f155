// Faults of memory and order planted in small kernels: each must be reported, at its line, in every wake
// order; and the same kernel put right must not be.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/kx/emu_test_util.h"

namespace strata::kx {
namespace {

using emu::Buffer;
using emu::RangeKind;

// --- shared memory -------------------------------------------------------------------------------
TEST(EmuShared, ReadOfAnotherThreadsWriteNeedsSync) {
  int write = 0, read = 0;
  bool sync = false;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(64);
    const int t = static_cast<int>(ThreadIdx().x);
    HERE(write) a.Store(t, 1.f);
    if (sync) Sync();
    HERE(read) a.Load(t ^ 33);
  };
  ExpectComplaint(64, 256, body, {&write, &read}, {"RACE", "uninitialized"});
  sync = true;
  ExpectClean(64, 256, body);
}

TEST(EmuShared, OverwritingWhatOthersStillReadNeedsSync) {
  int write = 0, read = 0;
  bool sync = false;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(64);
    const int t = static_cast<int>(ThreadIdx().x);
    a.Store(t, 1.f);
    Sync();
    HERE(read) a.Load(63 - t);
    if (sync) Sync();
    HERE(write) a.Store(t, 2.f);
  };
  ExpectComplaint(64, 256, body, {&write, &read}, {"RACE"});
  sync = true;
  ExpectClean(64, 256, body);
}

TEST(EmuShared, OneReaderOfManyIsRemembered) {
  // More readers of one word than a cell holds inline; only the last thread's read is unordered with the
  // write.
  int write = 0, read = 0;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(1);
    const int t = static_cast<int>(ThreadIdx().x);
    if (t == 0) a.Store(0, 1.f);
    Sync();
    if (t < 64) a.Load(0);
    if (t >= 64) {
      HERE(read) a.Load(0);
    }
    BarSync(1 + t / 64, 64);
    if (t == 0) {
      HERE(write) a.Store(0, 2.f);
    }
  };
  ExpectComplaint(128, 4, body, {&write, &read}, {"RACE"});
}

TEST(EmuShared, SyncwarpOrdersAndAShuffleDoesNot) {
  int write = 0, read = 0;
  bool syncwarp = false;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(32);
    const int t = static_cast<int>(ThreadIdx().x);
    HERE(write) a.Store(t, 1.f);
    if (syncwarp) {
      Syncwarp();
    } else {
      ShflXor(1.f, 1);
    }
    HERE(read) a.Load(t ^ 1);
  };
  ExpectComplaint(32, 128, body, {&write, &read}, {"RACE"});
  syncwarp = true;
  ExpectClean(32, 128, body);
}

TEST(EmuShared, HalvesOfOneWordMayBelongToTwoThreads) {
  ExpectClean(64, 128, [] {
    Smem smem;
    const auto a = smem.Alloc<bf16>(64);
    const int t = static_cast<int>(ThreadIdx().x);
    a.Store(t, FromFloat<bf16>(static_cast<float>(t)));
    Sync();
    EXPECT_EQ(ToFloat(a.Load(63 - t)), static_cast<float>(63 - t));
  });
}

TEST(EmuShared, UninitializedReadsAreSeen) {
  int line = 0;
  ExpectComplaint(32, 128,
                  [&] {
                    Smem smem;
                    const auto a = smem.Alloc<float>(32);
                    HERE(line) a.Load(LaneId());
                  },
                  {&line}, {"uninitialized shared"});
}

TEST(EmuShared, IndicesAddressesAndAlignmentAreChecked) {
  int line = 0;
  const auto index = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(8);
    HERE(line) a.Store(8, 1.f);
  };
  ExpectComplaint(32, 64, index, {&line}, {"shared index 8"});
  const auto slice = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(8);
    HERE(line) a.Slice(4, 5);
  };
  ExpectComplaint(32, 64, slice, {&line}, {"shared index 4"});
  const auto past = [&] {
    Smem smem;
    const auto a = smem.Alloc<bf16>(8 * 8), b = smem.Alloc<bf16>(8 * 8);
    if (LaneId() == 0) {
      for (int i = 0; i < 64; ++i) a.Store(i, bf16{0});
      for (int i = 0; i < 64; ++i) b.Store(i, bf16{0});
    }
    Syncwarp();
    uint32_t r[2];
    HERE(line) LdMatrixX2(r, a.Address(LaneId() * 8));  // the second matrix begins behind the array
  };
  ExpectComplaint(32, 256 + 128, past, {&line}, {"outside every array"});
  const auto odd = [&] {
    Smem smem;
    const auto a = smem.Alloc<bf16>(16 * 8 + 8);
    for (int i = LaneId(); i < 136; i += 32) a.Store(i, bf16{0});
    Syncwarp();
    uint32_t r[2];
    HERE(line) LdMatrixX2(r, a.Address(LaneId() % 16 * 8 + 1));
  };
  ExpectComplaint(32, 512, odd, {&line}, {"misaligned"});
}

TEST(EmuShared, CarvingMoreThanTheLaunchGaveOrDifferentlyIsSeen) {
  int line = 0;
  const auto more = [&] {
    Smem smem;
    HERE(line) smem.Alloc<float>(33);
  };
  ExpectComplaint(32, 128, more, {&line}, {"carves 132 bytes"});
  const auto differently = [&] {
    Smem smem;
    HERE(line) smem.Alloc<float>(LaneId() + 1);
  };
  ExpectComplaint(32, 128, differently, {&line}, {"disagree"});
}

// --- cp.async ------------------------------------------------------------------------------------
TEST(EmuCopies, DataMayBeReadAfterTheWaitAndTheBarrierOnly) {
  Buffer<float> in("in", std::vector<float>(256, 3.f), RangeKind::kInput);
  int copy = 0, read = 0;
  bool wait = false, sync = false;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(256);
    const int t = static_cast<int>(ThreadIdx().x);
    HERE(copy) CpAsync16(a.Address(4 * t), Gmem<const float>(in.data()) + 4 * t, t != 5);
    CpAsyncCommit();
    if (wait) CpAsyncWait<0>();
    if (sync) Sync();
    float x;
    HERE(read) x = a.Load(4 * (t ^ 33));
    if (!wait) CpAsyncWait<0>();
    if (wait && sync) {
      EXPECT_EQ(x, (t ^ 33) == 5 ? 0.f : 3.f);
    }
  };
  sync = true;
  ExpectComplaint(64, 1024, body, {&read}, {"in flight"});
  wait = true;
  sync = false;
  ExpectComplaint(64, 1024, body, {&read, &copy}, {"RACE", "in flight", "uninitialized"});
  sync = true;
  ExpectClean(64, 1024, body);
}

TEST(EmuCopies, AGroupLandsWhenItIsWaitedForAndNotBefore) {
  Buffer<float> in("in", std::vector<float>(8, 3.f), RangeKind::kInput);
  int read = 0;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(8);
    if (ThreadIdx().x != 0) return;
    const Gmem<const float> g(in.data());
    CpAsync16(a.Address(0), g, true);
    CpAsyncCommit();
    CpAsync16(a.Address(4), g + 4, true);
    CpAsyncCommit();
    CpAsyncWait<1>();
    EXPECT_EQ(a.Load(0), 3.f);
    HERE(read) a.Load(4);
    CpAsyncWait<0>();
  };
  ExpectComplaint(32, 32, body, {&read}, {"in flight"});
}

TEST(EmuCopies, ExitWithACopyInFlightIsSeen) {
  Buffer<float> in("in", std::vector<float>(4, 3.f), RangeKind::kInput);
  int line = 0;
  bool commit = false;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(4);
    if (ThreadIdx().x == 0) {
      HERE(line) CpAsync16(a.Address(), Gmem<const float>(in.data()), true);
    }
    if (commit) CpAsyncCommit();
  };
  ExpectComplaint(32, 16, body, {&line}, {"exits before"});
  commit = true;
  ExpectComplaint(32, 16, body, {&line}, {"exits before"});
}

// --- global memory -------------------------------------------------------------------------------
TEST(EmuGlobal, BoundsKindsAndAlignment) {
  Buffer<float> in("in", std::vector<float>(32, 1.f), RangeKind::kInput);
  Buffer<float> out("out", std::vector<float>(32), RangeKind::kOutput);
  int line = 0;
  const Gmem<const float> gin(in.data());
  const Gmem<float> gout(out.data());
  const auto past = [&] { HERE(line) gin.Load(32); };
  ExpectComplaint(32, 0, past, {&line}, {"outside every registered range"});
  const auto before = [&] { HERE(line) gin.Load(-1); };
  ExpectComplaint(32, 0, before, {&line}, {"outside every registered range"});
  const auto across = [&] { HERE(line) gin.LoadVec<16>(30); };
  ExpectComplaint(32, 0, across, {&line}, {"misaligned 16-byte"});
  const auto unwritten = [&] { HERE(line) gout.Load(LaneId()); };
  ExpectComplaint(32, 0, unwritten, {&line}, {"uninitialized out[byte"});
  const auto input = [&] { HERE(line) Gmem<float>(in.data()).Store(LaneId(), 0.f); };
  ExpectComplaint(32, 0, input, {&line}, {"which is an input"});
  Buffer<float> copy("copy", std::vector<float>(32), RangeKind::kOutput);
  EXPECT_FALSE(copy.range().Initialized(0));
  ExpectClean(32, 0, [&] {
    Gmem<float>(copy.data()).Store(LaneId(), gin.Load(LaneId()));
    EXPECT_EQ(Gmem<float>(copy.data()).Load(LaneId()), 1.f);
  });
  EXPECT_TRUE(copy.range().Initialized(127));
}

TEST(EmuGlobal, RacesWithinABlockAndBetweenBlocks) {
  Buffer<float> data("data", std::vector<float>(64, 1.f), RangeKind::kInOut);
  const Gmem<float> g(data.data());
  int write = 0, read = 0;
  bool sync = false;
  const auto body = [&] {
    const int t = static_cast<int>(ThreadIdx().x);
    HERE(write) g.Store(t, 2.f);
    if (sync) Sync();
    HERE(read) g.Load(63 - t);
  };
  ExpectComplaint(64, 0, body, {&write, &read}, {"RACE", "data[byte"});
  sync = true;
  ExpectClean(64, 0, body);
  // A barrier orders its own block only.
  ExpectComplaint(64, 0, body, {&write, &read}, {"RACE", "data[byte"}, /*blocks=*/2);
}

TEST(EmuGlobal, OnlyAcqRelOrdersBlocks) {
  int line = 0, write = 0;
  bool acq_rel = false;
  const auto run = [&](bool clean) {
    const auto make = [&](Gmem<float> data, Gmem<uint32_t> counter) {
      return [&, data, counter] {
        if (ThreadIdx().x != 0) return;
        HERE(write) data.Store(BlockIdx().x, 1.f);
        uint32_t before;
        if (acq_rel) {
          before = AtomicAddAcqRel(counter, 0, 1);
        } else {
          before = AtomicAdd(counter, 0, 1u);
        }
        if (before != 3) return;
        for (int b = 0; b < 4; ++b) {
          HERE(line) data.Load(b);
        }
      };
    };
    for (const emu::Order order : emu::kAllOrders) {
      Buffer<float> data("data", std::vector<float>(4, 0.f), RangeKind::kInOut);
      Buffer<uint32_t> counter("counter", {0}, RangeKind::kInOut);
      emu::Options options;
      options.order = order;
      const emu::Session session(options);
      const emu::Report report = emu::RunLaunch({4}, {32}, 0, make(data.data(), counter.data()));
      if (clean) {
        EXPECT_TRUE(report.ok()) << report.FirstError();
      } else {
        EXPECT_TRUE(IsAt(report.FirstError(), {&line, &write}, {"RACE"})) << report.FirstError();
      }
    }
  };
  run(false);
  acq_rel = true;
  run(true);
}

TEST(EmuGlobal, EarlierLaunchesComeBeforeLaterOnes) {
  Buffer<float> data("data", std::vector<float>(64), RangeKind::kOutput);
  const Gmem<float> g(data.data());
  ExpectClean(64, 0, [&] { g.Store(ThreadIdx().x, 1.f); });
  ExpectClean(64, 0, [&] { EXPECT_EQ(g.Load(63 - ThreadIdx().x), 1.f); });
}

TEST(EmuGlobal, AtomicsDoNotRaceWithEachOtherButWithPlainAccesses) {
  Buffer<uint32_t> counter("counter", {0}, RangeKind::kInOut);
  const Gmem<uint32_t> g(counter.data());
  ExpectClean(64, 0, [&] {
    AtomicAdd(g, 0, 1u);
    AtomicMax(g, 0, 1u);
    AtomicOr(g, 0, 0u);
  });
  int line = 0, read = 0;
  ExpectComplaint(64, 0,
                  [&] {
                    HERE(line) AtomicAdd(g, 0, 1u);
                    if (ThreadIdx().x == 40) {
                      HERE(read) g.Load(0);
                    }
                  },
                  {&line, &read}, {"RACE"});
}

TEST(EmuGlobal, LaunchesFromSeveralThreadsAtOnceKeepTheirReports) {
  std::vector<std::thread> threads;
  std::vector<std::string> first(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i, &first] {
      Buffer<float> out("out", std::vector<float>(256), RangeKind::kOutput);
      const Gmem<float> g(out.data());
      const emu::Session session;
      for (int round = 0; round < 20; ++round) {
        emu::RunLaunch({2}, {128}, 4, [&] {
          Smem smem;
          const auto a = smem.Alloc<float>(1);
          if (i == 3) a.Load(0);
          g.Store(BlockIdx().x * 128 + ThreadIdx().x, static_cast<float>(i));
          Sync();
        });
      }
      first[i] = session.report().FirstError();
      for (size_t k = 0; k < 256; ++k) EXPECT_EQ(out[k], static_cast<float>(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first[i], "");
  EXPECT_NE(first[3].find("uninitialized"), std::string::npos) << first[3];
}

}  // namespace
}  // namespace strata::kx
