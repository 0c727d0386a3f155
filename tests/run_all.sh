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

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
status=0
for check in tests/layering_test.py tests/format_test.sh; do
  if "$check" >"$results/log" 2>&1; then echo "$check PASSED"; echo pass >>"$results/checks"; else
    cat "$results/log"; echo "$check FAILED"; echo fail >>"$results/checks"; status=1
  fi
done

strata_bazel build --keep_going "$@" //... || { echo "the build failed"; status=1; }
strata_bazel test --keep_going --nocache_test_results --test_env=STRATA_SHARED="$STRATA_SHARED" "$@" //... || status=1
tests/count_results.py "$(bazel --output_user_root="$cache/bazel" info bazel-testlogs 2>/dev/null)" "$results/checks" || status=1
exit $status
