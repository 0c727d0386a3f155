"""A memory control group of version 1, made by a test for the programs that it starts."""

import os

CGROUPS = "/sys/fs/cgroup/memory"


class Cgroup:
    """Use as a context manager. An OSError: none can be made here."""

    def __init__(self, name, limit):
        self.path = os.path.join(CGROUPS, f"strata-{name}-{os.getpid()}")
        os.mkdir(self.path)
        try:
            self.write("memory.limit_in_bytes", limit)
        except OSError:
            os.rmdir(self.path)
            raise

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w", encoding="ascii") as out:
            out.write(str(value))

    def read(self, file):
        with open(os.path.join(self.path, file), encoding="ascii") as text:
            return text.read()

    def kills(self):
        return int(next(line for line in self.read("memory.oom_control").splitlines() if line.startswith("oom_kill ")).split()[1])

    def peak(self):
        return int(self.read("memory.max_usage_in_bytes"))

    def command(self, *command):
        """The same command as a member of this group."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.path, "cgroup.procs"), *command]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.rmdir(self.path)
