#!/usr/bin/python3
"""`strata bench offload` from outside: formats, exit codes, what it leaves behind."""
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import STRATA, strata  # pylint: disable=wrong-import-position


class BenchTest(unittest.TestCase):
    """`strata bench offload` on a model of a few KiB."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def bench(self, *arguments):
        return strata("bench", "offload", "--params", "200k", "--layers", "2", "--device", "16MiB", "--host", "16MiB", "--nvme", "64MiB",
                      "--steps", "3", "--state-hash", *arguments, cwd=self.folder)

    def on_nvme(self, *arguments):
        return self.bench("--params-home", "nvme", "--optimizer-home", "nvme", "--buffered", *arguments)

    def test_json_has_plan_steps_and_summary(self):
        done = self.on_nvme("-o", "json", "--mode", "forward-overlap")  # without updates that are done twice
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([step["step"] for step in report["steps"]], [1, 2, 3])
        summary, plan = report["summary"], report["plan"]
        self.assertEqual(summary["state_hash"], report["steps"][-1]["state_hash"])
        self.assertEqual(sum(summary["nvme_read_bytes"].values()), plan["read_bytes"]["nvme"])
        self.assertEqual(sum(summary["nvme_written_bytes"].values()), plan["written_bytes"]["nvme"])
        self.assertEqual(summary["nvme_written_bytes"]["gradients"], 0)
        self.assertEqual(summary["peak_bytes"], plan["peak_bytes"])
        self.assertGreaterEqual(summary["nvme_written_bytes"]["records"], 12 * report["parameters"])
        self.assertGreater(summary["io_read"]["requests"], 0)
        self.assertTrue(any(lane["stall_ms"] for lane in summary["lanes"]))
        self.assertIn("step 3", done.stderr)
        self.assertEqual(os.listdir(self.folder), [], "a folder was left behind")

    def test_hash_is_that_of_other_settings(self):
        hashes = set()
        for arguments in (["--params-home", "device", "--optimizer-home", "host", "--mode", "sync"],
                          ["--params-home", "nvme", "--optimizer-home", "nvme", "--buffered", "--chunk", "100KiB", "--depth", "1",
                           "--io-depth", "1", "--io-backend", "threads", "--isa", "scalar", "--compute-delay", "1ms"]):
            done = self.bench("-o", "jsonl", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual(len(rows), 4)
            for row in rows[:-1]:
                self.assertIs(row["skipped"], False)
                self.assertLessEqual({"lr", "tokens", "tokens_per_s", "loss_bits", "device_peak_bytes", "host_peak_bytes", "nvme_peak_bytes",
                                      "rss_bytes", "rss_peak_bytes"}, set(row))
                self.assertEqual("io_read_of_calibrated" in row, row["nvme_peak_bytes"] > 0)
            summary = rows[-1]["summary"]
            self.assertEqual({tier: rows[-2][f"{tier}_peak_bytes"] for tier in ("device", "host", "nvme")}, summary["peak_bytes"])
            hashes.add(tuple(row.get("state_hash", row.get("summary", {}).get("state_hash")) for row in rows))
        self.assertEqual(len(hashes), 1)
        self.assertEqual(len(set(next(iter(hashes)))), 3, "a step changed nothing")

    def test_table_and_an_injected_nan(self):
        done = self.on_nvme("--inject", "nan:2:last")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("skipped: final_norm.weight is not finite", done.stdout)
        self.assertIn("skipped   1 steps", done.stdout)
        self.assertIn("nvme-read", done.stdout)

    def test_wrong_flags_are_2_and_what_does_not_fit_is_8(self):
        for flag, *arguments in (["--params", "--params", "many"], ["--mode", "--mode", "fast"], ["inject", "--inject", "inf:1:wte"],
                                 ["inject", "--inject", "inf:9:first"], ["params", "--params", "12"]):
            done = self.bench(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(flag, done.stderr)
        done = strata("bench", "offload", "--params", "200k", "--device", "4KiB", cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (8, ""), done.stderr)
        self.assertIn("--device", done.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_path_that_cannot_be_used_is_named_with_the_reason(self):
        for path, reason in (("/proc/strata", "/proc"), (os.path.join(self.folder, "file"), "is not a folder")):
            if path.startswith(self.folder):
                open(path, "w", encoding="ascii").close()
            done = self.on_nvme("--nvme-path", path)
            self.assertEqual(done.returncode, 8, done.stderr)
            self.assertIn(f"--nvme-path {path}", done.stderr)
            self.assertIn(reason, done.stderr)
            self.assertEqual(done.stderr.count("error:"), 1)

    def test_a_size_beyond_the_limit_is_told_the_limit(self):
        done = strata("bench", "offload", "--nvme", "99999999TiB", cwd=self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("4194304 TiB", done.stderr)
        for flag, value in (("--nvme-weight", "1e-300"), ("--nvme-weight", "1e300")):
            done = self.on_nvme(flag, value)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("1e-6 to 1e6", done.stderr)

    def start_on_nvme(self, where, *arguments):
        """A bench of a small model that has made its folders below `where`."""
        bench = subprocess.Popen([STRATA, "bench", "offload", "--params", "200k", "--layers", "2", "--device", "16MiB", "--host", "16MiB",
                                  "--nvme", "64MiB", "--params-home", "nvme", "--optimizer-home", "nvme", "--buffered", "--nvme-path", where,
                                  *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(bench.kill)
        owner = os.path.join(self.folder, where)
        deadline = time.monotonic() + 60
        while not (os.path.isdir(owner) and os.listdir(owner)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return bench

    # Alone it takes milliseconds, or one second where the end has to be forced.
    CTRL_C_SECONDS = 10

    def test_ctrl_c_does_not_wait_for_a_delay_and_leaves_nothing(self):
        os.mkdir(os.path.join(self.folder, "kept"))
        for delay, where in (("5m", "strata-runs/bench"), ("busy:5m", "kept/a/b")):
            bench = self.start_on_nvme(where, "--compute-delay", delay, "--steps", "99")
            bench.send_signal(signal.SIGINT)
            begin = time.monotonic()
            out, err = bench.communicate(timeout=60)
            self.assertLess(time.monotonic() - begin, self.CTRL_C_SECONDS)
            self.assertEqual(bench.returncode, 7, err)
            self.assertNotIn("\nstep 1 ", out)
            self.assertEqual(err.count("cancelled"), 1, err)
            self.assertEqual(sorted(os.listdir(self.folder)), ["kept"], delay)
            self.assertEqual(os.listdir(os.path.join(self.folder, "kept")), [])

    def test_ctrl_c_ends_what_waits_for_a_reader(self):
        bench = self.start_on_nvme("strata-runs/bench", "-o", "jsonl", "--steps", "100000")
        # Once the pipe is full nothing moves.
        pipe, there = bench.stdout.fileno(), -1
        while there != (there := int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)) or there < 32768:
            time.sleep(0.5)
        bench.send_signal(signal.SIGINT)
        self.assertEqual(bench.wait(timeout=self.CTRL_C_SECONDS), 7)
        self.assertIn("cancelled", bench.stderr.read())
        self.assertEqual(os.listdir(self.folder), [])
        bench.stdout.close()
        bench.stderr.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
