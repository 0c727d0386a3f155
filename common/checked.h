// Checked arithmetic for sizes that come from outside: nullopt instead of a wrap.
#ifndef COMMON_CHECKED_H_
#define COMMON_CHECKED_H_

#include <concepts>
#include <optional>

namespace strata {

template <std::integral T>
std::optional<T> CheckedAdd(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
std::optional<T> CheckedMul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The smallest multiple of `unit` (> 0) that is >= `value` (>= 0). The caller knows it does not overflow.
template <std::integral T>
constexpr T RoundUp(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

template <std::integral T>
constexpr T CeilDiv(T value, T unit) {
  return (value + unit - 1) / unit;
}

}  // namespace strata

#endif  // COMMON_CHECKED_H_
