// Fibers: stacks that take turns on one OS thread. Annotated for AddressSanitizer and ThreadSanitizer.
#ifndef KERNELS_KX_EMU_FIBER_H_
#define KERNELS_KX_EMU_FIBER_H_

#include <cstddef>
#include <vector>

namespace strata::kx::emu {

// One stack's saved state. Plain data; the stacks belong to StackPool.
struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;  // lowest usable byte; null: the OS thread's own stack
  size_t stack_bytes = 0;
  void* tsan = nullptr;
};

// Stacks, each above a page that faults. Reused between launches, freed with the pool.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  // Prepares `fiber` to run `entry` (which must never return) on stack number `nth`. false: no memory.
  bool Prepare(size_t nth, void (*entry)(), Fiber* fiber);

 private:
  struct Stack {
    char* mapping;
    void* tsan;
  };
  std::vector<Stack> stacks_;
};

// Fills `fiber` as the place to come back to: the stack of the calling OS thread.
void AdoptThread(Fiber* fiber);
// Saves the running fiber in `from` and runs `to`. `from_is_done`: `from` never runs again.
void SwitchFiber(Fiber* from, const Fiber& to, bool from_is_done);
// First statement of an entry function.
void FiberStarted();

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_FIBER_H_
