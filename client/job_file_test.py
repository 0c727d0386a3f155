#!/usr/bin/python3
"""Job files that are refused before anything is created, and what a plan makes of others."""
import json
import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import JOB, STRATA, strata, write_job  # pylint: disable=wrong-import-position

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")


class JobFileTest(unittest.TestCase):
    """Bad job files: exit code, path, line and remedy, within 2 seconds, with nothing created."""

    def setUp(self):
        self.folder = write_job()

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
        os.remove(os.path.join(self.folder, "job.yaml"))
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

    def test_the_job_file_of_the_readme_is_one(self):
        with open(README, encoding="utf-8") as file:
            text = file.read()
        (job,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        with open(os.path.join(self.folder, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(job)
        done = strata("plan", "job.yaml", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("predicted step time", done.stdout)

    def test_missing_data(self):
        self.refuse(8, "job.yaml:5:11: data.train[0]", "No such file", "job file's folder", change=("text.txt", "none.txt"))
        done = strata("plan", "job.yaml", cwd=self.folder)
        self.assertEqual(done.returncode, 8)
        self.assertIn("job.yaml:5:11: data.train[0]", done.stderr)
        self.assertIn("predicted step time", done.stdout, "how it would fit is told all the same")

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

    def test_model_that_is_not_supported(self):
        model = os.path.join(self.folder, "model")
        os.mkdir(model)
        for name, text in (("config.json", '{"model_type": "bert"}'), ("model.safetensors", "")):
            with open(os.path.join(model, name), "w", encoding="ascii") as file:
                file.write(text)
        told = 'job.yaml:3:9: model.from: '
        self.refuse(8, told, '"model_type" is "bert"', change=(JOB.splitlines()[2], "  from: model"))
        done = strata("plan", "job.yaml", cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr.count("model_type")), (8, 1))
        self.assertIn(told, done.stderr)

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
