// What the kernel counts for this process.
#ifndef COMMON_PROCESS_USAGE_H_
#define COMMON_PROCESS_USAGE_H_

#include <cstdint>

namespace strata {

struct ProcessUsage {
  int64_t rss_bytes = 0;       // resident now
  int64_t rss_peak_bytes = 0;  // most ever resident
  // Storage traffic caused (/proc/self/io); -1 where the kernel does not account for it.
  int64_t storage_read_bytes = -1;
  int64_t storage_written_bytes = -1;
};

// Never fails: what cannot be read keeps its default.
ProcessUsage ReadProcessUsage();

}  // namespace strata

#endif  // COMMON_PROCESS_USAGE_H_
