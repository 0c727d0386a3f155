#!/usr/bin/env python3
"""The main job's figures, and PyTorch's beside them in the same minutes: rounds of Strata, then the twin, then Strata.

Runs a shortened deploy/examples/austen.yaml through `strata local run -o jsonl`, takes medians over the steps after
the warm-up and prints a table. The twin (torch_twin.py) needs Debian's python3-torch; it gets two threads, a heap on
huge pages that is kept, and no OPENBLAS_* overrides.

usage: main_job.py [--rounds 2] [--steps 40] [--torch-steps 12]     (programs: $STRATA_BIN, a bazel-bin folder)
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WARMUP = 5
FAIR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_NUM_THREADS": "2"}


def strata(steps, folder):
    with open(f"{ROOT}/deploy/examples/austen.yaml", encoding="utf-8") as file:
        text = re.sub(r"steps: 300", f"steps: {steps}", file.read()).replace("../../data", f"{ROOT}/data")
    text = re.sub(r"every_steps: 100", "every_steps: 0", text)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(text)
    run = subprocess.run([f"{os.environ['STRATA_BIN']}/client/strata", "-o", "jsonl", "local", "run", job,
                          "--state-dir", os.path.join(folder, "state")], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stdout + run.stderr)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return [row for row in rows if "step_ms" in row and row["step"] > WARMUP]


def torch(steps):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")} | FAIR
    run = subprocess.run(["/usr/bin/python3", f"{HERE}/torch_twin.py", f"{ROOT}/data/pride.txt", str(steps)],
                         capture_output=True, text=True, env=env, check=False)
    if run.returncode:
        return None, run.stderr.strip().splitlines()[-1]
    return json.loads(run.stdout.splitlines()[-1])["median_tokens_per_s"], ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--torch-steps", type=int, default=12)
    args = parser.parse_args()
    ours, theirs, rows = [], [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-") as folder:
            rows = strata(args.steps, folder)
        ours.append(statistics.median(row["tokens_per_s"] for row in rows))
        speed, error = torch(args.torch_steps)
        if speed is None:
            print(f"no PyTorch twin: {error}")
        else:
            theirs.append(speed)
    print("strata tokens/s, by round:", [round(x) for x in ours])
    if theirs:
        print("torch tokens/s, by round: ", [round(x) for x in theirs])
        print(f"ratio of medians: {statistics.median(ours) / statistics.median(theirs):.2f}")
    def median(name):
        return statistics.median(float(row[name]) for row in rows)
    step = median("step_ms")
    print(f"\nstep {step:.1f} ms, overlap efficiency (busiest lane / step) {median('overlap_efficiency'):.3f}, "
          f"exposed I/O {median('exposed_io_ms'):.1f} ms")
    print("| lane | busy ms | share of the step | MB moved |\n|---|---|---|---|")
    for name in sorted(k[len("busy_ms."):] for k in rows[-1] if k.startswith("busy_ms.")):
        busy, moved = median(f"busy_ms.{name}"), median(f"bytes.{name}")
        print(f"| {name} | {busy:.1f} | {busy / step:.2f} | {moved / 1e6:.1f} |")


main()
