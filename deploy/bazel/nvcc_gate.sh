#!/usr/bin/env bash
# Compiles one source with nvcc and refuses what would be slow without saying so: a register spilled to memory, a local
# array that stayed in memory, and everything that ptxas only remarks on as C75xx: a setmaxnreg ignored (C7508), a wgmma
# serialized, a wait (C7517) or fence (C7519) injected because registers are used on the wrong side of a wgmma.
# usage: nvcc_gate.sh NVCC ARCHS(80,90a) SOURCE OBJECT REPORT [nvcc options...]
set -uo pipefail
nvcc=$1 archs=$2 source=$3 object=$4 report=$5
shift 5
gencode=()
for arch in ${archs//,/ }; do gencode+=("-gencode=arch=compute_$arch,code=sm_$arch"); done
export PATH="$(dirname "$nvcc"):/usr/bin:/bin"
# Device code stays uncompressed, so that cubin.py finds the cubins in the object.
"$nvcc" -x cu -std=c++20 -O3 -I. "${gencode[@]}" --no-compress -Xcompiler=-fPIC,-fvisibility=hidden \
  -Xptxas=-v,--warn-on-spills,--warn-on-local-memory-usage,-Werror "$@" -c "$source" -o "$object" >"$report" 2>&1
status=$?
if [ $status -ne 0 ]; then
  cat "$report" >&2
  echo "$source: nvcc refused it (spills and local memory are errors here: fewer live values, smaller tiles, constant indices)" >&2
  exit 1
fi
if grep -E 'C75[0-9]{2}' "$report" >&2; then
  echo "$source: ptxas ignored a setmaxnreg, or serialized or guarded a wgmma: see the lines above" >&2
  exit 1
fi
