#!/usr/bin/env python3
"""A job on a disk that becomes slow, seen from outside: the same losses, stall counters that say what is waited for, and a
`strata cancel` that does not wait for the step. Memory returns to the worker only when the trainer, and with it every
transfer that still touched it, is gone.

usage: slow_disk_test.py [MIB_PER_SECOND]    each way; 20 in CI

The disk is throttled with the blkio controller (cgroup version 1) for the worker alone; where that cannot be had the test
says so and skips.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, wait_for  # pylint: disable=wrong-import-position

MIB = 1 << 20
BLKIO = "/sys/fs/cgroup/blkio"
STEPS = 6
SLOW_MIB_PER_SECOND = 20  # a step moves some 50 MiB each way

JOB = """
name: slow
model:
  config: {{architecture: llama, layers: 8, hidden: 192, heads: 4, ffn: 512, vocab: 256, max_seq: 32}}
data: {{train: [{text}], tokenizer: bytes, seq_len: 32}}
training: {{steps: {steps}, global_batch: 2, micro_batch: 2, optimizer: {{lr: 1e-3}}, seed: 5}}
memory: {{device: 16MiB, host: 64MiB, nvme: 256MiB, placement: {{params: nvme, optimizer: nvme}}, chunk: 1MiB, require: [o_direct]}}
checkpoint: {{on_stop: false}}
"""


def disk_of(folder):
    """MAJOR:MINOR of the whole disk that the folder is on; what has none (tmpfs) is an OSError."""
    device = os.stat(folder).st_dev
    sys_path = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if os.path.exists(os.path.join(sys_path, "partition")):
        sys_path = os.path.dirname(sys_path)
    with open(os.path.join(sys_path, "dev"), encoding="ascii") as file:
        return file.read().strip()


class Throttle:
    """A blkio cgroup; `limit` bounds reads and writes of its members, each; 0 lifts the bound."""

    def __init__(self, name, folder):
        self.disk = disk_of(folder)
        self.path = os.path.join(BLKIO, name)
        os.mkdir(self.path)
        try:
            self.limit(0)
        except OSError:
            os.rmdir(self.path)
            raise

    def limit(self, bytes_per_second):
        for direction in ("read", "write"):
            with open(os.path.join(self.path, f"blkio.throttle.{direction}_bps_device"), "w", encoding="ascii") as file:
                file.write(f"{self.disk} {bytes_per_second}")

    def entering(self):
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.path, "cgroup.procs")]

    def members(self):
        with open(os.path.join(self.path, "cgroup.procs"), encoding="ascii") as file:
            return file.read().split()

    def remove(self):
        wait_for("the cgroup to be empty", lambda: not self.members(), 30)
        os.rmdir(self.path)


def has_o_direct(folder):
    probe = os.path.join(folder, "probe")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
        return True
    except OSError:
        return False
    finally:
        if os.path.exists(probe):
            os.remove(probe)


def mean(rows, name):
    return sum(row.get(name, 0) for row in rows) / len(rows)


def check_stalls(normal, slow):
    """Rows of both runs, without the steps that fill the pipeline."""
    waits = [f"stall_ms.{cause}" for cause in ("wait_read", "wait_write", "wait_slot", "wait_update", "wait_copy", "wait_compute")]
    for name in ["step_ms", "exposed_io_ms", "io_read_p50_ms", "io_write_p50_ms", *waits]:
        print(f"{name:24} {mean(normal, name):10.1f} {mean(slow, name):10.1f}", flush=True)
    for name in ("step_ms", "exposed_io_ms", "stall_ms.wait_read", "stall_ms.wait_write"):
        assert mean(slow, name) > 2 * mean(normal, name), name
    # Lanes behind a slow disk wait for each other; what they wait for most is the disk.
    causes = sorted((name for name in slow[-1] if name.startswith("stall_ms.")), key=lambda name: -mean(slow, name))
    assert causes[0] in ("stall_ms.wait_read", "stall_ms.wait_write"), causes
    for name in ("io_read_p50_ms", "io_write_p50_ms"):
        assert mean(slow, name) > 2 * mean(normal, name), name
    for row in normal + slow:
        assert row["nvme_read_bytes.records"] == normal[0]["nvme_read_bytes.records"], "the same bytes, slower"


def cancel_and_watch(cluster, job):
    """Seconds from the cancel to the end of the trainer and to the state CANCELLED."""
    begin = time.monotonic()
    cluster.cli("cancel", job, "--reason", "too slow")
    gone = None  # seconds after which no trainer was seen

    def allocated():
        _, out, _ = cluster.cli("-o", "json", "worker", "list")
        return json.loads(out)[0].get("allocated", {}).get("host_bytes", 0)

    def ended():
        nonlocal gone
        free = allocated() == 0  # before the trainers: what is free must have been left by them already
        trainers = cluster.trainers()
        assert not (free and trainers), "memory was given back under a trainer that still has transfers in flight"
        if not trainers and gone is None:
            gone = time.monotonic() - begin
        state = cluster.state(job)
        assert state in ("STOPPING", "CANCELLED"), state
        return state == "CANCELLED"
    wait_for("the cancelled job to end", ended, 60)
    assert not cluster.trainers()
    end = time.monotonic() - begin
    return end if gone is None else gone, end  # it may have gone between the last two looks


def main():
    root = tempfile.mkdtemp(prefix="slow_disk_test_", dir=os.environ.get("TEST_TMPDIR"))
    try:
        throttle = Throttle(f"strata-slow-disk-{os.getpid()}", root)
    except OSError as error:
        print(f"skipped: the disk cannot be throttled: {error}")
        return
    try:
        if not has_o_direct(root):
            print("skipped: the test folder's file system has no O_DIRECT, and the page cache hides how slow a disk is")
            return
        text = os.path.join(root, "text.txt")
        with open(text, "wb") as file:
            file.write(bytes(random.Random(1).choices(b"abcdefgh \n", k=20000)))
        job_file = os.path.join(root, "job.yaml")
        with open(job_file, "w", encoding="utf-8") as file:
            file.write(JOB.format(text=text, steps=STEPS))
        with Cluster(os.path.join(root, "run"), worker_prefix=throttle.entering()) as cluster:
            first = cluster.submit(job_file)
            assert cluster.wait_until_ended(first)["status"]["state"] == "SUCCEEDED"
            normal = cluster.steps(first)

            throttle.limit(int(sys.argv[1] if len(sys.argv) > 1 else SLOW_MIB_PER_SECOND) * MIB)
            second = cluster.submit(job_file)
            wait_for("three slow steps", lambda: cluster.step(second) >= 3)
            slow = cluster.steps(second)
            gone, cancelled = cancel_and_watch(cluster, second)
            print(f"cancelled in a step of {mean([slow[3]], 'step_ms'):.0f} ms: the trainer was gone after {gone:.2f} s, "
                  f"the job CANCELLED after {cancelled:.2f} s")
            assert [slow[step]["loss_bits"] for step in sorted(slow)] == [normal[step]["loss_bits"] for step in sorted(slow)]
            check_stalls([normal[step] for step in (3, 4, 5, 6)], [slow[3]])
            job = cluster.get(second)
            assert int(job["status"].get("progress", {}).get("step", 0)) < STEPS, "it was cancelled before its end"
            assert not cluster.leftovers(), cluster.leftovers()
            with open(os.path.join(cluster.folder, "worker.log"), encoding="utf-8") as log:
                assert "sending SIG" not in log.read(), "the trainer had to be killed"

            # The worker is sound: the next job trains as the first did.
            throttle.limit(0)
            third = cluster.submit(job_file)
            assert cluster.wait_until_ended(third)["status"]["state"] == "SUCCEEDED"
            rows = cluster.steps(third)
            assert [rows[step]["loss_bits"] for step in sorted(rows)] == [normal[step]["loss_bits"] for step in sorted(normal)]
        print("a slow disk: same bits, stalls that name it, a cancel within the step")
    finally:
        throttle.remove()
        shutil.rmtree(root)


main()
