#include "offload/plan/recompute_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace strata {
namespace {

using Saved = PlanChoice::Saved;
using Bytes = std::array<int64_t, kTierCount>;

int64_t& At(Bytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const Bytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

// One way to go on from a block: `length` blocks decided at once.
struct Option {
  int length = 1;
  Saved saved = Saved::kRecompute;
  Tier home = Tier::kDevice;
  double again_seconds = 0;
  Bytes bytes{};
  int64_t running_bytes = 0;  // on the device while its blocks run, beside what is kept
};

// Bytes that move: those kept beyond the device.
double AddedSeconds(const ChainProblem& p, double again, const Bytes& bytes) {
  const auto swapped = static_cast<double>(At(bytes, Tier::kHost) + At(bytes, Tier::kNvme));
  const double link = swapped * p.link_seconds_per_byte - p.link_slack_seconds;
  const double nvme =
      static_cast<double>(At(bytes, Tier::kNvme)) * p.nvme_seconds_per_byte - p.nvme_slack_seconds;
  return again + std::max(0.0, link) + std::max(0.0, nvme);
}

Option Single(const ChainProblem& p, const ChainBlock& block, Saved saved, Tier home) {
  Option option;
  option.saved = saved;
  option.home = home;
  At(option.bytes, p.input_home) += block.input_bytes;
  // What is swapped is written on the device first, and comes back there.
  const bool there = home == Tier::kDevice;
  switch (saved) {
    case Saved::kKeep:
      At(option.bytes, home) += block.saved_bytes;
      option.running_bytes = there ? 0 : block.saved_bytes;
      break;
    case Saved::kSelective:
      At(option.bytes, home) += block.selective_bytes;
      option.again_seconds = block.rest_seconds;
      option.running_bytes = block.saved_bytes - (there ? block.selective_bytes : 0);
      break;
    case Saved::kRecompute:
      option.again_seconds = block.forward_seconds;
      option.running_bytes = block.saved_bytes;
      break;
  }
  return option;
}

// Blocks [first, first + length) from the input of the first.
Option Segment(const ChainProblem& p, size_t first, int length) {
  Option option;
  option.length = length;
  At(option.bytes, p.input_home) = p.blocks[first].input_bytes;
  for (int i = 0; i < length; ++i) {
    option.again_seconds += p.blocks[first + i].forward_seconds;
    option.running_bytes += p.blocks[first + i].saved_bytes;
  }
  return option;
}

std::vector<Option> OptionsAt(const ChainProblem& p, size_t i) {
  std::vector<Option> options;
  const ChainBlock& block = p.blocks[i];
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    if (home != Tier::kDevice && !p.allow_swap) continue;
    options.push_back(Single(p, block, Saved::kKeep, home));
    if (p.allow_selective && block.selective_bytes > 0)
      options.push_back(Single(p, block, Saved::kSelective, home));
  }
  options.push_back(Single(p, block, Saved::kRecompute, Tier::kDevice));
  for (int length = 2; length <= p.max_segment && i + length <= p.blocks.size(); ++length)
    options.push_back(Segment(p, i, length));
  return options;
}

struct Label {
  double again_seconds = 0;
  Bytes bytes{};
  int32_t option = -1;  // index into the options of the block it came from
  int32_t from_block = -1, from_label = -1;
};

// The best chain whose blocks and segments have at most `running` bytes beside what is kept.
class Dynamic {
 public:
  Dynamic(const ChainProblem& p, const std::vector<std::vector<Option>>& options, int64_t running,
          int buckets)
      : p_(p), options_(options), running_(running), labels_(p.blocks.size() + 1), index_(labels_.size()) {
    room_ = p.budget;
    At(room_, Tier::kDevice) -= running;
    for (int t = 0; t < kTierCount; ++t)
      quantum_[t] = std::max<int64_t>(1, (room_[t] + buckets - 1) / buckets);
  }

  std::optional<ChainSolution> Solve() {
    if (At(room_, Tier::kDevice) < 0) return std::nullopt;
    labels_[0].push_back(Label());
    for (size_t i = 0; i < p_.blocks.size(); ++i) {
      for (size_t l = 0; l < labels_[i].size(); ++l) {
        for (size_t o = 0; o < options_[i].size(); ++o) Extend(i, l, o);
      }
    }
    const std::vector<Label>& ends = labels_.back();
    const Label* best = nullptr;
    for (const Label& end : ends) {
      if (best == nullptr ||
          AddedSeconds(p_, end.again_seconds, end.bytes) < AddedSeconds(p_, best->again_seconds, best->bytes))
        best = &end;
    }
    if (best == nullptr) return std::nullopt;
    return Trace(*best);
  }

 private:
  void Extend(size_t i, size_t l, size_t o) {
    const Option& option = options_[i][o];
    if (option.running_bytes > running_) return;
    Label next = labels_[i][l];
    next.again_seconds += option.again_seconds;
    uint64_t bucket = 0;  // far fewer than 2^21 in each tier
    for (int t = 0; t < kTierCount; ++t) {
      next.bytes[t] += option.bytes[t];
      if (next.bytes[t] > room_[t]) return;
      bucket = bucket << 21 | static_cast<uint64_t>(next.bytes[t] / quantum_[t]);
    }
    next.option = static_cast<int32_t>(o);
    next.from_block = static_cast<int32_t>(i);
    next.from_label = static_cast<int32_t>(l);
    const size_t to = i + static_cast<size_t>(option.length);
    const auto [found, fresh] = index_[to].emplace(bucket, labels_[to].size());
    if (fresh) {
      labels_[to].push_back(next);
      return;
    }
    // One per bucket: bytes that move are what the rest of the cost comes from, so they count here too.
    Label& known = labels_[to][found->second];
    if (AddedSeconds(p_, next.again_seconds, next.bytes) < AddedSeconds(p_, known.again_seconds, known.bytes))
      known = next;
  }

  ChainSolution Trace(const Label& end) const {
    ChainSolution solution;
    solution.added_seconds = AddedSeconds(p_, end.again_seconds, end.bytes);
    solution.bytes = end.bytes;
    At(solution.bytes, Tier::kDevice) += running_;
    solution.blocks.resize(p_.blocks.size());
    for (const Label* at = &end; at->from_block >= 0; at = &labels_[at->from_block][at->from_label]) {
      const Option& option = options_[at->from_block][at->option];
      for (int k = 0; k < option.length; ++k) {
        PlanChoice::BlockChoice& block = solution.blocks[at->from_block + k];
        block.saved = option.saved;
        block.saved_home = option.home;
        block.activation = p_.input_home;
        block.checkpoint = k == 0;
      }
    }
    return solution;
  }

  const ChainProblem& p_;
  const std::vector<std::vector<Option>>& options_;
  const int64_t running_;
  Bytes room_{}, quantum_{};
  std::vector<std::vector<Label>> labels_;                    // [block]: decided up to it
  std::vector<absl::flat_hash_map<uint64_t, size_t>> index_;  // bucket -> label
};

}  // namespace

std::optional<ChainSolution> SolveChain(const ChainProblem& problem, int buckets) {
  std::vector<std::vector<Option>> options;
  std::set<int64_t> running = {0};
  for (size_t i = 0; i < problem.blocks.size(); ++i) {
    options.push_back(OptionsAt(problem, i));
    for (const Option& option : options.back()) running.insert(option.running_bytes);
  }
  std::optional<ChainSolution> best;
  for (const int64_t bytes : running) {
    if (bytes > At(problem.budget, Tier::kDevice)) break;
    std::optional<ChainSolution> solution = Dynamic(problem, options, bytes, buckets).Solve();
    if (!solution.has_value()) continue;
    if (!best.has_value() || solution->added_seconds < best->added_seconds) best = std::move(solution);
  }
  return best;
}

std::optional<ChainSolution> EvaluateChain(const ChainProblem& problem,
                                           const std::vector<PlanChoice::BlockChoice>& blocks) {
  ChainSolution solution;
  solution.blocks = blocks;
  double again = 0;
  int64_t running = 0;
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    while (end < blocks.size() && !blocks[end].checkpoint) ++end;
    const int length = static_cast<int>(end - i);
    const Option option = length > 1
                              ? Segment(problem, i, length)
                              : Single(problem, problem.blocks[i], blocks[i].saved, blocks[i].saved_home);
    again += option.again_seconds;
    running = std::max(running, option.running_bytes);
    for (int t = 0; t < kTierCount; ++t) solution.bytes[t] += option.bytes[t];
    i = end;
  }
  At(solution.bytes, Tier::kDevice) += running;
  for (int t = 0; t < kTierCount; ++t) {
    if (solution.bytes[t] > problem.budget[t]) return std::nullopt;
  }
  solution.added_seconds = AddedSeconds(problem, again, solution.bytes);
  return solution;
}

}  // namespace strata
