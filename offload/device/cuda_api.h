// CudaApi: the few calls of the CUDA runtime that the device backend makes. Programs never link CUDA: the
// real one is in the plugin (cuda_plugin.h), tests use FakeCuda (fake_cuda.h). Each call is the runtime's
// function of the same name and returns its cudaError_t as a number.
//
// One GPU per process: the current device is 0 in every thread, so no call selects one, but for threads that
// go straight to a library which wants the device's context there. A process that is to use another GPU is
// started with CUDA_VISIBLE_DEVICES.
//
// Threads: any, as with the runtime. A Stream* is a cudaStream_t, so kernels launch on it as it is.
#ifndef OFFLOAD_DEVICE_CUDA_API_H_
#define OFFLOAD_DEVICE_CUDA_API_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace strata {

// The numbers of driver_types.h that decisions depend on.
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaMemoryAllocation = 2;
inline constexpr int kCudaInsufficientDriver = 35;  // also: no driver at all
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaIllegalAddress = 700;
inline constexpr int kCudaHostMemoryAlreadyRegistered = 712;
inline constexpr int kCudaLaunchFailure = 719;
inline constexpr int kCudaNotSupported = 801;

struct CudaEvent;  // a cudaEvent_t is a CudaEvent*

struct CudaDeviceInfo {
  char name[256] = {};
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  char driver[64] = {};  // its version: "580.65.06", or where that cannot be read "CUDA 13.0"
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual int GetDeviceCount(int* count) = 0;
  virtual int GetDeviceInfo(CudaDeviceInfo* info) = 0;
  virtual int SetDevice(int device) = 0;
  virtual int MemGetInfo(size_t* free_bytes, size_t* total_bytes) = 0;

  virtual int Malloc(void** pointer, size_t bytes) = 0;
  virtual int Free(void* pointer) = 0;
  // Page-locked host memory that device work may write by the same pointer.
  virtual int HostAlloc(void** pointer, size_t bytes) = 0;
  virtual int FreeHost(void* pointer) = 0;
  virtual int HostRegister(void* pointer, size_t bytes) = 0;
  virtual int HostUnregister(void* pointer) = 0;

  // Destroys all that this process has on the device, its context included.
  virtual int DeviceReset() = 0;

  // A stream that does not wait for the null stream; an event whose waits block, not spin.
  virtual int StreamCreate(Stream** stream) = 0;
  virtual int StreamDestroy(Stream* stream) = 0;
  virtual int StreamSynchronize(Stream* stream) = 0;
  virtual int StreamWaitEvent(Stream* stream, CudaEvent* event) = 0;
  virtual int EventCreate(CudaEvent** event) = 0;
  virtual int EventDestroy(CudaEvent* event) = 0;
  virtual int EventRecord(CudaEvent* event, Stream* stream) = 0;
  // kCudaNotReady is also the thread's last error, which whoever launches next would take for its own: see
  // GetLastError.
  virtual int EventQuery(CudaEvent* event) = 0;
  virtual int EventSynchronize(CudaEvent* event) = 0;
  // Between the moments at which the device passed the two; below 0 when it passed `begin` last. Half a
  // microsecond is what it resolves. kCudaNotReady: it has not passed both.
  virtual int EventElapsedTime(float* milliseconds, CudaEvent* begin, CudaEvent* end) = 0;

  virtual int MemcpyToDeviceAsync(void* device, const void* host, size_t bytes, Stream* stream) = 0;
  virtual int MemcpyToHostAsync(void* host, const void* device, size_t bytes, Stream* stream) = 0;
  virtual int MemsetAsync(void* device, int value, size_t bytes, Stream* stream) = 0;
  // `function(argument)` runs on a thread of the runtime when the stream reaches it; not at all after an
  // error.
  virtual int LaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) = 0;

  // The last error of the calling thread, which this clears unless it is one that stays.
  virtual int GetLastError() = 0;
  virtual const char* GetErrorString(int error) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUDA_API_H_
