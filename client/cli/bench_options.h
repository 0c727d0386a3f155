// The flags of `strata bench offload` as the engine's options.
#ifndef CLIENT_CLI_BENCH_OPTIONS_H_
#define CLIENT_CLI_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/commands.h"
#include "offload/bench/offload_bench.h"

namespace strata {

// "1B", "350M", "12k", "1.5B", "4096": thousands, as parameters are counted.
absl::StatusOr<int64_t> ParseCount(const std::string& text);

// kInvalidArgument names the flag. Budgets that are not given become a share of this machine's free memory
// and space.
absl::StatusOr<OffloadBenchOptions> BenchOptionsOf(const BenchOffloadFlags& flags);

}  // namespace strata

#endif  // CLIENT_CLI_BENCH_OPTIONS_H_
