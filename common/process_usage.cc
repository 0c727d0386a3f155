#include "common/process_usage.h"

#include <cinttypes>
#include <cstdio>

#include "common/fd.h"

namespace strata {
namespace {

// The number after `name` at the start of a line; `otherwise` when there is none.
int64_t Field(const std::string& text, const std::string& name, int64_t otherwise) {
  size_t at = text.find("\n" + name);
  if (text.compare(0, name.size(), name) == 0) at = 0;
  if (at == std::string::npos) return otherwise;
  int64_t value;
  return sscanf(text.c_str() + text.find(':', at) + 1, "%" SCNd64, &value) == 1 ? value : otherwise;
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  constexpr int64_t kLimitBytes = 1 << 16;
  ProcessUsage usage;
  if (const auto status = ReadFile("/proc/self/status", kLimitBytes); status.ok()) {
    usage.rss_bytes = Field(*status, "VmRSS:", 0) * 1024;
    usage.rss_peak_bytes = Field(*status, "VmHWM:", 0) * 1024;
  }
  if (const auto io = ReadFile("/proc/self/io", kLimitBytes); io.ok()) {
    usage.storage_read_bytes = Field(*io, "read_bytes:", -1);
    usage.storage_written_bytes = Field(*io, "write_bytes:", -1);
  }
  return usage;
}

}  // namespace strata
