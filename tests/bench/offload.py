#!/usr/bin/env python3
"""The offload engine's figures on a synthetic model (`strata bench offload`), as ratios within one run.

  stream    the optimizer stream against fio (io_uring, O_DIRECT, 1 MiB, depth 32, huge pages, reads and writes mixed), in turn;
            bytes that the kernel counts against 24 B for each parameter whose record is on NVMe
  overlap   compute about equal to I/O, 28 M parameters, the disk held to --throttle (as root): step against busiest lane;
            depth 1 against depth 4
  half      records all on NVMe against half of them in host memory
  eight-bit records on NVMe of adamw against those of adamw8bit, in turn
  estimate  the plan against the run on ten configurations: peaks, bytes, step time

Prints every command before its figures; the last line of each part says whether its limits hold, and the exit code is 1
when one does not. Wants a quiet machine: disks and cores that others use make step times mean nothing.

usage: offload.py [PART ...] [--params 200M] [--steps 6] [--rounds 3] [--throttle 80] [--path DIR]      (programs: $STRATA_BIN, a bazel-bin folder)
"""
import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

GIB = 1 << 30
ALL_ON_NVME = ["--params-home", "host", "--gradients-home", "host", "--optimizer-home", "nvme"]
failures = []


def check(ok, text):
    print(("ok    " if ok else "FAIL  ") + text)
    if not ok:
        failures.append(text)


class Throttle:
    """A disk of a stated speed each way: a group of the kernel's block I/O controller that commands are started in.

    The controller gives who was idle a tenth of a second's bytes at once: operations must be several times as large."""

    def __init__(self, folder, mib_per_s):
        disk = os.stat(folder).st_dev
        device = f"{os.major(disk)}:{os.minor(disk)}"
        if os.path.exists(f"/sys/dev/block/{device}/partition"):
            with open(f"/sys/dev/block/{device}/../dev", encoding="ascii") as file:
                device = file.read().strip()
        limit = mib_per_s << 20
        name = f"strata-bench-{os.getpid()}"
        if os.path.exists("/sys/fs/cgroup/blkio"):
            self.group = f"/sys/fs/cgroup/blkio/{name}"
            rules = {f"blkio.throttle.{verb}_bps_device": f"{device} {limit}" for verb in ("read", "write")}
        else:
            self.group = f"/sys/fs/cgroup/{name}"
            rules = {"io.max": f"{device} rbps={limit} wbps={limit}"}
        os.mkdir(self.group)
        try:
            for file, rule in rules.items():
                with open(os.path.join(self.group, file), "w", encoding="ascii") as to:
                    to.write(rule)
        except OSError:
            self.close()
            raise

    def enter(self):
        with open(os.path.join(self.group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))

    def close(self):
        os.rmdir(self.group)


class Bench:
    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.folder = folder
        self.throttle = None

    def run(self, *flags, params=None, layers=12, steps=None, quiet=False):
        command = [f"{os.environ['STRATA_BIN']}/client/strata", "-o", "json", "bench", "offload", "--params",
                   params or self.arguments.params, "--layers", str(layers), "--steps", str(steps or self.arguments.steps), "--nvme-path",
                   self.folder, *flags]
        if not quiet:
            print("$", shlex.join(["strata", *command[1:]]), flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              preexec_fn=self.throttle.enter if self.throttle else None)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout)


def summary_line(report):
    summary = report["summary"]
    busiest = max(summary["lanes"], key=lambda lane: lane["busy_ms"])
    return (f"step {summary['step_ms']:.0f} ms (predicted {summary['predicted_step_ms']:.0f}), busiest {busiest['lane']} "
            f"{busiest['busy_ms']:.0f} ms, {summary['nvme_gib_per_s']:.2f} GiB/s")


def fio(folder, size):
    """GiB/s read and written, buffers on huge pages as the arena's are."""
    path = os.path.join(folder, "fio")
    command = ["fio", "--name=mix", f"--filename={path}", "--rw=rw", "--bs=1m", "--iodepth=32", f"--size={size}", "--direct=1",
               "--ioengine=io_uring", "--thread", "--overwrite=1", "--end_fsync=0", "--iomem=malloc", "--output-format=json"]
    if not os.path.exists(path):
        subprocess.run([part.replace("--rw=rw", "--rw=write") for part in command], check=True, capture_output=True)
        print("$", shlex.join(command))
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    job = json.loads(done.stdout)["jobs"][0]
    return (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / GIB


def stream(bench):
    """Without clipping nothing waits for the norm, so the stream runs all the time."""
    flags = [*ALL_ON_NVME, "--clip", "0", "--mode", "overlap", "--depth", "4", "--chunk", "16MiB"]
    ours, theirs, report = [], [], None
    for i in range(bench.arguments.rounds):
        theirs.append(fio(bench.folder, 2 * GIB))
        report = bench.run(*flags, quiet=i > 0)
        ours.append(report["summary"]["nvme_gib_per_s"])
        print(f"  fio {theirs[-1]:.2f} GiB/s; strata {summary_line(report)}", flush=True)
    os.remove(os.path.join(bench.folder, "fio"))
    summary = report["summary"]
    expected = 24 * report["parameters"]
    if "kernel_read_bytes" in summary:
        counted = summary["kernel_read_bytes"] + summary["kernel_written_bytes"]
        check(abs(counted / expected - 1) <= 0.03, f"the kernel counts {counted / expected:.4f} x 24 B per parameter (limit 0.97 .. 1.03)")
    gradients = summary["nvme_read_bytes"]["gradients"] + summary["nvme_written_bytes"]["gradients"]
    check(gradients == 0, f"{gradients} bytes of gradients on NVMe (limit 0)")
    ratio = statistics.median(ours) / statistics.median(theirs)
    check(ratio >= 0.85, f"stream {statistics.median(ours):.2f} GiB/s, fio {statistics.median(theirs):.2f}: {ratio:.3f} (limit 0.85)")


def on_held_disk(bench, measure):
    """`measure` with the disk held to --throttle, where that can be done."""
    try:
        bench.throttle = Throttle(bench.folder, bench.arguments.throttle)
        print(f"  the disk is held to {bench.arguments.throttle} MiB/s each way")
    except OSError as error:
        print(f"  the disk as it is: no block I/O group can be made ({error})")
    try:
        measure()
    finally:
        if bench.throttle:
            bench.throttle.close()
            bench.throttle = None


def overlap(bench):
    """Compute lasts as long as I/O. Its delay is asleep, as the host is while an accelerator computes, and the disk has a
    stated speed that leaves the cores time: what is measured is the engine's schedule, not who gets a core."""
    on_held_disk(bench, lambda: overlap_at(bench, [*ALL_ON_NVME, "--clip", "0", "--mode", "overlap", "--chunk", "16MiB"]))


def overlap_at(bench, flags):
    layers = 6
    size = {"params": "28M", "layers": layers}  # a record of each layer and the embedding is 48 MB
    probe = bench.run(*flags, "--depth", "4", **size, steps=4)
    print(" ", summary_line(probe))
    blocks = 2 * (layers + 1) + 1  # forward and backward of the embedding and each layer, and the head
    io = probe["summary"]["step_ms"]
    delay = f"{io / blocks:.3f}ms"
    deep = bench.run(*flags, "--depth", "4", "--compute-delay", delay, **size, steps=5)
    print(" ", summary_line(deep))
    shallow = bench.run(*flags, "--depth", "1", "--compute-delay", delay, **size, steps=4)
    print(" ", summary_line(shallow))
    step = deep["summary"]["step_ms"]
    busiest = max(lane["busy_ms"] for lane in deep["summary"]["lanes"])
    # Before the first record can be updated one block's gradients must be there, and after the last gradient one chunk's records
    # still move: one block and one chunk each way.
    fill = 2 * io / blocks
    check(step <= 1.10 * busiest + fill, f"step {step:.0f} ms, busiest lane {busiest:.0f} ms: {step / busiest:.3f} x "
                                         f"(limit 1.10 x + {fill:.0f} ms of fill and drain)")
    ratio = shallow["summary"]["step_ms"] / step
    check(ratio >= 1.4, f"depth 1 takes {ratio:.2f} x as long (limit 1.4)")


def records_moved(report):
    return sum(report["summary"][f"nvme_{verb}_bytes"]["records"] for verb in ("read", "written"))


def half(bench):
    """Half of the records fit into the host budget when the planner is left the choice."""
    base = ["--params-home", "host", "--gradients-home", "host", "--clip", "0", "--mode", "overlap", "--chunk", "16MiB", "--depth", "4"]
    everything = bench.run(*base, "--optimizer-home", "nvme")
    print(" ", summary_line(everything))
    records = 12 * everything["parameters"]
    budget = everything["plan"]["peak_bytes"]["host"] + records // 2
    part = bench.run(*base, "--host", str(budget // 4096 * 4096), "--nvme", str(64 * GIB))
    print(" ", summary_line(part))
    ratio = records_moved(part) / records_moved(everything)
    check(0.45 <= ratio <= 0.55, f"bytes {ratio:.3f} x (limit 0.45 .. 0.55)")
    ratio = part["summary"]["step_ms"] / everything["summary"]["step_ms"]
    check(ratio <= 0.65, f"step time {ratio:.3f} x (limit 0.65)")


def eight_bit(bench):
    """What half of the traffic is worth: as the disk is, where the cores may be what binds, and on a disk that binds."""
    flags = [*ALL_ON_NVME, "--clip", "0", "--mode", "overlap", "--depth", "4"]
    eight_bit_at(bench, flags, {}, bench.arguments.rounds)
    on_held_disk(bench, lambda: eight_bit_at(bench, [*flags, "--chunk", "16MiB"], {"params": "28M", "layers": 6, "steps": 4}, 1))


def eight_bit_at(bench, flags, size, rounds):
    steps, moved, predicted = {"adamw": [], "adamw8bit": []}, {}, {}
    for _ in range(rounds):
        for optimizer, times in steps.items():
            report = bench.run(*flags, "--optimizer", optimizer, **size)
            print(f"  {optimizer}: {summary_line(report)}", flush=True)
            times.append(report["summary"]["step_ms"])
            moved[optimizer] = records_moved(report) / 2 / report["parameters"]
            predicted[optimizer] = report["summary"]["predicted_step_ms"]
    ratio = moved["adamw8bit"] / moved["adamw"]
    check(abs(ratio / (6.125 / 12) - 1) <= 0.01, f"{moved['adamw8bit']:.3f} bytes of record a parameter each way, of adamw "
                                                 f"{moved['adamw']:.3f}: {ratio:.3f} x (6.125 / 12, 1 %)")
    ratio = statistics.median(steps["adamw8bit"]) / statistics.median(steps["adamw"])
    limit = 0.6 if bench.throttle else 1.1 * predicted["adamw8bit"] / predicted["adamw"]
    check(ratio <= limit, f"step time {ratio:.3f} x (limit {limit:.3f})")


def estimate(bench):
    nvme = ["--params-home", "nvme", "--optimizer-home", "nvme"]
    no_clipping = ["--clip", "1000"]  # the norm is there but never clips: a speculative plan is told as if it never had to redo
    configurations = {
        "NVMe, depth 4": [*nvme, "--depth", "4"],
        "NVMe, depth 1": [*nvme, "--depth", "1"],
        "NVMe, sync": [*nvme, "--mode", "sync"],
        "NVMe, overlap": [*nvme, "--mode", "overlap", "--clip", "0"],
        "NVMe, four micro-batches": [*nvme, "--micro-batches", "4"],
        "NVMe, one lane": [*nvme, "--io-threads", "1"],
        "records only": ALL_ON_NVME,
        "records only, slow compute": [*ALL_ON_NVME, "--compute-delay", "40ms"],
        "all in the host": ["--params-home", "host", "--gradients-home", "host", "--optimizer-home", "host"],
        "planner's choice": [],
    }
    for name, flags in configurations.items():
        report = bench.run(*flags, "--device", "1GiB", "--host", "4GiB", "--nvme", "64GiB", *([] if "--clip" in flags else no_clipping))
        summary, plan = report["summary"], report["plan"]
        check(summary["peak_bytes"] == plan["peak_bytes"], f"{name}: peaks exact")
        for tier in ("device", "nvme"):
            for verb in ("read", "written"):
                planned, moved = plan[f"{verb}_bytes"][tier], sum(summary[f"{tier}_{verb}_bytes"].values())
                check(abs(moved - planned) <= 0.02 * planned, f"{name}: {tier} {verb} {moved} bytes of {planned}")
        for verb in ("read", "written"):
            if "kernel_read_bytes" in summary and plan[f"{verb}_bytes"]["nvme"]:
                ratio = summary[f"kernel_{verb}_bytes"] / plan[f"{verb}_bytes"]["nvme"]
                check(abs(ratio - 1) <= 0.02, f"{name}: the kernel counts {ratio:.4f} x the bytes {verb} (limit 2 %)")
        ratio = summary["step_ms"] / summary["predicted_step_ms"]
        check(abs(ratio - 1) <= 0.15, f"{name}: step {summary['step_ms']:.0f} ms, predicted {summary['predicted_step_ms']:.0f}: "
                                      f"{ratio:.3f} x (limit 15 %)")


def main():
    parts = {"stream": stream, "overlap": overlap, "half": half, "eight-bit": eight_bit, "estimate": estimate}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", default=[], help=", ".join(parts))
    parser.add_argument("--params", default="200M")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--throttle", type=int, default=80, help="overlap: MiB/s each way that the disk is held to")
    parser.add_argument("--path", default="strata-runs", help="folder on the disk to measure")
    arguments = parser.parse_args()
    if unknown := set(arguments.part) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    if "STRATA_BIN" not in os.environ:
        parser.error("STRATA_BIN is not set: . deploy/setup/bazel_env.sh; strata_bazel build //client:strata; "
                     "export STRATA_BIN=$(strata_bazel_bin)")
    os.makedirs(arguments.path, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="bench-offload-", dir=arguments.path)
    try:
        for name in arguments.part or parts:
            if name == "stream" and shutil.which("fio") is None:
                sys.exit("fio is missing: apt-get install fio")
            print(f"== {name}", flush=True)
            parts[name](Bench(arguments, folder))
    finally:
        shutil.rmtree(folder)
    print(f"{len(failures)} limits missed" if failures else "all limits hold")
    return 1 if failures else 0


sys.exit(main())
