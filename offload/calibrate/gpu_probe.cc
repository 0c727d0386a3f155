#include "offload/calibrate/gpu_probe.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/random.h"
#include "common/status.h"
#include "offload/calibrate/compute_probe.h"

namespace strata {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kArenaBytes = 768 * kMiB;
constexpr int64_t kArenaLeastBytes = 32 * kMiB;  // the smallest sizes of MeasureCompute in fp32
constexpr double kStateSlice = 0.03;
constexpr double kCopySlice = 0.05;
constexpr double kLaunchSlice = 0.01;
constexpr int kLaunches = 64;
// Parameters of an update, and bytes that it reads and writes for each: gradient, master and moments twice,
// copy.
constexpr int64_t kUpdates[] = {int64_t{1} << 20, int64_t{1} << 22, int64_t{1} << 24};
constexpr int64_t kUpdateBytes = 4 + 2 * 12 + 2;

class GpuProbe {
 public:
  GpuProbe(Accelerator& gpu, std::span<std::byte> host) : gpu_(gpu), host_(host) {}

  absl::Status Open();
  absl::Status MeasureComputeOf(DType dtype, ComputeRates* rates);
  absl::Status MeasureCopies(MachineProfile* profile);
  absl::StatusOr<double> LaunchSeconds();
  const std::string& copies() const { return copies_; }

 private:
  absl::Status FillArena();
  absl::StatusOr<double> Elapsed(DeviceEvent* begin, DeviceEvent* end);
  absl::StatusOr<double> Time(const std::function<absl::Status()>& enqueue);
  absl::StatusOr<double> CopySeconds(bool up, bool down, int64_t bytes);
  std::span<std::byte> arena() const {
    return {device_->arena(), static_cast<size_t>(device_->arena_bytes())};
  }

  Accelerator& gpu_;
  const std::span<std::byte> host_;
  std::unique_ptr<Device> device_;
  Stream* stream_ = nullptr;
  Stream* other_stream_ = nullptr;  // of copies to the host
  std::unique_ptr<DeviceEvent> begin_, end_, other_end_;
  std::string copies_;
};

absl::Status GpuProbe::Open() {
  STRATA_ASSIGN_OR_RETURN(const int64_t free, gpu_.FreeForJobs());
  const int64_t bytes = std::min(kArenaBytes, free) / 4096 * 4096;
  if (bytes < kArenaLeastBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("it takes ", FormatBytes(kArenaLeastBytes),
                                                     " of the device's memory, ", FormatBytes(free),
                                                     " are free for jobs: end what else uses the GPU"));
  }
  STRATA_ASSIGN_OR_RETURN(device_, gpu_.CreateDevice(bytes));
  // Where memory cannot be registered, runs copy from such memory as well.
  if (const absl::Status registered = device_->RegisterHost(host_); absl::IsInternal(registered))
    return registered;
  STRATA_ASSIGN_OR_RETURN(stream_, device_->CreateStream());
  STRATA_ASSIGN_OR_RETURN(other_stream_, device_->CreateStream());
  STRATA_ASSIGN_OR_RETURN(begin_, device_->CreateEvent());
  STRATA_ASSIGN_OR_RETURN(end_, device_->CreateEvent());
  STRATA_ASSIGN_OR_RETURN(other_end_, device_->CreateEvent());
  return FillArena();
}

// A GPU multiplies zeros with less power, so faster, than it does numbers. Whether the halves are taken for
// bf16 or the whole for fp32, these are between 0.5 and 1 in size.
absl::Status GpuProbe::FillArena() {
  const int64_t bytes = std::min<int64_t>(4 * kMiB, static_cast<int64_t>(host_.size()));
  const CounterRandom random(/*seed=*/1, /*stream=*/0);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t value = (random.Bits(static_cast<uint64_t>(i)) & 0x807f807f807f807f) | 0x3f003f003f003f00;
    std::memcpy(host_.data() + i, &value, sizeof(value));
  }
  for (int64_t at = 0; at < device_->arena_bytes(); at += bytes) {
    STRATA_RETURN_IF_ERROR(device_->CopyToDevice(nullptr, device_->arena() + at, host_.data(),
                                                 std::min(bytes, device_->arena_bytes() - at)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> GpuProbe::Elapsed(DeviceEvent* begin, DeviceEvent* end) {
  STRATA_RETURN_IF_ERROR(device_->Synchronize(end));
  STRATA_ASSIGN_OR_RETURN(const int64_t from, device_->PassedNanos(begin));
  STRATA_ASSIGN_OR_RETURN(const int64_t to, device_->PassedNanos(end));
  return static_cast<double>(to - from) * 1e-9;
}

absl::StatusOr<double> GpuProbe::Time(const std::function<absl::Status()>& enqueue) {
  STRATA_RETURN_IF_ERROR(device_->Record(stream_, begin_.get()));
  STRATA_RETURN_IF_ERROR(enqueue());
  STRATA_RETURN_IF_ERROR(device_->Record(stream_, end_.get()));
  return Elapsed(begin_.get(), end_.get());
}

absl::Status GpuProbe::MeasureComputeOf(DType dtype, ComputeRates* rates) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, gpu_.CreateOps(dtype));
  ComputeBench bench;
  bench.ops = ops.get();
  bench.fp8 = dtype == DType::kBF16 && gpu_.CheckFp8().ok();
  bench.stream = stream_;
  bench.gemm_library = GemmLibrary::kCublasLt;
  bench.memory = arena();
  bench.time = [this](const std::function<absl::Status()>& call) { return Time(call); };
  bench.products = {{256, 256}, {512, 512}, {1024, 1024}, {2048, 2048}, {4096, 4096}};
  bench.attention = {{.batch = 1, .seq = 512, .heads = 4, .head_dim = 64},
                     {.batch = 1, .seq = 1024, .heads = 8, .head_dim = 128},
                     {.batch = 1, .seq = 2048, .heads = 16, .head_dim = 128},
                     {.batch = 1, .seq = 8192, .heads = 16, .head_dim = 128}};
  bench.elementwise = {{.rows = 512, .hidden = 512, .ffn = 1024},
                       {.rows = 1024, .hidden = 2048, .ffn = 4096},
                       {.rows = 4096, .hidden = 4096, .ffn = 8192}};
  STRATA_RETURN_IF_ERROR(MeasureCompute(bench, rates));
  // Updates on the device go by the same number as element-wise passes (StateSeconds in
  // offload/plan/simulator.cc).
  double update_rate = 0, per_byte = 0;  // of the number before: until we knew of it
  for (const int64_t n : kUpdates) {
    ProbeMemory memory(arena());
    AdamWStep step;
    step.n = n;
    step.grad = static_cast<float*>(memory.Take(4 * n));
    step.master = static_cast<float*>(memory.Take(4 * n));
    step.m = static_cast<float*>(memory.Take(4 * n));
    step.v = static_cast<float*>(memory.Take(4 * n));
    step.params = memory.Take(2 * n);
    step.lr = 1e-3;
    const double bytes = static_cast<double>(kUpdateBytes * n);
    if (step.params == nullptr || per_byte * bytes > kProbeLongestSeconds) break;
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds seconds, BestSeconds(bench.time, kStateSlice, [&] {
                              return device_->state_ops().AdamW(stream_, step);
                            }));
    update_rate = bytes / seconds.device;
    per_byte = seconds.wall / bytes;
  }
  if (update_rate == 0) return absl::InternalError("the memory of the measurements is too small");
  rates->elementwise_bytes_per_second = 2 / (1 / rates->elementwise_bytes_per_second + 1 / update_rate);
  return absl::OkStatus();
}

// Of both directions begun together: until the last has ended.
absl::StatusOr<double> GpuProbe::CopySeconds(bool up, bool down, int64_t bytes) {
  STRATA_RETURN_IF_ERROR(device_->Record(stream_, begin_.get()));
  STRATA_RETURN_IF_ERROR(device_->Wait(other_stream_, begin_.get()));
  if (up) STRATA_RETURN_IF_ERROR(device_->CopyToDevice(stream_, device_->arena(), host_.data(), bytes));
  STRATA_RETURN_IF_ERROR(device_->Record(stream_, end_.get()));
  if (down) {
    STRATA_RETURN_IF_ERROR(
        device_->CopyToHost(other_stream_, host_.data() + bytes, device_->arena() + bytes, bytes));
  }
  STRATA_RETURN_IF_ERROR(device_->Record(other_stream_, other_end_.get()));
  STRATA_ASSIGN_OR_RETURN(const double first, Elapsed(begin_.get(), end_.get()));
  STRATA_ASSIGN_OR_RETURN(const double second, Elapsed(begin_.get(), other_end_.get()));
  return std::max(first, second);
}

absl::Status GpuProbe::MeasureCopies(MachineProfile* profile) {
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(host_.size()), device_->arena_bytes()) / 2;
  int64_t bytes = kMiB;
  const auto rate = [&](bool up, bool down) -> absl::StatusOr<double> {
    const ProbeTimer time = [&](const std::function<absl::Status()>&) {
      return CopySeconds(up, down, bytes);
    };
    STRATA_ASSIGN_OR_RETURN(const ProbeSeconds seconds, BestSeconds(time, kCopySlice, nullptr));
    return static_cast<double>(bytes) / seconds.device;
  };
  // As large as a slice of time allows: what a copy costs at least is in per_op_seconds.
  STRATA_ASSIGN_OR_RETURN(const double small, rate(true, false));
  bytes = std::clamp<int64_t>(static_cast<int64_t>(small * kCopySlice / 4), kMiB, most) / 4096 * 4096;
  STRATA_ASSIGN_OR_RETURN(const double up, rate(true, false));
  STRATA_ASSIGN_OR_RETURN(const double down, rate(false, true));
  STRATA_ASSIGN_OR_RETURN(const double each, rate(true, true));
  // Steps that offload copy both ways at a time. Where one link carries both, each then gets its part of it.
  const double share = std::min(1.0, each / std::min(up, down));
  profile->h2d_bytes_per_second = up * share;
  profile->d2h_bytes_per_second = down * share;
  copies_ = absl::StrFormat("copies %.1f GB/s to it, %.1f GB/s back, %.1f GB/s both together", up * 1e-9,
                            down * 1e-9, 2 * each * 1e-9);
  return absl::OkStatus();
}

absl::StatusOr<double> GpuProbe::LaunchSeconds() {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, gpu_.CreateOps(DType::kBF16));
  constexpr int64_t kElements = 64;
  std::byte* const x = device_->arena();
  const ProbeTimer time = [this](const std::function<absl::Status()>& call) { return Time(call); };
  STRATA_ASSIGN_OR_RETURN(const ProbeSeconds seconds, BestSeconds(time, kLaunchSlice, [&]() -> absl::Status {
                            for (int i = 0; i < kLaunches; ++i)
                              STRATA_RETURN_IF_ERROR(ops->Add(stream_, kElements, x, x, x));
                            return absl::OkStatus();
                          }));
  return seconds.device / kLaunches;
}

}  // namespace

absl::StatusOr<std::string> ProbeGpu(Accelerator& gpu, std::span<std::byte> host, MachineProfile* profile) {
  GpuProbe probe(gpu, host);
  STRATA_RETURN_IF_ERROR(probe.Open());
  STRATA_RETURN_IF_ERROR(probe.MeasureComputeOf(DType::kBF16, &profile->bf16));
  // A GPU whose kernels take no fp32 runs no job in it.
  if (const absl::Status f32 = probe.MeasureComputeOf(DType::kF32, &profile->f32);
      absl::IsUnimplemented(f32)) {
    profile->f32 = profile->bf16;
  } else {
    STRATA_RETURN_IF_ERROR(f32);
  }
  STRATA_RETURN_IF_ERROR(probe.MeasureCopies(profile));
  STRATA_ASSIGN_OR_RETURN(const double launch, probe.LaunchSeconds());
  profile->per_op_seconds += launch;
  profile->device_is_cpu = false;
  return absl::StrFormat("%s (%s, %.1f us a launch)", gpu.identity(), probe.copies(), launch * 1e6);
}

}  // namespace strata
