#!/usr/bin/env bash
# Runs a program that needs a GPU. Where it says "SKIPPED: REASON" the test's XML says so too.
# usage: device_test.sh PROGRAM [arguments...]
set -uo pipefail
output=$("$@" 2>&1)
status=$?
echo "$output"
reason=$(sed -n 's/^SKIPPED: //p' <<<"$output" | head -1)
if [ $status -eq 0 ] && [ -n "$reason" ]; then
  "$(dirname "$0")/skip.sh" device "$reason"
fi
exit $status
