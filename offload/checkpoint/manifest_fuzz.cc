// Input: a manifest. What the parser accepts, the serializer writes, and that parses to the same bytes again.
#include <cstdint>

#include "common/check.h"
#include "offload/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  const auto manifest = ParseManifest({reinterpret_cast<const char*>(data), size});
  if (!manifest.ok()) {
    STRATA_CHECK(absl::IsDataLoss(manifest.status()));
    return 0;
  }
  const auto bytes = SerializeManifest(*manifest);
  STRATA_CHECK(bytes.ok());
  const auto again = ParseManifest(*bytes);
  STRATA_CHECK(again.ok());
  STRATA_CHECK(*SerializeManifest(*again) == *bytes);
  return 0;
}
