// Slots of one size handed out in program order, least recently released first: the hand-out runs ahead of
// the compute lane by as many units as there are slots. What a slot still holds can be found again.
#ifndef OFFLOAD_PLAN_SLOT_POOL_H_
#define OFFLOAD_PLAN_SLOT_POOL_H_

#include <cstdint>
#include <vector>

#include "common/check.h"

namespace strata {

class SlotPool {
 public:
  static constexpr int64_t kNothing = -1;

  SlotPool() = default;
  explicit SlotPool(const std::vector<int32_t>& slots) {
    for (const int32_t slot : slots) entries_.push_back(Entry{slot});
  }

  // The slot that holds `key`, now in use (again); -1 when none does.
  int32_t Find(int64_t key) {
    for (Entry& entry : entries_) {
      if (entry.key != key) continue;
      ++entry.users;
      return entry.slot;
    }
    return -1;
  }

  bool Holds(int64_t key) const {
    for (const Entry& entry : entries_) {
      if (entry.key == key) return true;
    }
    return false;
  }

  // What nobody uses is not found again.
  void Forget(int64_t key) {
    for (Entry& entry : entries_) {
      if (entry.key == key && entry.users == 0) entry.key = kNothing;
    }
  }

  // A slot nobody uses, from now on holding `key`. The pool was sized for this, so there is one. `evicted`:
  // what it held until now that could have been found again.
  int32_t Acquire(int64_t key, int64_t* evicted = nullptr) {
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      if (entry.users == 0 && (oldest == nullptr || entry.released < oldest->released)) oldest = &entry;
    }
    STRATA_CHECK(oldest != nullptr);
    if (evicted != nullptr) *evicted = oldest->key;
    oldest->key = key;
    oldest->users = 1;
    return oldest->slot;
  }

  // As Acquire, but the one that was released last: who comes after waits for the others first. Nothing that
  // could be found again may be lost.
  int32_t AcquireNewest() {
    Entry* newest = nullptr;
    for (Entry& entry : entries_) {
      if (entry.users == 0 && (newest == nullptr || entry.released > newest->released)) newest = &entry;
    }
    STRATA_CHECK(newest != nullptr && newest->key == kNothing);
    newest->users = 1;
    return newest->slot;
  }

  // Slots that are not of this pool (homes) are ignored. `keep`: the content may be found again.
  void Release(int32_t slot, bool keep) {
    for (Entry& entry : entries_) {
      if (entry.slot != slot) continue;
      STRATA_CHECK(entry.users > 0);
      --entry.users;
      entry.released = ++clock_;
      if (!keep) entry.key = kNothing;
    }
  }

  // Ends all use of the slot that holds `key`.
  void Drop(int64_t key) {
    for (Entry& entry : entries_) {
      if (entry.key != key) continue;
      entry.key = kNothing;
      entry.users = 0;
      entry.released = ++clock_;
    }
  }

 private:
  struct Entry {
    int32_t slot = -1;
    int64_t key = kNothing;
    int users = 0;
    int64_t released = 0;
  };

  std::vector<Entry> entries_;
  int64_t clock_ = 0;
};

}  // namespace strata

#endif  // OFFLOAD_PLAN_SLOT_POOL_H_
