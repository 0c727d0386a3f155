// Tokenizer: text to token ids and back.
#ifndef WORKER_DATA_TOKENIZER_H_
#define WORKER_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // As in the job file: "bytes".
  virtual std::string name() const = 0;
  // Ids are in [0, vocab()).
  virtual int32_t vocab() const = 0;
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const = 0;
  // kInvalidArgument for an id outside [0, vocab()), with its position. The result need not be UTF-8.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const = 0;
};

// The id of a token is the value of a byte; any text, UTF-8 or not, is its own encoding.
class BytesTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int32_t vocab() const override { return 256; }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
};

// `name` as in data.tokenizer; empty is "bytes". kInvalidArgument, with the remedy, for anything else.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(absl::string_view name);

}  // namespace strata

#endif  // WORKER_DATA_TOKENIZER_H_
