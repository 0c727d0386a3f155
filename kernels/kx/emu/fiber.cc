#include "kernels/kx/emu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>

#if defined(__has_feature)
#define KX_HAS_FEATURE(x) __has_feature(x)
#else
#define KX_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || KX_HAS_FEATURE(address_sanitizer)
#define KX_ASAN 1
extern "C" {
void __asan_unpoison_memory_region(const volatile void*, size_t);
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
}
#endif
#if defined(__SANITIZE_THREAD__) || KX_HAS_FEATURE(thread_sanitizer)
#define KX_TSAN 1
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber();
}
#endif

// The callee-saved registers of the System V ABI and nothing else: about 5 ns, where swapcontext makes two
// system calls. MXCSR and the x87 control word are not saved: no kernel changes them.
#if defined(__x86_64__)
asm(R"(
.text
.globl strata_kx_switch
.type strata_kx_switch,@function
strata_kx_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size strata_kx_switch,.-strata_kx_switch
)");
#else
#error "kernels/kx/emu needs a context switch for this processor: strata_kx_switch"
#endif
extern "C" void strata_kx_switch(void** save, void* load);

namespace strata::kx::emu {
namespace {

constexpr size_t kPage = 4096;
#if KX_ASAN
// AddressSanitizer pads every local array.
constexpr size_t kStackBytes = 512 * 1024;
#else
constexpr size_t kStackBytes = 128 * 1024;
#endif

}  // namespace

StackPool::~StackPool() {
  for (const Stack& stack : stacks_) {
#if KX_TSAN
    __tsan_destroy_fiber(stack.tsan);
#endif
    munmap(stack.mapping, kStackBytes + kPage);
  }
}

bool StackPool::Prepare(size_t nth, void (*entry)(), Fiber* fiber) {
  while (stacks_.size() <= nth) {
    void* mapping = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return false;
    if (mprotect(mapping, kPage, PROT_NONE) != 0) {
      munmap(mapping, kStackBytes + kPage);
      return false;
    }
    Stack stack{static_cast<char*>(mapping), nullptr};
#if KX_TSAN
    stack.tsan = __tsan_create_fiber(0);
#endif
    stacks_.push_back(stack);
  }
  char* bottom = stacks_[nth].mapping + kPage;
#if KX_ASAN
  // The frames of the last fiber here never returned, so their red zones are still poisoned.
  __asan_unpoison_memory_region(bottom, kStackBytes);
#endif
  // What strata_kx_switch pops: six registers, then the return address. The extra word keeps the stack
  // aligned as after a call.
  auto** top = reinterpret_cast<void**>(bottom + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  *fiber = {top, bottom, kStackBytes, stacks_[nth].tsan};
  return true;
}

void AdoptThread(Fiber* fiber) {
  *fiber = {};
#if KX_ASAN
  pthread_attr_t attributes;
  void* bottom = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &bottom, &bytes);
    pthread_attr_destroy(&attributes);
  }
  fiber->stack = static_cast<char*>(bottom);
  fiber->stack_bytes = bytes;
#endif
#if KX_TSAN
  fiber->tsan = __tsan_get_current_fiber();
#endif
}

void SwitchFiber(Fiber* from, const Fiber& to, [[maybe_unused]] bool from_is_done) {
#if KX_ASAN
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(from_is_done ? nullptr : &fake_stack, to.stack, to.stack_bytes);
#endif
#if KX_TSAN
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
  strata_kx_switch(&from->stack_pointer, to.stack_pointer);
#if KX_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void FiberStarted() {
#if KX_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace strata::kx::emu
