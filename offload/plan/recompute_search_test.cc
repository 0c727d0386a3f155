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
    int64_t kept[3] = {0, 0, 0}, running = 0, segment_bytes = 0;
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
      int64_t here = segment_bytes;
      if (c.saved == Saved::kKeep) {
        kept[static_cast<int>(c.saved_home)] += b.saved_bytes;
        if (c.saved_home == Tier::kDevice) here = 0;
      } else if (c.saved == Saved::kSelective) {
        kept[static_cast<int>(c.saved_home)] += b.selective_bytes;
        if (c.saved_home == Tier::kDevice) here -= b.selective_bytes;
        again += b.rest_seconds;
      } else {
        again += b.forward_seconds;
      }
      running = std::max(running, here);
    }
    if (kept[0] + running > p_.budget[0] || kept[1] > p_.budget[1] || kept[2] > p_.budget[2]) return kNever;
    const double link = static_cast<double>(kept[1] + kept[2]) * p_.link_seconds_per_byte;
    const double nvme = static_cast<double>(kept[2]) * p_.nvme_seconds_per_byte;
    return again + std::max(0.0, link - p_.link_slack_seconds) + std::max(0.0, nvme - p_.nvme_slack_seconds);
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
  for (int i = 0; i < 300; ++i) {
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
    p.budget = {4 + below(40), below(20), below(20)};
    p.input_home = static_cast<Tier>(below(3));
    p.link_seconds_per_byte = 0.125 * below(8);
    p.nvme_seconds_per_byte = 0.125 * below(16);
    p.link_slack_seconds = below(5);
    p.nvme_slack_seconds = below(5);
    p.allow_selective = below(4) != 0;
    p.allow_swap = below(4) != 0;
    p.max_segment = 1 + below(4);
    SCOPED_TRACE(i);
    const double best = BruteForce(p).Best();
    const std::optional<ChainSolution> solution = SolveChain(p);
    ASSERT_EQ(solution.has_value(), best < std::numeric_limits<double>::infinity());
    if (!solution.has_value()) continue;
    ++fits;
    EXPECT_DOUBLE_EQ(solution->added_seconds, best);
    const std::optional<ChainSolution> evaluated = EvaluateChain(p, solution->blocks);
    ASSERT_TRUE(evaluated.has_value());
    EXPECT_DOUBLE_EQ(evaluated->added_seconds, best);
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
  p.budget = {34'000'000 + 700'000'000, 160'000'000 + 600'000'000, 0};
  p.link_seconds_per_byte = 1e-9;
  p.link_slack_seconds = 0.5;
  p.max_segment = 9;
  const std::optional<ChainSolution> solution = SolveChain(p);
  ASSERT_TRUE(solution.has_value());
  EXPECT_TRUE(EvaluateChain(p, solution->blocks).has_value());
  // On the device 35 blocks selective, in the host 30 more: 15 again in full.
  EXPECT_LT(solution->added_seconds, (15 + 65 * 0.1 + 0.3) * 1.1);
  EXPECT_GT(solution->added_seconds, (15 + 65 * 0.1) * 0.9);
}

}  // namespace
}  // namespace strata
