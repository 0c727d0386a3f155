// Text from a checkpoint, on the CPU, in host memory: a look at what a model has learned, not a serving path.
#ifndef WORKER_TRAINER_GENERATE_H_
#define WORKER_TRAINER_GENERATE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

struct GenerateOptions {
  std::string checkpoint;  // a step-* folder
  std::string digest;      // of its manifest, if not empty: another is kDataLoss
  std::string prompt;      // "": a line end
  int64_t max_tokens = 300;
  uint64_t seed = 0;
  double temperature = 0.8;  // 0: always the likeliest token
  int threads = 2;
};

// Calls `emit` with each piece of text as it is made, the prompt excluded. The same options give the same
// text. The context is the model's last max_seq tokens.
absl::Status Generate(const GenerateOptions& options, const std::function<void(absl::string_view)>& emit);

}  // namespace strata

#endif  // WORKER_TRAINER_GENERATE_H_
