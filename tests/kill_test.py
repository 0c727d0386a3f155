#!/usr/bin/env python3
"""kill -9 of trainer, agent and coordinator at random moments: the job goes on after the restart and ends in the
same bits (the SHA-256 of all states after every step), and nothing is left behind.

usage: kill_test.py [SEED]   (default: random; printed)
"""
import os
import random
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, wait_for  # pylint: disable=wrong-import-position

STEPS = 200
KILLS = 3  # per victim

JOB = """
name: kill
model:
  config: {{architecture: llama, layers: 4, hidden: 128, heads: 4, kv_heads: 2, ffn: 256, vocab: 256, max_seq: 64}}
data: {{train: [{text}], eval_fraction: 0.1, tokenizer: bytes, seq_len: 64}}
training:
  steps: {steps}
  global_batch: 8
  micro_batch: 4
  optimizer: {{name: adamw, lr: 1e-3}}
  schedule: {{name: cosine, warmup_steps: 3, min_lr: 1e-4}}
  grad_clip: 1.0
  seed: 3
  report_state_hash: true
memory: {{device: 16MiB, host: 64MiB, nvme: 256MiB, placement: {{params: nvme, optimizer: nvme}}, require: {require}}}
checkpoint: {{every_steps: 20, keep_last: 2}}
"""


def require(folder):
    """[o_direct] where the folder's file system has it."""
    try:
        os.close(os.open(os.path.join(folder, "probe"), os.O_CREAT | os.O_RDWR | os.O_DIRECT))
        return "[o_direct]"
    except OSError:
        print("the test folder's file system has no O_DIRECT: buffered I/O")
        return "[]"


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    root = tempfile.mkdtemp(prefix="kill_test_", dir=os.environ.get("TEST_TMPDIR"))
    text = os.path.join(root, "text.txt")
    with open(text, "wb") as file:
        file.write(bytes(random.Random(1).choices(b"abcdefgh \n", k=60000)))
    job_file = os.path.join(root, "job.yaml")
    with open(job_file, "w", encoding="utf-8") as file:
        file.write(JOB.format(text=text, steps=STEPS, require=require(root)))

    with Cluster(os.path.join(root, "run")) as cluster:
        def run(victim=None, seconds=0.0):
            """One job; with a victim, killed at random moments of the `seconds` that it steps if left alone."""
            job = cluster.submit(job_file)
            wait_for("the first step", lambda: cluster.step(job) >= 1)
            begin = time.monotonic()
            kills = 0
            for _ in range(KILLS if victim else 0):
                time.sleep(rng.uniform(0, 0.5 * seconds))  # the moment of the kill, not a synchronisation
                state, step = cluster.state(job), cluster.step(job)
                if state == "SUCCEEDED":
                    break
                if victim == "trainer":
                    kills += cluster.kill_trainer()
                else:
                    cluster.kill(victim)
                    kills += 1
                    cluster.start_server() if victim == "server" else cluster.start_worker()
                print(f"{job}: kill -9 of the {victim}, {state} at step {step}", flush=True)
            status = cluster.wait_until_ended(job)["status"]
            took = time.monotonic() - begin
            assert status["state"] == "SUCCEEDED", status
            rows = cluster.steps(job)
            assert sorted(rows) == list(range(1, STEPS + 1)), sorted(rows)
            wait_for("the NVMe path to be empty", lambda: not cluster.leftovers(), 30)
            return took, kills, int(status["attempt"]), [(rows[step]["loss_bits"], rows[step]["state_hash"]) for step in sorted(rows)]

        seconds, _, _, expected = run()
        assert len(set(expected)) == STEPS, "every step changes the states"
        for victim in ("trainer", "worker", "server"):
            _, kills, attempts, bits = run(victim, seconds)
            assert bits == expected, f"after kill -9 of the {victim} the bits differ"
            assert kills > 0, f"no kill of the {victim} hit the job"
            # A killed coordinator costs no attempt; a killed trainer or agent one, except between two attempts.
            assert attempts == 1 if victim == "server" else 1 < attempts <= 1 + kills, (victim, kills, attempts)
    print("kill -9 of trainer, agent and coordinator: same bits, nothing left behind")


main()
