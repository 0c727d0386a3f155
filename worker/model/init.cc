#include "worker/model/init.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "common/random.h"

namespace strata {
namespace {

// FNV-1a, 64 bits: a stream of random numbers per tensor name.
uint64_t StreamOf(absl::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

}  // namespace

void InitializeTensor(const TensorInfo& tensor, uint64_t seed, int64_t element, std::span<float> out) {
  switch (tensor.init) {
    case InitKind::kZero:
      std::fill(out.begin(), out.end(), 0.0f);
      return;
    case InitKind::kOne:
      std::fill(out.begin(), out.end(), 1.0f);
      return;
    case InitKind::kNormal:
      break;
  }
  const CounterRandom random(seed, StreamOf(tensor.name));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(tensor.init_std * random.Normal(static_cast<uint64_t>(element) + i));
  }
}

}  // namespace strata
