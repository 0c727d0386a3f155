#include "kernels/cudnn/cudnn_attention.h"

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"

namespace strata {

using namespace cudnn;  // NOLINT: the constants

namespace {

// Names of the tensors that callers bind.
enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kScale, kMinusInfinity, kFirstVirtual };
constexpr int64_t kAlignment = 16;

int TypeOf(DType dtype) { return dtype == DType::kF16 ? kHalf : kBFloat16; }

absl::Status Check(CudnnApi& cudnn, int status, absl::string_view what) {
  if (status == kSuccess) return absl::OkStatus();
  char reason[1024] = {};
  cudnn.GetLastErrorString(reason, sizeof(reason));
  const std::string message = absl::StrCat("cuDNN, ", what, ": status ", status, ", ", reason);
  return status >= kNotSupported && status < kNotSupportedEnd ? absl::UnimplementedError(message)
                                                              : absl::InternalError(message);
}

// A backend descriptor: created, filled, finalized; destroyed with this object.
class Descriptor {
 public:
  explicit Descriptor(CudnnApi& cudnn) : cudnn_(&cudnn) {}
  ~Descriptor() {
    if (raw_ != nullptr) (void)cudnn_->DestroyDescriptor(raw_);
  }
  Descriptor(Descriptor&& other) : cudnn_(other.cudnn_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  absl::Status Create(int type) {
    return Check(*cudnn_, cudnn_->CreateDescriptor(type, &raw_), absl::StrCat("descriptor of type ", type));
  }
  template <typename T>
  absl::Status Set(int attribute, int type, const T& value) {
    return SetMany(attribute, type, 1, &value);
  }
  absl::Status SetMany(int attribute, int type, int64_t count, const void* values) {
    return Check(*cudnn_, cudnn_->SetAttribute(raw_, attribute, type, count, values),
                 absl::StrCat("attribute ", attribute));
  }
  absl::Status Finalize() { return Check(*cudnn_, cudnn_->Finalize(raw_), "finalizing"); }
  CudnnDescriptor* raw() const { return raw_; }
  CudnnDescriptor** slot() { return &raw_; }

 private:
  CudnnApi* cudnn_;
  CudnnDescriptor* raw_ = nullptr;
};

// The operation graph of one shape. Engines match it by its form: the order and the types here are those that
// they know.
class Graph {
 public:
  explicit Graph(CudnnApi& cudnn) : cudnn_(cudnn), graph_(cudnn) {}

  absl::Status Build(const CudnnAttentionShape& shape);
  CudnnDescriptor* raw() const { return graph_.raw(); }

 private:
  using Four = std::array<int64_t, 4>;
  using Tensor = CudnnDescriptor*;

  absl::StatusOr<Descriptor*> New(int type) {
    parts_.push_back(std::make_unique<Descriptor>(cudnn_));
    STRATA_RETURN_IF_ERROR(parts_.back()->Create(type));
    return parts_.back().get();
  }
  absl::StatusOr<Tensor> MakeTensor(int64_t id, int type, const Four& dims, const Four& strides,
                                    bool is_virtual, bool by_value);
  absl::StatusOr<Tensor> Bound(Id id, int type, const Four& dims, const Four& strides) {
    return MakeTensor(id, type, dims, strides, false, false);
  }
  absl::StatusOr<Tensor> Scalar(Id id) {
    return MakeTensor(id, kFloat, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
  }
  // An intermediate value: [batch, heads, seq, seq] or, `column`, [batch, heads, seq, 1].
  absl::StatusOr<Tensor> Virtual(int type, bool column = false) {
    return MakeTensor(next_++, type, column ? column_ : square_, column ? column_strides_ : square_strides_,
                      true, false);
  }
  absl::Status Matmul(Tensor a, Tensor b, Tensor c);
  absl::Status Reduce(int op, Tensor x, Tensor y);
  absl::Status Pointwise(int mode, Tensor x, Tensor b, Tensor y, int precision = kFloat, Tensor t = nullptr,
                         int64_t axis = -1);

  CudnnApi& cudnn_;
  Descriptor graph_;
  std::vector<std::unique_ptr<Descriptor>> parts_;
  std::vector<CudnnDescriptor*> operations_;
  int64_t next_ = kFirstVirtual;
  Four square_{}, square_strides_{}, column_{}, column_strides_{};
};

absl::StatusOr<Graph::Tensor> Graph::MakeTensor(int64_t id, int type, const Four& dims, const Four& strides,
                                                bool is_virtual, bool by_value) {
  STRATA_ASSIGN_OR_RETURN(Descriptor* const tensor, New(kTensor));
  STRATA_RETURN_IF_ERROR(tensor->Set(kTensorId, kTypeInt64, id));
  STRATA_RETURN_IF_ERROR(tensor->Set(kTensorDataType, kTypeDataType, type));
  STRATA_RETURN_IF_ERROR(tensor->SetMany(kTensorDimensions, kTypeInt64, 4, dims.data()));
  STRATA_RETURN_IF_ERROR(tensor->SetMany(kTensorStrides, kTypeInt64, 4, strides.data()));
  STRATA_RETURN_IF_ERROR(tensor->Set(kTensorAlignment, kTypeInt64, kAlignment));
  STRATA_RETURN_IF_ERROR(tensor->Set(kTensorIsVirtual, kTypeBoolean, is_virtual));
  STRATA_RETURN_IF_ERROR(tensor->Set(kTensorIsByValue, kTypeBoolean, by_value));
  STRATA_RETURN_IF_ERROR(tensor->Finalize(), "tensor ", id);
  return tensor->raw();
}

absl::Status Graph::Matmul(Tensor a, Tensor b, Tensor c) {
  STRATA_ASSIGN_OR_RETURN(Descriptor* const matmul, New(kMatmul));
  STRATA_RETURN_IF_ERROR(matmul->Set(kMatmulComputeType, kTypeDataType, kFloat));
  STRATA_RETURN_IF_ERROR(matmul->Finalize());
  STRATA_ASSIGN_OR_RETURN(Descriptor* const operation, New(kOperationMatmul));
  CudnnDescriptor* const raw = matmul->raw();
  STRATA_RETURN_IF_ERROR(operation->Set(kOpMatmulA, kTypeDescriptor, a));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpMatmulB, kTypeDescriptor, b));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpMatmulC, kTypeDescriptor, c));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpMatmulDescriptor, kTypeDescriptor, raw));
  operations_.push_back(operation->raw());
  return operation->Finalize();
}

absl::Status Graph::Reduce(int op, Tensor x, Tensor y) {
  STRATA_ASSIGN_OR_RETURN(Descriptor* const reduction, New(kReduction));
  STRATA_RETURN_IF_ERROR(reduction->Set(kReductionOperator, kTypeReductionOperator, op));
  STRATA_RETURN_IF_ERROR(reduction->Set(kReductionComputeType, kTypeDataType, kFloat));
  STRATA_RETURN_IF_ERROR(reduction->Finalize());
  STRATA_ASSIGN_OR_RETURN(Descriptor* const operation, New(kOperationReduction));
  CudnnDescriptor* const raw = reduction->raw();
  STRATA_RETURN_IF_ERROR(operation->Set(kOpReductionX, kTypeDescriptor, x));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpReductionY, kTypeDescriptor, y));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpReductionDescriptor, kTypeDescriptor, raw));
  operations_.push_back(operation->raw());
  return operation->Finalize();
}

absl::Status Graph::Pointwise(int mode, Tensor x, Tensor b, Tensor y, int precision, Tensor t, int64_t axis) {
  STRATA_ASSIGN_OR_RETURN(Descriptor* const pointwise, New(kPointwise));
  STRATA_RETURN_IF_ERROR(pointwise->Set(kPointwiseMode, kTypePointwiseMode, mode));
  STRATA_RETURN_IF_ERROR(pointwise->Set(kPointwiseMathPrecision, kTypeDataType, precision));
  if (axis >= 0) STRATA_RETURN_IF_ERROR(pointwise->Set(kPointwiseAxis, kTypeInt64, axis));
  STRATA_RETURN_IF_ERROR(pointwise->Finalize());
  STRATA_ASSIGN_OR_RETURN(Descriptor* const operation, New(kOperationPointwise));
  CudnnDescriptor* const raw = pointwise->raw();
  STRATA_RETURN_IF_ERROR(operation->Set(kOpPointwiseDescriptor, kTypeDescriptor, raw));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpPointwiseX, kTypeDescriptor, x));
  if (b != nullptr) STRATA_RETURN_IF_ERROR(operation->Set(kOpPointwiseB, kTypeDescriptor, b));
  if (t != nullptr) STRATA_RETURN_IF_ERROR(operation->Set(kOpPointwiseT, kTypeDescriptor, t));
  STRATA_RETURN_IF_ERROR(operation->Set(kOpPointwiseY, kTypeDescriptor, y));
  operations_.push_back(operation->raw());
  return operation->Finalize();
}

absl::Status Graph::Build(const CudnnAttentionShape& s) {
  const int type = TypeOf(s.dtype);
  square_ = {s.batch, s.heads, s.seq, s.seq};
  square_strides_ = {s.heads * s.seq * s.seq, s.seq * s.seq, s.seq, 1};
  column_ = {s.batch, s.heads, s.seq, 1};
  column_strides_ = {s.heads * s.seq, s.seq, 1, 1};
  const int64_t dim = s.head_dim;
  STRATA_ASSIGN_OR_RETURN(const Tensor q,
                          Bound(kQ, type, {s.batch, s.heads, s.seq, dim}, {s.seq * s.ldq, dim, s.ldq, 1}));
  // Transposed by its strides.
  STRATA_ASSIGN_OR_RETURN(const Tensor k,
                          Bound(kK, type, {s.batch, s.kv_heads, dim, s.seq}, {s.seq * s.ldk, dim, 1, s.ldk}));
  STRATA_ASSIGN_OR_RETURN(const Tensor v,
                          Bound(kV, type, {s.batch, s.kv_heads, s.seq, dim}, {s.seq * s.ldv, dim, s.ldv, 1}));
  STRATA_ASSIGN_OR_RETURN(const Tensor o,
                          Bound(kO, type, {s.batch, s.heads, s.seq, dim}, {s.seq * s.ldo, dim, s.ldo, 1}));
  STRATA_ASSIGN_OR_RETURN(const Tensor stats, Bound(kStats, kFloat, column_, column_strides_));
  STRATA_ASSIGN_OR_RETURN(const Tensor scale, Scalar(kScale));
  STRATA_ASSIGN_OR_RETURN(const Tensor minus_infinity, Scalar(kMinusInfinity));

  STRATA_ASSIGN_OR_RETURN(const Tensor product, Virtual(kFloat));
  STRATA_RETURN_IF_ERROR(Matmul(q, k, product));
  STRATA_ASSIGN_OR_RETURN(const Tensor score, Virtual(kFloat));
  STRATA_RETURN_IF_ERROR(Pointwise(kMul, product, scale, score));
  // Row r sees columns 0 .. r.
  STRATA_ASSIGN_OR_RETURN(const Tensor row, Virtual(kInt32));
  STRATA_RETURN_IF_ERROR(Pointwise(kGenerateIndex, score, nullptr, row, kInt32, nullptr, 2));
  STRATA_ASSIGN_OR_RETURN(const Tensor column, Virtual(kInt32));
  STRATA_RETURN_IF_ERROR(Pointwise(kGenerateIndex, score, nullptr, column, kInt32, nullptr, 3));
  STRATA_ASSIGN_OR_RETURN(const Tensor visible, Virtual(kBoolean));
  STRATA_RETURN_IF_ERROR(Pointwise(kCompareGe, row, column, visible, kBoolean));
  STRATA_ASSIGN_OR_RETURN(const Tensor masked, Virtual(kFloat));
  STRATA_RETURN_IF_ERROR(Pointwise(kBinarySelect, score, minus_infinity, masked, kFloat, visible));

  STRATA_ASSIGN_OR_RETURN(const Tensor max, Virtual(kFloat, true));
  STRATA_RETURN_IF_ERROR(Reduce(kReduceMax, masked, max));
  STRATA_ASSIGN_OR_RETURN(const Tensor shifted, Virtual(kFloat));
  STRATA_RETURN_IF_ERROR(Pointwise(kSub, masked, max, shifted));
  STRATA_ASSIGN_OR_RETURN(const Tensor power, Virtual(kFloat));
  STRATA_RETURN_IF_ERROR(Pointwise(kExp, shifted, nullptr, power));
  STRATA_ASSIGN_OR_RETURN(const Tensor sum, Virtual(kFloat, true));
  STRATA_RETURN_IF_ERROR(Reduce(kReduceAdd, power, sum));
  STRATA_ASSIGN_OR_RETURN(const Tensor log, Virtual(kFloat, true));
  STRATA_RETURN_IF_ERROR(Pointwise(kLog, sum, nullptr, log));
  STRATA_RETURN_IF_ERROR(Pointwise(kAdd, max, log, stats));
  STRATA_ASSIGN_OR_RETURN(const Tensor weights, Virtual(type));
  STRATA_RETURN_IF_ERROR(Pointwise(kDiv, power, sum, weights));
  STRATA_RETURN_IF_ERROR(Matmul(weights, v, o));

  STRATA_RETURN_IF_ERROR(graph_.Create(kOperationGraph));
  STRATA_RETURN_IF_ERROR(graph_.SetMany(kGraphOperations, kTypeDescriptor,
                                        static_cast<int64_t>(operations_.size()), operations_.data()));
  return graph_.Finalize();
}

// Properties of a device that is not there, in the form that cuDNN 9.8 to 9.19 reads.
std::string DeviceJson(int arch) {
  const bool hopper = arch >= 90;
  return absl::StrFormat(
      R"({"cudaDeviceId":0,"deviceName":"%s","deviceVer":%d,"driverVer":13000,"isTccDriver":0,"l2CacheSize":%d,)"
      R"("maxCtasPerSM":32,"maxRegistersPerSM":65536,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":%d,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
      R"("memClockRateKHz":%d,"multiProcessorCount":%d,"pciDeviceId":0,"regsPerBlock":65536,)"
      R"("reservedSharedMemoryPerBlock":1024,"smClockRateKHz":%d,"supportCoopLaunch":1,"totalGlobalMem":%d,)"
      R"("warpSize":32,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64]})",
      hopper ? "NVIDIA H200" : "NVIDIA A100", arch * 10, hopper ? 62914560 : 41943040,
      hopper ? 232448 : 166912, hopper ? 3201000 : 1593000, hopper ? 132 : 108, hopper ? 1980000 : 1410000,
      hopper ? int64_t{150} << 30 : int64_t{80} << 30);
}

std::string ToText(const CudnnAttentionShape& s) {
  return absl::StrCat("attention forward of ", Name(s.dtype), ", ", s.batch, " x ", s.seq, ", ", s.heads, "/",
                      s.kv_heads, " heads of ", s.head_dim);
}

}  // namespace

absl::Status CheckCudnnSupport(CudnnApi& cudnn, int arch, const CudnnAttentionShape& shape) {
  Graph graph(cudnn);
  STRATA_RETURN_IF_ERROR(graph.Build(shape), ToText(shape));
  Descriptor device(cudnn);
  STRATA_RETURN_IF_ERROR(device.Create(kDeviceProperties));
  const std::string json = DeviceJson(arch);
  STRATA_RETURN_IF_ERROR(
      device.SetMany(kDeviceJson, kTypeChar, static_cast<int64_t>(json.size()), json.data()));
  STRATA_RETURN_IF_ERROR(device.Finalize(), "device properties");
  int64_t engines = 0, count = 0;
  STRATA_RETURN_IF_ERROR(
      Check(cudnn, cudnn.GetAttribute(graph.raw(), kGraphEngineCount, kTypeInt64, 1, &count, &engines),
            "number of engines"));
  CudnnDescriptor* const device_raw = device.raw();
  CudnnDescriptor* const graph_raw = graph.raw();
  for (int64_t i = 0; i < engines; ++i) {
    Descriptor engine(cudnn);
    STRATA_RETURN_IF_ERROR(engine.Create(kEngine));
    STRATA_RETURN_IF_ERROR(engine.Set(kEngineGraph, kTypeDescriptor, graph_raw));
    STRATA_RETURN_IF_ERROR(engine.Set(kEngineIndex, kTypeInt64, i));
    STRATA_RETURN_IF_ERROR(engine.Set(kEngineDevice, kTypeDescriptor, device_raw));
    if (cudnn.Finalize(engine.raw()) != kSuccess) continue;
    Descriptor config(cudnn);
    STRATA_RETURN_IF_ERROR(config.Create(kEngineConfig));
    CudnnDescriptor* const engine_raw = engine.raw();
    STRATA_RETURN_IF_ERROR(config.Set(kEngineConfigEngine, kTypeDescriptor, engine_raw));
    const int status = cudnn.Finalize(config.raw());
    if (status == kSuccess || status == kPrerequisiteMissing) return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("cuDNN ", cudnn.GetVersion(), ": none of ", engines,
                                               " engines takes ", ToText(shape), " on compute capability ",
                                               arch / 10, ".", arch % 10));
}

struct CudnnAttention::Plan {
  explicit Plan(CudnnApi& cudnn) : graph(cudnn), device(cudnn), plan(cudnn) {}

  Graph graph;
  Descriptor device;
  std::vector<std::unique_ptr<Descriptor>> configs;
  Descriptor plan;
  int64_t workspace_bytes = 0;
};

CudnnAttention::CudnnAttention(CudnnApi& cudnn, CudnnHandle* handle) : cudnn_(cudnn), handle_(handle) {}

absl::StatusOr<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(CudnnApi& cudnn) {
  CudnnHandle* handle = nullptr;
  if (const absl::Status status = Check(cudnn, cudnn.Create(&handle), "starting"); !status.ok())
    return absl::FailedPreconditionError(status.message());
  return std::unique_ptr<CudnnAttention>(new CudnnAttention(cudnn, handle));
}

CudnnAttention::~CudnnAttention() {
  {
    MutexLock lock(mu_);
    plans_.clear();
  }
  (void)cudnn_.Destroy(handle_);
}

absl::StatusOr<const CudnnAttention::Plan*> CudnnAttention::PlanOf(const CudnnAttentionShape& shape) {
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>(cudnn_);
  STRATA_RETURN_IF_ERROR(plan->graph.Build(shape));
  STRATA_RETURN_IF_ERROR(plan->device.Create(kDeviceProperties));
  STRATA_RETURN_IF_ERROR(plan->device.Set(kDeviceHandle, kTypeHandle, handle_));
  STRATA_RETURN_IF_ERROR(plan->device.Finalize());
  CudnnDescriptor* const graph = plan->graph.raw();
  CudnnDescriptor* const device = plan->device.raw();
  Descriptor heuristics(cudnn_);
  STRATA_RETURN_IF_ERROR(heuristics.Create(kEngineHeuristics));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsGraph, kTypeDescriptor, graph));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsMode, kTypeHeuristicsMode, kHeuristicsModeA));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsDevice, kTypeDescriptor, device));
  STRATA_RETURN_IF_ERROR(heuristics.Finalize(), "heuristics");
  int64_t count = 0;
  STRATA_RETURN_IF_ERROR(Check(
      cudnn_, cudnn_.GetAttribute(heuristics.raw(), kHeuristicsResults, kTypeDescriptor, 0, &count, nullptr),
      "number of engine configurations"));
  std::vector<CudnnDescriptor*> raw;
  for (int64_t i = 0; i < count; ++i) {
    plan->configs.push_back(std::make_unique<Descriptor>(cudnn_));
    STRATA_RETURN_IF_ERROR(plan->configs.back()->Create(kEngineConfig));
    raw.push_back(plan->configs.back()->raw());
  }
  int64_t found = 0;
  STRATA_RETURN_IF_ERROR(Check(
      cudnn_,
      cudnn_.GetAttribute(heuristics.raw(), kHeuristicsResults, kTypeDescriptor, count, &found, raw.data()),
      "engine configurations"));
  // In the order of the heuristics: the first that builds is taken.
  absl::Status why = absl::UnimplementedError("cuDNN has no engine for it");
  for (int64_t i = 0; i < found; ++i) {
    Descriptor candidate(cudnn_);
    STRATA_RETURN_IF_ERROR(candidate.Create(kExecutionPlan));
    STRATA_RETURN_IF_ERROR(candidate.Set(kPlanEngineConfig, kTypeDescriptor, raw[i]));
    STRATA_RETURN_IF_ERROR(candidate.Set(kPlanDevice, kTypeDescriptor, device));
    why = candidate.Finalize();
    if (absl::IsUnimplemented(why)) continue;
    STRATA_RETURN_IF_ERROR(why);
    int64_t got = 0;
    STRATA_RETURN_IF_ERROR(Check(cudnn_,
                                 cudnn_.GetAttribute(candidate.raw(), kPlanWorkspaceBytes, kTypeInt64, 1,
                                                     &got, &plan->workspace_bytes),
                                 "workspace"));
    std::swap(*plan->plan.slot(), *candidate.slot());
    return plans_.emplace(shape, std::move(plan)).first->second.get();
  }
  return why;
}

absl::Status CudnnAttention::Forward(Stream* stream, DType dtype, const AttentionArgs& args) {
  const CudnnAttentionShape shape{.dtype = dtype,
                                  .batch = args.batch,
                                  .seq = args.seq,
                                  .heads = args.heads,
                                  .kv_heads = args.kv_heads,
                                  .head_dim = args.head_dim,
                                  .ldq = args.ldq,
                                  .ldk = args.ldk,
                                  .ldv = args.ldv,
                                  .ldo = args.ldo};
  if (dtype != DType::kBF16 && dtype != DType::kF16) {
    return absl::UnimplementedError(absl::StrCat("cuDNN: ", ToText(shape), ": takes bf16 and f16"));
  }
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(shape), ToText(shape));
  if (plan->workspace_bytes > args.workspace.bytes) {
    return absl::UnimplementedError(absl::StrCat("cuDNN: ", ToText(shape), " needs ", plan->workspace_bytes,
                                                 " bytes of workspace, there are ", args.workspace.bytes));
  }
  // The two scalars are read before Execute returns.
  float scale = static_cast<float>(args.scale);
  float minus_infinity = -std::numeric_limits<float>::infinity();
  const std::array<int64_t, 7> ids = {kQ, kK, kV, kO, kStats, kScale, kMinusInfinity};
  const std::array<const void*, 7> pointers = {args.q,   args.k, args.v,         args.out,
                                               args.lse, &scale, &minus_infinity};
  Descriptor pack(cudnn_);
  STRATA_RETURN_IF_ERROR(pack.Create(kVariantPack));
  STRATA_RETURN_IF_ERROR(pack.SetMany(kPackIds, kTypeInt64, ids.size(), ids.data()));
  STRATA_RETURN_IF_ERROR(pack.SetMany(kPackPointers, kTypeVoidPointer, pointers.size(), pointers.data()));
  STRATA_RETURN_IF_ERROR(pack.Set(kPackWorkspace, kTypeVoidPointer, args.workspace.data));
  STRATA_RETURN_IF_ERROR(pack.Finalize(), "arguments");
  STRATA_RETURN_IF_ERROR(Check(cudnn_, cudnn_.SetStream(handle_, stream), "stream"));
  return Check(cudnn_, cudnn_.Execute(handle_, plan->plan.raw(), pack.raw()), ToText(shape));
}

}  // namespace strata
