#!/usr/bin/env python3
"""Full disks, seen from outside. What does not fit is refused at submit with what it needs and what there is. A disk that
others fill does not harm jobs that run: their space is reserved. A job that would start on it waits for it, with what it
needs and what there is; one whose checkpoints find no room fails with the path, the bytes it needs and those there are,
and goes on when there is room again; its neighbour on the same worker is unharmed. Everything ends in the bits of a run
without trouble.

The disks are small tmpfs mounts in a namespace of the test's own; where that cannot be had the test says so and skips.
"""

import ctypes
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, binary, wait_for  # pylint: disable=wrong-import-position

MIB = 1 << 20
CLONE_NEWNS = 0x20000
SCRATCH_DISK = 96 * MIB
CHECKPOINT_DISK = 96 * MIB
STATE_DISK = 64 * MIB  # of the server's --data-dir and the worker's --state-dir, each
STEPS = 60

# hidden 96: 0.7 M parameters; hidden 384: 10.7 M, records of 130 MiB.
JOB = """
name: {name}
model:
  config: {{architecture: llama, layers: 6, hidden: {hidden}, heads: 4, vocab: 256, max_seq: 32}}
data: {{train: [{text}], tokenizer: bytes, seq_len: 32}}
training: {{steps: {steps}, global_batch: 2, micro_batch: 2, optimizer: {{lr: 1e-3}}, seed: 5}}
memory: {{device: 16MiB, host: 96MiB, nvme: {nvme}, placement: {{params: nvme, optimizer: nvme}}, chunk: 1MiB}}
checkpoint: {{every_steps: {every}, keep_last: 1}}
"""


def mount(path, size):
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True, capture_output=True)


def own_namespace(folder):
    """Why there can be no mounts of our own; None: there can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        return os.strerror(ctypes.get_errno())
    done = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip()
    try:
        mount(os.path.join(folder, "nvme"), SCRATCH_DISK)
        mount(os.path.join(folder, "checkpoints"), CHECKPOINT_DISK)
        for name in ("server", "worker"):
            mount(os.path.join(folder, name), STATE_DISK)
    except subprocess.CalledProcessError as error:
        return error.stderr.decode(errors="replace").strip()
    return None


def free_bytes(folder):
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize


class Filler:
    """A file of somebody else that takes all that a disk has but `leave` bytes."""

    def __init__(self, folder, leave=0):
        self.path = os.path.join(folder, "others")
        with open(self.path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free_bytes(folder) - leave)

    def remove(self):
        os.remove(self.path)


class FullDiskTest:
    def __init__(self, root, cluster):
        self.root = root
        self.cluster = cluster
        self.nvme, self.checkpoints = f"{cluster.folder}/nvme", f"{cluster.folder}/checkpoints"
        self.text = os.path.join(root, "text.txt")
        with open(self.text, "wb") as file:
            file.write(bytes(random.Random(1).choices(b"abcdefgh \n", k=20000)))

    def job(self, name, hidden=96, nvme="24MiB", every=0, steps=STEPS):
        path = os.path.join(self.root, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(JOB.format(name=name, hidden=hidden, text=self.text, nvme=nvme, every=every, steps=steps))
        return path

    def bits(self, job, steps=STEPS):
        ended = self.cluster.wait_until_ended(job)
        assert ended["status"]["state"] == "SUCCEEDED", ended["status"]
        rows = self.cluster.steps(job)
        assert sorted(rows) == list(range(1, steps + 1)), sorted(rows)
        return [rows[step]["loss_bits"] for step in sorted(rows)]

    def refused_at_submit(self):
        # More than the worker's disk has, whatever the budget; and more than the budget.
        for name, hidden, nvme in (("greedy", 384, "auto"), ("small", 96, "2MiB")):
            code, out, err = self.cluster.cli("submit", self.job(name, hidden=hidden, nvme=nvme), check=False)
            print(f"refused: {err.strip()}", flush=True)
            assert code == 8 and not out, (code, out, err)
            assert "nvme" in err
            need, have = (int(number) for number in re.search(r"needs [^(]*\((\d+) bytes\), there is [^(]*\((\d+) bytes\)", err).groups())
            assert need > have, (need, have)
            assert f"memory.nvme: at least {need} bytes" in err, "the remedy"
            assert err.count(str(need)) == 2 and ("--nvme-bytes" in err) == (nvme == "auto"), err
        _, out, _ = self.cluster.cli("ls")
        assert "greedy" not in out and "small" not in out

    def running_jobs_have_their_space(self, expected):
        job = self.cluster.submit(self.job("reserved", steps=10 * STEPS))  # it must not end, and free its space, before the other starts
        wait_for("a step", lambda: self.cluster.step(job) >= 1)
        filler = Filler(self.nvme, leave=MIB)
        wait_for("the worker to say what is free", lambda: self.free_nvme_of_worker() <= MIB)
        begin = time.monotonic()
        late = self.cluster.submit(self.job("late"))
        short = wait_for("the late job to be told", lambda: self.shortfall(late))
        print(f"on the full disk, {time.monotonic() - begin:.1f} s after the submit: {short}", flush=True)
        assert int(short["requested"]) > MIB >= int(short.get("free", 0)), short
        assert self.nvme in short["remedy"], short
        assert self.bits(job, 10 * STEPS)[:STEPS] == expected, "the disk filled up under it"
        filler.remove()
        assert self.bits(late) == expected
        assert int(self.cluster.get(late)["status"]["attempt"]) == 1, "it was placed before there was room"

    def free_nvme_of_worker(self):
        _, out, _ = self.cluster.cli("-o", "json", "worker", "describe", "w1")
        return int(json.loads(out)["capacity"]["nvme"][0].get("free_bytes", 0))

    def shortfall(self, job):
        """What a queued job lacks."""
        status = self.cluster.get(job)["status"]
        assert status["state"] == "QUEUED", status
        short = status.get("waiting", {}).get("shortfalls", [])
        return next((row for row in short if row["resource"] == "nvme"), None)

    def trouble(self, job):
        status = self.cluster.get(job)["status"]
        assert status["state"] not in ("FAILED", "SUCCEEDED"), status
        if status["state"] == "BACKOFF":
            assert status["last_failure"]["cause"] == "NVME_FULL", status
            return status["last_failure"]["message"]
        return None

    def checkpoints_without_room_harm_one_job(self, expected):
        neighbour = self.cluster.submit(self.job("neighbour", steps=10 * STEPS))  # its own checkpoint comes after this
        filler = Filler(self.checkpoints, leave=2 * MIB)
        job = self.cluster.submit(self.job("saver", every=20))
        why = wait_for("the checkpoint to fail", lambda: self.trouble(job))
        print(f"in the middle: {why}", flush=True)
        need, have = (int(number) for number in re.search(r"needs (\d+) bytes .*there are (\d+) bytes", why).groups())
        assert self.checkpoints in why and need > 2 * MIB >= have, why
        filler.remove()
        assert self.bits(job) == expected
        assert self.bits(neighbour, 10 * STEPS)[:STEPS] == expected, "its neighbour's disk was full"
        assert int(self.cluster.get(neighbour)["status"]["attempt"]) == 1

    def a_full_state_disk_is_told_and_nothing_is_lost(self, expected):
        steps = 20 * STEPS
        job = self.cluster.submit(self.job("told", steps=steps, every=10 * STEPS))
        wait_for("a step", lambda: self.cluster.step(job) >= 1)
        with subprocess.Popen([binary("client/strata"), "--server", f"127.0.0.1:{self.cluster.port}", "watch", job], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as watch:
            told = []
            reader = threading.Thread(target=lambda: told.extend(iter(watch.stderr.readline, "")))
            reader.start()
            fillers = [Filler(os.path.join(self.cluster.folder, name)) for name in ("server", "worker")]
            begin = time.monotonic()
            wait_for("the watch to say what is wrong", lambda: any("--data-dir" in line for line in told), 30)
            seconds = time.monotonic() - begin
            print(f"told {seconds:.1f} s after the disk was full: {told[-1].strip()}", flush=True)
            step = self.cluster.step(job)
            wait_for("training to go on", lambda: self.cluster.step(job) > step + 5)
            for filler in fillers:
                filler.remove()
            assert watch.wait(300) == 0, told
            reader.join()
        assert seconds < 10, seconds
        assert self.bits(job, steps)[:STEPS] == expected
        ended = self.cluster.get(job)
        assert int(ended["status"]["attempt"]) == 1, ended["status"]


def main():
    root = tempfile.mkdtemp(prefix="full_disk_test_", dir=os.environ.get("TEST_TMPDIR"))
    folder = os.path.join(root, "run")
    os.makedirs(folder)
    why_not = own_namespace(folder)
    if why_not:
        print(f"skipped: no file system can be mounted here: {why_not}")
        return
    try:
        with Cluster(folder, nvme_bytes=0) as cluster:
            test = FullDiskTest(root, cluster)
            expected = test.bits(cluster.submit(test.job("sound")))
            test.refused_at_submit()
            test.running_jobs_have_their_space(expected)
            test.checkpoints_without_room_harm_one_job(expected)
            test.a_full_state_disk_is_told_and_nothing_is_lost(expected)
            wait_for("the NVMe path to be empty", lambda: not cluster.leftovers(), 30)
    finally:
        for name in ("nvme", "checkpoints", "server", "worker"):
            subprocess.run(["umount", "-l", os.path.join(folder, name)], check=False)
        shutil.rmtree(root)
    print("full disks: told where it is, nothing lost; refused with numbers, reserved space holds, failures are typed and heal, neighbours are unharmed")


main()
