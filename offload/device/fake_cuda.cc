#include "offload/device/fake_cuda.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/clock.h"

namespace strata {
namespace {

constexpr size_t kAlignment = 4096;
constexpr int kPoison = 0xff;  // bytes of a NaN in every float type
constexpr uint64_t kSidesOfWork = 2;
constexpr uint64_t kSidesOfCall = 16;

// Whether a context goes on after this error.
bool Survivable(int error) {
  return error == kCudaInvalidValue || error == kCudaMemoryAllocation || error == kCudaNotReady ||
         error == kCudaHostMemoryAlreadyRegistered || error == kCudaNotSupported ||
         error == kCudaInsufficientDriver || error == kCudaNoDevice;
}

void* AllocatePoisoned(size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  STRATA_CHECK(memory != nullptr);
  std::memset(memory, kPoison, bytes);
  return memory;
}

bool Inside(const std::map<const std::byte*, size_t>& ranges, const void* pointer, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(pointer);
  auto next = ranges.upper_bound(begin);
  if (next == ranges.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return begin + bytes <= start + size;
}

bool Overlap(const MemoryAccess& a, const MemoryAccess& b) {
  const auto* x = static_cast<const std::byte*>(a.begin);
  const auto* y = static_cast<const std::byte*>(b.begin);
  return x < y + b.bytes && y < x + a.bytes;
}

template <typename Clock>
void Join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

}  // namespace

FakeCuda::FakeCuda(const FakeCudaOptions& options) : options_(options), random_(options.seed, 0) {}

FakeCuda::~FakeCuda() {
  {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.SignalAll();
  }
  MutexLock lock(mu_);
  for (const auto& queue : queues_) {
    mu_.Unlock();
    queue->thread.Join();
    mu_.Lock();
  }
  for (const auto& [memory, bytes] : device_memory_) std::free(const_cast<std::byte*>(memory));
  for (const auto& [memory, bytes] : host_memory_) std::free(const_cast<std::byte*>(memory));
}

void FakeCuda::FailCall(int64_t nth, int error, const std::string& name) {
  MutexLock lock(mu_);
  fail_call_ = {name, nth, error};
}

void FakeCuda::FailWork(int64_t nth, int error) {
  MutexLock lock(mu_);
  fail_work_ = {"", nth, error};
}

bool FakeCuda::failed() const {
  MutexLock lock(mu_);
  return failed_;
}

int64_t FakeCuda::calls() const {
  MutexLock lock(mu_);
  return calls_;
}

int64_t FakeCuda::work_done() const {
  MutexLock lock(mu_);
  return work_done_;
}

int64_t FakeCuda::pageable_copies() const {
  MutexLock lock(mu_);
  return pageable_copies_;
}

bool FakeCuda::Coin(uint64_t sides) { return random_.Below(coins_++, sides) == 0; }

int FakeCuda::Fail(int error) {
  last_errors_[std::this_thread::get_id()] = error;
  if (!Survivable(error)) sticky_ = error;
  changed_.SignalAll();
  return error;
}

int FakeCuda::Misuse(const std::string& what) {
  misuses_.push_back(what);
  return Fail(kCudaInvalidValue);
}

// What still runs when a context dies has ended before anyone hears of it: nothing touches memory that the
// caller, told so, may give back.
int FakeCuda::StickyError() {
  while (sticky_ != 0 && running_ > 0) changed_.Wait(mu_);
  return sticky_;
}

int FakeCuda::Enter(const char* name) {
  ++calls_;
  if (sticky_ != 0) return StickyError();
  if (fail_call_.countdown >= 0 && (fail_call_.name.empty() || fail_call_.name == name) &&
      fail_call_.countdown-- == 0) {
    failed_ = true;
    const int error = Fail(fail_call_.error);
    (void)StickyError();
    return error;
  }
  if (options_.order == FakeCudaOptions::Order::kRandom && !queues_.empty() && Coin(kSidesOfCall)) {
    const QueueState& some = *queues_[random_.Below(coins_++, queues_.size())];
    if (some.done < some.enqueued) Demand(some.index, some.done + 1);
  }
  return kCudaSuccess;
}

FakeCuda::QueueState* FakeCuda::Find(Stream* stream) {
  for (const auto& queue : queues_) {
    if (reinterpret_cast<Stream*>(queue.get()) == stream && !queue->destroyed) return queue.get();
  }
  return nullptr;
}

FakeCuda::EventState* FakeCuda::Find(CudaEvent* event) {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second.get();
}

void FakeCuda::Compare(const Access& access, const VectorClock& after) {
  for (const Access& other : accesses_) {
    const size_t stream = static_cast<size_t>(other.stream);
    if (other.stream >= 0 && stream < after.size() && after[stream] >= other.number) continue;
    for (const MemoryAccess& a : access.accesses) {
      for (const MemoryAccess& b : other.accesses) {
        if ((!a.write && !b.write) || !Overlap(a, b)) continue;
        races_.push_back(absl::StrCat(access.what, a.write ? " writes" : " reads", " what ", other.what,
                                      b.write ? " writes" : " reads", ", and nothing orders them"));
        Fail(kCudaLaunchFailure);
        return;
      }
    }
  }
}

int64_t FakeCuda::Enqueue(QueueState& queue, Work work, const std::string& what,
                          std::vector<MemoryAccess> accesses) {
  Join(queue.clock, host_knows_);
  work.number = ++queue.enqueued;
  work.end_nanos = std::max(queue.end_nanos, Now()) + work.nanos + std::exchange(queue.spend_nanos, 0);
  queue.end_nanos = work.end_nanos;
  if (queue.clock.size() <= static_cast<size_t>(queue.index)) queue.clock.resize(queue.index + 1, 0);
  queue.clock[queue.index] = work.number;
  work.eager = options_.order == FakeCudaOptions::Order::kEager ||
               (options_.order == FakeCudaOptions::Order::kRandom && Coin(kSidesOfWork));
  if (!accesses.empty()) {
    Access access{queue.index, work.number, absl::StrCat(what, " on stream ", queue.index),
                  std::move(accesses)};
    Compare(access, queue.clock);
    accesses_.push_back(std::move(access));
  }
  queue.work.push_back(std::move(work));
  changed_.SignalAll();
  return queue.enqueued;
}

void FakeCuda::Demand(int stream, int64_t number) {
  QueueState& queue = *queues_[stream];
  if (queue.demanded >= number) return;
  queue.demanded = number;
  for (const Work& work : queue.work) {
    if (work.number <= number && work.wait_stream >= 0) Demand(work.wait_stream, work.wait_number);
  }
  changed_.SignalAll();
}

int FakeCuda::WaitUntilDone(int stream, int64_t number) {
  Demand(stream, number);
  while (sticky_ == 0 && queues_[stream]->done < number) changed_.Wait(mu_);
  return StickyError();
}

void FakeCuda::HostKnows(const VectorClock& clock) {
  Join(host_knows_, clock);
  accesses_.remove_if([this](const Access& access) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return access.stream >= 0 && static_cast<size_t>(access.stream) < host_knows_.size() &&
           host_knows_[access.stream] >= access.number;
  });
}

bool FakeCuda::Runnable(const QueueState& queue) const {
  if (queue.work.empty()) return false;
  const Work& front = queue.work.front();
  if (!front.eager && front.number > queue.demanded) return false;
  return front.wait_stream < 0 || queues_[front.wait_stream]->done >= front.wait_number;
}

void FakeCuda::StreamBody(QueueState& queue) {
  MutexLock lock(mu_);
  while (true) {
    while (!ending_ && (sticky_ != 0 || !Runnable(queue))) changed_.Wait(mu_);
    if (ending_) return;
    // The front stays in its place while it runs; others only append.
    if (queue.work.front().body) {
      if (fail_work_.countdown >= 0 && fail_work_.countdown-- == 0) {
        failed_ = true;
        Fail(fail_work_.error);
        continue;
      }
      const std::function<void()> body = std::move(queue.work.front().body);
      ++running_;
      mu_.Unlock();
      body();
      mu_.Lock();
      --running_;
      ++work_done_;
    }
    const int64_t end_nanos = queue.work.front().end_nanos;
    for (int64_t now; !ending_ && sticky_ == 0 && (now = Now()) < end_nanos;)
      changed_.WaitFor(mu_, std::chrono::nanoseconds(end_nanos - now));
    if (ending_) return;
    queue.done = queue.work.front().number;
    queue.work.pop_front();
    changed_.SignalAll();
  }
}

void FakeCuda::Spend(Stream* stream, double seconds) {
  MutexLock lock(mu_);
  QueueState* queue = Find(stream);
  if (queue == nullptr) {
    Misuse("time spent on an unknown stream");
    return;
  }
  queue->spend_nanos += std::llround(seconds * 1e9);
}

int64_t FakeCuda::Now() const { return Clock::Real().MonotonicNanos() + skipped_nanos_; }

void FakeCuda::SkipTime(double seconds) {
  MutexLock lock(mu_);
  skipped_nanos_ += std::llround(seconds * 1e9);
}

void FakeCuda::Declare(Stream* stream, const std::string& what, std::vector<MemoryAccess> accesses) {
  MutexLock lock(mu_);
  QueueState* queue = Find(stream);
  if (queue == nullptr) {
    Misuse(absl::StrCat(what, " on an unknown stream"));
    return;
  }
  if (sticky_ == 0) {
    const int64_t spend_nanos = std::exchange(queue->spend_nanos, 0);  // the work's that this speaks of
    Enqueue(*queue, {}, what, std::move(accesses));
    queue->spend_nanos = spend_nanos;
  }
}

int64_t FakeCuda::BeginHostAccess(const std::string& what, std::vector<MemoryAccess> accesses) {
  MutexLock lock(mu_);
  Access access{-1, ++host_accesses_, what, std::move(accesses)};
  // Host threads are ordered among each other by means that are not seen here.
  std::list<Access> others;
  for (auto other = accesses_.begin(); other != accesses_.end();) {
    const auto next = std::next(other);
    if (other->stream < 0) others.splice(others.end(), accesses_, other);
    other = next;
  }
  if (sticky_ == 0) Compare(access, host_knows_);
  accesses_.splice(accesses_.end(), others);
  accesses_.push_back(std::move(access));
  return host_accesses_;
}

void FakeCuda::EndHostAccess(int64_t number) {
  MutexLock lock(mu_);
  accesses_.remove_if(
      [number](const Access& access) { return access.stream < 0 && access.number == number; });
}

std::string FakeCuda::Complaints(bool with_leaks) const {
  MutexLock lock(mu_);
  std::vector<std::string> parts;
  if (!races_.empty()) parts.push_back(absl::StrCat("races: ", absl::StrJoin(races_, "; ")));
  if (!misuses_.empty()) parts.push_back(absl::StrCat("misuse: ", absl::StrJoin(misuses_, "; ")));
  if (with_leaks) {
    const auto streams =
        std::count_if(queues_.begin(), queues_.end(), [](const auto& queue) { return !queue->destroyed; });
    const auto count = [&](size_t number, const char* what) {
      if (number > 0) parts.push_back(absl::StrCat("not given back: ", number, " ", what));
    };
    count(device_memory_.size(), "device allocations");
    count(host_memory_.size(), "host allocations");
    count(registered_.size(), "registrations");
    count(static_cast<size_t>(streams), "streams");
    count(events_.size(), "events");
  }
  return absl::StrJoin(parts, "\n");
}

int FakeCuda::GetDeviceCount(int* count) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaGetDeviceCount"); error != 0) return error;
  *count = options_.devices;
  return options_.devices > 0 ? kCudaSuccess : Fail(kCudaNoDevice);
}

int FakeCuda::GetDeviceInfo(CudaDeviceInfo* info) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaGetDeviceProperties"); error != 0) return error;
  *info = {.name = "Fake GPU",
           .major = options_.major,
           .minor = options_.minor,
           .multiprocessors = 132,
           .memory_bytes = options_.memory_bytes};
  std::strncpy(info->driver, options_.driver.c_str(), sizeof(info->driver) - 1);
  return kCudaSuccess;
}

int FakeCuda::SetDevice(int device) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaSetDevice"); error != 0) return error;
  return device < options_.devices ? kCudaSuccess : Misuse(absl::StrCat("cudaSetDevice(", device, ")"));
}

int FakeCuda::MemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaMemGetInfo"); error != 0) return error;
  *total_bytes = static_cast<size_t>(options_.memory_bytes);
  *free_bytes = static_cast<size_t>(options_.memory_bytes - device_bytes_);
  return kCudaSuccess;
}

// The fake is used on by those who look what was not given back.
int FakeCuda::DeviceReset() {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaDeviceReset"); error != 0) return error;
  const bool used =
      !device_memory_.empty() || !events_.empty() ||
      std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) { return !queue->destroyed; });
  return used ? Misuse("cudaDeviceReset of a device in use") : kCudaSuccess;
}

int FakeCuda::Malloc(void** pointer, size_t bytes) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaMalloc"); error != 0) return error;
  if (bytes > static_cast<size_t>(options_.memory_bytes - device_bytes_)) return Fail(kCudaMemoryAllocation);
  *pointer = AllocatePoisoned(bytes);
  device_memory_[static_cast<const std::byte*>(*pointer)] = bytes;
  device_bytes_ += static_cast<int64_t>(bytes);
  return kCudaSuccess;
}

void FakeCuda::CheckIdle(const char* call, const void* pointer, size_t bytes) {
  const MemoryAccess all{pointer, static_cast<int64_t>(bytes), true};
  for (const Access& access : accesses_) {
    for (const MemoryAccess& part : access.accesses) {
      if (Overlap(all, part)) {
        Misuse(absl::StrCat(call, " of memory that ", access.what, " may still use"));
        return;
      }
    }
  }
}

int FakeCuda::Free(void* pointer) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaFree"); error != 0) return error;
  const auto found = device_memory_.find(static_cast<const std::byte*>(pointer));
  if (found == device_memory_.end()) return Misuse("cudaFree of what cudaMalloc did not give");
  CheckIdle("cudaFree", pointer, found->second);
  device_bytes_ -= static_cast<int64_t>(found->second);
  device_memory_.erase(found);
  std::free(pointer);
  return kCudaSuccess;
}

int FakeCuda::HostAlloc(void** pointer, size_t bytes) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaHostAlloc"); error != 0) return error;
  *pointer = AllocatePoisoned(bytes);
  host_memory_[static_cast<const std::byte*>(*pointer)] = bytes;
  return kCudaSuccess;
}

int FakeCuda::FreeHost(void* pointer) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaFreeHost"); error != 0) return error;
  const auto found = host_memory_.find(static_cast<const std::byte*>(pointer));
  if (found == host_memory_.end()) return Misuse("cudaFreeHost of what cudaHostAlloc did not give");
  CheckIdle("cudaFreeHost", pointer, found->second);
  host_memory_.erase(found);
  std::free(pointer);
  return kCudaSuccess;
}

int FakeCuda::HostRegister(void* pointer, size_t bytes) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaHostRegister"); error != 0) return error;
  if (pointer == nullptr || bytes == 0) return Fail(kCudaInvalidValue);
  if (Inside(registered_, pointer, 1)) return Fail(kCudaHostMemoryAlreadyRegistered);
  registered_[static_cast<const std::byte*>(pointer)] = bytes;
  return kCudaSuccess;
}

int FakeCuda::HostUnregister(void* pointer) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaHostUnregister"); error != 0) return error;
  const auto found = registered_.find(static_cast<const std::byte*>(pointer));
  if (found == registered_.end()) return Misuse("cudaHostUnregister of memory that is not registered");
  CheckIdle("cudaHostUnregister", pointer, found->second);
  registered_.erase(found);
  return kCudaSuccess;
}

int FakeCuda::StreamCreate(Stream** stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaStreamCreateWithFlags"); error != 0) return error;
  QueueState& queue = *queues_.emplace_back(std::make_unique<QueueState>());
  queue.index = static_cast<int>(queues_.size()) - 1;
  queue.thread = Thread(absl::StrCat("fake-stream-", queue.index), [this, &queue] { StreamBody(queue); });
  *stream = reinterpret_cast<Stream*>(&queue);
  return kCudaSuccess;
}

int FakeCuda::StreamDestroy(Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaStreamDestroy"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr) return Misuse("cudaStreamDestroy of an unknown stream");
  if (queue->done < queue->enqueued) Misuse("cudaStreamDestroy of a stream with work");
  queue->destroyed = true;
  return kCudaSuccess;
}

int FakeCuda::StreamSynchronize(Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaStreamSynchronize"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr) return Misuse("cudaStreamSynchronize of an unknown stream");
  const VectorClock clock = queue->clock;
  if (const int error = WaitUntilDone(queue->index, queue->enqueued); error != 0) return error;
  HostKnows(clock);
  return kCudaSuccess;
}

int FakeCuda::StreamWaitEvent(Stream* stream, CudaEvent* event) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaStreamWaitEvent"); error != 0) return error;
  QueueState* queue = Find(stream);
  const EventState* state = Find(event);
  if (queue == nullptr || state == nullptr) return Misuse("cudaStreamWaitEvent with an unknown handle");
  if (state->stream < 0) return kCudaSuccess;
  Join(queue->clock, state->clock);
  queue->end_nanos = std::max(queue->end_nanos, state->nanos);
  Work work;
  work.wait_stream = state->stream;
  work.wait_number = state->number;
  Enqueue(*queue, std::move(work), "", {});
  return kCudaSuccess;
}

int FakeCuda::EventCreate(CudaEvent** event) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventCreateWithFlags"); error != 0) return error;
  auto state = std::make_unique<EventState>();
  *event = reinterpret_cast<CudaEvent*>(state.get());
  events_[*event] = std::move(state);
  return kCudaSuccess;
}

int FakeCuda::EventDestroy(CudaEvent* event) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventDestroy"); error != 0) return error;
  if (events_.erase(event) == 0) return Misuse("cudaEventDestroy of an unknown event");
  return kCudaSuccess;
}

int FakeCuda::EventRecord(CudaEvent* event, Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventRecord"); error != 0) return error;
  QueueState* queue = Find(stream);
  EventState* state = Find(event);
  if (queue == nullptr || state == nullptr) return Misuse("cudaEventRecord with an unknown handle");
  *state = {queue->index, queue->enqueued, std::max(queue->end_nanos, Now()), queue->clock};
  return kCudaSuccess;
}

int FakeCuda::EventQuery(CudaEvent* event) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventQuery"); error != 0) return error;
  const EventState* state = Find(event);
  if (state == nullptr) return Misuse("cudaEventQuery of an unknown event");
  if (state->stream >= 0 && queues_[state->stream]->done < state->number) {
    Demand(state->stream, state->number);  // Whoever polls must see it come.
    return Fail(kCudaNotReady);
  }
  HostKnows(VectorClock(state->clock));
  return kCudaSuccess;
}

int FakeCuda::EventSynchronize(CudaEvent* event) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventSynchronize"); error != 0) return error;
  const EventState* state = Find(event);
  if (state == nullptr) return Misuse("cudaEventSynchronize of an unknown event");
  if (state->stream < 0) return kCudaSuccess;
  const VectorClock clock = state->clock;  // The event may be recorded again meanwhile.
  if (const int error = WaitUntilDone(state->stream, state->number); error != 0) return error;
  HostKnows(clock);
  return kCudaSuccess;
}

int FakeCuda::EventElapsedTime(float* milliseconds, CudaEvent* begin, CudaEvent* end) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaEventElapsedTime"); error != 0) return error;
  const EventState* first = Find(begin);
  const EventState* last = Find(end);
  if (first == nullptr || last == nullptr || first->stream < 0 || last->stream < 0)
    return Misuse("cudaEventElapsedTime of an unknown event, or of one that was never recorded");
  for (const EventState* state : {first, last}) {
    if (queues_[state->stream]->done < state->number) return Fail(kCudaNotReady);
  }
  *milliseconds = static_cast<float>(static_cast<double>(last->nanos - first->nanos) * 1e-6);
  return kCudaSuccess;
}

bool FakeCuda::OnDevice(const void* pointer, size_t bytes) const {
  return Inside(device_memory_, pointer, bytes);
}

bool FakeCuda::PageLocked(const void* pointer, size_t bytes) const {
  return Inside(registered_, pointer, bytes) || Inside(host_memory_, pointer, bytes);
}

// With pageable memory a copy has run when the call returns.
int FakeCuda::EnqueueCopy(QueueState& queue, void* to, const void* from, size_t bytes,
                          double bytes_per_second, const std::string& what) {
  const bool to_device = OnDevice(to, bytes);
  if (to_device == OnDevice(from, bytes)) return Misuse(absl::StrCat(what, ": bytes outside of the arena"));
  Work work;
  work.body = [to, from, bytes] { std::memcpy(to, from, bytes); };
  if (bytes_per_second > 0) work.nanos = std::llround(static_cast<double>(bytes) / bytes_per_second * 1e9);
  if (options_.one_copy_engine) queue.end_nanos = std::max(queue.end_nanos, copy_engine_end_nanos_);
  const int64_t number =
      Enqueue(queue, std::move(work), what,
              {{from, static_cast<int64_t>(bytes), false}, {to, static_cast<int64_t>(bytes), true}});
  if (options_.one_copy_engine) copy_engine_end_nanos_ = queue.end_nanos;
  if (PageLocked(to_device ? from : to, bytes)) return StickyError();
  ++pageable_copies_;
  const VectorClock clock = queue.clock;
  if (const int error = WaitUntilDone(queue.index, number); error != 0) return error;
  HostKnows(clock);
  return kCudaSuccess;
}

int FakeCuda::MemcpyToDeviceAsync(void* device, const void* host, size_t bytes, Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaMemcpyAsync"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr) return Misuse("cudaMemcpyAsync on an unknown stream");
  return EnqueueCopy(*queue, device, host, bytes, options_.h2d_bytes_per_second, "a copy to the device");
}

int FakeCuda::MemcpyToHostAsync(void* host, const void* device, size_t bytes, Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaMemcpyAsync"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr) return Misuse("cudaMemcpyAsync on an unknown stream");
  return EnqueueCopy(*queue, host, device, bytes, options_.d2h_bytes_per_second, "a copy to the host");
}

int FakeCuda::MemsetAsync(void* device, int value, size_t bytes, Stream* stream) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaMemsetAsync"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr || !OnDevice(device, bytes)) return Misuse("cudaMemsetAsync outside of the arena");
  Work work;
  work.body = [device, value, bytes] { std::memset(device, value, bytes); };
  Enqueue(*queue, std::move(work), "a memset", {{device, static_cast<int64_t>(bytes), true}});
  return kCudaSuccess;
}

int FakeCuda::LaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  MutexLock lock(mu_);
  if (const int error = Enter("cudaLaunchHostFunc"); error != 0) return error;
  QueueState* queue = Find(stream);
  if (queue == nullptr) return Misuse("cudaLaunchHostFunc on an unknown stream");
  Work work;
  work.body = [function, argument] { function(argument); };
  Enqueue(*queue, std::move(work), "", {});
  return kCudaSuccess;
}

int FakeCuda::GetLastError() {
  MutexLock lock(mu_);
  return sticky_ != 0 ? StickyError() : std::exchange(last_errors_[std::this_thread::get_id()], 0);
}

const char* FakeCuda::GetErrorString(int error) {
  switch (error) {
    case kCudaSuccess:
      return "no error";
    case kCudaInvalidValue:
      return "invalid argument";
    case kCudaMemoryAllocation:
      return "out of memory";
    case kCudaInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case kCudaNoDevice:
      return "no CUDA-capable device is detected";
    case kCudaIllegalAddress:
      return "an illegal memory access was encountered";
    case kCudaLaunchFailure:
      return "unspecified launch failure";
    default:
      return "injected error";
  }
}

}  // namespace strata
