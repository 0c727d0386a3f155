// How the conformance kernels are emulated: every wake order, each with another accumulation.
#ifndef KERNELS_KX_CONFORMANCE_WAYS_H_
#define KERNELS_KX_CONFORMANCE_WAYS_H_

#include <vector>

#include "kernels/kx/emu/emu.h"

namespace strata::kx::conformance {

inline std::vector<emu::Options> EveryWay() {
  std::vector<emu::Options> ways;
  for (const emu::Order order : emu::kAllOrders) {
    emu::Options options;
    options.order = order;
    options.seed = 7 + static_cast<uint64_t>(order);
    options.accumulate = static_cast<emu::Accumulate>(static_cast<int>(order) % 3);
    options.only_registered = true;
    ways.push_back(options);
  }
  return ways;
}

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_WAYS_H_
