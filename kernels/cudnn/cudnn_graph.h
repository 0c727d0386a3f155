// Pieces of cuDNN's backend: descriptors that are destroyed with their owners, and graphs of operations.
#ifndef KERNELS_CUDNN_CUDNN_GRAPH_H_
#define KERNELS_CUDNN_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cudnn/cudnn_api.h"

namespace strata {

// OK, or the library's reason: kUnimplemented when it does not support what was asked, else kInternal.
absl::Status CheckCudnn(CudnnApi& cudnn, int status, absl::string_view what);

// A backend descriptor: created, filled, finalized; destroyed with this object.
class CudnnObject {
 public:
  explicit CudnnObject(CudnnApi& cudnn) : cudnn_(&cudnn) {}
  ~CudnnObject() {
    if (raw_ != nullptr) (void)cudnn_->DestroyDescriptor(raw_);
  }
  CudnnObject(CudnnObject&& other) noexcept
      : cudnn_(other.cudnn_), raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnObject& operator=(CudnnObject&&) = delete;

  absl::Status Create(int type);
  template <typename T>
  absl::Status Set(int attribute, int type, const T& value) {
    return SetMany(attribute, type, 1, &value);
  }
  absl::Status SetMany(int attribute, int type, int64_t count, const void* values);
  absl::Status Finalize();
  CudnnDescriptor* raw() const { return raw_; }

 private:
  CudnnApi* cudnn_;
  CudnnDescriptor* raw_ = nullptr;
};

// A graph of operations on tensors of four dimensions, written down in order. Engines match a graph by its
// form, so order and types matter beyond what they compute. The first failure is kept: what follows it does
// nothing, and Finalize returns it.
class CudnnGraph {
 public:
  using Four = std::array<int64_t, 4>;
  using Tensor = CudnnDescriptor*;  // the graph's

  explicit CudnnGraph(CudnnApi& cudnn) : cudnn_(cudnn), graph_(cudnn) {}

  // Memory that a caller binds by `id` (> 0), aligned to 16 bytes; a number that it binds by value.
  Tensor Bound(int64_t id, int type, const Four& dims, const Four& strides);
  Tensor Scalar(int64_t id, int type);
  // What no memory needs to hold; row-major.
  Tensor Virtual(int type, const Four& dims);

  // Each returns what it wrote: c, y.
  Tensor Matmul(Tensor a, Tensor b, Tensor c);
  Tensor Reduce(int op, Tensor x, Tensor y);
  // y = x seen by other dimensions and strides, given for y: here matrices transposed.
  Tensor Reshape(Tensor x, int type, const Four& dims, const Four& strides);
  struct PointwiseOptions {
    int precision = cudnn::kFloat;
    Tensor select = nullptr;  // of kBinarySelect: x where it holds, else b
    int64_t axis = -1;        // of kGenerateIndex
  };
  Tensor Pointwise(int mode, Tensor x, Tensor b, Tensor y, const PointwiseOptions& options);
  Tensor Pointwise(int mode, Tensor x, Tensor b, Tensor y) { return Pointwise(mode, x, b, y, {}); }

  absl::Status Finalize();
  CudnnDescriptor* raw() const { return graph_.raw(); }

 private:
  // A new descriptor; nullptr after a failure.
  CudnnObject* New(int type);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  template <typename T>
  void Set(CudnnObject* object, int attribute, int type, const T& value) {
    if (status_.ok()) Keep(object->Set(attribute, type, value));
  }
  void FinalizePart(CudnnObject* object) {
    if (status_.ok()) Keep(object->Finalize());
  }
  void FinalizeOperation(CudnnObject* operation);
  Tensor MakeTensor(int64_t id, int type, const Four& dims, const Four& strides, bool is_virtual,
                    bool by_value);

  static constexpr int64_t kFirstVirtual = 1000;

  CudnnApi& cudnn_;
  CudnnObject graph_;
  absl::Status status_;
  std::deque<CudnnObject> parts_;  // tensors, modes and operations
  std::vector<CudnnDescriptor*> operations_;
  int64_t next_virtual_ = kFirstVirtual;
};

}  // namespace strata

#endif  // KERNELS_CUDNN_CUDNN_GRAPH_H_
