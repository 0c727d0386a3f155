#!/usr/bin/python3
"""The CLI from outside: exit codes, formats, error texts, streams that break, against a coordinator in Python."""
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_server  # pylint: disable=wrong-import-position
from fake_server import NAME, FakeServer, Refusal, job, row, stubs  # pylint: disable=wrong-import-position

STRATA = os.path.join(os.environ.get("STRATA_BIN") or os.path.join(os.environ.get("TEST_SRCDIR", ""), "strata"), "client/strata")
JOB = """name: austen
model:
  config: {architecture: llama, layers: 2, hidden: 32, heads: 4, max_seq: 16}
data:
  train: [text.txt]
  seq_len: 16
training:
  steps: 3
  global_batch: 4
  optimizer: {lr: 1e-3}
memory: {io: {direct: off}}
"""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def strata(*arguments, timeout=60, **kwargs):
    environment = {key: value for key, value in kwargs.pop("env", os.environ).items() if key != "STRATA_SERVER"}
    return subprocess.run([STRATA, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                          env=environment, **kwargs)


class UsageTest(unittest.TestCase):
    def test_wrong_usage_is_2(self):
        for arguments in ([], ["nosuch"], ["ls", "-o", "xml"], ["get"], ["local"], ["completion", "tcsh"],
                          ["submit", "x", "--label", "novalue"], ["get", "a b"], ["watch", "projects/x/jobs"],
                          ["ls", "--limit", "-1"], ["--timeout", "nan", "ls"], ["--timeout", "inf", "ls"],
                          ["generate", "X", "--temperature", "nan"], ["ls", "--server", ""], ["ls", "--server", "127.0.0.1"],
                          ["ls", "--server", "host:99999"], ["ls", "--server", ":7411"], ["generate", "x", "--temperature", "-1"],
                          ["metrics", "x", "--series", "loss,los"], ["metrics", "x", "--min-step", "5", "--max-step", "3"]):
            done = strata(*arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stdout, done.stderr))
            self.assertEqual(done.stdout, "", arguments)
            self.assertTrue(done.stderr, arguments)

    def test_a_number_that_is_none_or_does_not_fit_is_2_and_names_the_flag(self):
        bench = ("bench", "offload")
        for command, flag, *values in (
                (("ls",), "--limit", "-1", "1.5", "9223372036854775808", "0x10"), (("ls",), "--timeout", "1e300", "-1", "5s", "1e400"),
                (("logs", "x"), "--tail", "many", "-1"), (("logs", "x"), "--attempt", "4294967297", "-1"),
                (("metrics", "x"), "--min-step", "1e3"), (("metrics", "x"), "--max-step", "99999999999999999999"),
                (("metrics", "x"), "--max-points", "2147483648"), (("generate", "x"), "--seed", "-1", "18446744073709551616", "nan"),
                (("generate", "x"), "--max-tokens", "0", "1048577"), (("generate", "x"), "--temperature", "nan", "101", "0x1"),
                (("local", "run", "x"), "--sample", "-1", "4294967296"), (bench, "--seed", "-1", "18446744073709551616"),
                (bench, "--clip", "1e300", "-1", "inf", "1e-300"), (bench, "--steps", "0", "1e3"), (bench, "--layers", "0", "4294967297"),
                (bench, "--tokens", "-5", "1x"), (bench, "--micro-batches", "0"), (bench, "--depth", "65"), (bench, "--io-threads", "-1"),
                (bench, "--io-depth", "0"), (bench, "--threads", "2x"), (bench, "--nvme-weight", "nan", "0")):
            for value in values:
                done = strata(*command, f"{flag}={value}")
                self.assertEqual((done.returncode, done.stdout), (2, ""), (flag, value, done.stderr))
                self.assertIn(flag, done.stderr, value)

    def test_help_is_0(self):
        done = strata("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("8 rejected, 9 conflict", done.stdout)

    def test_no_server_is_5_and_says_where_it_looked(self):
        done = strata("--server", "127.0.0.1:1", "ls")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("127.0.0.1:1", done.stderr)
        self.assertIn("--server", done.stderr)

    def test_version_needs_no_server(self):
        done = strata("--server", "127.0.0.1:1", "version")
        self.assertEqual((done.returncode, done.stdout.split()[0]), (0, "strata"))

    def test_completion_scripts_work(self):
        for shell in ("bash", "zsh", "fish"):
            done = strata("completion", shell)
            self.assertEqual(done.returncode, 0)
            self.assertIn("checkpoint", done.stdout)
        script = strata("completion", "bash").stdout

        def complete(*words):
            program = script + "\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _strata; echo \"${COMPREPLY[@]}\"\n"
            return subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(complete("strata", "checkp"), ["checkpoint"])
        self.assertEqual(complete("strata", "checkpoint", "ex"), ["export"])
        self.assertEqual(complete("strata", "local", "run", "--nvme-"), ["--nvme-path"])


class JobFileTest(unittest.TestCase):
    """Bad job files: exit code, path, line and remedy, within 2 seconds, with nothing created."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("It is a truth universally acknowledged" * 100)

    def refuse(self, code, *texts, change=("", ""), arguments=(), write=True):
        path = os.path.join(self.folder, "job.yaml")
        if write:
            self.assertIn(change[0], JOB)
            with open(path, "w", encoding="utf-8") as file:
                file.write(JOB.replace(change[0], change[1], 1) if change[0] else JOB)
        before = sorted(os.listdir(self.folder))
        start = time.monotonic()
        done = strata("local", "run", "job.yaml", *arguments, cwd=self.folder)
        self.assertLess(time.monotonic() - start, 2 * float(os.environ.get("STRATA_TEST_SLOWNESS", "1")))
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before, "something was created")

    def test_unreadable(self):
        self.refuse(2, "job.yaml", "No such file", write=False)

    def test_syntax(self):
        self.refuse(2, "job.yaml:", "not valid YAML", change=("max_seq: 16}", "max_seq: 16"))

    def test_unknown_field(self):
        self.refuse(2, "job.yaml:8:3: training.stepz", "did you mean steps?", change=("steps: 3", "stepz: 3"))

    def test_wrong_type(self):
        self.refuse(2, "job.yaml:8:10: training.steps", "a whole number", change=("steps: 3", "steps: many"))

    def test_heads(self):
        self.refuse(8, "job.yaml:3:", "model.config.heads", "such as 4", change=("heads: 4", "heads: 5"))

    def test_absurd_numbers(self):
        self.refuse(8, "model.config.layers", "from 1 to", change=("layers: 2", "layers: 2000000000"))

    def test_a_device_too_small_is_refused_by_one_byte(self):
        def plan(device):
            with open(os.path.join(self.folder, "job.yaml"), "w", encoding="utf-8") as file:
                file.write(JOB.replace("direct: off}", f"direct: off}}, device: {device}, host: 64MiB, nvme: 64MiB"))
            return strata("plan", "job.yaml", "-o", "json", cwd=self.folder)
        roomy = plan("64MiB")
        self.assertEqual(roomy.returncode, 0, roomy.stderr)
        tiers = {tier["tier"]: tier for tier in json.loads(roomy.stdout)["tiers"]}
        least = tiers["device"]["minimum_bytes"]
        exact = plan(least)
        self.assertEqual(exact.returncode, 0, exact.stdout)
        self.assertLessEqual({tier["tier"]: tier for tier in json.loads(exact.stdout)["tiers"]}["device"]["peak_bytes"], least)
        self.assertEqual(plan(least - 1).returncode, 8)
        self.refuse(8, "does not fit", "device", f"{least} bytes", f"{least - 1} bytes",
                    change=("direct: off}", f"direct: off}}, device: {least - 1}, host: 64MiB, nvme: 64MiB"))

    def test_a_plan_for_another_machine_needs_no_server(self):
        with open(os.path.join(self.folder, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        with open(os.path.join(self.folder, "machine.yaml"), "w", encoding="utf-8") as file:
            file.write("""name: small
device: 1GiB
host: 4GiB
nvme: 10GiB
speeds:
  bf16: {forward_flops: 1e12, elementwise_bytes_per_second: 1e11}
  h2d_bytes_per_second: 1e10
  nvme_read_bytes_per_second: 1e9
  dram_bytes_per_second: 1e10
""")
        command = [STRATA, "plan", "job.yaml", "--machine", "machine.yaml", "-o", "json"]
        plans = []
        for address in (None, "127.0.0.1:1", "dead"):
            environment = {key: value for key, value in os.environ.items() if key != "STRATA_SERVER"}
            if address:
                environment["STRATA_SERVER"] = address
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=self.folder, env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            plans.append(done.stdout)
        self.assertEqual(len(set(plans)), 1)
        self.assertIn("small", plans[0])

    def test_missing_data(self):
        self.refuse(8, "job.yaml:5:11: data.train[0]", "No such file", "job file's folder", change=("text.txt", "none.txt"))

    def test_data_is_a_folder(self):
        self.refuse(8, "data.train[0]", "is a folder", change=("text.txt", "."))

    def test_data_is_no_regular_file(self):
        self.refuse(8, "data.train[0]", "not a regular file", change=("text.txt", "/dev/zero"))

    def test_data_is_too_short(self):
        with open(os.path.join(self.folder, "short.txt"), "w", encoding="ascii") as file:
            file.write("x" * 16)
        self.refuse(8, "data.train[0]", "has 16 tokens", "17", change=("text.txt", "short.txt"))

    def test_model_folder(self):
        self.refuse(8, "model.from", "No such file", change=(JOB.splitlines()[2], "  from: nowhere"))

    def test_unwritable_nvme_path(self):
        self.refuse(8, "--nvme-path", "/proc", arguments=("--nvme-path", "/proc/strata"))

    def test_more_nvme_than_there_is(self):
        self.refuse(8, "job.yaml:11:", "memory.nvme", "--nvme-path", change=("direct: off}", "direct: off}, nvme: 900TiB"))

    def test_more_memory_than_there_is(self):
        self.refuse(8, "memory.host", "together 900 TiB, more than the", "lower memory.host", change=("direct: off}", "direct: off}, host: 900TiB"))

    def test_path_without_o_direct(self):
        for folder in ("/dev/shm", "/tmp", self.folder):
            try:
                os.close(os.open(os.path.join(folder, f"probe-{os.getpid()}"), os.O_CREAT | os.O_RDWR | os.O_DIRECT))
            except OSError:
                return self.refuse(8, "--nvme-path", "O_DIRECT", "memory.require", change=("io: {direct: off}", "require: [o_direct]"),
                                   arguments=("--nvme-path", folder))
            finally:
                if os.path.exists(os.path.join(folder, f"probe-{os.getpid()}")):
                    os.remove(os.path.join(folder, f"probe-{os.getpid()}"))
        return self.skipTest("every file system here has O_DIRECT")


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
            self.assertIn(done.returncode, (2, 4), done.stderr)
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


class ServerTest(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer()
        self.addCleanup(self.server.stop)

    def run_cli(self, *arguments, **kwargs):
        return strata("--server", self.server.address, *arguments, **kwargs)

    def answer(self, method, *answers):
        """Each call takes the next answer; the last one stays."""
        left = list(answers)

        def handle(request):
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.server.handlers[method] = handle


class ErrorTest(ServerTest):
    def test_exit_codes(self):
        code = grpc.StatusCode
        for status, reason, expected in (
                (code.NOT_FOUND, "NOT_FOUND", 3), (code.UNAUTHENTICATED, "", 4), (code.PERMISSION_DENIED, "", 4),
                (code.DEADLINE_EXCEEDED, "", 6), (code.CANCELLED, "", 7), (code.INVALID_ARGUMENT, "INVALID_SPEC", 8),
                (code.FAILED_PRECONDITION, "UNSATISFIABLE", 8), (code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 8),
                (code.INVALID_ARGUMENT, "REQUEST_ID_REUSED", 9), (code.FAILED_PRECONDITION, "BAD_TRANSITION", 9),
                (code.ALREADY_EXISTS, "JOB_ID_TAKEN", 9), (code.ABORTED, "ETAG_MISMATCH", 9), (code.DATA_LOSS, "", 1),
                (code.INTERNAL, "", 1)):
            self.answer("GetJob", Refusal(status, f"because of {reason}", reason))
            done = self.run_cli("get", "austen-ab12")
            self.assertEqual(done.returncode, expected, (status, done.stderr))
            self.assertIn(f"because of {reason}", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_get_shows_which_ranks_a_group_waits_for(self):
        states = stubs.rendezvous.GroupState.State
        forming = stubs.rendezvous.GroupStatus(group="world", generation=2, size=4, state=states.Value("FORMING"), missing=[1, 3])
        failed = stubs.rendezvous.GroupStatus(group="tp.0", generation=1, size=2, state=states.Value("FAILED"), message="rank 1: gone")
        self.answer("GetJob", job("STARTING", groups=[forming, failed]))
        done = self.run_cli("get", "austen-ab12")
        self.assertIn("world of 4 ranks, generation 2: FORMING, waits for 1, 3", done.stdout)
        self.assertIn("tp.0 of 2 ranks, generation 1: FAILED, rank 1: gone", done.stdout)
        self.answer("GetJob", job("STARTING", groups=[forming]))
        self.assertIn('"missing"', self.run_cli("get", "austen-ab12", "-o", "json").stdout)

    def test_text_of_others_does_not_steer_the_terminal(self):
        evil = "gone\x1b[2J\nstate        SUCCEEDED \u009b1A"
        shown = "gone\\x1b[2J\\nstate        SUCCEEDED \\xc2\\x9b1A"
        failed = stubs.rendezvous.GroupStatus(group="tp.0", generation=1, size=2,
                                              state=stubs.rendezvous.GroupState.State.Value("FAILED"), message=evil)
        failure = stubs.jobs.Failure(cause="USER_ERROR", message=evil, log_tail="one\r\ntwo\x1b[A\n")
        self.answer("GetJob", job("FAILED", groups=[failed], last_failure=failure))
        lines = self.run_cli("get", "austen-ab12").stdout.splitlines()
        self.assertIn(f"group        tp.0 of 2 ranks, generation 1: FAILED, {shown}", lines)
        self.assertIn(f"why          {shown}", lines)
        self.assertEqual(lines[-4:], ["log tail:", "one", "two\\x1b[A", ""])
        event = stubs.jobs.JobEvent(message=evil, to="FAILED")
        self.answer("ListJobEvents", stubs.jobs.ListJobEventsResponse(events=[event]))
        self.assertTrue(self.run_cli("events", "austen-ab12").stdout.splitlines()[1].endswith(shown))
        worker = stubs.fleet.Worker(name="w1", state="QUARANTINED", reason=evil)
        self.answer("GetWorker", worker)
        self.assertIn(f"QUARANTINED ({shown})", self.run_cli("worker", "describe", "w1").stdout)
        self.answer("GetJob", Refusal(grpc.StatusCode.INTERNAL, evil, "INTERNAL"))
        self.assertEqual(self.run_cli("get", "austen-ab12").stderr.splitlines()[0], "error: gone\\x1b[2J")

    def test_where_nobody_answers_the_address_and_the_remedy_are_told(self):
        self.server.stop()
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual(done.returncode, 5)
        told = done.stderr.replace(" (Connection refused)", "")  # gRPC does not always keep it
        self.assertEqual(told, f"error: nobody answers at {self.server.address}: start strata_server there, "
                         "or name the coordinator's address with --server or STRATA_SERVER\n")

    def test_details_are_told(self):
        violation = stubs.rpc.BadRequest.FieldViolation(field="memory.device", description="must be above 7 bytes")
        quota = stubs.rpc.QuotaFailure.Violation(subject="queue:default", description="is full")
        self.answer("CancelJob", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the spec is invalid", "INVALID_SPEC",
                                         [stubs.rpc.BadRequest(field_violations=[violation]), stubs.rpc.QuotaFailure(violations=[quota])],
                                         {"limit": "7"}))
        done = self.run_cli("cancel", "austen-ab12")
        for text in ("the spec is invalid", "memory.device: must be above 7 bytes", "queue:default: is full", "INVALID_SPEC", "limit: 7"):
            self.assertIn(text, done.stderr)

    def test_details_that_the_message_has_are_not_told_again(self):
        self.answer("GetJob", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "nvme needs 300 bytes, there are 77: lower memory.nvme", "UNSATISFIABLE",
                                      [], {"resource": "nvme", "requested": "300", "total": "77", "free": "7", "remedy": "lower memory.nvme"}))
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual(done.stderr, "error: nvme needs 300 bytes, there are 77: lower memory.nvme\n  reason: UNSATISFIABLE\n  free: 7\n")

    def test_broken_details_are_dropped(self):
        refusal = Refusal(grpc.StatusCode.NOT_FOUND, "gone")
        refusal.status = type("Broken", (), {"SerializeToString": staticmethod(lambda: b"\xff\xff\xff")})
        self.answer("GetJob", refusal)
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual((done.returncode, done.stderr), (3, "error: gone\n"))

    def test_the_beginning_of_a_name_will_do_where_only_one_job_has_it(self):
        def one(make):
            def handle(request):
                if request.name != NAME:
                    raise Refusal(grpc.StatusCode.NOT_FOUND, f"there is no job {request.name}", "NOT_FOUND")
                return make()
            return handle
        self.server.handlers.update({"GetJob": one(lambda: job("RUNNING", 2)), "CancelJob": one(lambda: job("CANCELLED")),
                                     "ListJobEvents": one(stubs.jobs.ListJobEventsResponse)})
        page = stubs.jobs.ListJobsResponse
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME.replace("austen", "bronte"))]))
        for command in ("get", "cancel", "events"):
            done = self.run_cli(command, "aust")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([request.name for request in self.server.requests("CancelJob")], [NAME.replace("austen-ab12", "aust"), NAME])
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME + "x")]))
        done = self.run_cli("cancel", "aust")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("the names of 2 begin so: austen-ab12, austen-ab12x", done.stderr)
        done = self.run_cli("get", "dickens")
        self.assertEqual(done.returncode, 3)
        self.assertIn("there is no job", done.stderr)

    def test_a_beginning_that_ends_in_a_dash_is_one(self):
        def whole(request):
            # As the coordinator does: no job's name ends so.
            if request.name.endswith("-"):
                raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "name: must be of [a-z0-9-]", "INVALID_REQUEST")
            return job(name=request.name)
        self.server.handlers["GetJob"] = whole
        page = stubs.jobs.ListJobsResponse
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME.replace("austen", "bronte"))]))
        for beginning in ("austen-", "projects/default/jobs/austen-"):
            done = self.run_cli("-o", "json", "get", beginning)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["name"], NAME)
        done = self.run_cli("get", "dickens-")
        self.assertEqual((done.returncode, done.stderr), (3, "error: no job's name begins with dickens-\n"))
        self.answer("ListJobs", Refusal(grpc.StatusCode.PERMISSION_DENIED, "not yours", "DENIED"))
        done = self.run_cli("get", "austen-")
        self.assertEqual(done.returncode, 4)
        self.assertIn("not yours", done.stderr)

    def test_a_change_that_is_confirmed_late_is_no_failure(self):
        late = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.answer("CancelJob", late, late, job("CANCELLED"))
        done = self.run_cli("cancel", "austen-ab12")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("CANCELLED", done.stdout)
        self.assertIn("asking again", done.stderr)
        self.assertEqual(len({request.request_id for request in self.server.requests("CancelJob")}), 1)
        self.answer("CancelJob", late)
        done = self.run_cli("--timeout", "1", "cancel", "austen-ab12")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("which may still happen", done.stderr)

    def test_unavailable_is_tried_again_with_the_same_request_id(self):
        self.answer("CancelJob", Refusal(UNAVAILABLE), Refusal(UNAVAILABLE), job("CANCELLED"))
        done = self.run_cli("cancel", "austen-ab12")
        self.assertEqual(done.returncode, 0, done.stderr)
        requests = self.server.requests("CancelJob")
        self.assertEqual(len(requests), 3)
        self.assertEqual(len({request.request_id for request in requests}), 1)
        self.assertEqual(len(requests[0].request_id), 32)
        self.assertEqual(requests[0].name, NAME)


class FormatTest(ServerTest):
    def setUp(self):
        super().setUp()
        page = stubs.jobs.ListJobsResponse
        self.pages = {"": page(jobs=[job("RUNNING", 2)], next_page_token="n"), "n": page(jobs=[job("FAILED", name=NAME + "x")])}
        self.server.handlers["ListJobs"] = lambda request: self.pages[request.page_token]

    def test_table(self):
        lines = self.run_cli("ls").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["NAME", "STATE", "STEP"])
        self.assertEqual(lines[1].split()[:3], ["austen-ab12", "RUNNING", "2/3"])
        self.assertEqual(len(lines), 3)

    def test_json_and_jsonl(self):
        listed = json.loads(self.run_cli("-o", "json", "ls").stdout)
        self.assertEqual([one["status"]["state"] for one in listed], ["RUNNING", "FAILED"])
        self.assertEqual(listed[0]["status"]["progress"]["step"], 2)
        lines = self.run_cli("ls", "-o", "jsonl").stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines], listed)

    def test_yaml(self):
        text = self.run_cli("-o", "yaml", "ls", "--limit", "1").stdout
        self.assertTrue(text.startswith(f"- name: {NAME}\n  uid: u-1\n"), text)
        self.assertIn("    progress:\n      step: 2\n", text)

    def test_state_filter(self):
        self.run_cli("ls", "--state", "running")
        self.assertEqual(self.server.requests("ListJobs")[-1].state, "RUNNING")

    def test_plan_that_does_not_fit_is_8_with_numbers(self):
        short = stubs.plan.Shortfall(resource="device", requested=50 << 20, free=48 << 20, total=48 << 20, remedy="set memory.device to 50MiB")
        self.answer("PlanJob", stubs.plan.JobPlan(fits=False, shortfalls=[short]))
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        with open(os.path.join(folder, "job.yaml"), "w", encoding="ascii") as file:
            file.write(JOB)
        done = self.run_cli("plan", os.path.join(folder, "job.yaml"))
        self.assertEqual(done.returncode, 8)
        for text in ("does not fit", "50 MiB", str(50 << 20), str(48 << 20), "set memory.device to 50MiB"):
            self.assertIn(text, done.stdout)
        sent = self.server.requests("PlanJob")[0].spec
        self.assertEqual(sent.data.train[0], os.path.join(os.path.realpath(folder), "text.txt"))

    def test_workers_events_checkpoints(self):
        self.answer("ListWorkers", stubs.fleet.ListWorkersResponse(workers=[stubs.fleet.Worker(name="workers/w1", state=1)]))
        self.assertIn("READY", self.run_cli("worker", "list").stdout)
        capacity = stubs.fleet.Capacity(
            cpus=7, nvme=[stubs.fleet.NvmeVolume(path="/mnt/a", bytes=3 << 30, fs_type="xfs")],
            ladder=[stubs.fleet.Rung(rung="io_uring", chosen="threads", why="seccomp says no")])
        self.answer("GetWorker", stubs.fleet.Worker(name="workers/w1", state=1, capacity=capacity))
        text = self.run_cli("worker", "describe", "w1").stdout
        for part in ("3 GiB for jobs", "/mnt/a (xfs", "io_uring: threads, because: seccomp says no"):
            self.assertIn(part, text)
        self.assertEqual(self.server.requests("GetWorker")[0].name, "w1")
        self.answer("ListJobEvents", stubs.jobs.ListJobEventsResponse(events=[stubs.jobs.JobEvent(to=1, reason="CREATED")]))
        self.assertIn("CREATED", self.run_cli("events", "austen-ab12").stdout)
        checkpoint = stubs.checkpoints.Checkpoint(name=NAME + "/checkpoints/300", step=300, bytes=5 << 20)
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse(checkpoints=[checkpoint]))
        done = self.run_cli("checkpoint", "list", "austen-ab12")
        self.assertIn("austen-ab12/300", done.stdout)
        self.assertIn("5 MiB", done.stdout)

    def test_worker_describe_says_how_fast_it_is(self):
        speeds = stubs.machine.MachineProfile(source="measured: a CPU", h2d_bytes_per_second=7.5e9)
        speeds.bf16.forward_flops.append(123e9)
        worker = stubs.fleet.Worker(name="workers/w1", state=1, capacity=stubs.fleet.Capacity(cpus=2, machine=speeds))
        self.answer("GetWorker", worker)
        done = self.run_cli("worker", "describe", "w1")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("READY", "measured: a CPU", "123.0 GFLOP/s", "7.5 GB/s"):
            self.assertIn(text, done.stdout)
        self.assertEqual(self.server.requests("GetWorker")[0].name, "w1")
        self.answer("GetWorker", stubs.fleet.Worker(name="workers/w1", state=1))
        self.assertIn("not measured", self.run_cli("worker", "describe", "w1").stdout)

    def test_plan_for_a_worker_and_for_a_machine_that_is_not_here(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        job, machine = os.path.join(folder, "job.yaml"), os.path.join(folder, "machine.yaml")
        with open(job, "w", encoding="ascii") as file:
            file.write(JOB)
        with open(machine, "w", encoding="ascii") as file:
            file.write("name: far away\ndevice: 24GiB\nhost: 64GiB\nnvme: 1TiB\nspeeds:\n  bf16: {forward_flops: 100e12, "
                       "elementwise_bytes_per_second: 800e9}\n  h2d_bytes_per_second: 24e9\n"
                       "  nvme_read_bytes_per_second: 7e9\n  dram_bytes_per_second: 150e9\n")
        self.answer("PlanJob", stubs.plan.JobPlan(fits=True))
        self.assertEqual(self.run_cli("plan", job, "--worker", "w1").returncode, 0)
        self.assertEqual(self.server.requests("PlanJob")[-1].worker, "w1")
        done = strata("plan", job, "--machine", machine, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["machine"]["source"], "far away")
        self.assertEqual(int(plan["tiers"][0]["budget_bytes"]), 24 << 30)
        self.assertGreater(plan["bound_ms"], 0)
        for path, told in ((job, "speeds"), ("/dev/null", "/dev/null is empty"), ("/no/such/file", "--machine")):
            done = strata("plan", job, "--machine", path)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(told, done.stderr)

    def test_metrics_table_fits_a_terminal_and_names_the_rest(self):
        names = ["loss", "step_ms", "rss_bytes"] + [f"stall_ms.cause_number_{i}" for i in range(20)]
        series = [stubs.metrics.Series(name=name, points=[stubs.metrics.Point(step=step, value=1e6 / 3) for step in (1, 2)]) for name in sorted(names)]
        self.answer("QueryMetrics", stubs.metrics.QueryMetricsResponse(series=series))
        lines = self.run_cli("metrics", "austen-ab12").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["STEP", "loss", "step_ms"])
        self.assertLessEqual(max(map(len, lines)), 120)
        told = " ".join(lines[3:]).replace(",", " ").split()
        self.assertEqual(sorted(set(names)), sorted(set(lines[0].split()[1:]) | (set(told) & set(names))))
        self.assertFalse(set(lines[0].split()) & set(told) & set(names), "shown and left out")
        whole = self.run_cli("metrics", "austen-ab12", "--series", ",".join(names)).stdout.splitlines()
        self.assertEqual(len(whole[0].split()), 1 + len(names))

    def test_metrics_table(self):
        point = stubs.metrics.Point(step=1, value=5.25)
        self.answer("QueryMetrics", stubs.metrics.QueryMetricsResponse(series=[stubs.metrics.Series(name="loss", points=[point])]))
        done = self.run_cli("metrics", "austen-ab12", "--series", "loss,lr")
        self.assertEqual([line.split() for line in done.stdout.splitlines()], [["STEP", "loss"], ["1", "5.25"]])
        self.assertIn("austen-ab12 has no lr", done.stderr)
        self.assertEqual(list(self.server.requests("QueryMetrics")[0].series), ["loss", "lr"])


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class DownloadTest(ServerTest):
    """Checkpoints that are not on this machine: fetched in chunks, each byte checked before it is used."""

    FILES = {"master.safetensors": bytes(range(256)) * 20, "manifest.json": b"{}"}

    def setUp(self):
        super().setUp()
        self.temp = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.spoil = None
        self.broken = 0
        files = [stubs.checkpoints.CheckpointFile(path=path, bytes=len(data), crc32c=crc32c(data)) for path, data in self.FILES.items()]
        self.checkpoint = stubs.checkpoints.Checkpoint(name=NAME + "/checkpoints/7", step=7, path="/elsewhere/step-000000000007",
                                                       digest="00" * 32, files=files)
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse(checkpoints=[self.checkpoint]))
        self.answer("GetCheckpoint", self.checkpoint)

        def read(request):
            data = self.FILES[request.path]
            for offset in range(request.offset, len(data), 1000):
                piece = data[offset:offset + 1000]
                chunk = stubs.checkpoints.FileChunk(offset=offset, data=piece, crc32c=crc32c(piece), total_bytes=len(data))
                if self.spoil:
                    self.spoil(chunk)
                yield chunk
                if offset == 2000 and not self.broken:
                    self.broken += 1
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["ReadCheckpointFile"] = read

    def verify(self):
        done = self.run_cli("checkpoint", "verify", "austen-ab12", env={**os.environ, "TMPDIR": self.temp})
        self.assertEqual(os.listdir(self.temp), [], "the temporary folder is removed")
        return done

    def test_resumes_and_then_judges_the_whole(self):
        done = self.verify()
        # All bytes came as the server lists them; but this manifest is not the one that was committed.
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("manifest.json", done.stderr)
        self.assertIn("digest", done.stderr)
        offsets = [request.offset for request in self.server.requests("ReadCheckpointFile")]
        self.assertEqual(offsets, [0, 3000, 0])

    def test_a_wrong_byte_is_data_loss_with_its_place(self):
        def spoil(chunk):
            if chunk.offset == 4000:
                chunk.data = b"x" + chunk.data[1:]
        self.spoil = spoil
        done = self.verify()
        self.assertEqual(done.returncode, 1)
        for text in ("master.safetensors", "offset 4000", "CRC-32C"):
            self.assertIn(text, done.stderr)

    def test_a_skipped_chunk_is_noticed(self):
        def spoil(chunk):
            chunk.offset += 1000 if chunk.offset >= 1000 else 0
        self.spoil = spoil
        self.assertIn("got offset 2000 instead of 1000", self.verify().stderr)

    def test_a_short_file_is_noticed(self):
        self.checkpoint.files[1].bytes = 3
        self.answer("GetCheckpoint", self.checkpoint)
        self.assertIn("manifest.json has 2 bytes", self.verify().stderr)

    def test_files_outside_the_checkpoint_are_refused(self):
        for path in ("../evil", "/etc/evil", "a/../../evil", ""):
            self.checkpoint.files[0].path = path
            self.answer("GetCheckpoint", self.checkpoint)
            self.assertIn("outside the checkpoint", self.verify().stderr, path)


class WatchTest(ServerTest):
    def watch(self, *arguments, **kwargs):
        return self.run_cli("watch", "austen-ab12", *arguments, **kwargs)

    def test_states_of_the_end_are_exit_codes(self):
        for state, code in (("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 7)):
            fake_server.run_to_end(self.server, state)
            done = self.watch()
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(state, done.stdout)
            self.assertIn(f"austen-ab12: {state}", done.stderr)

    def test_jsonl_has_one_object_per_step_across_a_lost_connection(self):
        fake_server.run_to_end(self.server, steps=5)
        whole = self.server.handlers["StreamMetrics"]

        def breaking(request):
            for response in whole(request):
                yield response
                if response.sequence == 2:
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["StreamMetrics"] = breaking
        done = self.watch("-o", "jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([one["step"] for one in rows], [1, 2, 3, 4, 5])
        self.assertEqual(list(rows[0])[:6], ["step", "attempt", "rank", "loss", "loss_bits", "grad_norm"])
        self.assertEqual((rows[0]["loss"], rows[0]["loss_bits"], rows[0]["tokens"]), (5.25, "00000001", 4096))
        self.assertIs(rows[0]["skipped"], False)
        self.assertEqual(rows[0]["device_peak_bytes"], 1 << 20)
        self.assertEqual([request.after_sequence for request in self.server.requests("StreamMetrics")], [0, 2])

    def test_watch_resumes_from_its_revision(self):
        fake_server.run_to_end(self.server)
        whole = self.server.handlers["WatchJobs"]

        def breaking(request):
            for response in whole(request):
                yield response
                if response.HasField("bookmark"):
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["WatchJobs"] = breaking
        self.assertEqual(self.watch().returncode, 0)
        self.assertEqual([request.from_revision for request in self.server.requests("WatchJobs")], [0, 1])

    def test_a_compacted_history_starts_afresh(self):
        fake_server.run_to_end(self.server)
        whole = self.server.handlers["WatchJobs"]
        calls = []

        def compacted(request):
            calls.append(request.from_revision)
            if len(calls) == 2:
                raise Refusal(grpc.StatusCode.OUT_OF_RANGE, "too old", "REVISION_COMPACTED")
            for response in whole(request):
                yield response
                if len(calls) == 1 and response.HasField("bookmark"):
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["WatchJobs"] = compacted
        self.assertEqual(self.watch().returncode, 0)
        self.assertEqual(calls, [0, 1, 0])

    def test_no_such_job_is_3(self):
        def gone(request):
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no such job", "NOT_FOUND")
            yield  # pylint: disable=unreachable
        self.server.handlers["WatchJobs"] = gone
        self.server.handlers["StreamMetrics"] = gone
        done = self.watch()
        self.assertEqual(done.returncode, 3, done.stderr)

    def endless(self):
        self.open = threading.Event()
        self.release = threading.Event()
        self.addCleanup(self.release.set)

        def watch(request):
            yield stubs.jobs.WatchJobsResponse(upsert=job(), revision=1)
            self.open.set()
            self.release.wait(60)

        def rows(request):
            yield stubs.metrics.StreamMetricsResponse(sequence=1, row=row(1))
            self.release.wait(60)
        self.server.handlers["WatchJobs"] = watch
        self.server.handlers["StreamMetrics"] = rows

    def test_ctrl_c_detaches(self):
        self.endless()
        process = subprocess.Popen([STRATA, "--server", self.server.address, "watch", "austen-ab12"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertTrue(self.open.wait(30))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn(f"strata watch austen-ab12 --server {self.server.address}", err)
        self.assertEqual(out, "")
        self.assertFalse(self.server.requests("CancelJob"))

    def test_timeout_is_6(self):
        self.endless()
        done = self.watch("--timeout", "0.5")
        self.assertEqual(done.returncode, 6, done.stderr)

    def test_logs_resume_and_tell_gaps(self):
        def read(request):
            cursor = request.cursors[0].offset if request.cursors else 0
            at = stubs.logs.LogCursor(attempt=1, stream="stderr", offset=cursor)
            if cursor == 0:
                yield stubs.logs.ReadLogsResponse(chunk=stubs.logs.LogChunk(at=at, data=b"one\n"))
                raise Refusal(UNAVAILABLE, "lost")
            yield stubs.logs.ReadLogsResponse(gap=stubs.logs.LogGap(at=at, missing_bytes=9, why="quota"))
            at.offset += 9
            yield stubs.logs.ReadLogsResponse(chunk=stubs.logs.LogChunk(at=at, data=b"two\n"))
            yield stubs.logs.ReadLogsResponse(end=stubs.logs.LogEnd(state=7))
        self.server.handlers["ReadLogs"] = read
        done = self.run_cli("logs", "austen-ab12", "-f", "--tail", "5")
        self.assertEqual((done.returncode, done.stdout), (0, "one\ntwo\n"))
        self.assertIn("9 bytes missing: quota", done.stderr)
        requests = self.server.requests("ReadLogs")
        self.assertEqual([request.tail_lines for request in requests], [5, 0])
        self.assertEqual(requests[1].cursors[0].offset, 4)

    def test_submit_sends_labels_and_watches(self):
        fake_server.run_to_end(self.server)
        self.server.handlers["CreateJob"] = lambda request: job("QUEUED")
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="ascii") as file:
            file.write(JOB)
        done = self.run_cli("submit", path)
        self.assertEqual(done.returncode, 8, "the server is on this machine and the text is not there")
        with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("text " * 100)
        done = self.run_cli("submit", path, "--label", "a=b=c", "--state-hash", "--watch")
        self.assertEqual(done.returncode, 0, done.stderr)
        request = self.server.requests("CreateJob")[0]
        self.assertEqual(dict(request.labels), {"a": "b=c"})
        self.assertTrue(request.spec.training.report_state_hash)
        self.assertEqual(request.spec.training.micro_batch, 4, "defaults are applied")
        self.assertEqual(self.run_cli("submit", path).stdout, "austen-ab12\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
