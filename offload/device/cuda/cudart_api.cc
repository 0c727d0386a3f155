#include "offload/device/cuda/cudart_api.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "absl/strings/strip.h"
#include "common/fd.h"

namespace strata {
namespace {

static_assert(kCudaSuccess == cudaSuccess && kCudaInvalidValue == cudaErrorInvalidValue &&
              kCudaMemoryAllocation == cudaErrorMemoryAllocation &&
              kCudaInsufficientDriver == cudaErrorInsufficientDriver && kCudaNoDevice == cudaErrorNoDevice &&
              kCudaNotReady == cudaErrorNotReady && kCudaIllegalAddress == cudaErrorIllegalAddress &&
              kCudaHostMemoryAlreadyRegistered == cudaErrorHostMemoryAlreadyRegistered &&
              kCudaLaunchFailure == cudaErrorLaunchFailure && kCudaNotSupported == cudaErrorNotSupported);

cudaStream_t Of(Stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t Of(CudaEvent* event) { return reinterpret_cast<cudaEvent_t>(event); }

class Cudart : public CudaApi {
 public:
  int GetDeviceCount(int* count) override { return cudaGetDeviceCount(count); }
  int GetDeviceInfo(CudaDeviceInfo* info) override {
    cudaDeviceProp properties;
    const int error = cudaGetDeviceProperties(&properties, 0);
    if (error != cudaSuccess) return error;
    std::snprintf(info->name, sizeof(info->name), "%s", properties.name);
    info->major = properties.major;
    info->minor = properties.minor;
    info->multiprocessors = properties.multiProcessorCount;
    info->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    // The driver's own version; the runtime only tells the newest CUDA that it speaks.
    if (const absl::StatusOr<std::string> version = ReadFile("/sys/module/nvidia/version", 64);
        version.ok()) {
      const absl::string_view text = absl::StripAsciiWhitespace(*version);
      std::snprintf(info->driver, sizeof(info->driver), "%.*s", static_cast<int>(text.size()), text.data());
      return cudaSuccess;
    }
    int cuda = 0;
    const int unknown = cudaDriverGetVersion(&cuda);
    std::snprintf(info->driver, sizeof(info->driver), "CUDA %d.%d", cuda / 1000, cuda % 1000 / 10);
    return unknown;
  }
  int SetDevice(int device) override { return cudaSetDevice(device); }
  int MemGetInfo(size_t* free_bytes, size_t* total_bytes) override {
    return cudaMemGetInfo(free_bytes, total_bytes);
  }

  int Malloc(void** pointer, size_t bytes) override { return cudaMalloc(pointer, bytes); }
  int Free(void* pointer) override { return cudaFree(pointer); }
  int HostAlloc(void** pointer, size_t bytes) override {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  }
  int FreeHost(void* pointer) override { return cudaFreeHost(pointer); }
  int HostRegister(void* pointer, size_t bytes) override {
    return cudaHostRegister(pointer, bytes, cudaHostRegisterPortable);
  }
  int HostUnregister(void* pointer) override { return cudaHostUnregister(pointer); }

  int DeviceReset() override { return cudaDeviceReset(); }

  int StreamCreate(Stream** stream) override {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
  }
  int StreamDestroy(Stream* stream) override { return cudaStreamDestroy(Of(stream)); }
  int StreamSynchronize(Stream* stream) override { return cudaStreamSynchronize(Of(stream)); }
  int StreamWaitEvent(Stream* stream, CudaEvent* event) override {
    return cudaStreamWaitEvent(Of(stream), Of(event), cudaEventWaitDefault);
  }
  int EventCreate(CudaEvent** event) override {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventBlockingSync);
  }
  int EventDestroy(CudaEvent* event) override { return cudaEventDestroy(Of(event)); }
  int EventRecord(CudaEvent* event, Stream* stream) override {
    return cudaEventRecord(Of(event), Of(stream));
  }
  int EventQuery(CudaEvent* event) override { return cudaEventQuery(Of(event)); }
  int EventSynchronize(CudaEvent* event) override { return cudaEventSynchronize(Of(event)); }
  int EventElapsedTime(float* milliseconds, CudaEvent* begin, CudaEvent* end) override {
    return cudaEventElapsedTime(milliseconds, Of(begin), Of(end));
  }

  int MemcpyToDeviceAsync(void* device, const void* host, size_t bytes, Stream* stream) override {
    return cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, Of(stream));
  }
  int MemcpyToHostAsync(void* host, const void* device, size_t bytes, Stream* stream) override {
    return cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, Of(stream));
  }
  int MemsetAsync(void* device, int value, size_t bytes, Stream* stream) override {
    return cudaMemsetAsync(device, value, bytes, Of(stream));
  }
  int LaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) override {
    return cudaLaunchHostFunc(Of(stream), function, argument);
  }

  int GetLastError() override { return cudaGetLastError(); }
  const char* GetErrorString(int error) override {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
  }
};

}  // namespace

CudaApi& CudartApi() {
  static Cudart api;
  return api;
}

}  // namespace strata
