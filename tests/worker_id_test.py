#!/usr/bin/env python3
"""Two agents of one worker id, as two hosts of one name are: the second waits while the first has its lease; a killed agent
has its id back at once; one that was silent for longer than its lease finds its place taken, ends its trainer and itself, and
a new one waits in its turn, until the other stops.
"""
import os
import random
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, processes, wait_for  # pylint: disable=wrong-import-position

# More steps than the test has time for: it is cancelled in the end.
JOB = """
name: shared
model:
  config: {{architecture: llama, layers: 2, hidden: 64, heads: 4, ffn: 128, vocab: 256, max_seq: 32}}
data: {{train: [{text}], tokenizer: bytes, seq_len: 32}}
training:
  steps: 10000000
  global_batch: 4
  optimizer: {{name: adamw, lr: 1e-3}}
memory: {{device: 16MiB, host: 64MiB, nvme: 64MiB}}
checkpoint: {{every_steps: 200, keep_last: 2}}
"""
HELD = "worker id w1 is another agent's, whose lease lasts for"


def main():
    root = tempfile.mkdtemp(prefix="worker_id_test_", dir=os.environ.get("TEST_TMPDIR"))
    text = os.path.join(root, "text.txt")
    with open(text, "wb") as file:
        file.write(bytes(random.Random(1).choices(b"abcdefgh \n", k=20000)))
    job_file = os.path.join(root, "job.yaml")
    with open(job_file, "w", encoding="utf-8") as file:
        file.write(JOB.format(text=text))

    with Cluster(os.path.join(root, "run")) as cluster:
        def said(name, words):
            """How often."""
            with open(os.path.join(cluster.folder, f"{name}.log"), encoding="utf-8", errors="replace") as log:
                return log.read().count(words)

        job = cluster.submit(job_file)

        def runs(name, attempt):
            status = cluster.get(job)["status"]
            return int(status.get("attempt", 0)) == attempt and status["state"] == "RUNNING" and len(cluster.trainers(name)) == 1

        wait_for("the first attempt", lambda: runs("worker", 1))
        cluster.start_worker("second")
        wait_for("the second agent to be refused twice", lambda: said("second", HELD) >= 2)
        step = cluster.step(job)
        wait_for("more steps", lambda: cluster.step(job) > step)
        assert runs("worker", 1), cluster.get(job)["status"]
        assert not cluster.trainers("second")

        cluster.kill("worker")
        cluster.start_worker()
        wait_for("the restarted agent to go on", lambda: runs("worker", 2))
        assert not said("worker", HELD), "a restart does not wait for the lease"
        assert not said("second", "registered as"), "a restart loses its id to nobody"

        first = cluster.children["worker"]
        trainers = cluster.trainers()
        first.send_signal(signal.SIGSTOP)
        wait_for("the second agent to take over", lambda: runs("second", 3))
        first.send_signal(signal.SIGCONT)
        assert first.wait(240) == 3, first.returncode
        assert said("worker", "another agent has taken the place of worker w1") == 1
        left = set(processes(r"strata_trainer\b"))
        assert not left & set(trainers), left
        assert runs("second", 3), cluster.get(job)["status"]

        cluster.start_worker()
        wait_for("the first agent to be refused", lambda: said("worker", HELD) >= 1)
        assert runs("second", 3), cluster.get(job)["status"]
        cluster.stop("second")
        wait_for("the first agent to have its id back", lambda: runs("worker", 4))
        cluster.cli("cancel", job)
        assert cluster.wait_until_ended(job)["status"]["state"] == "CANCELLED"
    print("two agents of one worker id: one at a time, and none of them for ever")


main()
