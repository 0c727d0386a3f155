#!/usr/bin/env bash
# Writes the opcode counts of what is built now over the goldens. Read the diff before committing it.
# usage: deploy/bazel/update_sass_goldens.sh [package pattern, default //...]
set -euo pipefail
cd "$(dirname "$0")/../.."
pattern=${1:-//...}
for test in $(bazel query "attr(tags, sass, $pattern)" 2>/dev/null); do
  package=${test#//}; package=${package%%:*}
  sass=${test%_sass_test}_sass
  # The first file that the test's arguments name is its golden.
  golden=$(bazel query --output=build "$test" 2>/dev/null | sed -n 's/.*"compare", "$(location \([^)]*\))".*/\1/p')
  bazel build --noshow_progress "$sass" 2>/dev/null
  built=$(bazel info bazel-bin 2>/dev/null)/$package/$(sed 's/.*://' <<<"${sass%_sass}")_objects.sass
  cp --no-preserve=mode "$built" "$package/$golden"
  echo "$package/$golden: $(($(wc -l <"$built") - 1)) kernels"
done
