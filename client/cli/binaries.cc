#include "client/cli/binaries.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace strata {
namespace {

struct Names {
  const char* installed;
  const char* built;
  const char* package;
};

Names NamesOf(Program program) {
  switch (program) {
    case Program::kServer:
      return {"strata-server", "strata_server", "server"};
    case Program::kWorker:
      return {"strata-worker", "strata_worker", "worker"};
    case Program::kTrainer:
      break;
  }
  return {"strata-trainer", "strata_trainer", "worker"};
}

bool IsExecutable(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::string> OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size < 0) return ErrnoStatus(errno, "reading /proc/self/exe");
  const std::string own(path, static_cast<size_t>(size));
  return own.substr(0, own.rfind('/'));
}

absl::StatusOr<std::string> FindProgram(Program program, const std::string& bin_dir) {
  const Names names = NamesOf(program);
  std::vector<std::string> places;
  if (bin_dir.empty()) {
    STRATA_ASSIGN_OR_RETURN(const std::string own, OwnFolder());
    places = {absl::StrCat(own, "/", names.installed), absl::StrCat(own, "/", names.built),
              absl::StrCat(own, "/../", names.package, "/", names.built)};
  } else {
    places = {absl::StrCat(bin_dir, "/", names.installed), absl::StrCat(bin_dir, "/", names.built)};
  }
  for (const std::string& place : places) {
    if (IsExecutable(place)) return place;
  }
  return absl::NotFoundError(absl::StrCat("the program ", names.installed, " is not at ",
                                          absl::StrJoin(places, ", "),
                                          ": build it, or name its folder with --bin-dir"));
}

}  // namespace strata
