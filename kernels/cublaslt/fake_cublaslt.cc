#include "kernels/cublaslt/fake_cublaslt.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/bfloat16.h"
#include "common/float16.h"

namespace strata {

using namespace cublaslt;  // NOLINT: the constants

namespace {

struct Desc {
  int32_t op_a = kOpN, op_b = kOpN;
  uint32_t epilogue = kEpilogueDefault;
  const void* bias = nullptr;
  int32_t bias_type = -1;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};
struct Layout {
  int type;
  int64_t rows, columns, ld;
};
struct Preference {
  uint64_t workspace_bytes = 0;
};

float Load(int type, const void* data, int64_t index) {
  switch (type) {
    case kR32F:
      return static_cast<const float*>(data)[index];
    case kR16F:
      return ToFloat(static_cast<const Float16*>(data)[index]);
    case kR16BF:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    default:
      return DecodeFp8(type, static_cast<const uint8_t*>(data)[index]);
  }
}

void Store(int type, void* data, int64_t index, float value) {
  switch (type) {
    case kR32F:
      static_cast<float*>(data)[index] = value;
      break;
    case kR16F:
      static_cast<Float16*>(data)[index] = ToFloat16(value);
      break;
    default:
      static_cast<BFloat16*>(data)[index] = ToBFloat16(value);
  }
}

bool IsFp8(int type) { return type == kR8FE4M3 || type == kR8FE5M2; }

template <typename T>
int Take(T& into, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(&into, value, bytes);
  return kSuccess;
}

}  // namespace

float DecodeFp8(int type, uint8_t byte) {
  const bool e4m3 = type == kR8FE4M3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (byte & 0x7f) >> mantissa_bits;
  const int mantissa = byte & ((1 << mantissa_bits) - 1);
  const float sign = byte & 0x80 ? -1.0f : 1.0f;
  if (e4m3 && (byte & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (!e4m3 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  const float fraction = std::ldexp(static_cast<float>(mantissa), -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

int FakeCublasLt::Create(CublasLtHandle** handle) {
  if (Fails() || !started) return kNotInitialized;
  ++objects;
  *handle = reinterpret_cast<CublasLtHandle*>(this);
  return kSuccess;
}
int FakeCublasLt::Destroy(CublasLtHandle*) {
  --objects;
  return kSuccess;
}

int FakeCublasLt::MatmulDescCreate(CublasLtDesc** desc, int compute_type, int scale_type) {
  if (Fails()) return kExecutionFailed;
  if (compute_type != kCompute32F || scale_type != kR32F) return kNotSupported;
  ++objects;
  *desc = reinterpret_cast<CublasLtDesc*>(new Desc);
  return kSuccess;
}
int FakeCublasLt::MatmulDescDestroy(CublasLtDesc* desc) {
  --objects;
  delete reinterpret_cast<Desc*>(desc);
  return kSuccess;
}
int FakeCublasLt::MatmulDescSetAttribute(CublasLtDesc* opaque, int attribute, const void* value,
                                         size_t bytes) {
  if (Fails()) return kExecutionFailed;
  Desc& desc = *reinterpret_cast<Desc*>(opaque);
  int8_t fast;
  switch (attribute) {
    case kDescTransA:
      return Take(desc.op_a, value, bytes);
    case kDescTransB:
      return Take(desc.op_b, value, bytes);
    case kDescEpilogue:
      return Take(desc.epilogue, value, bytes);
    case kDescBiasPointer:
      return Take(desc.bias, value, bytes);
    case kDescBiasDataType:
      return Take(desc.bias_type, value, bytes);
    case kDescAScalePointer:
      return Take(desc.a_scale, value, bytes);
    case kDescBScalePointer:
      return Take(desc.b_scale, value, bytes);
    case kDescFastAccum:
      return Take(fast, value, bytes);
    default:
      return kInvalidValue;
  }
}

int FakeCublasLt::MatrixLayoutCreate(CublasLtLayout** layout, int type, uint64_t rows, uint64_t columns,
                                     int64_t ld) {
  if (Fails()) return kExecutionFailed;
  if (ld < static_cast<int64_t>(rows)) return kInvalidValue;
  ++objects;
  *layout = reinterpret_cast<CublasLtLayout*>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return kSuccess;
}
int FakeCublasLt::MatrixLayoutDestroy(CublasLtLayout* layout) {
  --objects;
  delete reinterpret_cast<Layout*>(layout);
  return kSuccess;
}

int FakeCublasLt::PreferenceCreate(CublasLtPreference** preference) {
  if (Fails()) return kExecutionFailed;
  ++objects;
  *preference = reinterpret_cast<CublasLtPreference*>(new Preference);
  return kSuccess;
}
int FakeCublasLt::PreferenceDestroy(CublasLtPreference* preference) {
  --objects;
  delete reinterpret_cast<Preference*>(preference);
  return kSuccess;
}
int FakeCublasLt::PreferenceSetAttribute(CublasLtPreference* opaque, int attribute, const void* value,
                                         size_t bytes) {
  if (Fails()) return kExecutionFailed;
  uint32_t alignment;
  switch (attribute) {
    case kPrefMaxWorkspaceBytes:
      return Take(reinterpret_cast<Preference*>(opaque)->workspace_bytes, value, bytes);
    case kPrefReductionSchemeMask:
      return Take(reduction_mask, value, bytes);
    case kPrefMinAlignmentA:
    case kPrefMinAlignmentB:
    case kPrefMinAlignmentC:
    case kPrefMinAlignmentD:
      return Take(alignment, value, bytes);
    default:
      return kInvalidValue;
  }
}

int FakeCublasLt::AlgoGetHeuristic(CublasLtHandle*, CublasLtDesc*, CublasLtLayout*, CublasLtLayout*,
                                   CublasLtLayout*, CublasLtLayout*, CublasLtPreference*, int requested,
                                   HeuristicResult* results, int* returned) {
  if (Fails()) return kExecutionFailed;
  ++heuristics;
  *returned = 0;
  if (offers.empty()) return kNotSupported;
  for (const Offer& offer : offers) {
    if (*returned == requested) break;
    HeuristicResult& result = results[(*returned)++];
    result = {};
    result.algo.data[0] = offer.id;
    result.algo.data[1] = offer.split_k;
    result.workspace_bytes = offer.workspace_bytes;
    result.state = offer.state;
  }
  return kSuccess;
}

int FakeCublasLt::AlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t bytes,
                                         size_t* written) {
  if (bytes != sizeof(uint32_t)) return kInvalidValue;
  uint32_t answer = 0;
  if (attribute == kAlgoId) answer = static_cast<uint32_t>(algo->data[0]);
  if (attribute == kAlgoSplitK) answer = static_cast<uint32_t>(algo->data[1]);
  std::memcpy(value, &answer, sizeof(answer));
  *written = sizeof(answer);
  return kSuccess;
}

int FakeCublasLt::Matmul(CublasLtHandle*, CublasLtDesc* opaque, const void* alpha, const void* a,
                         CublasLtLayout* a_layout, const void* b, CublasLtLayout* b_layout, const void* beta,
                         const void* c, CublasLtLayout* c_layout, void* d, CublasLtLayout* d_layout,
                         const Algo* algo, void*, size_t, void*) {
  if (Fails()) return kExecutionFailed;
  const Desc& desc = *reinterpret_cast<Desc*>(opaque);
  const Layout& la = *reinterpret_cast<Layout*>(a_layout);
  const Layout& lb = *reinterpret_cast<Layout*>(b_layout);
  const Layout& lc = *reinterpret_cast<Layout*>(c_layout);
  const Layout& ld = *reinterpret_cast<Layout*>(d_layout);
  const int64_t m = desc.op_a == kOpN ? la.rows : la.columns;
  const int64_t k = desc.op_a == kOpN ? la.columns : la.rows;
  const int64_t n = desc.op_b == kOpN ? lb.columns : lb.rows;
  if ((desc.op_b == kOpN ? lb.rows : lb.columns) != k || ld.rows != m || ld.columns != n)
    return kInvalidValue;
  if (IsFp8(la.type) != (desc.a_scale != nullptr)) return kInvalidValue;
  if (IsFp8(la.type) && (desc.op_a != kOpT || desc.op_b != kOpN)) return kNotSupported;
  // The library's table of types: a bias is of D's.
  if (desc.epilogue == kEpilogueBias && desc.bias_type != ld.type) return kNotSupported;
  const float scale = IsFp8(la.type) ? *desc.a_scale * *desc.b_scale : 1;
  used.push_back(static_cast<uint32_t>(algo->data[0]));
  const float factor = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        const int64_t at = desc.op_a == kOpN ? i + l * la.ld : l + i * la.ld;
        const int64_t bt = desc.op_b == kOpN ? l + j * lb.ld : j + l * lb.ld;
        sum += Load(la.type, a, at) * Load(lb.type, b, bt);
      }
      sum *= factor * scale;
      if (kept != 0) sum += kept * Load(lc.type, c, i + j * lc.ld);
      if (desc.epilogue == kEpilogueBias) sum += Load(desc.bias_type, desc.bias, i);
      Store(ld.type, d, i + j * ld.ld, sum);
    }
  }
  return kSuccess;
}

}  // namespace strata
