// FaultyIoEngine: a disk that fails on demand, for tests. Wraps another engine and changes the request a
// FaultPlan chooses: it fails, or - worse - it claims success with wrong bytes.
#ifndef OFFLOAD_IO_FAULTY_IO_ENGINE_H_
#define OFFLOAD_IO_FAULTY_IO_ENGINE_H_

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/mutex.h"
#include "offload/io/io_engine.h"

namespace strata {

enum class FaultKind : uint8_t {
  kReadError,        // Fails with Fault::error.
  kWriteError,       // Fails with Fault::error; nothing is written.
  kReadFlip,         // One bit of what arrives is flipped; claims success.
  kReadShort,        // Only the first half arrives, the rest of the buffer is left as it was; claims success.
  kReadMisdirected,  // The bytes of a neighbouring place arrive; claims success.
  kWriteFlip,        // One bit of what is written is flipped; claims success.
  kWriteTorn,        // Only the first half is written; claims success.
  kWriteLost,        // Nothing is written; claims success.
  kWriteMisdirected,  // Written over a neighbouring place; claims success.
};

bool IsReadFault(FaultKind kind);
const char* FaultKindName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kReadError;
  uint64_t nth = 0;    // Fires at the nth request (from 0) of its direction after Arm ...
  uint64_t count = 1;  // ... and at the count-1 after that one.
  int error = EIO;
  uint64_t seed = 0;  // Chooses the bit.
};

// Counts requests over all engines that share it. Thread-safe; outlives its engines.
class FaultPlan {
 public:
  // Replaces the fault and starts to count anew.
  void Arm(const Fault& fault);
  void Disarm();
  uint64_t fired() const;  // Faults fired since Arm.
  uint64_t reads() const;  // Requests since Arm.
  uint64_t writes() const;

  // For the engine: counts a request, and says what to do to it.
  std::optional<Fault> Next(IoOp op);

 private:
  mutable Mutex mu_;
  std::optional<Fault> fault_ ABSL_GUARDED_BY(mu_);
  uint64_t fired_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reads_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t writes_ ABSL_GUARDED_BY(mu_) = 0;
};

std::unique_ptr<IoEngine> MakeFaultyIoEngine(std::unique_ptr<IoEngine> base, FaultPlan& plan);

}  // namespace strata

#endif  // OFFLOAD_IO_FAULTY_IO_ENGINE_H_
