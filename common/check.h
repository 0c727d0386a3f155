// STRATA_CHECK: for what is impossible unless we are wrong. On in release builds; prints and aborts.
#ifndef COMMON_CHECK_H_
#define COMMON_CHECK_H_

namespace strata::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);
}  // namespace strata::internal

#define STRATA_CHECK(condition) \
  ((condition) ? (void)0 : ::strata::internal::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // COMMON_CHECK_H_
