"""A coordinator and a worker as real processes, driven from outside with the CLI: for tests of several processes.

Python of the system, standard library only. Every wait polls a condition against a deadline.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

DEADLINE_SECONDS = 240


def binary(name):
    """A built program: in a Bazel test's runfiles, or below $STRATA_BIN (a bazel-bin folder)."""
    roots = [os.environ.get("STRATA_BIN"), os.path.join(os.environ.get("TEST_SRCDIR", ""), "strata"), os.getcwd()]
    for root in filter(None, roots):
        path = os.path.join(root, name)
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    sys.exit(f"{name} is not built; run `bazel build //{name.replace('/', ':')}` or set STRATA_BIN")


def wait_for(what, condition, seconds=DEADLINE_SECONDS):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"timed out after {seconds} s waiting for {what}")


def processes(pattern):
    """{pid: command line} of live processes whose command line matches."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and re.search(pattern, command):
            found[int(entry)] = command
    return found


class Cluster:
    """Folders, processes and CLI calls of one coordinator and one worker. Use as a context manager.

    nvme_bytes 0: what the path has free. `worker_prefix`: a command that starts the worker, such as one that enters a cgroup.
    """

    def __init__(self, folder, device_bytes=256 << 20, host_bytes=512 << 20, nvme_bytes=1 << 30, worker_prefix=()):
        self.folder = folder
        self.set_capacity(device_bytes, host_bytes, nvme_bytes)
        self.worker_prefix = list(worker_prefix)
        self.children = {}
        self.port = 0
        for name in ("server", "worker", "nvme", "checkpoints"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)

    def __enter__(self):
        self.start_server()
        self.start_worker()
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            for name in self.children:
                path = os.path.join(self.folder, f"{name}.log")
                with open(path, encoding="utf-8", errors="replace") as file:
                    print(f"---- the end of {path}\n" + "".join(file.readlines()[-40:]), file=sys.stderr)
        for name in reversed(self.children):
            self.stop(name)

    def set_capacity(self, device_bytes, host_bytes, nvme_bytes):
        """Of the worker that starts next."""
        self.capacity = [f"--device-bytes={device_bytes}", f"--host-bytes={host_bytes}"]
        if nvme_bytes:
            self.capacity.append(f"--nvme-bytes={nvme_bytes}")

    def _start(self, name, command):
        log = open(os.path.join(self.folder, f"{name}.log"), "ab")
        self.children[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        log.close()

    def start_server(self):
        port_file = os.path.join(self.folder, "port")
        if os.path.exists(port_file):
            os.remove(port_file)
        self._start("server", [
            binary("server/strata_server"), f"--listen=127.0.0.1:{self.port}", f"--port-file={port_file}",
            f"--data-dir={self.folder}/server", f"--checkpoint-root={self.folder}/checkpoints", "--lease-ttl=5s"])
        wait_for("the coordinator's port", lambda: os.path.exists(port_file) or self.children["server"].poll())
        with open(port_file, encoding="ascii") as file:
            self.port = int(file.read().strip().rsplit(":", 1)[-1])

    def start_worker(self, name="worker"):
        """The worker w1. Under another name: a second agent of that id, with a state folder of its own."""
        nvme = f"{self.folder}/nvme" if name == "worker" else f"{self.folder}/{name}/nvme"
        self._start(name, [
            *self.worker_prefix, binary("worker/strata_worker"), f"--server=127.0.0.1:{self.port}", "--worker-id=w1",
            f"--state-dir={self.folder}/{name}", f"--nvme-path={nvme}",
            f"--checkpoint-root={self.folder}/checkpoints", f"--trainer={binary('worker/strata_trainer')}", *self.capacity])

    def kill(self, name):
        """SIGKILL to one of the programs and nothing else."""
        self.children[name].send_signal(signal.SIGKILL)
        self.children[name].wait()

    def kill_trainer(self):
        """SIGKILL to the running trainer; false when there is none."""
        for pid in self.trainers():
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def trainers(self, name="worker"):
        worker = self.children[name].pid
        found = []
        for pid in processes(r"strata_trainer\b"):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == worker:
                found.append(pid)
        return found

    def stop(self, name):
        child = self.children.get(name)
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise AssertionError(f"{name} did not stop within 60 s of SIGTERM")

    def cli(self, *arguments, check=True, timeout=DEADLINE_SECONDS):
        """Runs the CLI; its parsed JSON output with -o json, else its text. Returns (exit code, output, errors)."""
        command = [binary("client/strata"), "--server", f"127.0.0.1:{self.port}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.returncode, done.stdout, done.stderr

    def submit(self, job_file, *flags):
        """The new job's short name."""
        _, out, _ = self.cli("-o", "json", "submit", job_file, *flags)
        return json.loads(out)["name"].rsplit("/", 1)[-1]

    def get(self, job):
        """The job as JSON, or None while the coordinator is away."""
        code, out, _ = self.cli("-o", "json", "get", job, check=False)
        return json.loads(out) if code == 0 else None

    def state(self, job):
        found = self.get(job)
        return found["status"].get("state") if found else None

    def step(self, job):
        found = self.get(job)
        return int(found["status"].get("progress", {}).get("step", 0)) if found else 0

    def wait_until_ended(self, job):
        ended = ("SUCCEEDED", "FAILED", "CANCELLED")
        wait_for(f"{job} to end", lambda: self.state(job) in ended)
        return self.get(job)

    def steps(self, job):
        """{step: row} as `metrics -o jsonl` prints them; a later attempt's row replaces an earlier one's."""
        _, out, _ = self.cli("-o", "jsonl", "metrics", job)
        rows = {}
        for line in out.splitlines():
            row = json.loads(line)
            if "loss" in row:
                rows[int(row["step"])] = row
        return rows

    def leftovers(self):
        """What jobs left behind on the NVMe path, and trainers still running."""
        left = [os.path.join(folder, name) for folder, folders, files in os.walk(f"{self.folder}/nvme")
                for name in folders + files]
        return left + [f"trainer {pid}" for pid in self.trainers()]
