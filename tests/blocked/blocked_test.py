#!/usr/bin/env python3
"""The offload engine where something is forbidden, missing or scarce: the same bits, and a report that says what was
taken instead and why; or an error that names the path."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.environ.get("TEST_SRCDIR", "."), "strata")
STRATA = os.path.join(ROOT, "client/strata")
CONSTRAINED = os.path.join(ROOT, "tests/blocked/constrained")
CANNOT_CONSTRAIN = 77
FIRST = {"io_uring": "io_uring", "o_direct": "O_DIRECT", "registered_buffers": "registered", "locked_memory": "locked"}
SYSCTL = "/proc/sys/kernel/io_uring_disabled"

JOB = """
name: blocked
model: {config: {architecture: llama, layers: 1, hidden: 16, heads: 2, ffn: 32, vocab: 256, max_seq: 16}}
data: {train: [text.txt], tokenizer: bytes, seq_len: 16}
training: {steps: 3, global_batch: 2, micro_batch: 1, optimizer: {name: adamw, lr: 1e-3}, compute_threads: 1}
memory: {device: 16MiB, host: 16MiB, nvme: 16MiB, placement: {params: nvme, optimizer: nvme}, require: [REQUIRE]}
"""


def start(folder, constraint, path=None, env=None):
    path = path or os.path.join(folder, "nvme")
    command = [STRATA, "bench", "offload", "--params", "300k", "--layers", "3", "--steps", "2", "--params-home", "nvme",
               "--optimizer-home", "nvme", "--device", "16MiB", "--host", "32MiB", "--nvme", "64MiB", "--nvme-path", path,
               "--state-hash", "-o", "json"]
    if constraint:
        command = [CONSTRAINED, *constraint, "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "XDG_CACHE_HOME": folder, **(env or {})})  # measures this machine once
    if done.returncode == CANNOT_CONSTRAIN:
        raise unittest.SkipTest(done.stderr.strip())
    return done


def bench(folder, constraint, path=None, env=None):
    done = start(folder, constraint, path, env)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr}")
    result = json.loads(done.stdout)
    return {"hash": [step["state_hash"] for step in result["steps"]],
            "ladder": {rung["rung"]: (rung["chosen"], rung["why"]) for rung in result["ladder"]}}


class BlockedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="blocked_test_", dir=os.environ.get("TEST_TMPDIR"))
        cls.plain = bench(cls.folder, [])
        print("here:", json.dumps(cls.plain["ladder"]))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def start(self, constraint, path=None):
        return start(self.folder, constraint, path)

    def check(self, constraint, path=None, env=None, **lower):
        """`lower`: rung -> (what it is, a part of the reason). Every other rung is what it is without a constraint."""
        got = bench(self.folder, constraint, path, env)
        print(self.id(), json.dumps(got["ladder"]))
        self.assertEqual(got["hash"], self.plain["hash"])
        for rung, (chosen, why) in got["ladder"].items():
            if rung in lower:
                self.assertEqual(chosen, lower[rung][0], rung)
                self.assertIn(lower[rung][1], why, rung)
            elif path is None or rung != "o_direct":
                self.assertEqual(chosen, self.plain["ladder"][rung][0], rung)
            if rung in FIRST:
                self.assertEqual(chosen == FIRST[rung], why == "", rung)
        return got

    def test_io_uring_forbidden(self):
        self.check(["--io-uring=EPERM"], io_uring=("threads", "seccomp"), registered_buffers=("plain", "only io_uring"))

    def test_io_uring_unknown(self):
        self.check(["--io-uring=ENOSYS"], io_uring=("threads", "Linux 5.6"), registered_buffers=("plain", "only io_uring"))

    def test_io_uring_disabled(self):
        try:
            with open(SYSCTL, encoding="ascii") as file:
                before = file.read().strip()
            with open(SYSCTL, "w", encoding="ascii") as file:  # a write behind what was read would be ignored
                file.write("2")
        except OSError as error:
            self.skipTest(f"{SYSCTL}: {error}")
        try:
            self.check([], io_uring=("threads", "kernel.io_uring_disabled"), registered_buffers=("plain", "only io_uring"))
        finally:
            with open(SYSCTL, "w", encoding="ascii") as file:
                file.write(before)

    def test_little_locked_memory(self):
        lower = {"locked_memory": ("pageable", "ulimit -l")}
        if self.plain["ladder"]["registered_buffers"][0] == "registered":
            lower["registered_buffers"] = ("plain", "RLIMIT_MEMLOCK")
        self.check(["--memlock=65536"], **lower)

    def folder_of(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def test_tmpfs(self):
        path = self.folder_of("tmpfs")
        self.check([f"--tmpfs={path}"], path)

    def test_overlay(self):
        path = self.folder_of("overlay")
        self.check([f"--overlay={path}"], path)

    def test_read_only_path(self):
        path = self.folder_of("read_only")
        done = self.start([f"--read-only={path}"], path)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(path, done.stderr)
        self.assertIn("Read-only file system", done.stderr)
        self.assertIn("choose another folder", done.stderr)

    def test_path_that_cannot_be(self):
        done = self.start([], "/dev/null/nvme")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/dev/null/nvme", done.stderr)
        self.assertIn("choose another folder", done.stderr)

    def test_few_open_files(self):
        self.check(["--nofile=64"])

    def test_many_openmp_threads(self):
        self.check([], env={"OMP_NUM_THREADS": "64"})

    def test_one_cpu(self):
        self.check(["--one-cpu"])

    def run_job(self, require, constraint="--io-uring=EPERM"):
        folder = self.folder_of("job_" + (require or "nothing"))
        with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("the quick brown fox " * 200)
        with open(os.path.join(folder, "job.yaml"), "w", encoding="ascii") as file:
            file.write(JOB.replace("REQUIRE", require))
        done = subprocess.run([CONSTRAINED, constraint, "--", STRATA, "local", "run", os.path.join(folder, "job.yaml"),
                               "--state-dir", os.path.join(folder, "state"), "-o", "jsonl"],
                              capture_output=True, text=True, timeout=200, check=False,
                              env={**os.environ, "XDG_CACHE_HOME": self.folder})
        if done.returncode == CANNOT_CONSTRAIN:
            self.skipTest(done.stderr.strip())
        return done

    def test_a_job_goes_on_without_what_it_does_not_require(self):
        done = self.run_job("")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_job_that_requires_what_is_blocked_fails_with_the_remedy(self):
        for require, constraint, remedy in [("io_uring", "--io-uring=EPERM", "seccomp profile"),
                                            ("locked_memory", "--memlock=65536", "raise it (ulimit -l)")]:
            if FIRST[require] != self.plain["ladder"][require][0]:
                continue  # missing here anyway
            done = self.run_job(require, constraint)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"memory.require: {require} cannot be had", done.stderr)
            self.assertIn(remedy, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # with the reason of every skip
