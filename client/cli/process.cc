#include "client/cli/process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

extern char** environ;

namespace strata {

absl::StatusOr<int> RunProgram(const std::vector<std::string>& argv, int stdout_fd) {
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  if (stdout_fd != STDOUT_FILENO) posix_spawn_file_actions_adddup2(&actions, stdout_fd, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("running ", argv[0]));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("waiting for ", argv[0]));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

absl::StatusOr<ProgramOutput> RunProgramForOutput(const std::vector<std::string>& argv, int64_t limit_bytes) {
  // A file, which needs nobody to read it meanwhile.
  const Fd out(memfd_create("output", MFD_CLOEXEC));
  if (!out.valid()) return ErrnoStatus(errno, absl::StrCat("memory for the output of ", argv[0]));
  ProgramOutput output;
  STRATA_ASSIGN_OR_RETURN(output.exit_code, RunProgram(argv, out.get()));
  STRATA_ASSIGN_OR_RETURN(output.text, ReadFile(absl::StrCat("/proc/self/fd/", out.get()), limit_bytes),
                          "the output of ", argv[0]);
  return output;
}

}  // namespace strata
