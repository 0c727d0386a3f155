#!/usr/bin/env bash
# clang-tidy over the C++ sources given (default: all that are not tests). Slow (about 10 s a file), so it is run by
# hand and not in CI. Needs a build for the generated protos.
# usage: tests/tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup/bazel_env.sh
GENERATED="${STRATA_BIN:-$(strata_bazel_bin)}"
export GENERATED
if [ $# -gt 0 ]; then printf '%s\0' "$@"; else
  git ls-files -z -- '*.cc' | grep -zvE '_(test|fuzz|bench)\.cc$|^kernels/'
fi | xargs -0 -P "$(nproc)" -n 1 sh -c 'clang-tidy --quiet "$0" -- -std=c++20 -DSPDLOG_COMPILED_LIB \
  -DSPDLOG_FMT_EXTERNAL -I. -I"$GENERATED"'
