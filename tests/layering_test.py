#!/usr/bin/env python3
"""Includes only point down (deploy/docs/architecture.md): parses every C++ file of the tree.

common < kernels < offload < proto < {server, worker} < client; server and worker never include each other, and
gRPC headers stay in the transport rings. The words of device code stay in kernels/kx: a kernel written in its
primitives is one that the emulator checks.
"""
import os
import re
import sys

BELOW = {
    "common": {"common"},
    "kernels": {"common", "kernels"},
    "offload": {"common", "kernels", "offload"},
    "proto": {"common", "kernels", "offload", "proto"},
    "server": {"common", "kernels", "offload", "proto", "server"},
    "worker": {"common", "kernels", "offload", "proto", "worker"},
    "client": {"common", "kernels", "offload", "proto", "client"},
    "tests": {"common", "kernels", "offload", "proto", "server", "worker", "client", "tests"},
}
# Where gRPC types may appear; tests may drive a program from outside anywhere.
GRPC = ("server/transport", "server/strata_server", "worker/agent", "client/", "proto/", "tests/")
DEVICE = re.compile(
    r"\b(asm|__asm__|__shared__|__global__|__device__|__constant__|__launch_bounds__|threadIdx|blockIdx|blockDim|gridDim|"
    r"__sync\w+|__shfl_\w+|__ballot\w*|__threadfence\w*|atomic(Add|Max|Min|Or|And|Xor|CAS|Exch)|__ldg)\b|<<<"
)
COMMENT = re.compile(r"//.*")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    errors = []
    files = 0
    for layer, allowed in BELOW.items():
        for folder, _, names in os.walk(os.path.join(root, layer)):
            for name in names:
                if not name.endswith((".h", ".cc", ".cu", ".cuh")):
                    continue
                files += 1
                path = os.path.relpath(os.path.join(folder, name), root)
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    for number, line in enumerate(file, 1):
                        if layer in ("kernels", "offload") and not path.startswith("kernels/kx/"):
                            word = DEVICE.search(COMMENT.sub("", line))
                            if word:
                                errors.append(f"{path}:{number}: {word.group(0)} belongs in kernels/kx: use its primitives")
                        match = INCLUDE.match(line)
                        if not match:
                            continue
                        target = match.group(1)
                        top = target.split("/")[0]
                        if top in BELOW and "/" in target and top not in allowed:
                            errors.append(f"{path}:{number}: {layer} may not include {target}")
                        if target.startswith(("grpcpp/", "grpc/")) and not path.startswith(GRPC) and not path.endswith("_test.cc"):
                            errors.append(f"{path}:{number}: gRPC types stay in the transport rings")
    print("\n".join(errors))
    if not files:
        errors.append("no source file found")
    print(f"{files} files, {len(errors)} errors")
    return 1 if errors else 0


sys.exit(main())
