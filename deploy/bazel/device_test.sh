#!/usr/bin/env bash
# Runs a program that needs a GPU. Where it says "SKIPPED: REASON" the test's XML says so too.
# usage: device_test.sh SKIP_SCRIPT PROGRAM [arguments...]
set -uo pipefail
skip=$1
shift
output=$("$@" 2>&1)
status=$?
echo "$output"
reason=$(sed -n 's/^SKIPPED: //p' <<<"$output" | head -1)
if [ $status -eq 0 ] && [ -n "$reason" ]; then
  "$skip" device "$reason" || exit 1
fi
exit $status
