#include "offload/store/striper.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/checked.h"
#include "offload/store/store_layout.h"

namespace strata {

Striper::Striper(std::vector<double> weights, uint64_t request_bytes)
    : shares_(std::move(weights)), owed_(shares_.size(), 0.0), request_bytes_(request_bytes) {
  STRATA_CHECK(!shares_.empty() && request_bytes > 0);
  const double total = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (double& share : shares_) {
    STRATA_CHECK(share > 0 && std::isfinite(share));
    share /= total;
  }
}

std::vector<StripePiece> Striper::Next(uint64_t bytes) {
  STRATA_CHECK(bytes > 0 && bytes % kStoreBlockBytes == 0);
  if (shares_.size() == 1) return {{0, bytes}};
  const auto most_owed = [this] {
    return static_cast<uint32_t>(std::max_element(owed_.begin(), owed_.end()) - owed_.begin());
  };
  uint64_t left = bytes / kStoreBlockBytes;
  const auto owe = [this](uint64_t blocks) {
    for (size_t path = 0; path < shares_.size(); ++path)
      owed_[path] += shares_[path] * static_cast<double>(blocks);
  };
  std::vector<StripePiece> pieces;
  if (bytes <= std::min(kWholeExtentBytes, request_bytes_)) {
    owe(left);
    const uint32_t path = most_owed();
    owed_[path] -= static_cast<double>(left);
    return {{path, bytes}};
  }
  for (uint64_t rounds = CeilDiv(bytes, request_bytes_ * shares_.size()); rounds > 0; --rounds) {
    const uint64_t blocks = CeilDiv(left, rounds);
    left -= blocks;
    owe(blocks);
    // What a path is owed in whole blocks; the few that are left over go where most is owed.
    std::vector<uint64_t> part(shares_.size(), 0);
    uint64_t given = 0;
    for (size_t path = 0; path < shares_.size(); ++path) {
      part[path] = std::min(static_cast<uint64_t>(std::max(owed_[path], 0.0)), blocks - given);
      owed_[path] -= static_cast<double>(part[path]);
      given += part[path];
    }
    for (; given < blocks; ++given) {
      const uint32_t path = most_owed();
      ++part[path];
      owed_[path] -= 1;
    }
    for (uint32_t path = 0; path < shares_.size(); ++path) {
      if (part[path] > 0) pieces.push_back({path, part[path] * kStoreBlockBytes});
    }
  }
  return pieces;
}

}  // namespace strata
