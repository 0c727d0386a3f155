#include "offload/device/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "offload/device/direct_storage.h"
#include "offload/exec/cause.h"

namespace strata {
namespace {

constexpr int64_t kBudgetAlignment = 4096;
// The runtime gives times as float milliseconds: eight seconds are half a microsecond.
constexpr int64_t kAnchorNanos = 8'000'000'000;

class CudaDevice : public Device {
 public:
  CudaDevice(CudaApi& cuda, CufileLoader cufile) : cuda_(cuda), cufile_(std::move(cufile)) {}
  ~CudaDevice() override;

  absl::Status Open(int64_t budget_bytes, const CudaStateMath& state_math);

  std::string description() const override {
    return absl::StrFormat("%s (compute capability %d.%d), arena of %s", info_.name, info_.major, info_.minor,
                           FormatBytes(arena_bytes_));
  }
  std::byte* arena() const override { return arena_; }
  int64_t arena_bytes() const override { return arena_bytes_; }

  absl::Status RegisterHost(std::span<std::byte> memory) override;
  absl::StatusOr<std::span<std::byte>> AllocateResults(int64_t bytes) override;
  absl::StatusOr<Stream*> CreateStream() override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  absl::Status Record(Stream* stream, DeviceEvent* event) override;
  absl::Status Wait(Stream* stream, DeviceEvent* event) override;
  absl::Status Synchronize(DeviceEvent* event) override;
  absl::StatusOr<int64_t> PassedNanos(DeviceEvent* event) override;
  absl::Status CopyToDevice(Stream* stream, std::byte* device, const std::byte* host, int64_t bytes) override;
  absl::Status CopyToHost(Stream* stream, std::byte* host, const std::byte* device, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<IoEngine>> CreateDirectEngine() override;
  StateOps& state_ops() override { return *state_ops_; }

 private:
  class Event;

  // The status of a call that returned `error`; the first one that is not about memory ends the device.
  absl::Status Check(int error, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Dead() ABSL_LOCKS_EXCLUDED(mu_) {
    if (!dead_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(mu_);
    return death_;
  }
  std::string ErrorText(int error) {
    return absl::StrCat(cuda_.GetErrorString(error), " (CUDA error ", error, ")");
  }
  absl::Status OutOfMemory(int64_t bytes);
  absl::StatusOr<int64_t> NanosBetween(CudaEvent* begin, CudaEvent* end);
  absl::Status SetAnchor();
  absl::Status MoveAnchor();

  CudaApi& cuda_;
  const CufileLoader cufile_;
  std::unique_ptr<DirectStorage> direct_;  // once an engine was asked for
  std::unique_ptr<StateOps> state_ops_;
  void* scratch_ = nullptr;  // state_ops_'
  CudaDeviceInfo info_;
  std::byte* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  Stream* setup_stream_ = nullptr;  // of copies without a stream; used by one thread at a time

  // Of PassedNanos: an event of a stream that is always idle, when the device passed it, and whether the next
  // one is on its way.
  Stream* anchor_stream_ = nullptr;
  std::unique_ptr<DeviceEvent> anchor_, next_anchor_;
  int64_t anchor_nanos_ = 0;
  bool anchor_moves_ = false;

  std::atomic<bool> dead_ = false;
  Mutex mu_;
  absl::Status death_ ABSL_GUARDED_BY(mu_);
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mu_);
  std::vector<void*> results_ ABSL_GUARDED_BY(mu_);
  void* registered_ ABSL_GUARDED_BY(mu_) = nullptr;
};

class CudaDevice::Event : public DeviceEvent {
 public:
  Event(CudaDevice& device, CudaEvent* event) : device_(device), event_(event) {}
  ~Event() override {
    if (device_.Dead().ok()) (void)device_.Check(device_.cuda_.EventDestroy(event_), "cudaEventDestroy");
  }
  CudaEvent* get() const { return event_; }

 private:
  CudaDevice& device_;
  CudaEvent* const event_;
};

// In a dead context nothing can be given back and nothing runs any more; the process ends soon. Otherwise
// streams first: they may still write what is freed after them.
CudaDevice::~CudaDevice() {
  direct_.reset();
  anchor_.reset();
  next_anchor_.reset();
  if (!Dead().ok()) return;
  std::vector<Stream*> streams;
  std::vector<void*> results;
  void* registered;
  {
    MutexLock lock(mu_);
    streams = std::move(streams_);
    results = std::move(results_);
    registered = registered_;
  }
  for (Stream* stream : streams) {
    (void)Check(cuda_.StreamSynchronize(stream), "cudaStreamSynchronize");
    if (!Dead().ok()) return;
    (void)Check(cuda_.StreamDestroy(stream), "cudaStreamDestroy");
  }
  if (registered != nullptr) (void)Check(cuda_.HostUnregister(registered), "cudaHostUnregister");
  for (void* memory : results) (void)Check(cuda_.FreeHost(memory), "cudaFreeHost");
  state_ops_.reset();
  for (void* memory : {scratch_, static_cast<void*>(arena_)}) {
    if (memory != nullptr) (void)Check(cuda_.Free(memory), "cudaFree");
  }
}

absl::Status CudaDevice::OutOfMemory(int64_t bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  const int error = cuda_.MemGetInfo(&free_bytes, &total_bytes);
  if (error != kCudaSuccess) return Check(error, "cudaMemGetInfo");
  return WithCause(absl::ResourceExhaustedError(absl::StrCat(
                       "device arena: needs ", bytes, " bytes (", FormatBytes(bytes), "), ", info_.name,
                       " has ", free_bytes, " bytes (", FormatBytes(static_cast<int64_t>(free_bytes)),
                       ") free of ", total_bytes, "; lower memory.device, or end what else uses the GPU")),
                   kCauseDeviceOom);
}

absl::Status CudaDevice::Check(int error, absl::string_view what) {
  if (error == kCudaSuccess) return absl::OkStatus();
  (void)cuda_.GetLastError();  // So that the next check reports its own failure.
  const std::string message = absl::StrCat(what, ": ", ErrorText(error));
  if (error == kCudaMemoryAllocation)
    return WithCause(absl::ResourceExhaustedError(message), kCauseDeviceOom);
  MutexLock lock(mu_);
  if (death_.ok()) {
    death_ = WithCause(absl::InternalError(message), kCauseDeviceFault);
    dead_.store(true, std::memory_order_release);
  }
  return death_;
}

absl::Status CudaDevice::Open(int64_t budget_bytes, const CudaStateMath& state_math) {
  if (budget_bytes <= 0 || budget_bytes % kBudgetAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a device arena of ", budget_bytes,
                                                   " bytes: the size is a multiple of ", kBudgetAlignment,
                                                   " above 0"));
  }
  STRATA_RETURN_IF_ERROR(Check(cuda_.GetDeviceInfo(&info_), "cudaGetDeviceProperties"));
  size_t free_bytes = 0, total_bytes = 0;
  STRATA_RETURN_IF_ERROR(Check(cuda_.MemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  const int64_t needed_bytes = budget_bytes + state_math.scratch_bytes;
  if (free_bytes < static_cast<size_t>(needed_bytes)) return OutOfMemory(needed_bytes);
  void* arena = nullptr;
  const int error = cuda_.Malloc(&arena, static_cast<size_t>(budget_bytes));
  if (error == kCudaMemoryAllocation) {
    (void)cuda_.GetLastError();
    return OutOfMemory(budget_bytes);
  }
  STRATA_RETURN_IF_ERROR(Check(error, "cudaMalloc"));
  arena_ = static_cast<std::byte*>(arena);
  arena_bytes_ = budget_bytes;
  if (state_math.scratch_bytes > 0) {
    const int refused = cuda_.Malloc(&scratch_, static_cast<size_t>(state_math.scratch_bytes));
    if (refused == kCudaMemoryAllocation) {
      (void)cuda_.GetLastError();
      return OutOfMemory(state_math.scratch_bytes);
    }
    STRATA_RETURN_IF_ERROR(Check(refused, "cudaMalloc of scratch"));
  }
  STRATA_ASSIGN_OR_RETURN(state_ops_, state_math.make({scratch_, state_math.scratch_bytes}));
  STRATA_ASSIGN_OR_RETURN(setup_stream_, CreateStream());
  return SetAnchor();
}

// The one time that is read while a thread waits: the device is idle, so it passes the event at once.
absl::Status CudaDevice::SetAnchor() {
  STRATA_ASSIGN_OR_RETURN(anchor_stream_, CreateStream());
  STRATA_ASSIGN_OR_RETURN(anchor_, CreateEvent());
  STRATA_ASSIGN_OR_RETURN(next_anchor_, CreateEvent());
  anchor_nanos_ = Clock::Real().MonotonicNanos();
  STRATA_RETURN_IF_ERROR(Record(anchor_stream_, anchor_.get()));
  return Synchronize(anchor_.get());
}

absl::StatusOr<int64_t> CudaDevice::NanosBetween(CudaEvent* begin, CudaEvent* end) {
  float milliseconds = 0;
  STRATA_RETURN_IF_ERROR(Check(cuda_.EventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime"));
  return static_cast<int64_t>(std::llround(static_cast<double>(milliseconds) * 1e6));
}

// An event is put on its way in one call and becomes the anchor in a later one, so that nobody waits for it.
// Its time follows from the anchor before: the device's clock stays one clock.
absl::Status CudaDevice::MoveAnchor() {
  CudaEvent* const next = static_cast<Event*>(next_anchor_.get())->get();
  if (!anchor_moves_) {
    STRATA_RETURN_IF_ERROR(Record(anchor_stream_, next_anchor_.get()));
    anchor_moves_ = true;
    return absl::OkStatus();
  }
  const int error = cuda_.EventQuery(next);
  if (error == kCudaNotReady) {
    (void)cuda_.GetLastError();
    return absl::OkStatus();
  }
  STRATA_RETURN_IF_ERROR(Check(error, "cudaEventQuery"));
  STRATA_ASSIGN_OR_RETURN(const int64_t nanos, NanosBetween(static_cast<Event*>(anchor_.get())->get(), next));
  anchor_nanos_ += nanos;
  std::swap(anchor_, next_anchor_);
  anchor_moves_ = false;
  return absl::OkStatus();
}

// A refusal is no sign of a broken context unless the next call fails as well.
absl::Status CudaDevice::RegisterHost(std::span<std::byte> memory) {
  STRATA_RETURN_IF_ERROR(Dead());
  const int error = cuda_.HostRegister(memory.data(), memory.size());
  if (error != kCudaSuccess) {
    (void)cuda_.GetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    STRATA_RETURN_IF_ERROR(Check(cuda_.MemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return absl::UnavailableError(absl::StrCat("cudaHostRegister of ", memory.size(),
                                               " bytes: ", ErrorText(error),
                                               "; raise RLIMIT_MEMLOCK (ulimit -l) or lower memory.host"));
  }
  MutexLock lock(mu_);
  registered_ = memory.data();
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> CudaDevice::AllocateResults(int64_t bytes) {
  STRATA_RETURN_IF_ERROR(Dead());
  if (bytes == 0) return std::span<std::byte>();
  void* memory = nullptr;
  const int error = cuda_.HostAlloc(&memory, static_cast<size_t>(bytes));
  if (error == kCudaMemoryAllocation) {
    (void)cuda_.GetLastError();
    return WithCause(absl::ResourceExhaustedError(absl::StrCat(
                         "cudaHostAlloc of ", bytes, " bytes of page-locked memory: ", ErrorText(error),
                         "; free memory, or raise RLIMIT_MEMLOCK (ulimit -l)")),
                     kCauseHostOom);
  }
  STRATA_RETURN_IF_ERROR(Check(error, "cudaHostAlloc"));
  std::memset(memory, 0, static_cast<size_t>(bytes));
  MutexLock lock(mu_);
  results_.push_back(memory);
  return std::span(static_cast<std::byte*>(memory), static_cast<size_t>(bytes));
}

absl::StatusOr<Stream*> CudaDevice::CreateStream() {
  STRATA_RETURN_IF_ERROR(Dead());
  Stream* stream = nullptr;
  STRATA_RETURN_IF_ERROR(Check(cuda_.StreamCreate(&stream), "cudaStreamCreateWithFlags"));
  MutexLock lock(mu_);
  streams_.push_back(stream);
  return stream;
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> CudaDevice::CreateEvent() {
  STRATA_RETURN_IF_ERROR(Dead());
  CudaEvent* event = nullptr;
  STRATA_RETURN_IF_ERROR(Check(cuda_.EventCreate(&event), "cudaEventCreateWithFlags"));
  return std::make_unique<Event>(*this, event);
}

absl::Status CudaDevice::Record(Stream* stream, DeviceEvent* event) {
  STRATA_RETURN_IF_ERROR(Dead());
  return Check(cuda_.EventRecord(static_cast<Event*>(event)->get(), stream), "cudaEventRecord");
}

absl::Status CudaDevice::Wait(Stream* stream, DeviceEvent* event) {
  STRATA_RETURN_IF_ERROR(Dead());
  return Check(cuda_.StreamWaitEvent(stream, static_cast<Event*>(event)->get()), "cudaStreamWaitEvent");
}

absl::Status CudaDevice::Synchronize(DeviceEvent* event) {
  STRATA_RETURN_IF_ERROR(Dead());
  return Check(cuda_.EventSynchronize(static_cast<Event*>(event)->get()), "cudaEventSynchronize");
}

absl::StatusOr<int64_t> CudaDevice::PassedNanos(DeviceEvent* event) {
  STRATA_RETURN_IF_ERROR(Dead());
  STRATA_ASSIGN_OR_RETURN(const int64_t since, NanosBetween(static_cast<Event*>(anchor_.get())->get(),
                                                            static_cast<Event*>(event)->get()));
  const int64_t nanos = anchor_nanos_ + since;
  if (since > kAnchorNanos) STRATA_RETURN_IF_ERROR(MoveAnchor());
  return nanos;
}

absl::Status CudaDevice::CopyToDevice(Stream* stream, std::byte* device, const std::byte* host,
                                      int64_t bytes) {
  STRATA_RETURN_IF_ERROR(Dead());
  const bool blocking = stream == nullptr;
  if (blocking) stream = setup_stream_;
  STRATA_RETURN_IF_ERROR(
      Check(cuda_.MemcpyToDeviceAsync(device, host, static_cast<size_t>(bytes), stream), "copy to device"));
  if (!blocking) return absl::OkStatus();
  return Check(cuda_.StreamSynchronize(stream), "copy to device");
}

absl::Status CudaDevice::CopyToHost(Stream* stream, std::byte* host, const std::byte* device, int64_t bytes) {
  STRATA_RETURN_IF_ERROR(Dead());
  const bool blocking = stream == nullptr;
  if (blocking) stream = setup_stream_;
  STRATA_RETURN_IF_ERROR(
      Check(cuda_.MemcpyToHostAsync(host, device, static_cast<size_t>(bytes), stream), "copy to host"));
  if (!blocking) return absl::OkStatus();
  return Check(cuda_.StreamSynchronize(stream), "copy to host");
}

absl::StatusOr<std::unique_ptr<IoEngine>> CudaDevice::CreateDirectEngine() {
  STRATA_RETURN_IF_ERROR(Dead());
  if (direct_ == nullptr) {
    STRATA_ASSIGN_OR_RETURN(CufileApi* const cufile, cufile_());
    STRATA_ASSIGN_OR_RETURN(direct_,
                            OpenDirectStorage(*cufile, cuda_, {arena_, static_cast<size_t>(arena_bytes_)}));
  }
  return direct_->CreateEngine();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(CudaApi& cuda, int64_t budget_bytes,
                                                         const CudaStateMath& state_math,
                                                         CufileLoader cufile) {
  auto device = std::make_unique<CudaDevice>(cuda, std::move(cufile));
  STRATA_RETURN_IF_ERROR(device->Open(budget_bytes, state_math));
  return device;
}

}  // namespace strata
