#!/usr/bin/python3
"""`strata local run` with stand-ins for server and worker: who starts, watches, restarts and stops whom."""
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from cli_testing import STRATA  # pylint: disable=wrong-import-position

JOB = """name: austen
model:
  config: {architecture: llama, layers: 2, hidden: 32, heads: 4, max_seq: 16}
data: {train: [text.txt], seq_len: 16}
training: {steps: 3, global_batch: 4, optimizer: {lr: 1e-3}}
memory: {device: 16MiB, host: 64MiB, nvme: 64MiB, io: {direct: off}}
"""

# The server of a job that ends once the file `end` holds the end's state. `args` keeps its command lines.
SERVER = """#!/usr/bin/python3
import os, signal, sys, threading
sys.path.insert(0, HERE)
import fake_server
from fake_server import job, row, stubs
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(FOLDER + "/args", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
server = fake_server.FakeServer(int(flags["--listen"].rsplit(":", 1)[1]))
jobs = []

def end():
    while not os.path.exists(FOLDER + "/end"):
        threading.Event().wait(0.05)
    return open(FOLDER + "/end").read()

def watch(request):
    if request.from_revision == 0:
        yield stubs.jobs.WatchJobsResponse(upsert=job("RUNNING"), revision=1)
    state = end()
    ended = job(state, 3, revision=2)
    ended.status.result.CopyFrom(stubs.jobs.RunResult(train_loss=2.5, eval_loss=2.25, eval_perplexity=9.488, trace_path="/t.json"))
    yield stubs.jobs.WatchJobsResponse(upsert=ended, revision=2)

def rows(request):
    for step in range(request.after_sequence + 1, 3):
        yield stubs.metrics.StreamMetricsResponse(sequence=step, row=row(step))
    end()
    yield stubs.metrics.StreamMetricsResponse(sequence=3, row=row(3))
    yield stubs.metrics.StreamMetricsResponse(sequence=3, end=True)

def create(request):
    made = job("QUEUED")
    made.spec.CopyFrom(request.spec)
    open(FOLDER + "/job", "wb").write(made.SerializeToString())
    return made

def listed(request):
    response = stubs.jobs.ListJobsResponse()
    if os.path.exists(FOLDER + "/job"):
        response.jobs.add().ParseFromString(open(FOLDER + "/job", "rb").read())
    return response

def cancel(request):
    os.remove(FOLDER + "/job")
    return job("CANCELLED")

fits = not os.path.exists(FOLDER + "/misfit")
server.handlers.update({
    "CreateJob": create, "CancelJob": cancel, "WatchJobs": watch, "StreamMetrics": rows, "ListJobs": listed,
    "PlanJob": lambda request: stubs.plan.JobPlan(fits=fits, tiers=[stubs.plan.TierRow(tier="device", budget_bytes=1 << 20, peak_bytes=999)]),
    "ListWorkers": lambda request: stubs.fleet.ListWorkersResponse(workers=[stubs.fleet.Worker(name="workers/local", state=1)]),
})
with open(flags["--port-file"] + ".tmp", "w") as file:
    file.write(f"{server.port}\\n")
os.rename(flags["--port-file"] + ".tmp", flags["--port-file"])
signal.sigwait([signal.SIGTERM])
"""
# A worker that leaves a stray process behind.
WORKER = """#!/bin/sh
echo "$@" >> FOLDER/args
setsid sleep 1000 &
exec sleep 1000
"""
TRAINER = """#!/bin/sh
echo "sample of $@"
"""


def alive(folder):
    """Processes that have `folder` in their command line or as a name of their environment's marker."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                marked = f"STRATA_TEST_MARK={folder}".encode() in file.read()
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                dead = file.read().rsplit(")", 1)[1].split()[0] == "Z"
            if marked and not dead:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    found[int(entry)] = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def wait_for(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"timed out waiting for {what}")


class LocalRunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="local_", dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.kill_all)
        os.mkdir(self.path("bin"))
        for name, text in (("server", SERVER), ("worker", WORKER), ("trainer", TRAINER)):
            with open(self.path(f"bin/strata-{name}"), "w", encoding="utf-8") as file:
                first, rest = text.split("\n", 1)
                if name == "server":
                    rest = f"HERE = {HERE!r}\nFOLDER = {self.folder!r}\n" + rest
                file.write(first + "\n" + rest.replace("FOLDER/", self.folder + "/"))
            os.chmod(file.name, os.stat(file.name).st_mode | stat.S_IXUSR)
        self.write("text.txt", "It is a truth universally acknowledged")
        self.write("job.yaml", JOB)

    def kill_all(self):
        for pid in alive(self.folder):
            os.kill(pid, signal.SIGKILL)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def start(self, *arguments, state="state"):
        return subprocess.Popen([STRATA, "--bin-dir", self.path("bin"), "local", "run", "job.yaml", "--state-dir", state, *arguments],
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "STRATA_TEST_MARK": self.folder})

    def finish(self, process, code):
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def wait_until_watching(self):
        # The metrics of steps 1 and 2 come with the watch.
        wait_for("the job", lambda: os.path.exists(self.path("job")))
        wait_for("the worker", lambda: "--worker-id" in self.read("args"))

    def child(self, word):
        return next((pid for pid, command in alive(self.folder).items() if word in command), None)

    def test_runs_to_the_end_and_leaves_no_process(self):
        self.write("end", "SUCCEEDED")
        out, err = self.finish(self.start(), 0)
        self.assertLess(out.index("TIER"), out.index("train loss"), "the plan comes first")
        for text in ("train loss   2.5000", "eval loss    2.2500", "perplexity   9.488", "trace        /t.json"):
            self.assertIn(text, out)
        self.assertIn("submitted austen-ab12", err)
        self.assertEqual(alive(self.folder), {})
        server, worker = self.read("args").splitlines()[:2]
        self.assertIn(f"--data-dir {self.folder}/state/server --checkpoint-root {self.folder}/state/checkpoints --lease-ttl 5s", server)
        for flag in ("--worker-id local", f"--nvme-path {self.folder}/state/nvme", "--device-bytes 16777216", "--host-bytes 67108864",
                     "--nvme-bytes 67108864", "--server 127.0.0.1:"):
            self.assertIn(flag, worker)

    def test_jsonl_is_rows_only(self):
        self.write("end", "FAILED")
        out, err = self.finish(self.start("-o", "jsonl"), 1)
        self.assertEqual([json.loads(line)["step"] for line in out.splitlines()], [1, 2, 3])
        self.assertIn("TIER", err)

    def test_a_plan_that_does_not_fit_leaves_nothing(self):
        self.write("misfit", "")
        out, _ = self.finish(self.start(), 8)
        self.assertIn("does not fit", out)
        self.assertFalse(os.path.exists(self.path("state")))
        self.assertEqual(alive(self.folder), {})

    def test_a_killed_server_is_started_again_on_its_port(self):
        process = self.start()
        self.wait_until_watching()
        os.kill(self.child("strata-server"), signal.SIGKILL)
        wait_for("the second start", lambda: self.read("args").count("--listen") == 2)
        self.write("end", "SUCCEEDED")
        _, err = self.finish(process, 0)
        self.assertIn("restarted server", err)
        ports = re.findall(r"--listen 127.0.0.1:(\d+)", self.read("args"))
        self.assertEqual(ports[0], "0")
        self.assertIn(f"--server 127.0.0.1:{ports[1]}", self.read("args"))

    def test_a_killed_worker_is_started_again(self):
        process = self.start()
        self.wait_until_watching()
        worker = wait_for("the worker's process", lambda: next((int(pid) for pid in self.children() if pid), None))
        os.kill(worker, signal.SIGKILL)
        wait_for("the second start", lambda: self.read("args").count("--worker-id") == 2)
        self.write("end", "SUCCEEDED")
        _, err = self.finish(process, 0)
        self.assertIn("restarted worker", err)
        self.assertEqual(alive(self.folder), {}, "also the stray processes are gone")

    def children(self):
        """The worker: the child of the supervisor that sleeps."""
        supervisor = self.read("state/supervisor.pid").strip()
        with open(f"/proc/{supervisor}/task/{supervisor}/children", encoding="ascii") as file:
            return [pid for pid in file.read().split() if "sleep" in alive(self.folder).get(int(pid), "")]

    def test_a_killed_cli_takes_everything_with_it(self):
        process = self.start()
        self.wait_until_watching()
        process.kill()
        process.communicate()
        wait_for("all processes to end", lambda: not alive(self.folder))

    def test_a_killed_supervisor_takes_its_children_with_it(self):
        process = self.start()
        self.wait_until_watching()
        os.kill(int(self.read("state/supervisor.pid")), signal.SIGKILL)
        self.finish(process, 5)
        wait_for("server and worker to end", lambda: not [c for c in alive(self.folder).values() if "strata" in c])
        for told in ("goes on from the last checkpoint", "no local run uses"):  # the second time there is no trace of it
            done = subprocess.run([STRATA, "local", "stop", "--state-dir", "state"], cwd=self.folder, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(told, done.stderr)

    def test_sigterm_stops_all(self):
        process = self.start()
        self.wait_until_watching()
        process.terminate()
        _, err = self.finish(process, 7)
        self.assertIn("goes on from the last checkpoint", err)
        self.assertEqual(alive(self.folder), {})

    def test_two_interrupts_stop_all_and_the_next_run_goes_on(self):
        process = self.start()
        self.wait_until_watching()
        process.send_signal(signal.SIGINT)
        wait_for("the supervisor or the end", lambda: process.poll() is not None or True)
        time.sleep(0.3)  # two presses, not one
        process.send_signal(signal.SIGINT)
        self.finish(process, 7)
        self.assertEqual(alive(self.folder), {})
        self.write("end", "SUCCEEDED")
        _, err = self.finish(self.start(), 0)
        self.assertIn("going on with austen-ab12", err)
        self.write("job.yaml", JOB.replace("steps: 3", "steps: 4"))
        _, err = self.finish(self.start(), 9)
        self.assertIn("unfinished job austen-ab12", err)
        self.assertIn("training.steps: 3 -> 4", err)
        self.assertIn("--restart", err)
        _, err = self.finish(self.start("--restart"), 0)
        self.assertIn("cancelled austen-ab12", err)
        self.assertIn("submitted", err)

    def test_an_edited_file_of_an_unfinished_job_is_refused_before_anything_starts(self):
        process = self.start()
        wait_for("the job's note", lambda: os.path.exists(self.path("state/unfinished-job.pb")))
        process.terminate()
        self.finish(process, 7)
        started = self.read("args")
        self.write("job.yaml", JOB.replace("steps: 3", "steps: 4"))
        _, err = self.finish(self.start(), 9)
        for told in ("unfinished job austen-ab12", "training.steps: 3 -> 4", "--restart"):
            self.assertIn(told, err)
        self.assertEqual(self.read("args"), started)
        self.write("end", "SUCCEEDED")
        _, err = self.finish(self.start("--restart"), 0)
        self.assertIn("cancelled austen-ab12", err)
        self.assertFalse(os.path.exists(self.path("state/unfinished-job.pb")))

    def test_budgets_that_the_file_leaves_open_are_flags_and_may_change_between_runs(self):
        self.write("job.yaml", JOB.replace("device: 16MiB, host: 64MiB, nvme: 64MiB, ", ""))
        process = self.start("--device", "16MiB", "--host", "64MiB", "--nvme", "64MiB")
        self.wait_until_watching()
        process.terminate()
        self.finish(process, 7)
        self.write("end", "SUCCEEDED")
        _, err = self.finish(self.start("--device", "32MiB", "--host", "48MiB", "--nvme", "32MiB"), 0)
        self.assertIn("going on with austen-ab12", err)
        for bytes_ in (16 << 20, 32 << 20):
            self.assertIn(f"--device-bytes {bytes_} ", self.read("args"))

    def test_a_budget_is_said_once_and_is_a_size(self):
        for flag, code, told in (("--device=32MiB", 8, "memory.device: 16 MiB"), ("--host=many", 2, "--host"), ("--nvme=0", 2, "more than nothing")):
            _, err = self.finish(self.start(flag), code)
            self.assertIn(told, err)
            self.assertFalse(os.path.exists(self.path("state")))
        self.write("job.yaml", JOB.replace("device: 16MiB, host: 64MiB, nvme: 64MiB, ", ""))
        _, err = self.finish(self.start("--nvme=1000TiB"), 8)
        self.assertIn("--nvme: is 1000 TiB", err)

    def test_a_timeout_stops_the_training_and_says_so(self):
        _, err = self.finish(self.start("--timeout", "2"), 6)
        self.assertIn("did not end within 2s", err)
        self.assertIn("goes on from the last checkpoint", err)
        self.assertEqual(alive(self.folder), {})

    def test_one_interrupt_detaches(self):
        process = self.start()
        self.wait_until_watching()
        process.send_signal(signal.SIGINT)
        out, err = self.finish(process, 0)
        address = re.search(r"strata watch austen-ab12 --server (127\S+)", err).group(1)
        self.assertTrue(self.child("strata-server"))
        self.write("job.yaml", JOB.replace("steps: 3", "steps: 4"))
        _, err = self.finish(self.start(), 9)
        self.assertIn("training.steps: 3 -> 4", err)
        self.write("job.yaml", JOB)
        self.write("end", "SUCCEEDED")
        done = subprocess.run([STRATA, "watch", "austen-ab12", "--server", address], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([STRATA, "local", "stop", "--state-dir", self.path("state")], capture_output=True, text=True, timeout=90, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(alive(self.folder), {})
        done = subprocess.run([STRATA, "local", "stop", "--state-dir", self.path("state")], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)

    def read_until(self, process, text):
        seen = ""
        while text not in seen:
            line = process.stderr.readline()
            self.assertTrue(line, seen)
            seen += line
        return seen

    def detach(self):
        process = self.start()
        self.wait_until_watching()
        process.send_signal(signal.SIGINT)
        self.finish(process, 0)

    def test_the_same_command_watches_a_detached_run_again_and_ends_it(self):
        self.detach()
        server = self.child("strata-server")
        again = self.start()
        self.read_until(again, "watching austen-ab12 again")
        self.read_until(again, "step ")
        again.send_signal(signal.SIGINT)
        _, err = self.finish(again, 0)
        self.assertIn("The same command watches it again", err)
        self.assertEqual(self.child("strata-server"), server)
        again = self.start()
        self.write("end", "SUCCEEDED")
        out, err = self.finish(again, 0)
        self.assertIn("watching austen-ab12 again", err)
        self.assertIn("train loss   2.5000", out)
        self.assertEqual(alive(self.folder), {})

    def test_a_detached_run_that_is_over_gives_way_to_a_new_one(self):
        self.detach()
        server = self.child("strata-server")
        os.remove(self.path("job"))
        process = self.start()
        self.assertIn("stopping the server and worker of an earlier run", self.read_until(process, "submitted"))
        self.assertNotEqual(self.child("strata-server"), server)
        process.send_signal(signal.SIGTERM)
        self.finish(process, 7)
        self.assertEqual(alive(self.folder), {})

    def test_a_detached_run_begins_anew_with_restart(self):
        self.detach()
        self.write("job.yaml", JOB.replace("steps: 3", "steps: 4"))
        process = self.start("--restart")
        self.assertIn("cancelled austen-ab12", self.read_until(process, "submitted"))
        self.write("end", "SUCCEEDED")
        self.finish(process, 0)
        self.assertEqual(alive(self.folder), {})

    def test_a_server_that_cannot_start_is_told_with_its_log(self):
        self.write("bin/strata-server", "#!/bin/sh\necho the disk is on fire >&2\nexit 3\n")
        _, err = self.finish(self.start(), 5)
        self.assertIn("the disk is on fire", err)
        self.assertIn("exit code 3", err)
        self.assertEqual(alive(self.folder), {})

    def test_a_missing_program_is_told(self):
        os.remove(self.path("bin/strata-worker"))
        _, err = self.finish(self.start(), 3)
        self.assertIn("strata-worker", err)
        self.assertFalse(os.path.exists(self.path("state")))

    def test_a_state_folder_that_cannot_be_made_leaves_no_nvme_folder(self):
        _, err = self.finish(self.start("--nvme-path", "scratch", state="/proc/state"), 8)
        self.assertIn("--state-dir", err)
        self.assertFalse(os.path.exists(self.path("scratch")))

    def test_export_to_a_strange_folder_is_refused_before_anything_starts(self):
        os.mkdir(self.path("mine"))
        self.write("mine/thesis.tex", "")
        _, err = self.finish(self.start("--export", "mine"), 9)
        self.assertIn("name a new folder", err)
        self.assertFalse(os.path.exists(self.path("state")))

    def test_an_export_that_could_not_be_written_is_refused_before_anything_starts(self):
        for path, told in (("/proc/strata/export", "/proc"), ("text.txt/export", "is not a folder")):
            _, err = self.finish(self.start("--export", path), 8)
            self.assertIn("error: --export: ", err)
            self.assertIn(told, err)
            self.assertFalse(os.path.exists(self.path("state")), path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
