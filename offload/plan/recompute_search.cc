#include "offload/plan/recompute_search.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace strata {
namespace {

using Saved = PlanChoice::Saved;
using Bytes = std::array<int64_t, kTierCount>;

int64_t& At(Bytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const Bytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

// One way to go on from a block: `blocks` of them decided at once.
struct Option {
  int blocks = 1;
  int segment = 1;  // how many of them share an input
  Saved saved = Saved::kRecompute;
  Tier home = Tier::kDevice;
  double again_seconds = 0;
  Bytes bytes{};
  // On the device beside what is kept, while its blocks run.
  int64_t again_bytes = 0, moving_bytes = 0;
};

struct Cost {
  double seconds = 0;
  double effort = 0;  // of equal times the one that asks less of the machine

  bool operator<(const Cost& other) const {
    return std::tie(seconds, effort) < std::tie(other.seconds, other.effort);
  }
};

Cost CostOfChain(const ChainProblem& p, double again, const Bytes& bytes) {
  const auto nvme = static_cast<double>(At(bytes, Tier::kNvme));
  const double swapped = static_cast<double>(At(bytes, Tier::kHost)) + nvme;
  const double out = swapped * p.out_seconds_per_byte, in = swapped * p.in_seconds_per_byte;
  const double forward = std::max({p.forward_seconds, p.fetch_seconds, out});
  const double backward = std::max(p.backward_seconds + again, p.fetch_seconds + in);
  Cost cost;
  cost.seconds = std::max({forward + backward, p.floor_seconds, p.send_seconds + out,
                           p.nvme_seconds + nvme * p.nvme_seconds_per_byte});
  cost.effort = again + out + in + nvme * p.nvme_seconds_per_byte;
  return cost;
}

Option Single(const ChainProblem& p, const ChainBlock& block, Saved saved, Tier home) {
  Option option;
  option.saved = saved;
  option.home = home;
  At(option.bytes, p.input_home) += block.input_bytes;
  int64_t kept = 0;
  switch (saved) {
    case Saved::kKeep:
      kept = block.saved_bytes;
      break;
    case Saved::kSelective:
      kept = block.selective_bytes;
      option.again_seconds = block.rest_seconds;
      break;
    case Saved::kRecompute:
      option.again_seconds = block.forward_seconds;
      break;
  }
  At(option.bytes, home) += kept;
  option.again_bytes = block.saved_bytes - kept;
  // What is swapped is written on the device first, and comes back there.
  if (home != Tier::kDevice) option.moving_bytes = p.depth * kept;
  return option;
}

// Blocks [first, first + length) from the input of the first.
Option Segment(const ChainProblem& p, size_t first, int length) {
  Option option;
  option.blocks = option.segment = length;
  At(option.bytes, p.input_home) = p.blocks[first].input_bytes;
  for (int i = 0; i < length; ++i) {
    option.again_seconds += p.blocks[first + i].forward_seconds;
    option.again_bytes += p.blocks[first + i].saved_bytes;
  }
  return option;
}

bool Alike(const ChainBlock& a, const ChainBlock& b) {
  return a.forward_seconds == b.forward_seconds && a.rest_seconds == b.rest_seconds &&
         a.saved_bytes == b.saved_bytes && a.selective_bytes == b.selective_bytes &&
         a.input_bytes == b.input_bytes;
}

// Two in a row; what they have on the device while they run they have one after the other.
Option Then(Option a, const Option& b) {
  a.blocks += b.blocks;
  a.again_seconds += b.again_seconds;
  for (int t = 0; t < kTierCount; ++t) a.bytes[t] += b.bytes[t];
  a.again_bytes = std::max(a.again_bytes, b.again_bytes);
  a.moving_bytes = std::max(a.moving_bytes, b.moving_bytes);
  return a;
}

// A chain is decided in stages: blocks that are alike and in a row, as many together as keep the number of
// stages small.
std::vector<size_t> StagesOf(const ChainProblem& p, size_t stages_max) {
  const size_t together = (p.blocks.size() + stages_max - 1) / stages_max;
  std::vector<size_t> firsts;
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    if (firsts.empty() || i - firsts.back() == together || !Alike(p.blocks[i], p.blocks[firsts.back()]))
      firsts.push_back(i);
  }
  firsts.push_back(p.blocks.size());
  return firsts;
}

// All ways to go on from a stage. Segments are parts of it, or whole stages.
std::vector<Option> OptionsAt(const ChainProblem& p, const std::vector<size_t>& stages, size_t stage) {
  std::vector<Option> options;
  const size_t first = stages[stage], end = stages[stage + 1];
  const auto add = [&](const auto& make, size_t step) {
    Option option = make(first, std::min(step, end - first));
    for (size_t i = first + step; i < end; i += step) option = Then(option, make(i, std::min(step, end - i)));
    options.push_back(option);
  };
  const auto single = [&](Saved saved, Tier home) {
    add([&](size_t i, size_t) { return Single(p, p.blocks[i], saved, home); }, 1);
  };
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    if (home != Tier::kDevice && (!p.allow_swap || At(p.budget, home) == 0)) continue;
    single(Saved::kKeep, home);
    if (p.allow_selective && p.blocks[first].selective_bytes > 0) single(Saved::kSelective, home);
  }
  single(Saved::kRecompute, Tier::kDevice);
  const auto max = static_cast<size_t>(p.max_segment);
  for (size_t length = 2; length < end - first && length <= max; length *= 2)
    add([&](size_t i, size_t n) { return Segment(p, i, static_cast<int>(n)); }, length);
  for (size_t last = stage + 1; last < stages.size() && stages[last] - first <= max; ++last) {
    // Four stages, then every other: lengths between them differ little.
    const size_t n = last - stage;
    if (stages[last] - first > 1 && (n <= 4 || n % 2 == 0))
      options.push_back(Segment(p, first, static_cast<int>(stages[last] - first)));
  }
  return options;
}

struct Label {
  double again_seconds = 0;
  Bytes bytes{};
  int32_t option = -1;  // index into the options of the stage it came from
  int32_t from_stage = -1, from_label = -1;
};

// The best chain whose blocks and segments have at most `again` and `moving` bytes beside what is kept.
class Dynamic {
 public:
  Dynamic(const ChainProblem& p, const std::vector<size_t>& stages,
          const std::vector<std::vector<Option>>& options, int64_t again, int64_t moving, int buckets)
      : p_(p),
        stages_(stages),
        options_(options),
        again_(again),
        moving_(moving),
        labels_(stages.size()),
        index_(stages.size()) {
    room_ = p.budget;
    At(room_, Tier::kDevice) -= again + moving;
    // Bytes are told apart as far as they can be wanted.
    Bytes wanted{};
    for (const std::vector<Option>& of : options) {
      for (int t = 0; t < kTierCount; ++t) {
        int64_t most = 0;
        for (const Option& option : of) most = std::max(most, option.bytes[t]);
        wanted[t] += most;
      }
    }
    for (int t = 0; t < kTierCount; ++t)
      quantum_[t] = std::max<int64_t>(1, (std::min(room_[t], wanted[t]) + buckets - 1) / buckets);
  }

  std::optional<ChainSolution> Solve() {
    if (At(room_, Tier::kDevice) < 0) return std::nullopt;
    labels_[0].push_back(Label());
    for (size_t i = 0; i < options_.size(); ++i) {
      for (size_t l = 0; l < labels_[i].size(); ++l) {
        for (size_t o = 0; o < options_[i].size(); ++o) Extend(i, l, o);
      }
    }
    const std::vector<Label>& ends = labels_.back();
    const Label* best = nullptr;
    for (const Label& end : ends) {
      if (best == nullptr || CostOf(end) < CostOf(*best)) best = &end;
    }
    if (best == nullptr) return std::nullopt;
    return Trace(*best);
  }

 private:
  void Extend(size_t i, size_t l, size_t o) {
    const Option& option = options_[i][o];
    if (option.again_bytes > again_ || option.moving_bytes > moving_) return;
    Label next = labels_[i][l];
    next.again_seconds += option.again_seconds;
    uint64_t bucket = 0;  // far fewer than 2^21 in each tier
    for (int t = 0; t < kTierCount; ++t) {
      next.bytes[t] += option.bytes[t];
      if (next.bytes[t] > room_[t]) return;
      bucket = bucket << 21 | static_cast<uint64_t>(next.bytes[t] / quantum_[t]);
    }
    next.option = static_cast<int32_t>(o);
    next.from_stage = static_cast<int32_t>(i);
    next.from_label = static_cast<int32_t>(l);
    size_t to = i + 1;
    while (stages_[to] < stages_[i] + static_cast<size_t>(option.blocks)) ++to;
    const auto [found, fresh] = index_[to].emplace(bucket, labels_[to].size());
    if (fresh) {
      labels_[to].push_back(next);
      return;
    }
    // One per bucket: bytes that move are what the rest of the cost comes from, so they count here too.
    Label& known = labels_[to][found->second];
    if (CostOf(next) < CostOf(known)) known = next;
  }

  Cost CostOf(const Label& label) const { return CostOfChain(p_, label.again_seconds, label.bytes); }

  ChainSolution Trace(const Label& end) const {
    ChainSolution solution;
    solution.seconds = CostOf(end).seconds;
    solution.bytes = end.bytes;
    At(solution.bytes, Tier::kDevice) += again_ + moving_;
    solution.blocks.resize(p_.blocks.size());
    for (const Label* at = &end; at->from_stage >= 0; at = &labels_[at->from_stage][at->from_label]) {
      const Option& option = options_[at->from_stage][at->option];
      for (int k = 0; k < option.blocks; ++k) {
        PlanChoice::BlockChoice& block = solution.blocks[stages_[at->from_stage] + k];
        block.saved = option.saved;
        block.saved_home = option.home;
        block.activation = p_.input_home;
        block.checkpoint = k % option.segment == 0;
      }
    }
    return solution;
  }

  const ChainProblem& p_;
  const std::vector<size_t>& stages_;  // their first blocks, and the end
  const std::vector<std::vector<Option>>& options_;
  const int64_t again_, moving_;
  Bytes room_{}, quantum_{};
  std::vector<std::vector<Label>> labels_;                    // [stage]: decided up to it
  std::vector<absl::flat_hash_map<uint64_t, size_t>> index_;  // bucket -> label
};

// A run of swaps would wait for the link, and the link then for a run of others, which the sums of the cost
// model do not see. So decisions about blocks that are alike are dealt out in turn: the one that lags most
// behind its part is next.
void DealOut(const ChainProblem& p, std::vector<PlanChoice::BlockChoice>* blocks) {
  std::vector<bool> dealt(blocks->size(), false);
  const auto alone = [&](size_t i) {
    return (*blocks)[i].checkpoint && (i + 1 == blocks->size() || (*blocks)[i + 1].checkpoint);
  };
  for (size_t first = 0; first < blocks->size(); ++first) {
    if (dealt[first] || !alone(first)) continue;
    struct Kind {
      PlanChoice::BlockChoice choice;
      int64_t count = 0, used = 0;
    };
    std::vector<Kind> kinds;
    std::vector<size_t> places;
    for (size_t i = first; i < blocks->size(); ++i) {
      if (!alone(i) || !Alike(p.blocks[i], p.blocks[first])) continue;
      dealt[i] = true;
      places.push_back(i);
      const PlanChoice::BlockChoice& choice = (*blocks)[i];
      auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
        return k.choice.saved == choice.saved && k.choice.saved_home == choice.saved_home;
      });
      if (kind == kinds.end()) kind = kinds.insert(kind, Kind{choice});
      ++kind->count;
    }
    const auto all = static_cast<int64_t>(places.size());
    for (int64_t n = 0; n < all; ++n) {
      const auto lag = [&](const Kind& k) { return k.count * (n + 1) - k.used * all; };
      Kind& next = *std::max_element(kinds.begin(), kinds.end(),
                                     [&](const Kind& a, const Kind& b) { return lag(a) < lag(b); });
      ++next.used;
      (*blocks)[places[n]] = next.choice;
    }
  }
}

}  // namespace

std::optional<ChainSolution> SolveChain(const ChainProblem& problem, int buckets, int stages_max) {
  const std::vector<size_t> stages = StagesOf(problem, static_cast<size_t>(stages_max));
  std::vector<std::vector<Option>> options;
  std::set<int64_t> again = {0}, moving = {0};
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    options.push_back(OptionsAt(problem, stages, i));
    for (const Option& option : options.back()) {
      again.insert(option.again_bytes);
      moving.insert(option.moving_bytes);
    }
  }
  std::optional<ChainSolution> best;
  for (const int64_t a : again) {
    for (const int64_t m : moving) {
      if (a + m > At(problem.budget, Tier::kDevice)) break;
      std::optional<ChainSolution> solution = Dynamic(problem, stages, options, a, m, buckets).Solve();
      if (!solution.has_value()) continue;
      if (!best.has_value() || solution->seconds < best->seconds) best = std::move(solution);
    }
  }
  if (best.has_value()) DealOut(problem, &best->blocks);
  return best;
}

std::optional<ChainSolution> EvaluateChain(const ChainProblem& problem,
                                           const std::vector<PlanChoice::BlockChoice>& blocks) {
  ChainSolution solution;
  solution.blocks = blocks;
  double again = 0;
  int64_t again_bytes = 0, moving_bytes = 0;
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    while (end < blocks.size() && !blocks[end].checkpoint) ++end;
    const int length = static_cast<int>(end - i);
    const Option option = length > 1
                              ? Segment(problem, i, length)
                              : Single(problem, problem.blocks[i], blocks[i].saved, blocks[i].saved_home);
    again += option.again_seconds;
    again_bytes = std::max(again_bytes, option.again_bytes);
    moving_bytes = std::max(moving_bytes, option.moving_bytes);
    for (int t = 0; t < kTierCount; ++t) solution.bytes[t] += option.bytes[t];
    i = end;
  }
  At(solution.bytes, Tier::kDevice) += again_bytes + moving_bytes;
  for (int t = 0; t < kTierCount; ++t) {
    if (solution.bytes[t] > problem.budget[t]) return std::nullopt;
  }
  Bytes moved = solution.bytes;
  At(moved, Tier::kDevice) = 0;
  solution.seconds = CostOfChain(problem, again, moved).seconds;
  return solution;
}

}  // namespace strata
