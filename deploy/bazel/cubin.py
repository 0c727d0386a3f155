#!/usr/bin/env python3
"""Counts instructions in the cubins of nvcc's objects, without cuobjdump.

A cubin is an ELF file inside the (uncompressed) .nv_fatbin section. Since Volta an instruction has 16 bytes and its
opcode is the low 12 bits. The table of opcodes is inferred from kernels with known counts.

usage: cubin.py sass VERSION OUT OBJECT...    writes a golden: one line per kernel, registers and the opcodes that matter
       cubin.py compare GOLDEN ACTUAL         exit 1 with the differing kernels; a skip for another nvcc
       cubin.py extract FOLDER OBJECT...      writes every cubin as a file
"""
import collections
import os
import struct
import sys

# Tensor cores, matrix and asynchronous moves, register reallocation, atomics, barriers, and local memory (always 0 past the
# gate). Arithmetic is left out: it moves with every change of the source and says nothing.
OPCODES = {
    0x23C: "HMMA", 0x9F0: "HGMMA", 0xDF0: "HGMMA", 0x9F3: "QGMMA", 0xDF3: "QGMMA", 0x83B: "LDSM", 0x844: "STSM",
    0xFAE: "LDGSTS", 0x5B4: "UTMALDG", 0x3B5: "UTMASTG", 0x9C8: "USETMAXREG", 0xB1D: "BAR", 0x387: "STL", 0x983: "LDL",
}  # fmt: skip
EM_CUDA = 190


def sections(elf):
    """(name, sh_info, bytes) of each section of a 64-bit little-endian ELF file."""
    offset = struct.unpack_from("<Q", elf, 0x28)[0]
    count, strings = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + 64 * i) for i in range(count)]
    table = headers[strings][4]
    for header in headers:
        start = table + header[0]
        name = elf[start : elf.index(b"\0", start)].decode()
        data = b"" if header[1] == 8 else elf[header[4] : header[4] + header[5]]  # 8: SHT_NOBITS
        yield name, header[7], data


def cubins(path):
    """(arch, ELF bytes) of each cubin in an object file."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] != b"\x7fELF":
        raise ValueError(f"{path}: not an object file")
    for name, _, fatbin in sections(data):
        if name != ".nv_fatbin":
            continue
        at = fatbin.find(b"\x7fELF")
        while at >= 0:
            machine = struct.unpack_from("<H", fatbin, at + 18)[0]
            if machine == EM_CUDA:
                # The end of the file is the end of its last header table or section, whatever comes later.
                shoff, flags = struct.unpack_from("<QI", fatbin, at + 0x28)
                count = struct.unpack_from("<H", fatbin, at + 0x3C)[0]
                end = shoff + 64 * count
                for i in range(count):
                    header = struct.unpack_from("<IIQQQQIIQQ", fatbin, at + shoff + 64 * i)
                    if header[1] != 8:
                        end = max(end, header[4] + header[5])
                yield arch_of(flags), fatbin[at : at + end]
            at = fatbin.find(b"\x7fELF", at + 4)


def arch_of(flags):
    """The architecture in e_flags: in the second byte since ABI 8, before in the lowest."""
    number = flags >> 8 & 0xFF if flags >> 8 & 0xFF in (80, 86, 89, 90, 100, 103, 120) else flags & 0xFF
    return f"sm_{number}"


def registers_of(info):
    """Register counts by symbol number, from .nv.info: attribute 0x2f (EIATTR_REGCOUNT), a pair of 32-bit numbers."""
    counts, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:  # only form 4 has a payload after its header
            continue
        if attribute == 0x2F:
            symbol, registers = struct.unpack_from("<II", info, at)
            counts[symbol] = registers
        at += size
    return counts


def report(objects):
    lines = []
    for path in objects:
        found = False
        for arch, elf in cubins(path):
            found = True
            registers = {}
            for name, _, data in sections(elf):
                if name == ".nv.info":
                    registers = registers_of(data)
            for name, info, code in sections(elf):
                if not name.startswith(".text."):
                    continue
                counts = collections.Counter()
                for i in range(0, len(code) - 15, 16):
                    opcode = struct.unpack_from("<H", code, i)[0] & 0xFFF
                    if opcode in OPCODES:
                        counts[OPCODES[opcode]] += 1
                shown = " ".join(f"{opcode}={counts[opcode]}" for opcode in sorted(counts))
                # A text section's sh_info is its function's symbol; the top byte had the registers until sm_80.
                lines.append(f"{arch} {name[6:]} registers={registers[info & 0xFFFFFF]} {shown}".rstrip())
        if not found:
            raise ValueError(f"{path}: no cubin inside: is the device code compressed?")
    return sorted(lines)


def skip(reason):
    """Prints a skip, and writes it where tests/count_results.py finds it."""
    print(f"SKIPPED: {reason}")
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'<testsuites><testsuite name="sass" tests="1"><testcase name="counts" classname="sass" '
                f'result="skipped"><skipped message="{reason}"/></testcase></testsuite></testsuites>'
            )


def compare(golden_path, actual_path):
    with open(golden_path, encoding="utf-8") as file:
        golden = file.read().splitlines()
    with open(actual_path, encoding="utf-8") as file:
        actual = file.read().splitlines()
    if not golden or not golden[0].startswith("nvcc "):
        print(f"{golden_path}: no golden: deploy/bazel/update_sass_goldens.sh writes it")
        return 1
    if golden[0] != actual[0]:
        skip(f"the golden is of {golden[0]}, this is {actual[0]}: counts are compared for one compiler")
        return 0
    for line in sorted(set(golden) - set(actual)):
        print(f"golden only: {line}")
    for line in sorted(set(actual) - set(golden)):
        print(f"built only:  {line}")
    if golden == actual:
        print(f"{len(actual) - 1} kernels as in the golden")
        return 0
    print("if the change is meant: deploy/bazel/update_sass_goldens.sh")
    return 1


def main():
    command = sys.argv[1]
    if command == "sass":
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            file.write("\n".join([f"nvcc {sys.argv[2]}"] + report(sys.argv[4:])) + "\n")
    elif command == "compare":
        return compare(sys.argv[2], sys.argv[3])
    elif command == "extract":
        for path in sys.argv[3:]:
            for i, (arch, elf) in enumerate(cubins(path)):
                name = f"{os.path.basename(path)}.{i}.{arch}.cubin"
                with open(os.path.join(sys.argv[2], name), "wb") as file:
                    file.write(elf)
    else:
        raise SystemExit(__doc__)
    return 0


sys.exit(main())
