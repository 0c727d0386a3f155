// constrained: runs a program with a part of the machine taken away, as a container, an administrator or a
// small machine would.
//
//   constrained [--io-uring=EPERM|ENOSYS] [--memlock=BYTES] [--nofile=N] [--one-cpu] [--tmpfs=DIR]
//   [--overlay=DIR]
//               [--read-only=DIR] -- PROGRAM ARGUMENT...
//
// Mounts are of this process's own mount namespace and vanish with it. Exit code 77 and a line on stderr:
// this machine does not allow the constraint itself; else the program's own.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace {

constexpr int kCannotConstrain = 77;

[[noreturn]] void Give(const std::string& what) {
  fprintf(stderr, "constrained: cannot do it here: %s: %s\n", what.c_str(), strerror(errno));
  exit(kCannotConstrain);
}

// All three calls fail with `error`, as the profiles of container runtimes make them.
void BlockIoUring(int error) {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  if (filter == nullptr) Give("seccomp_init");
  // By number: Debian 12's library knows the names, older ones do not.
  for (const int call : {425, 426, 427}) {  // io_uring_setup, _enter, _register
    const int result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(static_cast<uint32_t>(error)), call, 0);
    if (result != 0) {
      errno = -result;
      Give("seccomp_rule_add");
    }
  }
  const int result = seccomp_load(filter);
  if (result != 0) {
    errno = -result;
    Give("seccomp_load");
  }
  seccomp_release(filter);
}

// A process that may lock memory whatever the limit would not notice the limit.
void LimitLockedMemory(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) Give("RLIMIT_MEMLOCK");
  if (prctl(PR_CAPBSET_READ, CAP_IPC_LOCK) == 1 && prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK) != 0 &&
      geteuid() == 0)
    Give("dropping CAP_IPC_LOCK");
}

void LimitFiles(rlim_t count) {
  const rlimit limit{count, count};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) Give("RLIMIT_NOFILE");
}

void UseOneCpu() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) Give("sched_getaffinity");
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  if (sched_setaffinity(0, sizeof(one), &one) != 0) Give("sched_setaffinity");
}

void WriteFile(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) Give(path);
  close(fd);
}

// Own mounts, as root or as root of an own user namespace.
void EnterMountNamespace() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) Give("unshare");
    WriteFile("/proc/self/setgroups", "deny");
    WriteFile("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
    WriteFile("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) Give("making mounts private");
}

void MountTmpfs(const std::string& folder) {
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr) != 0) Give("mounting a tmpfs on " + folder);
}

void MountOverlay(const std::string& folder) {
  std::string options;
  for (const char* part : {"lower", "upper", "work"}) {
    const std::string path = folder + "." + part;
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) Give("making " + path);
    options += std::string(options.empty() ? "" : ",") + part + "dir=" + path;
  }
  if (mount("overlay", folder.c_str(), "overlay", 0, options.c_str()) != 0)
    Give("mounting an overlay on " + folder);
}

void MountReadOnly(const std::string& folder) {
  if (mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
      mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
    Give("making " + folder + " read-only");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs a program with a part of the machine taken away", "constrained");
  std::string io_uring, tmpfs, overlay, read_only;
  uint64_t memlock = 0, nofile = 0;
  bool one_cpu = false;
  app.add_option("--io-uring", io_uring, "io_uring fails with this")
      ->check(CLI::IsMember({"EPERM", "ENOSYS"}));
  CLI::Option* const memlock_option = app.add_option("--memlock", memlock, "Bytes that may be locked");
  CLI::Option* const nofile_option = app.add_option("--nofile", nofile, "Open files");
  app.add_flag("--one-cpu", one_cpu, "Only the first CPU");
  app.add_option("--tmpfs", tmpfs, "This folder is a tmpfs");
  app.add_option("--overlay", overlay, "This folder is an overlay");
  app.add_option("--read-only", read_only, "This folder is mounted read-only");
  app.allow_extras();
  app.prefix_command();
  CLI11_PARSE(app, argc, argv);
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  if (command.empty()) {
    fprintf(stderr, "constrained: no program after --\n");
    return 2;
  }
  if (!tmpfs.empty() || !overlay.empty() || !read_only.empty()) EnterMountNamespace();
  if (!tmpfs.empty()) MountTmpfs(tmpfs);
  if (!overlay.empty()) MountOverlay(overlay);
  if (!read_only.empty()) MountReadOnly(read_only);
  if (one_cpu) UseOneCpu();
  if (memlock_option->count() > 0) LimitLockedMemory(memlock);
  if (nofile_option->count() > 0) LimitFiles(nofile);
  if (!io_uring.empty()) BlockIoUring(io_uring == "EPERM" ? EPERM : ENOSYS);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  fprintf(stderr, "constrained: %s: %s\n", arguments[0], strerror(errno));
  return 127;
}
