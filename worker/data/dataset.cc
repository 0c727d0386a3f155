#include "worker/data/dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/crc32c.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr size_t kFilesLimit = 512;  // Each stays open, and the usual limit of a process is 1024 descriptors.
constexpr int64_t kFileBytesLimit = int64_t{1} << 46;
constexpr int64_t kReadBytes = 1 << 20;
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

absl::Status ReadFully(const Fd& fd, const std::string& path, int64_t offset, char* data, int64_t size) {
  while (size > 0) {
    const ssize_t n = pread(fd.get(), data, static_cast<size_t>(size), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path, " at offset ", offset));
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat(path, " now ends at offset ", offset,
                       ", it was longer when the run opened it; restore the file and start again"));
    }
    offset += n;
    data += n;
    size -= n;
  }
  return absl::OkStatus();
}

// Checksum of all `size` bytes; also proves that they can be read before a run depends on them.
absl::StatusOr<uint32_t> Checksum(const Fd& fd, const std::string& path, int64_t size) {
  std::vector<char> buffer(static_cast<size_t>(std::min(size, kReadBytes)));
  uint32_t crc = 0;
  for (int64_t offset = 0; offset < size; offset += kReadBytes) {
    const int64_t n = std::min(kReadBytes, size - offset);
    STRATA_RETURN_IF_ERROR(ReadFully(fd, path, offset, buffer.data(), n));
    crc = Crc32c(buffer.data(), static_cast<size_t>(n), crc);
  }
  return crc;
}

}  // namespace

absl::Status TokenStream::Read(int64_t position, std::span<int32_t> out) const {
  STRATA_CHECK(position >= 0 && static_cast<int64_t>(out.size()) <= size() - position);
  int64_t at = begin_ + position;
  size_t done = 0;
  if (out.empty()) return absl::OkStatus();
  auto file = std::upper_bound(files_->begin(), files_->end(), at,
                               [](int64_t value, const File& f) { return value < f.begin; });
  --file;
  std::vector<unsigned char> bytes;
  while (done < out.size()) {
    STRATA_CHECK(file != files_->end());
    const int64_t inside = at - file->begin;
    const int64_t count =
        std::min<int64_t>({file->size - inside, static_cast<int64_t>(out.size() - done), kReadBytes});
    bytes.resize(static_cast<size_t>(count));
    STRATA_RETURN_IF_ERROR(
        ReadFully(file->fd, file->path, file->skip + inside, reinterpret_cast<char*>(bytes.data()), count));
    std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(done));
    done += static_cast<size_t>(count);
    at += count;
    if (at == file->begin + file->size) ++file;
  }
  return absl::OkStatus();
}

namespace {

struct OpenedFile {
  Fd fd;
  int64_t skip = 0;
  int64_t size = 0;
  uint32_t crc = 0;
};

absl::StatusOr<OpenedFile> OpenText(const std::string& path, int64_t seq_len) {
  // Without O_NONBLOCK the open of a FIFO would wait for a writer.
  STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file; name text files one by one"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty; remove it from the list or fill it"));
  }
  if (info.st_size > kFileBytesLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", info.st_size, " bytes, the limit is ", kFileBytesLimit));
  }
  OpenedFile file;
  const int64_t bytes = info.st_size;
  if (bytes >= static_cast<int64_t>(kByteOrderMark.size())) {
    char head[3];
    STRATA_RETURN_IF_ERROR(ReadFully(fd, path, 0, head, sizeof(head)));
    if (absl::string_view(head, sizeof(head)) == kByteOrderMark) file.skip = sizeof(head);
  }
  file.size = bytes - file.skip;
  if (file.size < seq_len + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.size, " tokens, one sequence needs data.seq_len + 1 = ", seq_len + 1,
                     "; use a longer text or a smaller data.seq_len"));
  }
  STRATA_ASSIGN_OR_RETURN(file.crc, Checksum(fd, path, bytes));
  file.fd = std::move(fd);
  return file;
}

absl::Status CheckOptions(const Tokenizer& tokenizer, const DataOptions& options) {
  // Only a byte is its own token; other tokenizers will bring a token cache with them.
  if (tokenizer.name() != "bytes") {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer: text files need the tokenizer \"bytes\", not \"", tokenizer.name(), "\""));
  }
  if (options.seq_len < 1 || options.seq_len > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.seq_len is ", options.seq_len, "; it must be 1 to ", int64_t{1} << 30));
  }
  if (options.train.empty()) {
    return absl::InvalidArgumentError("data.train is empty; name at least one text file");
  }
  const size_t files = options.train.size() + options.eval.size();
  if (files > kFilesLimit) {
    return absl::InvalidArgumentError(absl::StrCat("data.train and data.eval name ", files,
                                                   " files, the limit is ", kFilesLimit, "; join files"));
  }
  if (!(options.eval_fraction >= 0 && options.eval_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.eval_fraction is ", options.eval_fraction, "; it must be at least 0 and below 1"));
  }
  if (options.eval_fraction > 0 && !options.eval.empty()) {
    return absl::InvalidArgumentError(
        "data.eval_fraction is set although data.eval names files; remove one of them");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dataset> Dataset::Open(const Tokenizer& tokenizer, const DataOptions& options) {
  STRATA_RETURN_IF_ERROR(CheckOptions(tokenizer, options));
  std::string identity = absl::StrCat(tokenizer.name(), "\n");
  const auto open = [&](const std::vector<std::string>& paths,
                        absl::string_view field) -> absl::StatusOr<TokenStream> {
    auto files = std::make_shared<std::vector<TokenStream::File>>();
    int64_t total = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
      STRATA_ASSIGN_OR_RETURN(OpenedFile opened, OpenText(paths[i], options.seq_len), field, "[", i, "]");
      absl::StrAppend(&identity, field, " ", opened.size, " ", opened.crc, "\n");
      files->push_back({paths[i], std::move(opened.fd), opened.skip, total, opened.size});
      total += opened.size;  // At most 512 * 2^46.
    }
    TokenStream stream;
    stream.files_ = std::move(files);
    stream.end_ = total;
    return stream;
  };
  Dataset dataset;
  STRATA_ASSIGN_OR_RETURN(dataset.train_, open(options.train, "data.train"));
  STRATA_ASSIGN_OR_RETURN(dataset.eval_, open(options.eval, "data.eval"));
  if (options.eval_fraction > 0) {
    const int64_t total = dataset.train_.size();
    const auto cut =
        total - static_cast<int64_t>(std::floor(static_cast<double>(total) * options.eval_fraction));
    if (cut < options.seq_len + 1 || total - cut < options.seq_len + 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.eval_fraction = ", options.eval_fraction, " leaves ", cut, " tokens to train and ",
          total - cut, " to evaluate; both need data.seq_len + 1 = ", options.seq_len + 1,
          "; change the fraction or use a longer text"));
    }
    dataset.eval_ = dataset.train_;
    dataset.eval_.begin_ = cut;
    dataset.train_.end_ = cut;
  }
  absl::StrAppend(&identity, "split ", dataset.train_.size(), " ", dataset.eval_.size());
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a: enough to notice a mistake, which is all this is for.
  for (const char c : identity) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  dataset.fingerprint_ = absl::StrFormat("%016x", hash);
  return dataset;
}

}  // namespace strata
