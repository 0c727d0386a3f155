# Sourced by scripts: where Bazel keeps its outputs (outside of the tree; STRATA_CACHE overrides).
cache="${STRATA_CACHE:-${HOME:-/root}/.cache/strata}"
mkdir -p "$cache"
strata_bazel() { # command, arguments...
  bazel --output_user_root="$cache/bazel" "$1" --disk_cache="$cache/disk" "${@:2}"
}
# Path of a built target's folder: the convenience links into the tree are switched off.
strata_bazel_bin() { bazel --output_user_root="$cache/bazel" info bazel-bin 2>/dev/null; }
