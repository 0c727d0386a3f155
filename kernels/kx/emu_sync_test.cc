// Barriers, collectives, wake orders and launches: what must be reported, where, and what must work.
#include <gtest/gtest.h>

#include "kernels/kx/emu_test_util.h"

namespace strata::kx {
namespace {

// --- divergence and deadlock ---------------------------------------------------------------------
TEST(EmuSync, LanesAtDifferentPlacesAreDivergent) {
  int a = 0, b = 0;
  const auto shuffles = [&] {
    if (LaneId() < 7) {
      HERE(a) ShflXor(1.f, 1);
    } else {
      HERE(b) ShflXor(1.f, 1);
    }
  };
  ExpectComplaint(32, 0, shuffles, {&a, &b}, {"divergent warp collective"});
  const auto kinds = [&] {
    if (LaneId() < 7) {
      HERE(a) Ballot(true);
    } else {
      HERE(b) ShflXor(1.f, 1);
    }
  };
  ExpectComplaint(32, 0, kinds, {&a, &b}, {"divergent warp collective"});
  const auto syncs = [&] {
    if (ThreadIdx().x < 32) {
      HERE(a) Sync();
    } else {
      HERE(b) Sync();
    }
  };
  ExpectComplaint(64, 0, syncs, {&a, &b}, {"divergent Sync"});
}

TEST(EmuSync, AMissingLaneOrThreadIsADeadlockAtItsPlace) {
  int line = 0;
  const auto lane = [&] {
    if (LaneId() == 3) return;
    HERE(line) Syncwarp();
  };
  ExpectComplaint(32, 0, lane, {&line}, {"DEADLOCK: waits at a warp collective"});
  const auto warp = [&] {
    if (ThreadIdx().x >= 32) return;
    HERE(line) Sync();
  };
  ExpectComplaint(64, 0, warp, {&line}, {"DEADLOCK: waits at a barrier"});
  // The emulator survives it.
  ExpectClean(64, 0, [] { Sync(); });
}

TEST(EmuSync, NamedBarriersOrderProducerAndConsumer) {
  int write = 0, read = 0;
  bool order = true;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(64);
    const int t = static_cast<int>(ThreadIdx().x);
    for (int round = 0; round < 3; ++round) {
      if (t < 64) {
        if (round > 0) BarSync(2, 128);  // the consumers are done with the last round
        HERE(write) a.Store(t, static_cast<float>(round));
        if (order) BarArrive(1, 128);
      } else {
        if (order) BarSync(1, 128);
        float x;
        HERE(read) x = a.Load(127 - t);
        if (order) {
          EXPECT_EQ(x, static_cast<float>(round));
        }
        if (round < 2) BarArrive(2, 128);
      }
    }
  };
  ExpectClean(128, 256, body);
  order = false;
  ExpectComplaint(128, 256, body, {&write, &read}, {"RACE", "uninitialized"});
}

TEST(EmuSync, AnArrivalPublishesNothingThatComesAfterIt) {
  int write = 0, read = 0;
  const auto body = [&] {
    Smem smem;
    const auto a = smem.Alloc<float>(1);
    if (ThreadIdx().x < 32) {
      BarArrive(1, 64);
      if (LaneId() == 0) {
        HERE(write) a.Store(0, 1.f);
      }
    } else {
      BarSync(1, 64);
      HERE(read) a.Load(0);
    }
  };
  ExpectComplaint(64, 4, body, {&write, &read}, {"RACE", "uninitialized"});
}

TEST(EmuSync, BarriersAreUsedAsTheIsaDemands) {
  int a = 0, b = 0;
  const auto counts = [&] {
    if (ThreadIdx().x < 32) {
      HERE(a) BarSync(1, 64);
    } else {
      HERE(b) BarSync(1, 96);
    }
  };
  ExpectComplaint(64 + 32, 0, counts, {&a, &b}, {"barrier 1"});
  const auto part = [&] { HERE(a) BarSync(1, 48); };
  ExpectComplaint(64, 0, part, {&a}, {"a multiple of 32"});
  const auto id = [&] { HERE(a) BarSync(16, 32); };
  ExpectComplaint(32, 0, id, {&a}, {"ids are 0..15"});
  const auto halves = [&] {
    if (LaneId() < 16) {
      HERE(a) BarSync(1, 32);
    }
  };
  ExpectComplaint(64, 0, halves, {&a}, {"whole warps"});
}

// --- what collectives compute --------------------------------------------------------------------
TEST(EmuSync, ShufflesAndVotes) {
  ExpectClean(64, 0, [] {
    const int lane = LaneId(), warp = WarpId();
    EXPECT_EQ(ShflXor(100 * warp + lane, 5), 100 * warp + (lane ^ 5));
    EXPECT_EQ(ShflDown(lane, 3), lane < 29 ? lane + 3 : lane);
    EXPECT_EQ(ShflIdx(lane * 0.5, 7), 3.5);
    EXPECT_EQ(ShflIdx(static_cast<uint64_t>(lane) << 40, 33), uint64_t{1} << 40);
    EXPECT_EQ(Ballot(lane % 3 == warp), warp == 0 ? 0x49249249u : 0x92492492u);
    EXPECT_TRUE(Any(lane == 31));
    EXPECT_FALSE(Any(lane == 32));
    EXPECT_TRUE(All(lane < 32));
    EXPECT_FALSE(All(lane < 31));
  });
}

TEST(EmuSync, IndicesOfBlocksAndThreads) {
  const emu::Session session;
  int seen = 0;
  emu::RunLaunch({3, 2, 2}, {8, 4, 2}, 0, [&] {
    const Dim3 t = ThreadIdx(), b = BlockIdx();
    EXPECT_TRUE(t.x < 8 && t.y < 4 && t.z < 2 && b.x < 3 && b.y < 2 && b.z < 2);
    EXPECT_EQ(t.x + 8 * (t.y + 4 * t.z), static_cast<uint32_t>(32 * WarpId() + LaneId()));
    EXPECT_EQ(GridDim().x * GridDim().y * GridDim().z, 12u);
    EXPECT_EQ(BlockDim().x * BlockDim().y * BlockDim().z, 64u);
    ++seen;
  });
  EXPECT_EQ(seen, 12 * 64);
  EXPECT_EQ(session.report().stats.blocks, 12u);
}

// --- orders --------------------------------------------------------------------------------------
std::vector<uint32_t> Trace(emu::Order order, uint64_t seed) {
  std::vector<uint32_t> trace;
  emu::Options options;
  options.order = order;
  options.seed = seed;
  const emu::Session session(options);
  emu::RunLaunch({2}, {64}, 0, [&] {
    for (int i = 0; i < 3; ++i) {
      trace.push_back(BlockIdx().x * 100 + ThreadIdx().x);
      Syncwarp();
    }
  });
  return trace;
}
TEST(EmuSync, OrdersDifferAndEachRepeats) {
  for (const emu::Order order : emu::kAllOrders) EXPECT_EQ(Trace(order, 3), Trace(order, 3));
  EXPECT_NE(Trace(emu::Order::kShuffle, 3), Trace(emu::Order::kShuffle, 4));
  for (const emu::Order a : emu::kAllOrders) {
    for (const emu::Order b : emu::kAllOrders) {
      if (a != b) {
        EXPECT_NE(Trace(a, 3), Trace(b, 3)) << static_cast<int>(a) << " " << static_cast<int>(b);
      }
    }
  }
  EXPECT_EQ(Trace(emu::Order::kForward, 3)[0], 0u);
  EXPECT_EQ(Trace(emu::Order::kReverse, 3)[0], 163u);
}
TEST(EmuSync, AheadRunsOneWarpToItsEndBeforeTheOther) {
  // Three Syncwarps deep, before the other warp has begun.
  const std::vector<uint32_t> trace = Trace(emu::Order::kAhead, 1);
  const uint32_t first = trace[0] / 32;
  for (int i = 0; i < 96; ++i) EXPECT_EQ(trace[i] / 32, first) << i;
}

// --- launches ------------------------------------------------------------------------------------
void Nothing(int) {}
TEST(EmuLaunch, ImpossibleLaunchesAreRefusedWithTheReason) {
  const auto message = [](LaunchConfig config) { return Launch(config, Nothing, 1).message; };
  EXPECT_EQ(message({{}, {32}}), "");
  EXPECT_NE(message({{}, {33}}).find("multiple of 32"), std::string::npos);
  EXPECT_NE(message({{}, {2048}}).find("at most 1024"), std::string::npos);
  EXPECT_NE(message({{0}, {32}}).find("0 x 1 x 1 blocks"), std::string::npos);
  EXPECT_NE(message({{1, 70000}, {32}}).find("at most 65535"), std::string::npos);
  EXPECT_NE(message({{}, {32}, 300 * 1024}).find("bytes of shared memory"), std::string::npos);
  EXPECT_EQ(Launch({{}, {33}}, Nothing, 1).code, kEmulatorRefused);
}

TEST(EmuLaunch, ComplaintsAreToldOncePerPlaceAndUpToALimit) {
  emu::Options options;
  options.errors_max = 2;
  const emu::Session session(options);
  const emu::Report report = emu::RunLaunch({4}, {32}, 64, [] {
    Smem smem;
    const auto a = smem.Alloc<float>(16);
    a.Load(0);
    a.Load(1);
    a.Load(2);
  });
  EXPECT_EQ(report.errors.size(), 2u);
  EXPECT_NE(report.errors[0].substr(0, 24), report.errors[1].substr(0, 24));
}

TEST(EmuLaunch, SessionsNestAndAddUp) {
  const emu::Session outer;
  EXPECT_TRUE(Launch({{2}, {32}}, Nothing, 1).ok());
  {
    const emu::Session inner;
    EXPECT_TRUE(Launch({{3}, {32}}, Nothing, 1).ok());
    EXPECT_EQ(inner.report().stats.blocks, 3u);
  }
  EXPECT_TRUE(Launch({{1}, {32}}, Nothing, 1).ok());
  EXPECT_EQ(outer.report().stats.blocks, 3u);
}

TEST(EmuLaunch, BankConflictsOfMatrixLoadsAreCountedByLine) {
  int line = 0;
  const emu::Session session;
  emu::RunLaunch({1}, {32}, 8 * 128 + 8 * 16, [&] {
    Smem smem;
    const auto wide = smem.Alloc<bf16>(8 * 64), narrow = smem.Alloc<bf16>(8 * 8);
    for (int i = LaneId(); i < 8 * 64; i += 32) wide.Store(i, bf16{0});
    for (int i = LaneId(); i < 8 * 8; i += 32) narrow.Store(i, bf16{0});
    Syncwarp();
    uint32_t r[2];
    HERE(line) LdMatrixX2(r, wide.Address(LaneId() % 8 * 64));  // all rows in the same four banks
    LdMatrixX2(r, narrow.Address(LaneId() % 8 * 8));
  });
  const emu::Stats& stats = session.report().stats;
  EXPECT_EQ(stats.ldmatrix, 4u);
  EXPECT_EQ(stats.ldmatrix_wavefronts, 8u + 8u + 1u + 1u);
  ASSERT_EQ(stats.conflicts.size(), 1u);
  EXPECT_EQ(stats.conflicts.begin()->first, "emu_sync_test.cc:" + std::to_string(line));
  EXPECT_EQ(stats.conflicts.begin()->second, 14u);
}

}  // namespace
}  // namespace strata::kx
