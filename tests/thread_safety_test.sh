#!/usr/bin/env bash
# Lock discipline: clang's thread-safety analysis over every C++ source that is not a test, as errors. Syntax
# only, so it costs a fraction of a build; needs the generated protos, so it runs after one.
# usage: tests/thread_safety_test.sh BAZEL_BIN_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
generated=$1
git ls-files -z -- '*.cc' | grep -zvE '_(test|fuzz|bench)\.cc$|^kernels/' |
  xargs -0 -P "$(nproc)" -n 4 clang++ -std=c++20 -fsyntax-only -Wthread-safety -Werror=thread-safety -DSPDLOG_COMPILED_LIB \
    -DSPDLOG_FMT_EXTERNAL -I. -I"$generated"
