#!/usr/bin/env bash
# Every test: sets up a fresh Debian 12, builds, and runs the tree's checks and all Bazel tests. The last line
# is "N passed, N failed, N skipped", counted in test cases; every skip prints its reason.
# usage: tests/run_all.sh [bazel options...]
set -uo pipefail
cd "$(dirname "$0")/.."

deploy/setup/install.sh || exit 1
. deploy/setup/bazel_env.sh
# Golden packs are an extra check where the folder is at hand.
if [ -z "${STRATA_SHARED:-}" ] && [ -d ../shared/golden ]; then STRATA_SHARED=$(cd ../shared && pwd); fi
export STRATA_SHARED="${STRATA_SHARED:-}"

# What a failure may be due to.
echo "machine: $(nproc) processors, $(free -m | awk '/^Mem/ {print $7}') MiB of memory available," \
  "$(df -m --output=avail "${TMPDIR:-/tmp}" | tail -1 | tr -d ' ') MiB free for temporary files and" \
  "$(df -m --output=avail "$cache" | tail -1 | tr -d ' ') MiB for outputs, load $(cut -d' ' -f1-3 /proc/loadavg)"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
status=0
check() { # command, arguments...
  if "$@" >"$results/log" 2>&1; then echo "$1 PASSED"; echo pass >>"$results/checks"; else
    cat "$results/log"; echo "$1 FAILED"; echo fail >>"$results/checks"; status=1
  fi
}
check tests/layering_test.py
check tests/format_test.sh
flags=(--keep_going --nocache_test_results "--test_env=STRATA_SHARED=$STRATA_SHARED" "$@")
strata_bazel build "${flags[@]}" //... || { echo "the build failed"; status=1; }
check tests/thread_safety_test.sh "$(strata_bazel_bin)"
strata_bazel test "${flags[@]}" //... || status=1
tests/count_results.py "$(bazel --output_user_root="$cache/bazel" info bazel-testlogs 2>/dev/null)" "$results/checks" || status=1
exit $status
