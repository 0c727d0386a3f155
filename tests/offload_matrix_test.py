#!/usr/bin/env python3
"""Where states live and how they travel is invisible to them: the state hash after every step of `strata bench offload` is
the same for all homes, chunks, threads, depths, modes, instruction sets, paths and I/O backends. The synthetic model has
odd shapes, two parameter groups, a tied and frozen tensors."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import binary  # pylint: disable=wrong-import-position

# A unit's 1.2 M elements are one chunk of 4 MiB and a rest. The norms of the three steps lie on both sides of the limit, so a
# speculative update is right in some steps and done again in others.
CLIP = 8.114  # mode overlap goes without
MODEL = ["--params", "3600k", "--layers", "9", "--micro-batches", "2", "--tokens", "37", "--steps", "3"]
CLASSES = ("params", "gradients", "optimizer", "activations")
TRAFFIC = {"params": "params", "gradients": "gradients", "optimizer": "records", "activations": "activations"}
D, H, N = "device", "host", "nvme"

# Of the optimizer with eight-bit states: it differs in records and updates only.
EIGHT_BIT = ["--optimizer", "adamw8bit"]
EIGHT_BIT_SETTINGS = [
    ((H, H, H, H), "--mode forward-overlap --threads 2 --chunk 1MiB --isa avx2"),
    ((N, H, N, H), "--mode overlap --depth 4 --chunk 4MiB --isa scalar"),
    ((N, N, N, N), "--mode speculative --depth 1 --chunk 100001 --io-backend threads --io-depth 3"),
    ((N, D, N, H), "--mode speculative --depth 4 --chunk 4MiB --isa avx512 --threads 2 PATHS"),
    ((H, H, N, H), "--mode forward-overlap --chunk 777777 --depth 1 --io-threads 1 PATHS"),
    ((D, D, D, H), "--mode sync --chunk 4MiB --depth 4 --isa avx2 --threads 2"),
]

PLAIN = ["--mode", "sync", *(word for name in CLASSES for word in (f"--{name}-home", D))]
# homes of params, gradients, optimizer and activations; flags
SETTINGS = [
    ((D, D, D, D), "--mode forward-overlap"),
    ((H, H, H, H), "--mode forward-overlap --threads 2 --chunk 1MiB"),
    ((N, H, N, D), "--mode sync --depth 1 --chunk 1MiB --io-depth 1"),
    ((N, H, N, H), "--mode overlap --depth 4 --chunk 4MiB --isa scalar"),
    ((N, N, N, N), "--mode forward-overlap --depth 4 --chunk 1MiB --threads 2"),
    ((N, N, N, N), "--mode speculative --depth 1 --chunk 100001 --io-backend threads --io-depth 3"),
    ((N, D, N, H), "--mode speculative --depth 4 --chunk 4MiB --isa avx2 PATHS"),
    ((D, D, N, D), "--mode overlap --depth 1 --chunk 1MiB --io-threads 4"),
    ((D, H, N, N), "--mode speculative --threads 2 --isa scalar --chunk 777777"),
    ((H, N, H, D), "--mode overlap --chunk 4MiB --depth 4 --io-backend threads PATHS"),
    ((H, H, N, H), "--mode forward-overlap --chunk 100001 --depth 1 --io-threads 1 PATHS"),
    ((H, N, N, H), "--mode sync --chunk 777777 --depth 4 --isa avx2 --threads 2 --buffered"),
    ((N, D, H, N), "--mode overlap --chunk 1MiB --depth 1 --io-depth 64"),
    ((D, D, D, H), "--mode forward-overlap --chunk 4MiB --depth 4 --isa avx2"),
    ((D, N, H, N), "--mode speculative --chunk 100001 --depth 4 PATHS"),
    ((N, H, N, N), "--mode sync --chunk 4MiB --depth 1 --threads 2 --io-backend threads --buffered PATHS"),
    ((N, H, N, H), "--mode forward-overlap --chunk 1MiB --depth 4 --isa avx512"),
    ((H, D, N, H), "--mode speculative --chunk 4MiB --depth 1 --isa avx512 --threads 2 PATHS"),
]


class OffloadMatrixTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="offload_matrix_test_", dir=os.environ.get("TEST_TMPDIR"))
        cls.plain = cls.bench(["--clip", str(CLIP), *PLAIN])
        cls.unclipped = cls.bench(["--clip", "0", *PLAIN])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def bench(cls, flags, paths=1):
        where = [word for i in range(paths) for word in ("--nvme-path", os.path.join(cls.folder, f"nvme{i}"))]
        command = [binary("client/strata"), "-o", "json", "bench", "offload", *MODEL, "--device", "128MiB", "--host", "256MiB",
                   "--nvme", "512MiB", "--state-hash", *where, *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False,
                              env={**os.environ, "XDG_CACHE_HOME": cls.folder})  # measures this machine once
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(flags)}: exit code {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def bits(self, report):
        return [(step["loss"], step["grad_norm"], step["state_hash"]) for step in report["steps"]]

    def test_every_setting_gives_the_same_states_at_every_step(self):
        self.assertGreaterEqual(self.check_settings(SETTINGS, self.plain, self.unclipped, []), 12)

    def test_eight_bit_states_are_the_same_in_every_setting(self):
        plain = self.bench(["--clip", str(CLIP), *PLAIN, *EIGHT_BIT])
        unclipped = self.bench(["--clip", "0", *PLAIN, *EIGHT_BIT])
        self.assertNotEqual(self.bits(plain)[-1], self.bits(self.plain)[-1])
        self.assertEqual(plain["steps"][0]["grad_norm"], self.plain["steps"][0]["grad_norm"])
        self.assertGreaterEqual(self.check_settings(EIGHT_BIT_SETTINGS, plain, unclipped, EIGHT_BIT), 3)

    def check_settings(self, settings, plain, unclipped, more):
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags_of_cpu = set(next((line for line in file if line.startswith("flags")), "").split())
        clipped = [step["grad_norm"] > CLIP for step in plain["steps"]]
        self.assertEqual(set(clipped), {False, True}, "some steps clip, some do not")
        self.assertEqual(len({step["state_hash"] for step in plain["steps"]}), len(clipped), "every step changes the states")
        wanted = []
        for homes, text in settings:
            flags = text.split()
            isa = flags[flags.index("--isa") + 1] if "--isa" in flags else ""
            if isa.startswith("avx") and isa.replace("avx512", "avx512f") not in flags_of_cpu:
                print(f"skipped: this processor has no {isa}: {' '.join(homes)} {text}")
                continue
            paths = 3 if "PATHS" in flags else 1
            flags = [flag for flag in flags if flag != "PATHS"]
            flags += [word for name, home in zip(CLASSES, homes) for word in (f"--{name}-home", home)]
            flags += ["--clip", "0" if "overlap" in flags else str(CLIP)]
            wanted.append((homes, flags + more, paths))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # disk and processor take turns
            reports = list(pool.map(lambda one: self.bench(one[1], one[2]), wanted))
        for (homes, flags, _), report in zip(wanted, reports):
            expected = unclipped if "overlap" in flags else plain
            self.assertEqual(self.bits(report), self.bits(expected), flags)
            self.check_it_was_so(report, homes, flags, clipped)
        print(f"{len(reports)} settings, {len(clipped)} steps each: {plain['summary']['state_hash']}")
        return len(reports)

    def check_it_was_so(self, report, homes, flags, clipped):
        plan, summary = report["plan"], report["summary"]

        def value(flag):
            return flags[flags.index(flag) + 1] if flag in flags else None
        self.assertEqual(plan["mode"], value("--mode"))
        if value("--depth"):
            self.assertEqual(plan["prefetch_depth"], int(value("--depth")))
        chunks = {"1MiB": 1 << 18, "4MiB": 1 << 20, "100001": 7 * 4096, "777777": 48 * 4096}
        if value("--chunk"):
            self.assertEqual(plan["chunk_elements"], chunks[value("--chunk")])
        if value("--mode") == "speculative" and homes[2] == N:
            self.assertEqual([step.get("speculative_redo", 0) == 1 for step in report["steps"]], clipped, flags)
        for name, home in zip(CLASSES, homes):
            self.assertEqual(summary["nvme_written_bytes"][TRAFFIC[name]] > 0, home == N, (name, flags))
        ladder = {rung["rung"]: rung for rung in report["ladder"]}
        if value("--io-backend") and N in homes:
            self.assertEqual(ladder["io_uring"]["chosen"], value("--io-backend"), flags)
        if "--buffered" in flags:
            self.assertEqual(ladder["o_direct"]["chosen"], "buffered", flags)
        self.assertEqual(summary["peak_bytes"], summary["planned_peak_bytes"], flags)
        self.assertEqual(summary["checksum_errors"], 0)

    def test_another_seed_and_the_mode_that_says_so_change_the_states(self):
        self.assertNotEqual(self.bits(self.unclipped)[-1], self.bits(self.plain)[-1])
        for flags in (["--seed", "2"], ["--mode", "delayed"]):
            self.assertNotEqual(self.bits(self.bench(["--clip", str(CLIP), *flags]))[-1], self.bits(self.plain)[-1], flags)


if __name__ == "__main__":
    unittest.main(verbosity=2)
