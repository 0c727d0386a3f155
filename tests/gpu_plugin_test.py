#!/usr/bin/env python3
"""The programs and the CUDA plugin, on a machine without a GPU: no program needs a CUDA library; what is wrong with the
plugin is said and the CPU trains; --require-gpu fails with the remedy; on a fake GPU the same job leaves the same checkpoint, byte for
byte."""

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import binary  # pylint: disable=wrong-import-position

PROGRAMS = ("client/strata", "server/strata_server", "worker/strata_worker", "worker/strata_trainer")
PLUGIN = "libstrata_cuda.so"
JOB = """name: tiny
model:
  config: {architecture: llama, layers: 2, hidden: 32, heads: 4, max_seq: 16}
data: {train: [text.txt], seq_len: 16}
training: {steps: 3, global_batch: 4, compute_threads: 1, optimizer: {lr: 1e-3}}
memory: {device: 16MiB, host: 64MiB, nvme: 64MiB, io: {direct: off}, placement: {optimizer: nvme, gradients: host}}
"""


def needed(path):
    """DT_NEEDED of a 64-bit little-endian ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == b"\x7fELF\x02\x01", path
    (program_headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads, entries = [], []
    for i in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, program_headers + i * size)
        if kind == 1:
            loads.append((address, offset, length))
        elif kind == 2:
            entries = [struct.unpack_from("<qQ", data, offset + j) for j in range(0, length, 16)]
    (strings,) = [value for tag, value in entries if tag == 5]
    base = next(offset + strings - address for address, offset, length in loads if address <= strings < address + length)
    names = []
    for tag, value in entries:
        if tag == 1:
            names.append(data[base + value:data.index(b"\0", base + value)].decode())
    return names


class GpuPluginTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpu_", dir=os.environ.get("TEST_TMPDIR"))
        cls.bin = os.path.join(cls.folder, "bin")
        os.mkdir(cls.bin)
        for program in PROGRAMS:
            shutil.copy(binary(program), cls.bin)
        with open(os.path.join(cls.folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("It is a truth universally acknowledged. " * 40)
        with open(os.path.join(cls.folder, "job.yaml"), "w", encoding="ascii") as file:
            file.write(JOB)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def put_plugin(self, wanted):
        path = os.path.join(self.bin, PLUGIN)
        if os.path.exists(path):
            os.remove(path)
        if wanted:
            shutil.copy(binary("offload/device/libfake_cuda_plugin.so"), path)

    def call(self, program, *arguments, wrong=""):
        return subprocess.run([os.path.join(self.bin, program), *arguments], cwd=self.folder,
                              env={**os.environ, "STRATA_FAKE_CUDA": wrong, "XDG_CACHE_HOME": os.path.join(self.folder, "cache")},
                              capture_output=True, text=True, timeout=240, check=False)

    def run_job(self, plugin, *flags, wrong=""):
        """(exit code, all that was said, what the worker logged, digest of the last checkpoint's tensors)"""
        self.put_plugin(plugin)
        state = tempfile.mkdtemp(dir=self.folder)
        done = self.call("strata", "local", "run", "job.yaml", "--state-dir", state, *flags, wrong=wrong)
        log, tensors = "", {}
        for folder, _, names in os.walk(state):
            for name in names:
                if name.endswith(".log"):
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                        log += file.read()
                if name.endswith(".safetensors"):
                    with open(os.path.join(folder, name), "rb") as file:
                        tensors[name] = hashlib.sha256(file.read()).hexdigest()
        said = done.stdout + done.stderr
        return done.returncode, said, log, tensors

    def test_no_program_needs_a_cuda_library(self):
        for program in PROGRAMS:
            names = needed(binary(program))
            self.assertIn("libc.so.6", names, program)
            self.assertEqual([name for name in names if re.search(r"cuda|cublas|cudnn|nccl|nvidia|strata", name)], [], program)

    def test_the_same_job_on_the_cpu_and_on_a_gpu(self):
        code, said, log, expected = self.run_job(False)
        self.assertEqual(code, 0, said + log)
        self.assertGreater(len(expected), 0, said)
        self.assertRegex(log, r"gpu: cpu, because: no GPU: \S+/libstrata_cuda\.so is not there: build ")
        code, said, log, on_gpu = self.run_job(True, "--require-gpu")
        self.assertEqual(code, 0, said + log)
        self.assertIn("gpu: Fake GPU", log)
        self.assertIn("trainer: gpu: the CPU's math in every shape", log)
        self.assertEqual(on_gpu, expected)
        # Something is wrong with the plugin: one line, and the CPU.
        code, said, log, on_cpu = self.run_job(True, wrong="abi")
        self.assertEqual(code, 0, said + log)
        self.assertRegex(log, r"gpu: cpu, because: no GPU: \S+ is of another build")
        self.assertEqual(on_cpu, expected)

    def test_a_gpu_that_is_required_and_missing_ends_the_run_with_the_remedy(self):
        for plugin, wrong, remedy in ((False, "", "nvcc and put it beside the program"),
                                      (True, "driver", "install the NVIDIA driver"),
                                      (True, "kernels", "install cuBLAS 13")):
            code, said, _, _ = self.run_job(plugin, "--require-gpu", wrong=wrong)
            self.assertNotEqual(code, 0)
            self.assertIn("--require-gpu: no GPU: ", said)
            self.assertIn(remedy, said)

    def test_a_worker_cannot_give_more_than_its_gpu_has_and_does_not_start_without_one(self):
        for wrong, code, said in (("oom", 2, r"--device-bytes .* exceeds the 0 B that jobs can have of the 4 KiB of Fake GPU"),
                                  ("driver", 1, r"--require-gpu: no GPU: .*; install the NVIDIA driver")):
            self.put_plugin(True)
            state = tempfile.mkdtemp(dir=self.folder)
            done = self.call("strata_worker", "--server=127.0.0.1:1", f"--state-dir={state}", "--require-gpu", "--device-bytes=16MiB",
                             "--host-bytes=64MiB", "--nvme-bytes=64MiB", wrong=wrong)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertRegex(done.stderr, said)

    def test_a_configuration_that_requires_a_gpu_is_checked_for_one(self):
        gpu = "--require-gpu"
        for plugin, wrong, flags, code, said in (
                (False, "", (), 0, "configuration is valid"),
                (False, "", (gpu,), 1, r"--require-gpu: no GPU: .*put it beside the program"),
                (True, "", (gpu,), 0, "configuration is valid"),
                (True, "oom", (gpu,), 1, r"--device-bytes is auto, and jobs can have 0 B of the 4 KiB of Fake GPU: end what else"),
                (True, "oom", (gpu, "--device-bytes=16MiB"), 2, r"--device-bytes \(16 MiB\) exceeds the 0 B that jobs can have of the 4 KiB"),
                (True, "", (gpu, "--host-bytes=1024TiB"), 2, r"--host-bytes \(1024 TiB\) exceeds ")):
            self.put_plugin(plugin)
            done = self.call("strata_worker", "--server=a:1", f"--state-dir={self.folder}/state", "--check-config", *flags, wrong=wrong)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertRegex(done.stdout + done.stderr, said)

    def test_a_gpu_without_fp8_is_told_before_a_job_in_fp8_starts(self):
        code, said, log, _ = self.run_job(True, "--require-gpu", wrong="old")
        self.assertEqual(code, 0, said + log)
        self.assertRegex(log, r"fp8: none, because: Fake GPU has compute capability 8\.0")
        with open(os.path.join(self.folder, "fp8.yaml"), "w", encoding="ascii") as file:
            file.write(JOB.replace("steps: 3", "precision: fp8, steps: 3"))
        done = self.call("strata", "plan", "fp8.yaml", wrong="old")
        self.assertEqual((done.returncode, done.stdout), (8, ""), done.stderr)
        self.assertRegex(done.stderr, r"fp8.yaml:5:\d+: training.precision: Fake GPU has .*: use training.precision: bf16, or a worker")
        done = self.call("strata", "local", "run", "fp8.yaml", "--state-dir", "never", wrong="old")
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertIn("training.precision: Fake GPU has", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "never")))

    def test_a_plan_that_requires_a_gpu_needs_one(self):
        with open(os.path.join(self.folder, "gpu.yaml"), "w", encoding="ascii") as file:
            file.write(JOB.replace("io: {direct: off}", "io: {direct: off}, require: [gpu]"))
        with open(os.path.join(self.folder, "cpu_machine.yaml"), "w", encoding="ascii") as file:
            file.write("name: small\ndevice: 1GiB\nhost: 1GiB\nnvme: 1GiB\nspeeds:\n  device_is_cpu: true\n  h2d_bytes_per_second: 1e10\n"
                       "  bf16: {forward_flops: 1e12, elementwise_bytes_per_second: 1e10}\n  nvme_read_bytes_per_second: 1e9\n"
                       "  dram_bytes_per_second: 1e10\n")
        self.put_plugin(False)
        done = self.call("strata", "plan", "gpu.yaml")
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"gpu.yaml:\d+:\d+: memory.require: gpu cannot be had: no GPU: .*put it beside the program; or take gpu")
        done = self.call("strata", "plan", "gpu.yaml", "--machine", "cpu_machine.yaml")
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        self.assertIn("the machine of cpu_machine.yaml trains on its CPU (small): plan for another", done.stderr)
        self.put_plugin(True)
        done = self.call("strata", "plan", "gpu.yaml", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        machine = json.loads(done.stdout)["machine"]
        self.assertIn("Fake GPU, driver 1.2.3", machine["source"])
        self.assertFalse(machine.get("device_is_cpu", False))

    def test_a_workers_gpu_is_measured_and_described(self):
        self.put_plugin(True)
        state = tempfile.mkdtemp(dir=self.folder)
        done = self.call("strata", "local", "run", "job.yaml", "--state-dir", state, "--keep-running")
        try:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            address = re.search(r"keep running at (\S+?)[,;\s]", done.stderr).group(1)
            text = self.call("strata", "worker", "describe", "local", "--server", address).stdout
        finally:
            self.call("strata", "local", "stop", "--state-dir", state)
        print(text)
        self.assertRegex(text, r"speeds +measured: Fake GPU, driver 1.2.3 \(copies .* both together, .* us a launch\); ")
        self.assertRegex(text, r"bf16 matrices +[0-9.]+ GFLOP/s forward")
        self.assertRegex(text, r"device +\S+ \S+ of 16 MiB")


if __name__ == "__main__":
    unittest.main(verbosity=2)
