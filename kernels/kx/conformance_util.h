// What the conformance checks share.
#ifndef KERNELS_KX_CONFORMANCE_UTIL_H_
#define KERNELS_KX_CONFORMANCE_UTIL_H_

#include <cstddef>
#include <string>

namespace strata::kx::conformance {

inline std::string Differs(const std::string& what, size_t i, double is, double expected) {
  return what + "[" + std::to_string(i) + "] is " + std::to_string(is) + ", not " + std::to_string(expected);
}

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_UTIL_H_
