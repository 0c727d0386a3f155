#!/usr/bin/env bash
# The NVMe store against fio: the same folder, minute, block size, depth, threads and kind of buffer (huge pages).
# The store also computes and checks a CRC-32C of every byte, in the same time; fio does not.
#
# Disks of shared machines drift by a factor of 2 to 3 within minutes, so the two run in turn, and ratios are taken
# of medians. Needs fio and python3; builds //offload/store:store_bench unless STORE_BENCH names one.
#
#   tests/bench/nvme_vs_fio.sh [--path DIR] [--bytes N] [--block N] [--depth N] [--threads N] [--rounds N]
set -euo pipefail

path=${TMPDIR:-/tmp}
bytes=$((1 << 30)) block=$((1 << 20)) depth=32 threads=1 rounds=3
while [ $# -gt 0 ]; do
  case "$1" in
    --path | --bytes | --block | --depth | --threads | --rounds)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *)
      sed -n '2,9p' "$0" >&2
      exit 2
      ;;
  esac
done
command -v fio > /dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 2; }
if [ -z "${STORE_BENCH:-}" ]; then
  cd "$(dirname "$0")/../.."
  bazel build //offload/store:store_bench
  STORE_BENCH=$(bazel info bazel-bin)/offload/store/store_bench
fi

work=$(mktemp -d "$path/nvme-vs-fio-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Reserved huge pages where there are enough for all buffers, else transparent ones (asked for by glibc), as the
# arena does.
need=$((block * depth * threads / (2 << 20) + threads))
if [ "$(awk '/HugePages_Free/ {print $2}' /proc/meminfo)" -ge "$need" ]; then
  memory=(--iomem=mmaphuge --hugepage-size=2m) tunables=
else
  memory=(--iomem=malloc) tunables=glibc.malloc.hugetlb=1
fi

run_fio() {  # run_fio NAME RW
  GLIBC_TUNABLES=$tunables fio --name=fio --filename="$work/fio" --rw="$2" --bs="$block" --iodepth="$depth" --numjobs="$threads" \
    --size="$((bytes / threads))" --offset_increment="$((bytes / threads))" --direct=1 --ioengine=io_uring \
    --thread --group_reporting --overwrite=1 --end_fsync=0 --output-format=json "${memory[@]}" > "$work/fio.$1.json"
}

run_store() {  # run_store NAME
  "$STORE_BENCH" --path "$work" --bytes "$bytes" --block "$block" --depth "$depth" --threads "$threads" \
    --passes 1 > "$work/store.$1.json"
}

run_fio layout write  # Lays the file out and writes it once; not counted.
for round in $(seq "$rounds"); do
  run_fio "write.$round" write
  run_fio "read.$round" read
  run_fio "mixed.$round" rw
  run_store "$round"
done

python3 - "$work" "$rounds" "${memory[*]} $tunables" << 'END'
import json, statistics, sys
work, rounds, memory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
load = lambda name: json.load(open(f"{work}/{name}.json"))
result = {"fio_memory": memory, "rounds": rounds}
stores = [load(f"store.{i}") for i in range(1, rounds + 1)]
result["store"] = {key: stores[0][key] for key in ("backend", "direct", "pages", "huge_fraction", "registered_buffers")}
for kind in ("write", "read", "mixed"):
    fio = []
    for i in range(1, rounds + 1):
        job = load(f"fio.{kind}.{i}")["jobs"][0]
        fio.append((job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e9)
    ours = [store[f"{kind}_gbps"][0] for store in stores]
    result[kind] = {
        "fio_gbps": [round(x, 2) for x in fio],
        "store_gbps": [round(x, 2) for x in ours],
        "ratio_of_medians": round(statistics.median(ours) / statistics.median(fio), 3),
    }
print(json.dumps(result, indent=2))
END
