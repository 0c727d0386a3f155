// Text files as one stream of tokens, cut into a train and an eval part.
//
// How files become tokens (tokenizer "bytes"): a UTF-8 byte order mark at a file's start is dropped; every
// other byte is one token, NUL and CR included (line ends are not converted). Files follow each other in the
// order given with nothing in between, so a window may span two files.
//
// Nothing but file descriptors and sizes is kept in memory: windows are read with pread, so the text may be
// larger than RAM, and a file that shrinks under a run is an error, not a SIGBUS.
#ifndef WORKER_DATA_DATASET_H_
#define WORKER_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "worker/data/tokenizer.h"

namespace strata {

// A read-only range of tokens. Thread-safe.
class TokenStream {
 public:
  int64_t size() const { return end_ - begin_; }

  // Tokens [position, position + out.size()). The range must lie inside the stream (checked: a bug
  // otherwise). kDataLoss, with path and offset, if a file is no longer as long as when it was opened.
  absl::Status Read(int64_t position, std::span<int32_t> out) const;

 private:
  friend class Dataset;
  struct File {
    std::string path;
    Fd fd;
    int64_t skip = 0;   // Bytes before the first token (the byte order mark).
    int64_t begin = 0;  // Position of its first token in the concatenation.
    int64_t size = 0;   // Tokens.
  };

  std::shared_ptr<const std::vector<File>> files_;
  int64_t begin_ = 0;  // Of this range, in the concatenation.
  int64_t end_ = 0;
};

struct DataOptions {
  std::vector<std::string> train;  // Paths.
  std::vector<std::string> eval;
  double eval_fraction = 0;  // Share of the train tokens, from their end, kept for eval if `eval` is empty.
  int64_t seq_len = 0;
};

class Dataset {
 public:
  // Opens and reads every file once (for the fingerprint). Errors name the field ("data.train[1]"), the path
  // and the remedy: kNotFound or kPermissionDenied for a file that cannot be opened; kInvalidArgument for
  // what is no regular file, is empty, is shorter than one sequence (seq_len + 1 tokens), for too many files,
  // and for an eval_fraction that leaves either part shorter than one sequence.
  static absl::StatusOr<Dataset> Open(const Tokenizer& tokenizer, const DataOptions& options);

  const TokenStream& train() const { return train_; }
  // Size 0 if the job has no eval data.
  const TokenStream& eval() const { return eval_; }

  // 16 hex digits over sizes and checksums of all files and the split: equal fingerprints mean equal token
  // streams. A checkpoint keeps it, so that a resume on other data is noticed.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  TokenStream train_;
  TokenStream eval_;
  std::string fingerprint_;
};

}  // namespace strata

#endif  // WORKER_DATA_DATASET_H_
