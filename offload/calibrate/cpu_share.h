// How much of the CPUs others took while something was measured.
#ifndef OFFLOAD_CALIBRATE_CPU_SHARE_H_
#define OFFLOAD_CALIBRATE_CPU_SHARE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

// Ticks that the CPUs `cpus` have not been idle since the machine's start, those that a hypervisor gave to
// other guests (steal) among them, of the text of /proc/stat. nullopt: it does not have them all.
std::optional<int64_t> BusyTicks(absl::string_view proc_stat, const std::vector<int>& cpus);

// From its construction on. Any thread.
class OthersShare {
 public:
  OthersShare();
  // The part of the CPUs this process may run on that other processes and guests have taken so far, 0 to 1. 0
  // where the kernel does not say.
  double Now() const;

 private:
  std::vector<int> cpus_;
  std::optional<int64_t> busy_ticks_;
  double own_seconds_ = 0;
  int64_t begin_nanos_ = 0;
};

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_CPU_SHARE_H_
