#include "worker/agent/memory_kill.h"

#include <csignal>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace strata {

bool KilledForMemorySince(const std::optional<MemoryKills>& before) {
  if (!before.has_value()) return false;
  const std::optional<MemoryKills> now = ReadMemoryKills();
  return now.has_value() && now->group == before->group && now->count > before->count;
}

void BlameMemory(v1::Failure* failure) {
  const absl::StatusOr<MemoryLimits> limits = ReadMemoryLimits();
  const std::string limit = limits.ok()
                                ? absl::StrCat(": the limit is ", limits->total.bytes, " bytes (",
                                               FormatBytes(limits->total.bytes), "), ", limits->total.of)
                                : "";
  failure->set_cause(v1::HOST_OOM);
  failure->set_signal(SIGKILL);
  failure->set_message(absl::StrCat(
      "the trainer was killed by the kernel for lack of memory", limit,
      "; lower memory.host or memory.device (where they are auto, --host-bytes or --device-bytes of the "
      "worker), or raise the limit"));
}

}  // namespace strata
