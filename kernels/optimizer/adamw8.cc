#include "kernels/optimizer/adamw8.h"

#include <algorithm>
#include <cmath>

#include "kernels/optimizer/code8.h"

namespace strata {

void AdamW8(const AdamWScalars& scalars, const AdamW8Range& range) {
  for (int64_t begin = 0; begin < range.n; begin += kCode8Block) {
    const int64_t n = std::min<int64_t>(kCode8Block, range.n - begin), block = begin / kCode8Block;
    float m[kCode8Block], v[kCode8Block];
    for (int64_t i = 0; i < n; ++i) {
      m[i] = range.m_scale[block] * DecodeSigned(range.m[begin + i]);
      v[i] = range.v_scale[block] * DecodeUnsigned(range.v[begin + i]);
    }
    AdamWRange part = {.n = n, .grad = range.grad + begin, .master = range.master + begin, .m = m, .v = v};
    part.params_dtype = range.params_dtype;
    if (range.params != nullptr) {
      part.params = static_cast<char*>(range.params) + begin * SizeOf(range.params_dtype);
    }
    AdamW(scalars, part);
    float m_max = 0, v_max = 0;
    for (int64_t i = 0; i < n; ++i) {
      m_max = std::max(m_max, std::abs(m[i]));
      v_max = std::max(v_max, v[i]);
    }
    const float m_scale = m_max / kCode8Largest, v_scale = v_max / kCode8Largest;
    for (int64_t i = 0; i < n; ++i) {
      range.m[begin + i] = m_scale > 0 ? EncodeSigned(m[i] / m_scale) : 0;
      range.v[begin + i] = v_scale > 0 ? EncodeUnsigned(v[i] / v_scale) : 0;
    }
    range.m_scale[block] = m_scale;
    range.v_scale[block] = v_scale;
  }
}

}  // namespace strata
