#include "kernels/kx/emu/traffic.h"

#include <algorithm>
#include <bit>
#include <set>

#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {
namespace {

constexpr uint32_t kBanks = 32, kBankBytes = 4, kSectorBytes = 32;

// Wavefronts that `lanes` of one pass need: the most different words that one bank has to give.
uint64_t Wavefronts(const std::array<uint64_t, 32>& address, uint32_t lanes, uint32_t bytes) {
  std::array<std::set<uint64_t>, kBanks> words;
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    const uint64_t first = address[std::countr_zero(left)];
    for (uint64_t a = first; a < first + bytes; a += kBankBytes) {
      words[a / kBankBytes % kBanks].insert(a / kBankBytes);
    }
  }
  size_t most = 0;
  for (const auto& bank : words) most = std::max(most, bank.size());
  return most;
}

// The banks give 128 bytes at once: a whole warp's words of 4 bytes, a half's of 8, a quarter's of 16.
void CountBanks(const std::array<uint64_t, 32>& address, uint32_t lanes, uint32_t bytes, Stats& stats,
                Where where) {
  const int group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  const auto mask = static_cast<uint32_t>((uint64_t{1} << group) - 1);
  for (int first = 0; first < 32; first += group) {
    const uint32_t taking_part = lanes & mask << first;
    if (taking_part == 0) continue;
    const uint64_t wavefronts = Wavefronts(address, taking_part, bytes);
    ++stats.shared_passes;
    stats.shared_wavefronts += wavefronts;
    if (wavefronts > 1) stats.conflicts[ShortPlace(where)] += wavefronts - 1;
  }
}

void CountSectors(const std::array<uint64_t, 32>& address, uint32_t lanes, uint32_t bytes, Stats& stats,
                  Where where) {
  std::map<uint64_t, uint32_t> sectors;  // and which of their bytes are asked for
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    const uint64_t first = address[std::countr_zero(left)];
    const auto asked = static_cast<uint32_t>((uint64_t{1} << bytes) - 1);
    sectors[first / kSectorBytes] |= asked << (first % kSectorBytes);
  }
  uint64_t bytes_asked = 0;
  for (const auto& [sector, asked] : sectors) bytes_asked += std::popcount(asked);
  const uint64_t bytes_moved = sectors.size() * kSectorBytes;
  stats.global_bytes += bytes_asked;
  stats.global_sector_bytes += bytes_moved;
  if (bytes_moved > bytes_asked) stats.unused_sector_bytes[ShortPlace(where)] += bytes_moved - bytes_asked;
}

}  // namespace

void Traffic::Start(int warps) {
  warps_.clear();
  warps_.resize(warps);
}

void Traffic::Record(Space space, int thread, uint64_t address, uint32_t bytes, bool write, Where where) {
  Visits& visits = warps_[thread / 32][Site{where.file, where.line, space, bytes, write}];
  const int lane = thread % 32;
  const uint32_t nth = visits.of_lane[lane]++;
  if (nth == visits.instructions.size()) visits.instructions.emplace_back();
  visits.instructions[nth].lanes |= 1u << lane;
  visits.instructions[nth].address[lane] = address;
}

void Traffic::Meet(int warp, Stats& stats) {
  for (const auto& [site, visits] : warps_[warp]) {
    for (const Instruction& instruction : visits.instructions) {
      const auto count = site.space == Space::kShared ? CountBanks : CountSectors;
      count(instruction.address, instruction.lanes, site.bytes, stats, {site.file, site.line});
    }
  }
  warps_[warp].clear();
}

void Traffic::MeetAll(Stats& stats) {
  for (size_t warp = 0; warp < warps_.size(); ++warp) Meet(static_cast<int>(warp), stats);
}

}  // namespace strata::kx::emu
