#!/usr/bin/env python3
"""States of 6 GiB train in a memory cgroup of 1.6 GiB: device 320 MiB, host 1 GiB, the rest on NVMe. Nothing is killed, the
process's memory is within 15 % of what the plan says, and the states are those of a run that keeps everything in memory. A
host budget that the cgroup has no room for is refused before the kernel could kill anything.

usage: ram_cap_test.py [DIVISOR]      divides all of these sizes; 1 by hand (10 GiB of memory and 14 GiB of disk), 16 in CI
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cgroup import Cgroup  # pylint: disable=wrong-import-position
from cluster import binary  # pylint: disable=wrong-import-position

MIB = 1 << 20


def bench(folder, params, budgets, gradients, cgroup=None):
    command = [binary("client/strata"), "-o", "json", "bench", "offload", "--params", str(params), "--gradients-home",
               gradients, "--layers", "48", "--steps", "2",
               "--nvme-path", os.path.join(folder, "nvme"), "--state-hash"]
    for tier, size in budgets.items():
        command += [f"--{tier}", str(size)]
    if cgroup:
        command = cgroup.command(*command)
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "XDG_CACHE_HOME": folder})


def report_of(done):
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    divisor = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    params = 460_000_000 // divisor
    limit = 1638 * MIB // divisor
    budgets = {"device": 320 * MIB // divisor, "host": 1024 * MIB // divisor, "nvme": 16384 * MIB // divisor}
    folder = tempfile.mkdtemp(prefix="ram_cap_test_", dir=os.environ.get("TEST_TMPDIR"))
    try:
        cgroup = Cgroup("ram-cap", limit)
    except OSError as error:
        print(f"skipped: no memory cgroup can be made: {error}")
        return
    with cgroup:
        try:
            free = report_of(bench(folder, params, {**budgets, "host": 12288 * MIB // divisor}, "host"))
            assert free["summary"]["peak_bytes"]["nvme"] == 0
            capped = report_of(bench(folder, params, budgets, "nvme", cgroup))
            assert cgroup.kills() == 0
            summary = capped["summary"]
            planned, rss = summary["planned_rss_bytes"], summary["rss_peak_bytes"]
            print(f"{capped['parameters']} parameters, states of {14 * capped['parameters'] / MIB:.0f} MiB, host {budgets['host'] / MIB:.0f} "
                  f"MiB, device {budgets['device'] / MIB:.0f} MiB, cgroup {limit / MIB:.0f} MiB\n"
                  f"peaks {summary['peak_bytes']}, RSS {rss / MIB:.1f} MiB of {planned / MIB:.1f} planned ({rss / planned:.3f} x), cgroup "
                  f"{cgroup.peak() / MIB:.1f} MiB, {cgroup.read('memory.failcnt').strip()} times at its limit, step {summary['step_ms']:.0f} ms")
            assert summary["peak_bytes"] == summary["planned_peak_bytes"]
            # A unit's states are an eighth of the budget, and how many slots a prefetch depth takes is chosen by this machine's speeds.
            assert summary["peak_bytes"]["host"] >= 0.6 * budgets["host"], "the budget is made use of"
            assert 0.85 * planned <= rss <= 1.15 * planned, "RSS within 15 %"
            for one, other in zip(free["steps"], capped["steps"]):
                assert (one["loss"], one["grad_norm"], one["state_hash"]) == (other["loss"], other["grad_norm"], other["state_hash"])
            print("state hash of both:", summary["state_hash"])
            # Gradients alone are more than the control group.
            refused = bench(folder, params, {**budgets, "host": 3072 * MIB // divisor}, "host", cgroup)
            print(f"with three times the host budget: exit code {refused.returncode}: {refused.stderr.strip()}")
            assert refused.returncode != 0 and "memory.limit_in_bytes" in refused.stderr and "lower --host" in refused.stderr
            assert cgroup.kills() == 0
        finally:
            shutil.rmtree(folder)


main()
