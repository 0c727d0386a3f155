#!/usr/bin/env bash
# Every C++ file is as clang-format (Debian 12's, version 14) would write it.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z -- '*.h' '*.cc' '*.cu' | xargs -0 -r clang-format --dry-run --Werror
