// One call of every kernel, at given shapes and on memory of any kind: what gpu_bench times on a card and
// emulated_traffic counts on the emulator.
#ifndef KERNELS_BENCH_KERNEL_CALLS_H_
#define KERNELS_BENCH_KERNEL_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention/launch.h"
#include "kernels/dtype.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"

namespace strata {

// Lends device memory and takes it back at its end. The first failure is kept in status(), and what would use
// the memory must not run then.
class CallMemory {
 public:
  virtual ~CallMemory() = default;
  // Normal numbers: what a tensor core draws, and so its clock, depends on the bits.
  void* Values(int64_t n, DType type);
  // In [0, vocab), scattered.
  int32_t* Tokens(int64_t n, int64_t vocab);
  int32_t* Copy(const std::vector<int32_t>& values);
  void* CopyBytes(const void* from, int64_t bytes);
  Workspace Lend(int64_t bytes) { return {Zeros(bytes), bytes}; }
  // nullptr for 0 bytes.
  virtual void* Zeros(int64_t bytes) = 0;
  const absl::Status& status() const { return status_; }

 protected:
  virtual absl::Status CopyIn(void* device, const void* host, int64_t bytes) = 0;
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  absl::Status status_;
};

using KernelCall = std::function<absl::Status()>;

// What is done with each call.
class CallVisitor {
 public:
  virtual ~CallVisitor() = default;
  virtual std::unique_ptr<CallMemory> NewMemory() = 0;
  // A call whose operands have `bytes`, each counted once.
  virtual void Bytes(const std::string& name, int64_t bytes, const CallMemory& memory,
                     const KernelCall& call) = 0;
};

struct MemoryShapes {
  int64_t rows, hidden, ffn, vocab, seq, heads;
  int64_t loss_rows;       // of the cross-entropy
  int64_t state_elements;  // of the optimizer's calls; a multiple of kCode8Block
};

// The ops that move memory, in bf16.
void VisitMemoryCalls(Ops& ops, const MemoryShapes& shapes, CallVisitor& visitor);
// AdamW and what is done with gradients and parameters beside it.
void VisitStateCalls(const MemoryShapes& shapes, CallVisitor& visitor);
// Matrices to e4m3.
void VisitFp8Calls(const MemoryShapes& shapes, CallVisitor& visitor);

// Causal attention in bf16.
inline constexpr DType kAttentionType = DType::kBF16;

struct AttentionCase {
  std::string name;
  int64_t heads = 0, head_dim = 0;
  std::vector<int32_t> lengths;  // of the sequences
  int64_t window = 0;            // as in CudnnAttentionShape
  bool packed = false;           // one after another by their offsets; else all of one length

  int64_t rows() const;
  int64_t width() const { return heads * head_dim; }
  // Of the forward pass; half of each square, less what the window hides.
  double Flop() const;
};

// The tensors of a case, and the calls of it for either provider.
struct AttentionMemory {
  AttentionMemory(const AttentionCase& c, std::unique_ptr<CallMemory> from);

  std::unique_ptr<CallMemory> lender;
  AttentionBackwardArgs args;
};

// The call of kernels/attention that `memory.args` is.
attention::BackwardCall OwnAttentionCall(const AttentionCase& c, AttentionMemory& memory);

}  // namespace strata

#endif  // KERNELS_BENCH_KERNEL_CALLS_H_
