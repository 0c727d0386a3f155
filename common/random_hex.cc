#include "common/random_hex.h"

#include <sys/random.h>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace strata {

std::string RandomHex(int digits) {
  // Up to 256 bytes getrandom gives whole, whatever interrupts it.
  STRATA_CHECK(digits >= 0 && digits <= 512);
  std::string bytes((digits + 1) / 2, '\0');
  STRATA_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(bytes).substr(0, digits);
}

}  // namespace strata
