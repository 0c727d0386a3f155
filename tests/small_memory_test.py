#!/usr/bin/env python3
"""Control groups of little memory. Measuring how fast the machine is takes what a group has room for, says so, and gives way
to a guess that says so before the kernel would kill anything. Budgets that are auto leave what the programs themselves take,
or are refused; a worker's follow a limit that changes. A trainer that the kernel kills for memory is reported as that, with
the limit, and counts towards max_failures; so does one that ends with its agent when that is killed.

Where no memory control group of version 1 can be made the test says so and skips.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cgroup import Cgroup  # pylint: disable=wrong-import-position
from cluster import Cluster, binary, wait_for  # pylint: disable=wrong-import-position

MIB = 1 << 20
JOB = """
name: small
model:
  config: {{architecture: llama, layers: {layers}, hidden: {hidden}, heads: 4, vocab: 256, max_seq: 32}}
data: {{train: [text.txt], tokenizer: bytes, seq_len: 32}}
training: {{steps: {steps}, global_batch: 2, micro_batch: 2, optimizer: {{lr: 1e-3}}, seed: 5}}
{memory}
checkpoint: {{every_steps: 2, keep_last: 1}}
scheduling: {{max_failures: 2}}
"""
EXPLICIT = "memory: {device: 16MiB, host: 16MiB, nvme: 128MiB}"

# Takes memory until the kernel has killed somebody, and gives it back. In a group of this limit that is the trainer: half of
# the limit is added to its size, which is more than the rest of the group has room for. Where that
# frees its memory too late, this program is killed after it.
KILL_LIMIT = 96 * MIB
HOG = """
import sys
def kills():
    with open(sys.argv[1] + "/memory.oom_control") as file:
        return int(file.read().split()[-1])
before, taken = kills(), []
while kills() == before:
    taken.append(bytearray(1 << 20))
"""


def write_job(folder, layers, hidden, steps, memory=""):
    path = os.path.join(folder, "job.yaml")
    with open(path, "w", encoding="ascii") as file:
        file.write(JOB.format(layers=layers, hidden=hidden, steps=steps, memory=memory))
    return path


def run(cgroup, cache, *arguments):
    return subprocess.run(cgroup.command(binary("client/strata"), "-o", "json", *arguments), capture_output=True, text=True,
                          check=False, env={**os.environ, "XDG_CACHE_HOME": cache})


def speeds_in(limit, job, cache):
    """(source of the speeds, whether they are guessed) of a plan made in a group of `limit` MiB, measured there."""
    shutil.rmtree(cache, ignore_errors=True)
    with Cgroup("calibrate", limit * MIB) as cgroup:
        done = run(cgroup, cache, "plan", job)
        assert done.returncode == 0, done.stderr
        assert cgroup.kills() == 0, f"{cgroup.kills()} kills in {limit} MiB"
        machine = json.loads(done.stdout)["machine"]
        print(f"{limit} MiB: peak {cgroup.peak() / MIB:.0f} MiB, {machine['source']}")
    shutil.rmtree(cache, ignore_errors=True)
    guessed = machine.get("guessed", False)
    if guessed:
        assert "predicted times are a guess: measuring how fast this machine is takes" in done.stderr, done.stderr
        assert "raise the limit" in machine["source"] and "memory.limit_in_bytes" in machine["source"], machine["source"]
    return machine["source"], guessed


def calibration_fits(folder):
    job = write_job(folder, 2, 64, 2, EXPLICIT)
    cache = os.path.join(folder, "cache")
    kinds = []
    for limit in (160, 128, 104, 80, 64, 48, 40, 32, 24, 20):
        source, guessed = speeds_in(limit, job, cache)
        kinds.append(0 if guessed else int(source.split(" in ")[1].split()[0]) if " of memory instead of " in source else 96)
    assert kinds == sorted(kinds, reverse=True), kinds
    assert set(kinds) == {96, 48, 24, 12, 0}, "each size was there, and the end"
    if os.path.isdir("/dev/shm"):
        # Files of the measurement are memory as well.
        source, guessed = speeds_in(112, job, f"/dev/shm/strata-small-memory-{os.getpid()}")
        assert not guessed and " in 24 MiB of memory" in source, source


def auto_holds(folder):
    cache = os.path.join(folder, "cache")
    for limit, layers, hidden in ((64, 8, 160), (96, 8, 224), (160, 8, 320), (256, 10, 384)):
        write_job(folder, layers, hidden, 3)
        state = os.path.join(folder, f"run_{limit}")
        with Cgroup("auto", limit * MIB) as cgroup:
            done = run(cgroup, cache, "local", "run", os.path.join(folder, "job.yaml"), "--state-dir", state)
            assert done.returncode == 0, done.stderr
            wait_for("the group to be left", lambda: not cgroup.read("cgroup.procs"))
            assert cgroup.kills() == 0, f"{cgroup.kills()} kills in {limit} MiB"
        status = json.loads(done.stdout)["status"]
        assert status["attempt"] == 1, status
        tiers = {row["tier"]: (int(row["peak_bytes"]), int(row["budget_bytes"])) for row in status["plan"]["tiers"]}
        print(f"{limit} MiB: " + ", ".join(f"{tier} {peak / MIB:.1f} of {budget / MIB:.1f} MiB" for tier, (peak, budget) in tiers.items()))
        assert sum(tiers[tier][0] for tier in ("device", "host")) >= 0.75 * sum(tiers[tier][1] for tier in ("device", "host")), "they are made use of"
    for limit in (32, 24):
        with Cgroup("auto", limit * MIB) as cgroup:
            done = run(cgroup, cache, "local", "run", os.path.join(folder, "job.yaml"), "--state-dir", os.path.join(folder, "none"))
            print(f"{limit} MiB: exit code {done.returncode}: {done.stderr.strip()}")
            assert done.returncode == 8, done.stderr
            for said in ("auto finds no memory for the device tier", "memory.limit_in_bytes", "raise the limit"):
                assert said in done.stderr, done.stderr
            assert cgroup.kills() == 0


def limits_that_change_are_followed(folder):
    with Cgroup("change", 256 * MIB) as cgroup:
        with Cluster(folder, device_bytes="auto", host_bytes="auto", nvme_bytes=64 * MIB, worker_prefix=cgroup.command()) as cluster:
            def offered():
                code, out, _ = cluster.cli("-o", "json", "worker", "describe", "w1", check=False)
                capacity = json.loads(out)["capacity"] if code == 0 else {}
                return tuple(int(capacity.get(f"{tier}_bytes", 0)) for tier in ("device", "host"))

            first = wait_for("the worker", lambda: min(offered()) > 0 and offered())
            print(f"256 MiB: {first}")
            for limit in (128, 20, 256):
                before = offered()
                cgroup.write("memory.limit_in_bytes", limit * MIB)
                after = wait_for("other budgets", lambda: offered() != before and offered())  # pylint: disable=cell-var-from-loop
                print(f"{limit} MiB: {after}")
                assert sum(after) <= limit * MIB * 17 // 20, after
                assert (after == (1, 1)) == (limit == 20), after
            # Of the same limit the same, but for what the programs have taken meanwhile.
            assert abs(sum(after) - sum(first)) < 8 * MIB, (first, after)
        assert cgroup.kills() == 0
        wait_for("the group to be left", lambda: not cgroup.read("cgroup.procs"))


def take_all(cgroup):
    before = cgroup.kills()
    ended = subprocess.run(cgroup.command(sys.executable, "-c", HOG, cgroup.path), check=False).returncode
    assert ended in (0, -signal.SIGKILL), ended
    assert cgroup.kills() > before


def kills_are_told_and_counted(folder):
    with Cgroup("kills", KILL_LIMIT) as cgroup:
        with Cluster(folder, device_bytes=16 * MIB, host_bytes=16 * MIB, nvme_bytes=128 * MIB, worker_prefix=cgroup.command()) as cluster:
            job = cluster.submit(write_job(folder, 8, 160, 100_000, EXPLICIT))

            def started(attempt):
                found = cluster.get(job)
                return found and int(found["status"].get("attempt", 0)) == attempt and found["status"]["state"] == "RUNNING"

            def failed(count):
                found = cluster.get(job)
                return found if found and int(found["status"].get("failures_counted", 0)) == count else None

            def check(found, attempt):
                failure = found["status"]["last_failure"]
                print(f"attempt {failure['attempt']}: {failure['cause']}: {failure['message']}")
                assert failure["cause"] == "HOST_OOM" and failure["attempt"] == attempt and failure["signal"] == 9, failure
                assert "killed by the kernel" in failure["message"], failure
                assert f"the limit is {KILL_LIMIT} bytes (96 MiB), memory.limit_in_bytes of the control group {cgroup.path}" in failure["message"]
                assert int(found["status"].get("failures_uncounted", 0)) == 0

            wait_for("the first attempt", lambda: started(1))
            worker = cluster.children["worker"].pid
            take_all(cgroup)
            check(wait_for("the first failure", lambda: failed(1)), 1)
            assert cluster.children["worker"].poll() is None and cluster.children["worker"].pid == worker, "the agent lives"

            # The agent instead, and the trainer with it.
            wait_for("the second attempt", lambda: started(2))
            with open(f"/proc/{worker}/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
            take_all(cgroup)
            wait_for("the agent's end", lambda: cluster.children["worker"].poll() is not None)
            cluster.start_worker()
            check(wait_for("the second failure", lambda: failed(2)), 2)

            wait_for("the third attempt", lambda: started(3))
            take_all(cgroup)
            end = cluster.wait_until_ended(job)
            check(end, 3)
            assert end["status"]["state"] == "FAILED" and int(end["status"]["failures_counted"]) == 3, end["status"]
        wait_for("the group to be left", lambda: not cgroup.read("cgroup.procs"))


def main():
    try:
        with Cgroup("probe", 64 * MIB):
            pass
    except OSError as error:
        print(f"skipped: no memory cgroup can be made: {error}")
        return
    folder = tempfile.mkdtemp(prefix="small_memory_", dir=os.environ.get("TEST_TMPDIR"))
    try:
        with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("It is a truth universally acknowledged. " * 400)
        for part in (calibration_fits, auto_holds, limits_that_change_are_followed, kills_are_told_and_counted):
            print(f"---- {part.__name__}", flush=True)
            part(folder)
    finally:
        shutil.rmtree(folder)


main()
