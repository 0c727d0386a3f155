#!/usr/bin/env bash
# What the kernels' accesses cost in banks and sectors is what traffic.golden has.
# usage: emulated_traffic_test.sh EMULATED_TRAFFIC GOLDEN
set -euo pipefail
if ! diff -u "$2" <("$1"); then
  echo "counts changed (golden: -, counted: +). If that was meant: bazel run //kernels/bench:emulated_traffic > $2"
  echo "and see --lines for the places."
  exit 1
fi
