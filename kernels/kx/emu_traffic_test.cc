// What the emulator counts of bank conflicts and of sectors, against layouts whose numbers are known.
#include "kernels/kx/emu_test_util.h"

namespace strata::kx {
namespace {

constexpr int kRow = 32;

emu::Stats Count(uint32_t threads, size_t shared, const std::function<void()>& body,
                 emu::Order order = emu::Order::kForward) {
  emu::Options options;
  options.order = order;
  options.traffic = true;
  const emu::Session session(options);
  emu::RunLaunch({1}, {threads}, shared, body);
  EXPECT_EQ(session.report().FirstError(), "");
  return session.report().stats;
}

// A tile of floats in shared memory, `ld` apart, of which a warp reads a row and then a column.
emu::Stats RowThenColumn(int ld, emu::Order order, int* column) {
  return Count(
      32, kRow * ld * 4,
      [=] {
        Smem smem;
        const auto tile = smem.Alloc<float>(kRow * ld);
        for (int i = 0; i < kRow; ++i) tile.Store(i * ld + LaneId(), 0.f);
        Syncwarp();
        HERE(*column) tile.Load(LaneId() * ld);
      },
      order);
}

TEST(Traffic, AColumnOfATileHitsOneBankAndAPaddedOneDoesNot) {
  for (const emu::Order order : emu::kAllOrders) {
    int column = 0;
    const emu::Stats stats = RowThenColumn(kRow, order, &column);
    EXPECT_EQ(stats.shared_passes, 33u);
    EXPECT_EQ(stats.shared_wavefronts, 32u + 32u);
    ASSERT_EQ(stats.conflicts.size(), 1u);
    EXPECT_EQ(stats.conflicts.begin()->first, "emu_traffic_test.cc:" + std::to_string(column));
    EXPECT_EQ(stats.conflicts.begin()->second, 31u);

    const emu::Stats padded = RowThenColumn(kRow + 1, order, &column);
    EXPECT_EQ(padded.shared_passes, 33u);
    EXPECT_EQ(padded.shared_wavefronts, 33u);
    EXPECT_TRUE(padded.conflicts.empty());
  }
}

TEST(Traffic, AWordIsGivenToAllWhoAskForIt) {
  const emu::Stats stats = Count(32, 128, [] {
    Smem smem;
    const auto words = smem.Alloc<float>(32);
    words.Store(LaneId(), 1.f);
    Syncwarp();
    words.Load(7);
    words.As<bf16>().Load(2 * (LaneId() / 2) + LaneId() % 2);  // two halves of a word
  });
  EXPECT_EQ(stats.shared_passes, 3u);
  EXPECT_EQ(stats.shared_wavefronts, 3u);
}

TEST(Traffic, WideAccessesGoInHalvesAndQuarters) {
  for (const auto& [stride, wavefronts] : {std::pair{1, 4u}, std::pair{2, 8u}, std::pair{8, 32u}}) {
    const emu::Stats stats = Count(32, 32 * 16 * 8 + 32 * 8, [stride = stride] {
      Smem smem;
      const auto sixteens = smem.Alloc<float>(32 * 4 * 8);
      Vec<float> four = {};
      sixteens.StoreVec(4 * stride * LaneId(), four);
    });
    EXPECT_EQ(stats.shared_passes, 4u);
    EXPECT_EQ(stats.shared_wavefronts, wavefronts) << stride;
  }
  const emu::Stats eights = Count(32, 32 * 8, [] {
    Smem smem;
    Vec<float, 8> two = {};
    smem.Alloc<float>(64).StoreVec(2 * LaneId(), two);
  });
  EXPECT_EQ(eights.shared_passes, 2u);
  EXPECT_EQ(eights.shared_wavefronts, 2u);
}

TEST(Traffic, LanesThatLeaveALoopEarlyAreMaskedOffLater) {
  for (const emu::Order order : emu::kAllOrders) {
    const emu::Stats stats = Count(
        64, 64 * 4,
        [] {
          Smem smem;
          const auto words = smem.Alloc<float>(64);
          for (int i = LaneId(); i < 40; i += 32) {  // 32 lanes, then 8
            if (WarpId() == 0) words.Store(i, 0.f);
          }
        },
        order);
    EXPECT_EQ(stats.shared_passes, 2u);
    EXPECT_EQ(stats.shared_wavefronts, 2u);
  }
}

TEST(Traffic, ALineVisitedAgainAfterAMeetingIsAnotherInstruction) {
  // Odd lanes visit the line twice before the barrier, even ones behind it. Were visits counted on, all lanes
  // would have three, and there would be three instructions.
  const emu::Stats stats = Count(32, 32 * 4, [] {
    Smem smem;
    const auto words = smem.Alloc<float>(32);
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i <= (LaneId() + round) % 2; ++i) words.Store(LaneId(), 0.f);
      Sync();
    }
  });
  EXPECT_EQ(stats.shared_passes, 4u);
}

TEST(Traffic, CopiesCountOnBothSides) {
  alignas(32) static float from[64 * 4];
  const emu::GlobalRange range("from", from, sizeof from, emu::RangeKind::kInput);
  const emu::Stats stats = Count(32, 32 * 16, [] {
    Smem smem;
    const auto to = smem.Alloc<float>(32 * 4);
    CpAsync16(to.Address(4 * LaneId()), Gmem<const float>(from) + 8 * LaneId(), true);
    CpAsyncCommit();
    CpAsyncWait<0>();
  });
  EXPECT_EQ(stats.shared_passes, 4u);
  EXPECT_EQ(stats.shared_wavefronts, 4u);
  EXPECT_EQ(stats.global_bytes, 32u * 16);
  EXPECT_EQ(stats.global_sector_bytes, 32u * 32);
}

TEST(Traffic, SectorsOfGlobalMemory) {
  // 16 behind a sector's beginning: the range counts, not where the host put it.
  alignas(32) static float memory[4 + 1024];
  float* const begin = memory + 4;
  const emu::GlobalRange range("x", begin, 1024 * 4, emu::RangeKind::kInOut);
  struct Case {
    int stride, shift;
    uint64_t asked, moved;
  };
  for (const Case& c : {Case{1, 0, 128, 128}, Case{1, 1, 128, 160}, Case{2, 0, 128, 256},
                        Case{8, 0, 128, 1024}, Case{0, 5, 4, 32}}) {
    int line = 0;
    const Gmem<float> x = begin;
    const emu::Stats stats = Count(32, 0, [&] { HERE(line) x.Load(c.shift + c.stride * LaneId()); });
    EXPECT_EQ(stats.global_bytes, c.asked) << c.stride;
    EXPECT_EQ(stats.global_sector_bytes, c.moved) << c.stride;
    if (c.moved == c.asked) {
      EXPECT_TRUE(stats.unused_sector_bytes.empty());
    } else {
      ASSERT_EQ(stats.unused_sector_bytes.size(), 1u);
      EXPECT_EQ(stats.unused_sector_bytes.begin()->first, "emu_traffic_test.cc:" + std::to_string(line));
      EXPECT_EQ(stats.unused_sector_bytes.begin()->second, c.moved - c.asked);
    }
  }
}

TEST(Traffic, IsNotCountedUnlessAskedFor) {
  const emu::Session session;
  emu::RunLaunch({1}, {32}, 32 * 32 * 4, [] {
    Smem smem;
    smem.Alloc<float>(32 * 32).Store(32 * LaneId(), 0.f);
  });
  EXPECT_EQ(session.report().stats.shared_passes, 0u);
  EXPECT_TRUE(session.report().stats.conflicts.empty());
}

}  // namespace
}  // namespace strata::kx
