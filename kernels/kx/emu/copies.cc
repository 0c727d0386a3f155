// cp.async: the bytes land when the issuing thread waits for their group, which is as late as they may.
#include <cstring>

#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {

void CpAsync(SharedAddress to, const void* from, bool valid, Where where) {
  ++machine->report->stats.cp_async;
  if (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    Complain(where, "cp.async from global %p: not a multiple of 16", from);
    return;
  }
  if (valid && !AccessGlobal(from, 16, false, where)) return;
  if (!machine->shared.BeginAsyncWrite(to, 16, CurrentActor(), where)) return;
  CountShared(to, 16, true, where);
  if (valid) CountGlobal(from, 16, false, where);
  machine->self().open_copies.push_back({to, from, valid, where});
}

void CommitCopies() {
  Thread& thread = machine->self();
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void WaitCopies(int groups_left) {
  Thread& thread = machine->self();
  while (static_cast<int>(thread.copy_groups.size()) > groups_left) {
    for (const Copy& copy : thread.copy_groups.front()) {
      if (copy.valid) {
        memcpy(machine->shared.Raw(copy.to), copy.from, 16);
      } else {
        memset(machine->shared.Raw(copy.to), 0, 16);
      }
      machine->shared.EndAsyncWrite(copy.to, 16, static_cast<uint16_t>(machine->current), thread.clock,
                                    false);
    }
    thread.copy_groups.pop_front();
  }
}

}  // namespace strata::kx::emu
