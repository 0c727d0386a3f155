#!/usr/bin/env bash
# Every figure of deploy/docs/benchmarks.md, side by side with its limit or peer in one run: about 18 minutes on a
# quiet machine with 2 cores. Needs what deploy/setup/install.sh installs; Debian's python3-torch for the peer.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/bazel_env.sh
strata_bazel build //client:strata //server:strata_server //worker:strata_worker //worker:strata_trainer \
  //offload/store:store_bench //kernels/optimizer:adamw_bench //kernels/bench:ops_bench
STRATA_BIN=$(strata_bazel_bin)
export STRATA_BIN
[ -s data/pride.txt ] || deploy/setup/extract_austen.py data
mkdir -p strata-runs

echo "== machine"
grep -m1 'model name' /proc/cpuinfo
uptime
echo "== main job against PyTorch"
tests/bench/main_job.py
echo "== NVMe store against fio"
STORE_BENCH="$STRATA_BIN/offload/store/store_bench" tests/bench/nvme_vs_fio.sh --path strata-runs
echo "== AdamW against a pass of the same accesses"
"$STRATA_BIN/kernels/optimizer/adamw_bench"
echo "== the offload engine: stream against fio, overlap, half in memory, eight-bit states, predictions"
# Last: its exit code says whether all targets were met.
tests/bench/offload.py --path strata-runs
