#include "client/cli/preflight.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";

std::string Reason(int error) { return std::strerror(error); }

// The tokens of one text file, or a violation.
std::optional<int64_t> CheckTextFile(const std::string& field, const std::string& path, int64_t seq_len,
                                     std::vector<FieldViolation>& violations) {
  const auto fail = [&](std::string description) -> std::optional<int64_t> {
    violations.push_back({.field = field, .description = absl::StrCat(path, ": ", description)});
    return std::nullopt;
  };
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return fail(absl::StrCat(
        Reason(errno), ": give the path of a text file; relative paths start at the job file's folder"));
  }
  if (S_ISDIR(info.st_mode)) return fail("is a folder: name the text files in it");
  if (!S_ISREG(info.st_mode)) return fail("is not a regular file: copy its content into one");
  // O_NONBLOCK: the file may have become a pipe since.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail(absl::StrCat("cannot be read: ", Reason(errno), "; change its permissions"));
  char head[3] = {};
  const ssize_t got = pread(fd.get(), head, sizeof(head), 0);
  if (got < 0) return fail(absl::StrCat("cannot be read: ", Reason(errno)));
  const bool mark = got == sizeof(head) && std::memcmp(head, kByteOrderMark, sizeof(head)) == 0;
  const int64_t tokens = info.st_size - (mark ? static_cast<int64_t>(sizeof(head)) : 0);
  if (tokens < seq_len + 1) {
    return fail(absl::StrCat("has ", tokens, " tokens, one sequence needs data.seq_len + 1 = ", seq_len + 1,
                             ": use a longer text or a smaller data.seq_len"));
  }
  return tokens;
}

void CheckModelFolder(const std::string& folder, std::vector<FieldViolation>& violations) {
  const auto fail = [&](std::string description) {
    violations.push_back({.field = "model.from", .description = absl::StrCat(folder, ": ", description)});
  };
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) {
    fail(absl::StrCat(
        Reason(errno),
        ": give the path of a Hugging Face folder; relative paths start at the job file's folder"));
    return;
  }
  bool config = false, weights = false;
  while (const dirent* entry = readdir(dir)) {
    config = config || std::strcmp(entry->d_name, "config.json") == 0;
    weights = weights || absl::EndsWith(entry->d_name, ".safetensors");
  }
  closedir(dir);
  if (!config) fail("has no config.json: it is not a Hugging Face folder");
  if (!weights) fail("has no *.safetensors: weights in other formats must be converted first");
}

}  // namespace

std::vector<FieldViolation> CheckFiles(const v1::JobSpec& spec) {
  std::vector<FieldViolation> violations;
  const int64_t seq_len = spec.data().seq_len();
  int64_t train_tokens = 0;
  for (int i = 0; i < spec.data().train_size(); ++i) {
    train_tokens +=
        CheckTextFile(absl::StrCat("data.train[", i, "]"), spec.data().train(i), seq_len, violations)
            .value_or(0);
  }
  for (int i = 0; i < spec.data().eval_size(); ++i) {
    CheckTextFile(absl::StrCat("data.eval[", i, "]"), spec.data().eval(i), seq_len, violations);
  }
  const double fraction = spec.data().eval_fraction();
  if (violations.empty() && fraction > 0) {
    const auto eval_tokens = static_cast<int64_t>(static_cast<double>(train_tokens) * fraction);
    if (std::min(eval_tokens, train_tokens - eval_tokens) < seq_len + 1) {
      violations.push_back({.field = "data.eval_fraction",
                            .description = absl::StrCat(
                                "splits ", train_tokens, " tokens into ", train_tokens - eval_tokens, " and ",
                                eval_tokens, ": both parts need data.seq_len + 1 = ", seq_len + 1)});
    }
  }
  if (spec.model().has_from()) CheckModelFolder(spec.model().from(), violations);
  return violations;
}

std::string NearestExisting(const std::string& path) {
  std::string place = path;
  struct stat info;
  while (stat(place.c_str(), &info) != 0) {
    const size_t slash =
        place.find_last_not_of('/') == std::string::npos ? 0 : place.rfind('/', place.find_last_not_of('/'));
    if (slash == 0 || slash == std::string::npos) return path[0] == '/' ? "/" : ".";
    place.resize(slash);
  }
  return place;
}

absl::Status CheckFolder(const std::string& path) {
  const absl::Status status = ProbePath(NearestExisting(path)).status();
  return status.ok() ? status : absl::FailedPreconditionError(status.message());
}

int64_t FreeBytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(NearestExisting(path).c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::vector<FieldViolation> CheckStorage(const v1::JobSpec& spec, const std::string& nvme_path,
                                         const std::string& field) {
  const auto one = [](std::string at, std::string description) {
    return std::vector<FieldViolation>{{.field = std::move(at), .description = std::move(description)}};
  };
  const absl::StatusOr<PathInfo> info = ProbePath(NearestExisting(nvme_path));
  if (!info.ok()) return one(field, std::string(info.status().message()));
  const auto& required = spec.memory().require();
  if (!info->o_direct &&
      std::find(required.begin(), required.end(), v1::FEATURE_O_DIRECT) != required.end()) {
    return one(field,
               absl::StrCat(info->path, " (", info->fs_type, ") has no O_DIRECT (", info->o_direct_why_not,
                            "): choose another folder with --nvme-path, or take o_direct out of "
                            "memory.require: the numbers stay the same"));
  }
  if (spec.memory().nvme() > static_cast<int64_t>(info->free_bytes)) {
    return one("memory.nvme", absl::StrCat("is ", FormatBytes(spec.memory().nvme()), ", but ", info->path,
                                           " has ", FormatBytes(static_cast<int64_t>(info->free_bytes)),
                                           " free: lower it, or choose another folder with --nvme-path"));
  }
  return {};
}

}  // namespace strata
