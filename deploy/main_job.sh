#!/usr/bin/env bash
# The main job: sets up a fresh Debian 12, builds Strata, and trains a Llama-kind model on Pride and Prejudice
# through client, coordinator, worker and trainer. Further arguments go to `strata local run`.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/setup/install.sh
. deploy/setup/bazel_env.sh
echo "setup: building (a first build takes several minutes; later ones are cached in $cache)"
targets=(//client:strata //server:strata_server //worker:strata_worker //worker:strata_trainer)
plugin=offload/device/cuda/libstrata_cuda.so
plugin_target=//${plugin%/*}:${plugin##*/}
# Where nvcc is there is such a target.
if [ -e /proc/driver/nvidia/version ] && strata_bazel query "$plugin_target" > /dev/null 2>&1; then
  targets+=("$plugin_target")
fi
strata_bazel build --ui_event_filters=-info,-stdout,-stderr --noshow_progress "${targets[@]}"
# Beside the worker, where it is looked for.
bin=$(strata_bazel_bin)
if [ ${#targets[@]} -gt 4 ]; then cp -f "$bin/$plugin" "$bin/worker/"; fi
[ -s data/pride.txt ] || deploy/setup/extract_austen.py data

exec "$bin/client/strata" local run deploy/examples/austen.yaml \
  --export strata-runs/austen/export --sample 300 "$@"
