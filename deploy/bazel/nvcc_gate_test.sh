#!/usr/bin/env bash
# Each source must be refused by the gate with the text of its first line, `// refused: TEXT`.
# usage: nvcc_gate_test.sh GATE NVCC ARCHS SOURCE...
set -uo pipefail
gate=$1 nvcc=$2 archs=$3
shift 3
failed=0
for source in "$@"; do
  text=$(sed -n '1s,^// refused: ,,p' "$source")
  [ -n "$text" ] || { echo "$source: the first line does not say what the gate says"; failed=1; continue; }
  said=$("$gate" "$nvcc" "$archs" "$source" "$TEST_TMPDIR/object" "$TEST_TMPDIR/report" 2>&1)
  if [ $? -eq 0 ]; then
    echo "$source: the gate let it through"; failed=1
  elif ! grep -qF -- "$text" <<<"$said"; then
    echo "$source: refused, but not with \"$text\":"; echo "$said"; failed=1
  else
    echo "$source: refused with \"$text\""
  fi
done
exit $failed
