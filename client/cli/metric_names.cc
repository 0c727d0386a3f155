#include "client/cli/metric_names.h"

#include <algorithm>
#include <iterator>

namespace strata {
namespace {

constexpr const char* kNames[] = {
    "loss",
    "loss_bits",
    "grad_norm",
    "lr",
    "tokens",
    "tokens_per_s",
    "step_ms",
    "skipped",
    "bad_tensor",
    "loss_scale",
    "speculative_redo",
    "exposed_io_ms",
    "overlap_efficiency",
    "io_read_p50_ms",
    "io_read_p99_ms",
    "io_read_depth",
    "io_read_gib_per_s",
    "io_read_of_calibrated",
    "io_write_p50_ms",
    "io_write_p99_ms",
    "io_write_depth",
    "io_write_gib_per_s",
    "io_write_of_calibrated",
    "io_retries",
    "checksum_errors",
    "nvme_lifetime_written_bytes",
    "device_peak_bytes",
    "host_peak_bytes",
    "nvme_peak_bytes",
    "rss_bytes",
    "rss_peak_bytes",
    "state_hash",
    "eval_loss",
    "eval_perplexity",
};
// Before the dot.
constexpr const char* kFamilies[] = {
    "busy_ms",
    "bytes",
    "stall_ms",
    "nvme_read_bytes",
    "nvme_written_bytes",
    "device_read_bytes",
    "device_written_bytes",
    "io_read_gib_per_s",
    "io_write_gib_per_s",
};

}  // namespace

bool IsMetricName(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos)
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  return dot + 1 < name.size() &&
         std::find(std::begin(kFamilies), std::end(kFamilies), name.substr(0, dot)) != std::end(kFamilies);
}

}  // namespace strata
