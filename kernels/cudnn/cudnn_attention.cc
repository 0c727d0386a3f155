#include "kernels/cudnn/cudnn_attention.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "kernels/cudnn/cudnn_graph.h"

namespace strata {

using namespace cudnn;  // NOLINT: the constants

namespace {

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

// "" or a fault of a version of the library that it does not refuse itself: its release notes and its front
// end name them.
std::string KnownFault(size_t version, const CudnnAttentionShape& s) {
  if (!s.backward) return "";
  if (s.seq == 1) return "its backward pass does not take sequences of one token";
  if (version == 91000 || version == 91001)
    return "its backward pass is faulty in 9.10.0 and 9.10.1; install 9.10.2 or newer";
  if (version <= 91500 && s.seq % 128 != 0) {
    return absl::StrCat("before 9.16 its backward pass takes sequences of multiples of 128 tokens, not of ",
                        s.seq, "; install 9.16 or newer");
  }
  return "";
}

absl::Status CheckShape(CudnnApi& cudnn, const CudnnAttentionShape& shape) {
  std::string why = shape.dtype != DType::kBF16 && shape.dtype != DType::kF16
                        ? "takes bf16 and f16"
                        : KnownFault(cudnn.GetVersion(), shape);
  if (why.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("cuDNN ", cudnn.GetVersion(), ": ", ToText(shape), ": ", why));
}

// The configurations of engines that take a graph on a device, the library's first choice first.
struct Proposals {
  std::vector<CudnnObject> configs;
  int64_t looked_at = 0;
  std::string refusals;  // the library's words on those that are not among them, when there are none
};

absl::StatusOr<Proposals> Propose(CudnnApi& cudnn, const CudnnGraph& graph, const CudnnObject& device) {
  CudnnDescriptor* const graph_raw = graph.raw();
  CudnnDescriptor* const device_raw = device.raw();
  CudnnObject heuristics(cudnn);
  STRATA_RETURN_IF_ERROR(heuristics.Create(kEngineHeuristics));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsGraph, kTypeDescriptor, graph_raw));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsMode, kTypeHeuristicsMode, kHeuristicsModeA));
  STRATA_RETURN_IF_ERROR(heuristics.Set(kHeuristicsDevice, kTypeDescriptor, device_raw));
  STRATA_RETURN_IF_ERROR(heuristics.Finalize(), "heuristics");
  Proposals proposals;
  STRATA_RETURN_IF_ERROR(CheckCudnn(cudnn,
                                    cudnn.GetAttribute(heuristics.raw(), kHeuristicsResults, kTypeDescriptor,
                                                       0, &proposals.looked_at, nullptr),
                                    "number of engine configurations"));
  std::vector<CudnnDescriptor*> raw;
  for (int64_t i = 0; i < proposals.looked_at; ++i) {
    proposals.configs.emplace_back(cudnn);
    STRATA_RETURN_IF_ERROR(proposals.configs.back().Create(kEngineConfig));
    raw.push_back(proposals.configs.back().raw());
  }
  int64_t found = 0;
  STRATA_RETURN_IF_ERROR(CheckCudnn(cudnn,
                                    cudnn.GetAttribute(heuristics.raw(), kHeuristicsResults, kTypeDescriptor,
                                                       proposals.looked_at, &found, raw.data()),
                                    "engine configurations"));
  while (static_cast<int64_t>(proposals.configs.size()) > found) proposals.configs.pop_back();
  if (found == 0) {
    char text[4096] = {};
    cudnn.GetLastErrorString(text, sizeof(text));
    proposals.refusals = text;
  }
  return proposals;
}

// Of "...; Reason: d_qk > 128\n..." the first reason.
std::string FirstReason(const std::string& refusals) {
  constexpr char kMark[] = "Reason: ";
  const size_t at = refusals.find(kMark);
  if (at == std::string::npos) return "it gives no reason";
  const size_t begin = at + sizeof(kMark) - 1;
  return refusals.substr(begin, refusals.find('\n', begin) - begin);
}

absl::Status NoEngine(CudnnApi& cudnn, const CudnnAttentionShape& shape, const Proposals& proposals) {
  return absl::UnimplementedError(absl::StrCat("cuDNN ", cudnn.GetVersion(), ": none of ",
                                               proposals.looked_at, " engine configurations takes ",
                                               ToText(shape), ": ", FirstReason(proposals.refusals)));
}

// Parts of the workspace that the graph of a backward pass names, each at a multiple of this.
constexpr int64_t kScratchAlignment = 256;
int64_t RoundUpScratch(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}
int64_t RowSumsBytes(const CudnnAttentionShape& s) {
  return RoundUpScratch(s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float)));
}
int64_t ScratchBytes(const CudnnAttentionShape& s) {
  if (!s.backward) return 0;
  return RowSumsBytes(s) + (s.deterministic ? 0
                                            : RoundUpScratch(s.batch * s.heads * s.seq * s.head_dim *
                                                             static_cast<int64_t>(sizeof(float))));
}

CudnnAttentionShape ShapeOf(DType dtype, const AttentionArgs& args, const CudnnAttentionOptions& options) {
  return {.dtype = dtype,
          .batch = args.batch,
          .seq = args.seq,
          .heads = args.heads,
          .kv_heads = args.kv_heads,
          .head_dim = args.head_dim,
          .ldq = args.ldq,
          .ldk = args.ldk,
          .ldv = args.ldv,
          .ldo = args.ldo,
          .window = options.window};
}

CudnnAttentionShape ShapeOf(DType dtype, const AttentionBackwardArgs& args,
                            const CudnnAttentionOptions& options) {
  CudnnAttentionShape shape = ShapeOf(dtype, args.forward, options);
  shape.backward = true;
  shape.deterministic = options.deterministic;
  shape.lddo = args.lddo;
  shape.lddq = args.lddq;
  shape.lddk = args.lddk;
  shape.lddv = args.lddv;
  return shape;
}

}  // namespace

absl::Status CheckCudnnSupport(CudnnApi& cudnn, int arch, const CudnnAttentionShape& shape) {
  STRATA_RETURN_IF_ERROR(CheckShape(cudnn, shape));
  CudnnGraph graph(cudnn);
  STRATA_RETURN_IF_ERROR(BuildCudnnAttention(shape, graph), ToText(shape));
  CudnnObject device(cudnn);
  STRATA_RETURN_IF_ERROR(device.Create(kDeviceProperties));
  const std::string json = DeviceJson(arch);
  STRATA_RETURN_IF_ERROR(
      device.SetMany(kDeviceJson, kTypeChar, static_cast<int64_t>(json.size()), json.data()));
  STRATA_RETURN_IF_ERROR(device.Finalize(), "device properties");
  STRATA_ASSIGN_OR_RETURN(const Proposals proposals, Propose(cudnn, graph, device));
  if (!proposals.configs.empty() || absl::StrContains(proposals.refusals, kNoDriver)) return absl::OkStatus();
  return Annotate(NoEngine(cudnn, shape, proposals),
                  absl::StrCat("compute capability ", arch / 10, ".", arch % 10));
}

struct CudnnAttention::Plan {
  explicit Plan(CudnnApi& cudnn) : graph(cudnn), device(cudnn) {}

  CudnnGraph graph;
  CudnnObject device;
  Proposals proposals;
  std::unique_ptr<CudnnObject> plan;
  int64_t workspace_bytes = 0;  // the library's, behind our scratch
};

CudnnAttention::CudnnAttention(CudnnApi& cudnn, CudnnHandle* handle) : cudnn_(cudnn), handle_(handle) {}

absl::StatusOr<std::unique_ptr<CudnnAttention>> CudnnAttention::Create(CudnnApi& cudnn) {
  CudnnHandle* handle = nullptr;
  if (const absl::Status status = CheckCudnn(cudnn, cudnn.Create(&handle), "starting"); !status.ok())
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
  STRATA_RETURN_IF_ERROR(CheckShape(cudnn_, shape));
  auto plan = std::make_unique<Plan>(cudnn_);
  STRATA_RETURN_IF_ERROR(BuildCudnnAttention(shape, plan->graph));
  STRATA_RETURN_IF_ERROR(plan->device.Create(kDeviceProperties));
  STRATA_RETURN_IF_ERROR(plan->device.Set(kDeviceHandle, kTypeHandle, handle_));
  STRATA_RETURN_IF_ERROR(plan->device.Finalize());
  STRATA_ASSIGN_OR_RETURN(plan->proposals, Propose(cudnn_, plan->graph, plan->device));
  CudnnDescriptor* const device = plan->device.raw();
  // The first that builds is taken.
  absl::Status why = NoEngine(cudnn_, shape, plan->proposals);
  for (const CudnnObject& config : plan->proposals.configs) {
    auto candidate = std::make_unique<CudnnObject>(cudnn_);
    CudnnDescriptor* const config_raw = config.raw();
    STRATA_RETURN_IF_ERROR(candidate->Create(kExecutionPlan));
    STRATA_RETURN_IF_ERROR(candidate->Set(kPlanEngineConfig, kTypeDescriptor, config_raw));
    STRATA_RETURN_IF_ERROR(candidate->Set(kPlanDevice, kTypeDescriptor, device));
    why = candidate->Finalize();
    if (absl::IsUnimplemented(why)) continue;
    STRATA_RETURN_IF_ERROR(why);
    int64_t got = 0;
    STRATA_RETURN_IF_ERROR(CheckCudnn(cudnn_,
                                      cudnn_.GetAttribute(candidate->raw(), kPlanWorkspaceBytes, kTypeInt64,
                                                          1, &got, &plan->workspace_bytes),
                                      "workspace"));
    plan->plan = std::move(candidate);
    return plans_.emplace(shape, std::move(plan)).first->second.get();
  }
  return why;
}

absl::Status CudnnAttention::Run(Stream* stream, const CudnnAttentionShape& shape, const AttentionArgs& args,
                                 Bindings bound) {
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(shape), ToText(shape));
  const int64_t scratch = ScratchBytes(shape);
  if (scratch + plan->workspace_bytes > args.workspace.bytes) {
    return absl::UnimplementedError(absl::StrCat("cuDNN: ", ToText(shape), " needs ",
                                                 scratch + plan->workspace_bytes,
                                                 " bytes of workspace, there are ", args.workspace.bytes));
  }
  char* const workspace = static_cast<char*>(args.workspace.data);
  // Scalars are read before Execute returns.
  const float scale = static_cast<float>(args.scale), one = 1;
  const float hidden = HiddenScore(cudnn_.GetVersion());
  const int32_t window = static_cast<int32_t>(shape.window);
  bound.insert(bound.end(), {{kCudnnScale, &scale}, {kCudnnHidden, &hidden}});
  if (shape.window > 0) bound.emplace_back(kCudnnWindow, &window);
  if (shape.backward) {
    bound.insert(bound.end(), {{kCudnnOne, &one}, {kCudnnRowSums, workspace}});
    if (!shape.deterministic) bound.emplace_back(kCudnnDQSums, workspace + RowSumsBytes(shape));
  }
  std::vector<int64_t> ids;
  std::vector<const void*> pointers;
  for (const auto& [id, pointer] : bound) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  const int64_t count = static_cast<int64_t>(bound.size());
  const void* const rest = workspace + scratch;
  CudnnObject pack(cudnn_);
  STRATA_RETURN_IF_ERROR(pack.Create(kVariantPack));
  STRATA_RETURN_IF_ERROR(pack.SetMany(kPackIds, kTypeInt64, count, ids.data()));
  STRATA_RETURN_IF_ERROR(pack.SetMany(kPackPointers, kTypeVoidPointer, count, pointers.data()));
  STRATA_RETURN_IF_ERROR(pack.Set(kPackWorkspace, kTypeVoidPointer, rest));
  STRATA_RETURN_IF_ERROR(pack.Finalize(), "arguments");
  STRATA_RETURN_IF_ERROR(CheckCudnn(cudnn_, cudnn_.SetStream(handle_, stream), "stream"));
  return CheckCudnn(cudnn_, cudnn_.Execute(handle_, plan->plan->raw(), pack.raw()), ToText(shape));
}

absl::Status CudnnAttention::Forward(Stream* stream, DType dtype, const AttentionArgs& args,
                                     const CudnnAttentionOptions& options) {
  return Run(stream, ShapeOf(dtype, args, options), args,
             {{kCudnnQ, args.q},
              {kCudnnK, args.k},
              {kCudnnV, args.v},
              {kCudnnO, args.out},
              {kCudnnStats, args.lse}});
}

absl::Status CudnnAttention::Backward(Stream* stream, DType dtype, const AttentionBackwardArgs& args,
                                      const CudnnAttentionOptions& options) {
  const AttentionArgs& f = args.forward;
  return Run(stream, ShapeOf(dtype, args, options), f,
             {{kCudnnQ, f.q},
              {kCudnnK, f.k},
              {kCudnnV, f.v},
              {kCudnnO, f.out},
              {kCudnnStats, f.lse},
              {kCudnnDO, args.dout},
              {kCudnnDQ, args.dq},
              {kCudnnDK, args.dk},
              {kCudnnDV, args.dv}});
}

absl::StatusOr<int64_t> CudnnAttention::BackwardWorkspaceBytes(DType dtype, const AttentionBackwardArgs& args,
                                                               const CudnnAttentionOptions& options) {
  const CudnnAttentionShape shape = ShapeOf(dtype, args, options);
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(shape), ToText(shape));
  return ScratchBytes(shape) + plan->workspace_bytes;
}

}  // namespace strata
