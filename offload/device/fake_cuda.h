// FakeCuda: the CUDA runtime's calls on a thread per stream, for tests of everything that uses them, without
// a GPU. It is stricter than a GPU:
//  - Work really is asynchronous, and by `order` it runs as late as events permit: lazy work runs only when a
//    caller waits for it, so a missing wait reads or leaves bytes that are not there yet. Device memory
//    starts as NaN.
//  - Every copy, and every access that Declare or a HostAccess announces, is compared with all earlier ones
//    that no chain of events, waits and synchronisations puts before it: overlapping bytes of which one side
//    changes some are a race, named by both sides, whatever the threads happened to do. Host threads count as
//    one: what one has waited for, all have (they hand work to each other by locks, which it cannot see). The
//    first race is also an error that the context does not survive, so what depends on it never runs.
//  - Work takes as long as it is told to (copies by the speeds of the options, other work by Spend), and no
//    time otherwise: it is done that much later than it began, which is when it was enqueued or what it comes
//    after was done. Events have the times of this model, whatever the threads happened to do.
//  - Errors can be injected at any call or any piece of work. After one that a CUDA context does not survive
//    every call fails with it and no work runs.
//  - What was not given back is counted, misuse (freeing memory under work, unknown handles) is recorded.
#ifndef OFFLOAD_DEVICE_FAKE_CUDA_H_
#define OFFLOAD_DEVICE_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/random.h"
#include "common/thread.h"
#include "offload/device/cuda_api.h"

namespace strata {

struct FakeCudaOptions {
  enum class Order : uint8_t {
    kEager,   // work runs as soon as the work before it has
    kLazy,    // work runs when a caller waits for it
    kRandom,  // each piece of work is the one or the other; now and then a call lets some run
  };
  Order order = Order::kRandom;
  uint64_t seed = 1;
  int devices = 1;
  int64_t memory_bytes = int64_t{1} << 30;
  int major = 9, minor = 0;  // compute capability
  std::string driver = "1.2.3";
  // Of copies to and from the device; 0: they take no time. With one copy engine the directions take turns.
  double h2d_bytes_per_second = 0, d2h_bytes_per_second = 0;
  bool one_copy_engine = false;
};

// Bytes that something reads or writes.
struct MemoryAccess {
  const void* begin = nullptr;
  int64_t bytes = 0;
  bool write = false;
};

class FakeCuda : public CudaApi {
 public:
  explicit FakeCuda(const FakeCudaOptions& options = {});
  // Pending work is dropped.
  ~FakeCuda() override;

  // The call that comes `nth` from now (0: the next; with `name`, as in "cudaMalloc", of that function only)
  // fails with `error` instead of doing anything.
  void FailCall(int64_t nth, int error, const std::string& name = "") ABSL_LOCKS_EXCLUDED(mu_);
  // The piece of work that runs `nth` from now fails with `error`: later calls return it.
  void FailWork(int64_t nth, int error) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether an injected error has happened.
  bool failed() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t calls() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t work_done() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t pageable_copies() const ABSL_LOCKS_EXCLUDED(mu_);

  // Work enqueued next on `stream` accesses these bytes: what a LaunchHostFunc, say, is about to do.
  void Declare(Stream* stream, const std::string& what, std::vector<MemoryAccess> accesses)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Work enqueued next on `stream` takes so much longer.
  void Spend(Stream* stream, double seconds) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets so much time go by on the device.
  void SkipTime(double seconds) ABSL_LOCKS_EXCLUDED(mu_);
  // A host thread accesses these bytes from now until EndHostAccess.
  int64_t BeginHostAccess(const std::string& what, std::vector<MemoryAccess> accesses)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndHostAccess(int64_t access) ABSL_LOCKS_EXCLUDED(mu_);

  // "races: ... ; misuse: ... ; not given back: ...": "" when there is nothing to say.
  std::string Complaints(bool with_leaks) const ABSL_LOCKS_EXCLUDED(mu_);

  int GetDeviceCount(int* count) override;
  int GetDeviceInfo(CudaDeviceInfo* info) override;
  int SetDevice(int device) override;
  int MemGetInfo(size_t* free_bytes, size_t* total_bytes) override;
  int DeviceReset() override;
  int Malloc(void** pointer, size_t bytes) override;
  int Free(void* pointer) override;
  int HostAlloc(void** pointer, size_t bytes) override;
  int FreeHost(void* pointer) override;
  int HostRegister(void* pointer, size_t bytes) override;
  int HostUnregister(void* pointer) override;
  int StreamCreate(Stream** stream) override;
  int StreamDestroy(Stream* stream) override;
  int StreamSynchronize(Stream* stream) override;
  int StreamWaitEvent(Stream* stream, CudaEvent* event) override;
  int EventCreate(CudaEvent** event) override;
  int EventDestroy(CudaEvent* event) override;
  int EventRecord(CudaEvent* event, Stream* stream) override;
  int EventQuery(CudaEvent* event) override;
  int EventSynchronize(CudaEvent* event) override;
  int EventElapsedTime(float* milliseconds, CudaEvent* begin, CudaEvent* end) override;
  int MemcpyToDeviceAsync(void* device, const void* host, size_t bytes, Stream* stream) override;
  int MemcpyToHostAsync(void* host, const void* device, size_t bytes, Stream* stream) override;
  int MemsetAsync(void* device, int value, size_t bytes, Stream* stream) override;
  int LaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) override;
  int GetLastError() override;
  const char* GetErrorString(int error) override;

 private:
  // What is known to be done: [stream] -> number of its last such piece of work.
  using VectorClock = std::vector<int64_t>;
  struct Work {
    int64_t number = 0;  // in its stream, from 1
    bool eager = false;
    int wait_stream = -1;  // waits for this stream's work up to ...
    int64_t wait_number = 0;
    int64_t nanos = 0;      // that it takes
    int64_t end_nanos = 0;  // when it is done
    std::function<void()> body;
  };
  struct QueueState {
    int index = 0;
    bool destroyed = false;
    int64_t enqueued = 0, done = 0, demanded = 0;
    std::deque<Work> work;
    VectorClock clock;        // what work enqueued next comes after
    int64_t end_nanos = 0;    // of all that is enqueued
    int64_t spend_nanos = 0;  // of Spend, for the work enqueued next
    Thread thread;
  };
  struct EventState {
    int stream = -1;  // -1: never recorded
    int64_t number = 0;
    int64_t nanos = 0;  // when the stream passes it
    VectorClock clock;
  };
  struct Access {
    int stream = -1;  // -1: a host access in progress
    int64_t number = 0;
    std::string what;
    std::vector<MemoryAccess> accesses;
  };
  struct Failure {
    std::string name;
    int64_t countdown = -1;  // -1: none
    int error = 0;
  };

  // Counts the call; what it has to fail with, or 0.
  int StickyError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t Now() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int Enter(const char* name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int Fail(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int Misuse(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  QueueState* Find(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EventState* Find(CudaEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t Enqueue(QueueState& queue, Work work, const std::string& what, std::vector<MemoryAccess> accesses)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int EnqueueCopy(QueueState& queue, void* to, const void* from, size_t bytes, double bytes_per_second,
                  const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets a stream's work up to `number`, and what it waits for, run.
  void Demand(int stream, int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks until it has run; what it failed with, or 0.
  int WaitUntilDone(int stream, int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HostKnows(const VectorClock& clock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Compare(const Access& access, const VectorClock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Runnable(const QueueState& queue) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnDevice(const void* pointer, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool PageLocked(const void* pointer, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CheckIdle(const char* call, const void* pointer, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Coin(uint64_t sides) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StreamBody(QueueState& queue) ABSL_LOCKS_EXCLUDED(mu_);

  const FakeCudaOptions options_;
  const CounterRandom random_;

  mutable Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  int sticky_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::thread::id, int> last_errors_ ABSL_GUARDED_BY(mu_);
  uint64_t coins_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t work_done_ ABSL_GUARDED_BY(mu_) = 0;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t pageable_copies_ ABSL_GUARDED_BY(mu_) = 0;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  Failure fail_call_ ABSL_GUARDED_BY(mu_);
  Failure fail_work_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<QueueState>> queues_ ABSL_GUARDED_BY(mu_);
  std::map<CudaEvent*, std::unique_ptr<EventState>> events_ ABSL_GUARDED_BY(mu_);
  std::map<const std::byte*, size_t> device_memory_ ABSL_GUARDED_BY(mu_);
  std::map<const std::byte*, size_t> host_memory_ ABSL_GUARDED_BY(mu_);  // of HostAlloc
  std::map<const std::byte*, size_t> registered_ ABSL_GUARDED_BY(mu_);
  int64_t device_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t skipped_nanos_ ABSL_GUARDED_BY(mu_) = 0;          // of SkipTime
  int64_t copy_engine_end_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // the one engine's
  VectorClock host_knows_ ABSL_GUARDED_BY(mu_);
  std::list<Access> accesses_ ABSL_GUARDED_BY(mu_);  // that something later may still race with
  int64_t host_accesses_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> races_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_FAKE_CUDA_H_
