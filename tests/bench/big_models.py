#!/usr/bin/env python3
"""A synthetic model of 1.0 billion parameters and a real one of 350 million train a few steps with 512 MiB of device memory,
4 GiB of host memory and the rest on NVMe. Prints step times, peaks, resident memory and bytes; the exit code is 1 when memory
is not what the plan says.

usage: big_models.py [synthetic] [real] [--steps 4] [--path DIR]      (programs: $STRATA_BIN, a bazel-bin folder; 40 GiB of disk)
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
GIB = 1 << 30
BUDGET = {"device": 512 * MIB, "host": 4 * GIB, "nvme": 40 * GIB}
JOB = """
name: real-350m
model: {config: {architecture: llama, layers: 24, hidden: 1024, heads: 16, ffn: 3392, vocab: 256, max_seq: 32}}
data: {train: [text.txt], tokenizer: bytes, seq_len: 32}
training: {steps: STEPS, global_batch: 2, micro_batch: 1, optimizer: {name: adamw, lr: 1e-4}}
memory: {device: 512MiB, host: 4GiB, nvme: 40GiB}
"""


def run(*arguments):
    command = [f"{os.environ['STRATA_BIN']}/client/strata", *arguments]
    print("$", shlex.join(["strata", *arguments]), flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: {done.stderr}")
    return done.stdout


def show(rows, peaks, rss):
    """Prints each step, and whether memory kept to the budget."""
    for row in rows:
        moved = {way: sum(v for name, v in row.items() if name.startswith(f"nvme_{way}_bytes.")) / GIB for way in ("read", "written")}
        print(f"  step {row['step']}: {row['step_ms']:.0f} ms, NVMe read {moved['read']:.2f} GiB, written {moved['written']:.2f} GiB, loss "
              f"{row['loss']:.4f}, norm {row['grad_norm']:.4g}")
    arenas = peaks["device"] + peaks["host"]
    print("  peaks", {tier: f"{size / MIB:.0f} MiB of {BUDGET[tier] / MIB:.0f}" for tier, size in peaks.items()},
          f"RSS peak {rss / MIB:.0f} MiB: {rss / arenas:.3f} x device and host peak")
    return all(size <= BUDGET[tier] for tier, size in peaks.items()) and rss <= 1.15 * (BUDGET["device"] + BUDGET["host"])


def synthetic(folder, steps):
    lines = run("bench", "offload", "--params", "1B", "--layers", "24", "--steps", str(steps), "--device", "512MiB", "--host", "4GiB",
                "--nvme", "40GiB", "--gradients-home", "nvme", "--nvme-path", folder, "-o", "jsonl").splitlines()
    rows = [json.loads(line) for line in lines]
    summary = rows[-1]["summary"]
    return show(rows[:-1], summary["peak_bytes"], summary["rss_peak_bytes"])


def real(folder, steps):
    with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
        file.write("It is a truth universally acknowledged. " * 400)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w", encoding="ascii") as file:
        file.write(JOB.replace("STEPS", str(steps)))
    lines = run("local", "run", job, "--state-dir", os.path.join(folder, "state"), "--nvme-path", folder, "-o", "jsonl").splitlines()
    rows = [json.loads(line) for line in lines if '"step_ms"' in line]
    return show(rows, {tier: rows[-1][f"{tier}_peak_bytes"] for tier in BUDGET}, rows[-1]["rss_peak_bytes"])


def main():
    parts = {"synthetic": synthetic, "real": real}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[[], *parts], default=[])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--path", default="strata-runs", help="folder on NVMe")
    arguments = parser.parse_args()
    os.makedirs(arguments.path, exist_ok=True)
    kept = True
    for name in arguments.part or parts:
        folder = tempfile.mkdtemp(prefix="big-models-", dir=arguments.path)
        try:
            print(f"== {name}", flush=True)
            kept = parts[name](folder, arguments.steps) and kept
        finally:
            shutil.rmtree(folder)
    print("memory is within the budgets" if kept else "memory is NOT within the budgets")
    return 0 if kept else 1


sys.exit(main())
