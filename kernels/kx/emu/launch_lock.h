// The emulator's one lock: held by a launch for all its time, and by whoever changes the registered ranges.
#ifndef KERNELS_KX_EMU_LAUNCH_LOCK_H_
#define KERNELS_KX_EMU_LAUNCH_LOCK_H_

#include <mutex>

namespace strata::kx::emu {

class LaunchLock {
 public:
  LaunchLock();

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_LAUNCH_LOCK_H_
