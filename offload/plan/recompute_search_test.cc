#include "offload/plan/recompute_search.h"

#include <cstdio>
#include <functional>
#include <limits>

#include "common/random.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using Saved = PlanChoice::Saved;
using BlockChoice = PlanChoice::BlockChoice;

// Every decision for every block, each judged by its own arithmetic: nothing of the search is used.
class BruteForce {
 public:
  explicit BruteForce(const ChainProblem& problem) : p_(problem) {}

  double Best() {
    std::vector<BlockChoice> blocks;
    Decide(blocks);
    return best_;
  }

 private:
  void Decide(std::vector<BlockChoice>& blocks) {
    if (blocks.size() == p_.blocks.size()) {
      best_ = std::min(best_, Cost(blocks));
      return;
    }
    for (const Saved saved : {Saved::kKeep, Saved::kSelective, Saved::kRecompute}) {
      for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
        if (saved == Saved::kRecompute && home != Tier::kDevice) continue;
        for (const bool checkpoint : {true, false}) {
          if (!checkpoint && (blocks.empty() || saved != Saved::kRecompute)) continue;
          blocks.push_back(BlockChoice{saved, home, p_.input_home, checkpoint});
          Decide(blocks);
          blocks.pop_back();
        }
      }
    }
  }

  double Cost(const std::vector<BlockChoice>& blocks) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    double again = 0;
    int64_t kept[3] = {0, 0, 0}, again_bytes = 0, moving_bytes = 0, segment_bytes = 0;
    int segment = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ChainBlock& b = p_.blocks[i];
      const BlockChoice& c = blocks[i];
      if (c.checkpoint) {
        kept[static_cast<int>(p_.input_home)] += b.input_bytes;
        segment = 0;
        segment_bytes = 0;
      } else if (blocks[i - 1].saved != Saved::kRecompute) {
        return kNever;  // a segment is computed again, all of it
      }
      if (++segment > 1 && segment > p_.max_segment) return kNever;
      segment_bytes += b.saved_bytes;
      if (c.saved_home != Tier::kDevice && !p_.allow_swap) return kNever;
      if (c.saved == Saved::kSelective && (!p_.allow_selective || b.selective_bytes == 0)) return kNever;
      int64_t keeps = 0, makes = 0;
      if (c.saved == Saved::kKeep) {
        keeps = b.saved_bytes;
      } else if (c.saved == Saved::kSelective) {
        keeps = b.selective_bytes;
        makes = b.saved_bytes - keeps;
        again += b.rest_seconds;
      } else {
        makes = segment_bytes;
        again += b.forward_seconds;
      }
      kept[static_cast<int>(c.saved_home)] += keeps;
      again_bytes = std::max(again_bytes, makes);
      if (c.saved_home != Tier::kDevice) moving_bytes = std::max(moving_bytes, p_.depth * keeps);
    }
    if (kept[0] + again_bytes + moving_bytes > p_.budget[0] || kept[1] > p_.budget[1] ||
        kept[2] > p_.budget[2])
      return kNever;
    const auto beyond = static_cast<double>(kept[1] + kept[2]);
    const double out = beyond * p_.out_seconds_per_byte, in = beyond * p_.in_seconds_per_byte;
    double passes = std::max(p_.forward_seconds, std::max(p_.fetch_seconds, out));
    passes += std::max(p_.backward_seconds + again, p_.fetch_seconds + in);
    const double drive = p_.nvme_seconds + static_cast<double>(kept[2]) * p_.nvme_seconds_per_byte;
    return std::max(std::max(passes, drive), std::max(p_.floor_seconds, p_.send_seconds + out));
  }

  const ChainProblem& p_;
  double best_ = std::numeric_limits<double>::infinity();
};

TEST(RecomputeSearchTest, IsTheOptimumOfItsCostModelOnSmallChains) {
  constexpr uint64_t kSeed = 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const CounterRandom random(kSeed, 0);
  uint64_t draw = 0;
  const auto below = [&](int n) { return static_cast<int>(random.Below(draw++, static_cast<uint64_t>(n))); };
  int fits = 0, selective = 0, swapped = 0, segments = 0, kept = 0;
  for (int i = 0; i < 600; ++i) {
    ChainProblem p;
    const int blocks = 1 + below(4);
    for (int b = 0; b < blocks; ++b) {
      ChainBlock block;
      block.saved_bytes = 4 + below(8);
      block.selective_bytes = below(3) == 0 ? 0 : 1 + below(static_cast<int>(block.saved_bytes) - 1);
      block.input_bytes = below(4);
      block.forward_seconds = 1 + below(9);
      block.rest_seconds = 0.25 * block.forward_seconds;
      p.blocks.push_back(block);
    }
    p.budget = {6 + below(30), below(40), below(40)};
    p.input_home = static_cast<Tier>(below(3));
    p.depth = 1 + below(3);
    p.out_seconds_per_byte = 0.125 * below(8);
    p.in_seconds_per_byte = 0.125 * below(8);
    p.nvme_seconds_per_byte = 0.125 * below(16);
    p.forward_seconds = below(8);
    p.backward_seconds = below(12);
    p.fetch_seconds = below(6);
    p.send_seconds = below(6);
    p.nvme_seconds = below(12);
    p.floor_seconds = below(24);
    p.allow_selective = below(4) != 0;
    p.allow_swap = below(4) != 0;
    p.max_segment = 1 + below(4);
    SCOPED_TRACE(i);
    const double best = BruteForce(p).Best();
    const std::optional<ChainSolution> solution = SolveChain(p);
    ASSERT_EQ(solution.has_value(), best < std::numeric_limits<double>::infinity());
    if (!solution.has_value()) continue;
    ++fits;
    EXPECT_DOUBLE_EQ(solution->seconds, best);
    const std::optional<ChainSolution> evaluated = EvaluateChain(p, solution->blocks);
    ASSERT_TRUE(evaluated.has_value());
    EXPECT_DOUBLE_EQ(evaluated->seconds, best);
    for (const BlockChoice& block : solution->blocks) {
      selective += block.saved == Saved::kSelective;
      swapped += block.saved_home != Tier::kDevice;
      segments += !block.checkpoint;
      kept += block.saved == Saved::kKeep;
    }
  }
  std::printf("%d fit; blocks: %d kept, %d selective, %d swapped, %d in segments\n", fits, kept, selective,
              swapped, segments);
  for (const int n : {fits, kept, selective, swapped, segments}) EXPECT_GT(n, 10);
}

// As many alike blocks as a large model has: what fits is used, and little more than buckets are lost.
TEST(RecomputeSearchTest, LongChainsUseWhatThereIs) {
  ChainProblem p;
  p.blocks.assign(80, ChainBlock{.forward_seconds = 1,
                                 .rest_seconds = 0.1,
                                 .saved_bytes = 34'000'000,
                                 .selective_bytes = 20'000'000,
                                 .input_bytes = 2'000'000});
  p.input_home = Tier::kHost;
  p.budget = {34'000'000 + 20'000'000 + 680'000'000, 160'000'000 + 600'000'000, 0};
  p.forward_seconds = 80;
  p.backward_seconds = 160;
  p.out_seconds_per_byte = p.in_seconds_per_byte = 1e-9;
  p.max_segment = 9;
  const std::optional<ChainSolution> solution = SolveChain(p);
  ASSERT_TRUE(solution.has_value());
  EXPECT_TRUE(EvaluateChain(p, solution->blocks).has_value());
  // On the device 34 blocks selective, in the host 30 more: 16 again in full.
  EXPECT_LT(solution->seconds, 240 + (16 + 64 * 0.1) * 1.1);
  EXPECT_GT(solution->seconds, 240 + (16 + 64 * 0.1) * 0.9);
}

// Swaps that a link can just take while computing goes on would wait for it if they stood side by side.
TEST(RecomputeSearchTest, DecisionsAreDealtOutEvenly) {
  ChainProblem p;
  p.blocks.assign(12, ChainBlock{.forward_seconds = 1, .saved_bytes = 100, .input_bytes = 1});
  p.budget = {212, 1000, 0};
  p.depth = 1;
  p.forward_seconds = 12;
  p.backward_seconds = 24;
  p.out_seconds_per_byte = p.in_seconds_per_byte = 0.02;  // six blocks in a forward pass
  const std::optional<ChainSolution> solution = SolveChain(p);
  ASSERT_TRUE(solution.has_value());
  int swapped = 0;
  for (size_t i = 0; i < 12; ++i) {
    const bool here = solution->blocks[i].saved == Saved::kKeep;
    swapped += here;
    if (i > 0) {
      EXPECT_NE(here, solution->blocks[i - 1].saved == Saved::kKeep) << i;
    }
  }
  EXPECT_EQ(swapped, 6);
  EXPECT_DOUBLE_EQ(solution->seconds, 12 + 24 + 6);
}

}  // namespace
}  // namespace strata
