#!/usr/bin/env python3
"""A job goes on under other memory than it began with: workers with other budgets take it over one after the other, so that
its states live on the device, on NVMe, in the host, on NVMe again, in other chunks and depths as the planner chooses. Every
step has the bits of a run that stayed where it began, whether the worker was stopped (and the job wrote a checkpoint), or
killed (and the job went back to its last one).
"""

import os
import random
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, wait_for  # pylint: disable=wrong-import-position

MIB = 1 << 20
STEPS = 60
# Budgets of device, host and NVMe; where the planner then has to put the optimizer's states. How the worker ends.
PLACES = [((256, 256, 256), "device", "stop"), ((8, 10, 256), "nvme", "kill"), ((8, 256, 256), "host", "stop"), ((8, 12, 256), "nvme", None)]
# Eight-bit states take half of the room.
EIGHT_BIT_PLACES = [((256, 256, 256), "device", "stop"), ((8, 4, 256), "nvme", "kill"), ((8, 256, 256), "host", "stop"), ((8, 5, 256), "nvme", None)]
JOBS = [("clipped", "adamw", 0.5, PLACES), ("unclipped", "adamw", 0, PLACES), ("eight_bit", "adamw8bit", 0.5, EIGHT_BIT_PLACES)]

# No budget and no placement of its own: all is the worker's and the planner's.
JOB = """
name: elsewhere
model:
  config: {{architecture: llama, layers: 6, hidden: 128, heads: 4, ffn: 256, vocab: 256, max_seq: 32}}
data: {{train: [{text}], tokenizer: bytes, seq_len: 32}}
training:
  steps: {steps}
  global_batch: 4
  micro_batch: 2
  optimizer: {{name: {optimizer}, lr: 1e-3}}
  schedule: {{name: cosine, warmup_steps: 10, min_lr: 1e-4}}
  grad_clip: {clip}
  seed: 9
  report_state_hash: true
checkpoint: {{every_steps: 6, keep_last: 2}}
"""


def homes(plan):
    """Where most of the optimizer's states are."""
    row = next(row for row in plan["placement"] if row["what"] == "optimizer")
    return max(("device", "host", "nvme"), key=lambda tier: int(row.get(f"{tier}_bytes", 0)))


def rows_of(cluster, job):
    rows = cluster.steps(job)
    return [(step, rows[step]["loss_bits"], rows[step]["grad_norm"], rows[step]["state_hash"]) for step in sorted(rows)]


def check_wear(cluster, job, ended):
    """What the job has written to NVMe is counted over its attempts: it never falls, also where an attempt writes nothing."""
    rows = cluster.steps(job)
    written = [rows[step]["nvme_lifetime_written_bytes"] for step in sorted(rows) if "nvme_lifetime_written_bytes" in rows[step]]
    total = int(ended["status"]["progress"]["nvme_written_bytes"])
    print(f"{job}: {total / MIB:.0f} MiB written to NVMe in all, {len(written)} of {STEPS} steps had states there", flush=True)
    assert written and written == sorted(written)
    assert total >= written[-1] > 0


def move(cluster, budgets, end):
    """To a worker with these budgets in MiB; how the one before it ends."""
    cluster.stop("worker") if end == "stop" else cluster.kill("worker")
    cluster.set_capacity(*(mib * MIB for mib in budgets))
    cluster.start_worker()


def main():
    root = tempfile.mkdtemp(prefix="resume_elsewhere_test_", dir=os.environ.get("TEST_TMPDIR"))
    text = os.path.join(root, "text.txt")
    with open(text, "wb") as file:
        file.write(bytes(random.Random(1).choices(b"abcdefgh \n", k=60000)))
    with Cluster(os.path.join(root, "run")) as cluster:
        for name, optimizer, clip, places in JOBS:
            move(cluster, places[0][0], "stop")
            job_file = os.path.join(root, f"{name}.yaml")
            with open(job_file, "w", encoding="utf-8") as file:
                file.write(JOB.format(text=text, steps=STEPS, clip=clip, optimizer=optimizer))
            stayed = cluster.submit(job_file)
            assert cluster.wait_until_ended(stayed)["status"]["state"] == "SUCCEEDED"
            expected = rows_of(cluster, stayed)
            assert [row[0] for row in expected] == list(range(1, STEPS + 1))

            job = cluster.submit(job_file)
            attempts, modes = set(), set()
            for number, (_, home, end) in enumerate(places):
                def runs():
                    status = cluster.get(job)["status"]
                    assert status["state"] not in ("FAILED", "SUCCEEDED"), status
                    return status if status["state"] == "RUNNING" and int(status["attempt"]) not in attempts else None
                status = wait_for(f"an attempt in the {home}", runs)
                attempts.add(int(status["attempt"]))
                modes.add(status["plan"]["mode"])
                assert homes(status["plan"]) == home, (home, status["plan"]["placement"])
                first = int(status.get("progress", {}).get("step", 0))
                print(f"{job}: attempt {status['attempt']} with the optimizer in the {home}, {status['plan']['mode']}, "
                      f"prefetch {status['plan']['prefetch_depth']}, from step {first}", flush=True)
                if end is None:
                    break
                wait_for("it to get on", lambda: cluster.step(job) >= min(first + 8, STEPS * (number + 1) // len(places)))
                move(cluster, places[number + 1][0], end)
            ended = cluster.wait_until_ended(job)
            assert ended["status"]["state"] == "SUCCEEDED", ended["status"]
            assert rows_of(cluster, job) == expected, f"{name}: the move shows"
            assert len(attempts) == len(places)
            check_wear(cluster, job, ended)
            wait_for("the NVMe path to be empty", lambda: not cluster.leftovers(), 30)
    shutil.rmtree(root)
    print("device, NVMe, host and NVMe again: same bits at every step")


main()
