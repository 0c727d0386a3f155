#include "kernels/cudnn/fake_cudnn.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "common/bfloat16.h"
#include "common/float16.h"

namespace strata {

using namespace cudnn;  // NOLINT: the constants

namespace {

size_t SizeOfType(int type) {
  switch (type) {
    case kTypeDataType:
    case kTypeHeuristicsMode:
    case kTypePointwiseMode:
    case kTypeReductionOperator:
      return 4;
    case kTypeBoolean:
    case kTypeChar:
      return 1;
    default:
      return 8;
  }
}

struct Desc {
  int type = 0;
  bool finalized = false;
  std::map<int, std::vector<std::byte>> attributes;

  template <typename T>
  std::vector<T> Many(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(int attribute, T fallback = {}) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end() || found->second.size() < sizeof(T)) return fallback;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }
  const Desc* Child(int attribute) const { return One<const Desc*>(attribute, nullptr); }
};

Desc& Of(CudnnDescriptor* descriptor) { return *reinterpret_cast<Desc*>(descriptor); }

// A tensor of four dimensions with what it holds.
struct Values {
  std::array<int64_t, 4> dims{};
  std::vector<float> data;  // row-major

  static Values Like(const Desc& tensor) {
    Values values;
    const auto dims = tensor.Many<int64_t>(kTensorDimensions);
    std::copy(dims.begin(), dims.end(), values.dims.begin());
    values.data.resize(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]));
    return values;
  }
  int64_t size() const { return static_cast<int64_t>(data.size()); }
  std::array<int64_t, 4> IndexOf(int64_t i) const {
    return {i / (dims[1] * dims[2] * dims[3]), i / (dims[2] * dims[3]) % dims[1], i / dims[3] % dims[2],
            i % dims[3]};
  }
  // Dimensions of size 1 are broadcast; fewer heads serve groups of heads.
  float& At(const std::array<int64_t, 4>& index, int64_t heads) {
    const int64_t h = dims[1] == 1 ? 0 : index[1] / (heads / dims[1]);
    const int64_t b = dims[0] == 1 ? 0 : index[0];
    const int64_t r = dims[2] == 1 ? 0 : index[2];
    const int64_t c = dims[3] == 1 ? 0 : index[3];
    return data[static_cast<size_t>(((b * dims[1] + h) * dims[2] + r) * dims[3] + c)];
  }
};

float Round(int type, float value) {
  if (type == kBFloat16) return ToFloat(ToBFloat16(value));
  if (type == kHalf) return ToFloat(ToFloat16(value));
  return value;
}

int64_t Offset(const Desc& tensor, const std::array<int64_t, 4>& index) {
  const auto strides = tensor.Many<int64_t>(kTensorStrides);
  int64_t at = 0;
  for (size_t d = 0; d < 4; ++d) at += index[d] * strides[d];
  return at;
}

// The bound memory of a tensor, by its strides.
void Transfer(const Desc& tensor, void* memory, Values& values, bool load) {
  const int type = tensor.One<int>(kTensorDataType);
  for (int64_t i = 0; i < values.size(); ++i) {
    const int64_t at = Offset(tensor, values.IndexOf(i));
    float& value = values.data[static_cast<size_t>(i)];
    if (type == kBFloat16) {
      auto& stored = static_cast<BFloat16*>(memory)[at];
      load ? void(value = ToFloat(stored)) : void(stored = ToBFloat16(value));
    } else if (type == kInt32) {
      auto& stored = static_cast<int32_t*>(memory)[at];
      load ? void(value = static_cast<float>(stored)) : void(stored = static_cast<int32_t>(value));
    } else if (type == kHalf) {
      auto& stored = static_cast<Float16*>(memory)[at];
      load ? void(value = ToFloat(stored)) : void(stored = ToFloat16(value));
    } else {
      auto& stored = static_cast<float*>(memory)[at];
      load ? void(value = stored) : void(stored = value);
    }
  }
}

float Apply(int mode, float x, float b, float t) {
  switch (mode) {
    case kAdd:
      return x + b;
    case kSub:
      return x - b;
    case kMul:
      return x * b;
    case kDiv:
      return x / b;
    case kExp:
      return std::exp(x);
    case kLog:
      return std::log(x);
    case kIdentity:
      return x;
    case kCompareGt:
      return x > b ? 1 : 0;
    case kCompareGe:
      return x >= b ? 1 : 0;
    case kBinarySelect:
      return t != 0 ? x : b;
    default:
      return std::numeric_limits<float>::quiet_NaN();
  }
}

// Carries out the operations in their order.
class Interpreter {
 public:
  // Numbers bound by value are noted in `numbers`.
  Interpreter(std::map<int64_t, void*> bound, std::map<int64_t, float>& numbers)
      : bound_(std::move(bound)), numbers_(numbers) {
    numbers_.clear();
  }

  bool Run(const Desc& operation) {
    switch (operation.type) {
      case kOperationMatmul:
        return Matmul(*operation.Child(kOpMatmulA), *operation.Child(kOpMatmulB),
                      *operation.Child(kOpMatmulC));
      case kOperationReduction:
        return Reduce(operation.Child(kOpReductionDescriptor)->One<int>(kReductionOperator),
                      *operation.Child(kOpReductionX), *operation.Child(kOpReductionY));
      case kOperationReshape:
        return Reshape(*operation.Child(kOpReshapeX), *operation.Child(kOpReshapeY));
      case kOperationPointwise:
        return Pointwise(operation);
      default:
        return false;
    }
  }

 private:
  // A value that no operation has made yet is bound memory, or an error.
  Values* Get(const Desc& tensor) {
    if (const auto found = values_.find(&tensor); found != values_.end()) return &found->second;
    const auto memory = bound_.find(tensor.One<int64_t>(kTensorId));
    if (memory == bound_.end() || tensor.One<bool>(kTensorIsVirtual)) return nullptr;
    Values values = Values::Like(tensor);
    Transfer(tensor, memory->second, values, /*load=*/true);
    if (tensor.One<bool>(kTensorIsByValue)) numbers_[memory->first] = values.data[0];
    return &values_.emplace(&tensor, std::move(values)).first->second;
  }
  bool Put(const Desc& tensor, Values values) {
    const int type = tensor.One<int>(kTensorDataType);
    for (float& value : values.data) value = Round(type, value);
    if (!tensor.One<bool>(kTensorIsVirtual)) {
      const auto memory = bound_.find(tensor.One<int64_t>(kTensorId));
      if (memory == bound_.end()) return false;
      Transfer(tensor, memory->second, values, /*load=*/false);
    }
    values_[&tensor] = std::move(values);
    return true;
  }
  bool Matmul(const Desc& a_desc, const Desc& b_desc, const Desc& c_desc) {
    Values* const a = Get(a_desc);
    Values* const b = Get(b_desc);
    Values c = Values::Like(c_desc);
    if (a == nullptr || b == nullptr || a->dims[3] != b->dims[2] || c.dims[1] % b->dims[1] != 0) return false;
    for (int64_t i = 0; i < c.size(); ++i) {
      const auto index = c.IndexOf(i);
      float sum = 0;
      for (int64_t k = 0; k < a->dims[3]; ++k) {
        sum += a->At({index[0], index[1], index[2], k}, c.dims[1]) *
               b->At({index[0], index[1], k, index[3]}, c.dims[1]);
      }
      c.data[static_cast<size_t>(i)] = sum;
    }
    return Put(c_desc, std::move(c));
  }
  // Every dimension is kept or cut into as many groups of neighbours as y has there.
  bool Reduce(int op, const Desc& x_desc, const Desc& y_desc) {
    Values* const x = Get(x_desc);
    Values y = Values::Like(y_desc);
    if (x == nullptr) return false;
    std::fill(y.data.begin(), y.data.end(), op == kReduceMax ? -std::numeric_limits<float>::infinity() : 0);
    for (size_t d = 0; d < 4; ++d) {
      if (x->dims[d] % y.dims[d] != 0) return false;
    }
    for (int64_t i = 0; i < x->size(); ++i) {
      auto index = x->IndexOf(i);
      for (size_t d = 0; d < 4; ++d) index[d] /= x->dims[d] / y.dims[d];
      float& result = y.At(index, y.dims[1]);
      const float value = x->data[static_cast<size_t>(i)];
      result = op == kReduceMax ? std::max(result, value) : result + value;
    }
    return Put(y_desc, std::move(y));
  }
  // The same places of memory under other dimensions.
  bool Reshape(const Desc& x_desc, const Desc& y_desc) {
    Values* const x = Get(x_desc);
    if (x == nullptr) return false;
    Values y = Values::Like(y_desc);
    std::map<int64_t, float> memory;
    for (int64_t i = 0; i < x->size(); ++i)
      memory[Offset(x_desc, x->IndexOf(i))] = x->data[static_cast<size_t>(i)];
    for (int64_t i = 0; i < y.size(); ++i) {
      const auto found = memory.find(Offset(y_desc, y.IndexOf(i)));
      if (found == memory.end()) return false;
      y.data[static_cast<size_t>(i)] = found->second;
    }
    return Put(y_desc, std::move(y));
  }
  bool Pointwise(const Desc& operation) {
    const Desc& desc = *operation.Child(kOpPointwiseDescriptor);
    const int mode = desc.One<int>(kPointwiseMode);
    const Desc* const b_desc = operation.Child(kOpPointwiseB);
    const Desc* const t_desc = operation.Child(kOpPointwiseT);
    Values* const x = Get(*operation.Child(kOpPointwiseX));
    Values* const b = b_desc == nullptr ? nullptr : Get(*b_desc);
    Values* const t = t_desc == nullptr ? nullptr : Get(*t_desc);
    if (x == nullptr || (b_desc != nullptr && b == nullptr) || (t_desc != nullptr && t == nullptr))
      return false;
    const Desc& y_desc = *operation.Child(kOpPointwiseY);
    Values y = Values::Like(y_desc);
    const int64_t axis = desc.One<int64_t>(kPointwiseAxis, -1);
    for (int64_t i = 0; i < y.size(); ++i) {
      const auto index = y.IndexOf(i);
      y.data[static_cast<size_t>(i)] =
          mode == kGenerateIndex
              ? static_cast<float>(index[static_cast<size_t>(axis)])
              : Apply(mode, x->At(index, y.dims[1]), b == nullptr ? 0 : b->At(index, y.dims[1]),
                      t == nullptr ? 0 : t->At(index, y.dims[1]));
    }
    return Put(y_desc, std::move(y));
  }

  const std::map<int64_t, void*> bound_;
  std::map<int64_t, float>& numbers_;
  std::map<const Desc*, Values> values_;
};

}  // namespace

int FakeCudnn::Create(CudnnHandle** handle) {
  if (Fails() || !started) return kNotInitialized;
  ++objects;
  *handle = reinterpret_cast<CudnnHandle*>(this);
  return kSuccess;
}

int FakeCudnn::Destroy(CudnnHandle*) {
  --objects;
  return kSuccess;
}

int FakeCudnn::SetStream(CudnnHandle*, void* used) {
  if (Fails()) return kBadParameter;
  stream = used;
  return kSuccess;
}

void FakeCudnn::GetLastErrorString(char* text, size_t bytes) {
  std::snprintf(text, bytes, "%s",
                !driver     ? (std::string(kNoDriver) + "; Reason: no libcuda\n").c_str()
                : supported ? "a reason"
                            : "Warning: a code; Reason: d > 64\nReason: another\n");
}

int FakeCudnn::CreateDescriptor(int type, CudnnDescriptor** descriptor) {
  if (Fails()) return kBadParameter;
  ++objects;
  *descriptor = reinterpret_cast<CudnnDescriptor*>(new Desc{.type = type});
  return kSuccess;
}

int FakeCudnn::DestroyDescriptor(CudnnDescriptor* descriptor) {
  --objects;
  delete &Of(descriptor);
  return kSuccess;
}

int FakeCudnn::SetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t count,
                            const void* values) {
  if (Fails()) return kBadParameter;
  Desc& desc = Of(descriptor);
  if (desc.finalized) return kBadParameter;
  const auto* const bytes = static_cast<const std::byte*>(values);
  desc.attributes[attribute].assign(bytes, bytes + static_cast<size_t>(count) * SizeOfType(type));
  if (type != kTypeDescriptor) return kSuccess;
  for (const Desc* child : desc.Many<const Desc*>(attribute)) {
    if (!child->finalized) return kBadParameter;
  }
  return kSuccess;
}

int FakeCudnn::GetAttribute(CudnnDescriptor* descriptor, int attribute, int, int64_t requested,
                            int64_t* count, void* values) {
  if (Fails()) return kBadParameter;
  Desc& desc = Of(descriptor);
  if (!desc.finalized) return kBadParameter;
  *count = 1;
  if (attribute == kHeuristicsResults) {
    if (requested == 0) {
      *count = engines;
    } else if (!supported || !driver) {
      *count = 0;
    } else {
      // The caller's own descriptors are filled in.
      Desc& config = Of(static_cast<CudnnDescriptor**>(values)[0]);
      config.finalized = true;
      config.attributes[kHeuristicsGraph] = desc.attributes[kHeuristicsGraph];
    }
    return kSuccess;
  }
  std::memcpy(values, &workspace_bytes, sizeof(workspace_bytes));
  return kSuccess;
}

int FakeCudnn::Finalize(CudnnDescriptor* descriptor) {
  if (Fails()) return kBadParameter;
  Desc& desc = Of(descriptor);
  if (desc.type == kExecutionPlan) ++plans;
  desc.finalized = true;
  return kSuccess;
}

int FakeCudnn::Execute(CudnnHandle*, CudnnDescriptor* plan, CudnnDescriptor* variant_pack) {
  if (Fails()) return kBadParameter;
  const Desc& pack = Of(variant_pack);
  const auto ids = pack.Many<int64_t>(kPackIds);
  const auto pointers = pack.Many<void*>(kPackPointers);
  if (ids.size() != pointers.size()) return kBadParameter;
  std::map<int64_t, void*> bound;
  for (size_t i = 0; i < ids.size(); ++i) bound[ids[i]] = pointers[i];
  Interpreter interpreter(std::move(bound), numbers);
  const Desc& graph = *Of(plan).Child(kPlanEngineConfig)->Child(kHeuristicsGraph);
  for (const Desc* operation : graph.Many<const Desc*>(kGraphOperations)) {
    if (!interpreter.Run(*operation)) return kBadParameter;
  }
  return kSuccess;
}

}  // namespace strata
