"""What the tests of the CLI share: the program, a job file, a coordinator in Python."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_server import FakeServer  # pylint: disable=wrong-import-position

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


def strata(*arguments, timeout=60, **kwargs):
    environment = {key: value for key, value in kwargs.pop("env", os.environ).items() if key != "STRATA_SERVER"}
    return subprocess.run([STRATA, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                          env=environment, **kwargs)


def write_job(text=JOB):
    """A folder with job.yaml and the text that it names."""
    folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    for name, content in (("job.yaml", text), ("text.txt", "It is a truth universally acknowledged" * 100)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)
    return folder


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
