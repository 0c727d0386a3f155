#include "kernels/attention/fp8_decode.h"

#include "kernels/attention/fp8_layout.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::attention {

ReferenceInputs DecodeFp8(const ReferenceInputs& in, const void* workspace) {
  const Shape& s = in.shape;
  const Fp8Layout layout = Fp8LayoutOf(s, in.packed);
  const int dim = Fp8Dim(s.head_dim);
  const auto* bytes = static_cast<const unsigned char*>(workspace);
  ReferenceInputs out = in;
  out.shape.head_dim = dim;
  out.dout.clear();
  out.q.assign(static_cast<size_t>(s.total_q) * s.heads * dim, 0);
  out.k.assign(static_cast<size_t>(s.total_k) * s.kv_heads * dim, 0);
  out.v.assign(out.k.size(), 0);
  const auto code = [&](int64_t at) { return static_cast<double>(kx::ToFloat(kx::e4m3{bytes[at]})); };
  const auto scale = [&](int64_t base, int64_t block) {
    float x;
    memcpy(&x, bytes + base + 4 * block, 4);
    return static_cast<double>(x);
  };
  for (int b = 0; b < s.batch; ++b) {
    const int64_t q_row = Fp8RowOf(in.packed, b, s.seq_q, in.cu_q[b]);
    const int64_t k_row = Fp8RowOf(in.packed, b, s.seq_k, in.cu_k[b]);
    for (int c = 0; c < dim; ++c) {
      for (int h = 0; h < s.heads; ++h) {
        for (int i = 0; i < in.cu_q[b + 1] - in.cu_q[b]; ++i) {
          const int64_t row = h * layout.q_rows + q_row + i;
          out.q[(in.cu_q[b] + i) * static_cast<int64_t>(s.heads) * dim + h * dim + c] =
              code(layout.q + row * dim + c) * scale(layout.q_scale, row / kFp8QueryBlock);
        }
      }
      for (int h = 0; h < s.kv_heads; ++h) {
        for (int j = 0; j < in.cu_k[b + 1] - in.cu_k[b]; ++j) {
          const int64_t row = h * layout.k_rows + k_row + j;
          const int64_t at = (in.cu_k[b] + j) * static_cast<int64_t>(s.kv_heads) * dim + h * dim + c;
          out.k[at] = code(layout.k + row * dim + c) * scale(layout.kv_scale, row / kFp8Block * 2);
          int place = 0;
          while (Fp8KeyAt(place) != j % 16) ++place;
          const int64_t column = k_row + j / 16 * 16 + place;
          out.v[at] = code(layout.v + (static_cast<int64_t>(h) * dim + c) * layout.k_rows + column) *
                      scale(layout.kv_scale, row / kFp8Block * 2 + 1);
        }
      }
    }
  }
  return out;
}

}  // namespace strata::attention
