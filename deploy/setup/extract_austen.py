#!/usr/bin/env python3
"""Writes the demo text: Jane Austen's Pride and Prejudice out of Debian's package r-cran-janeaustenr.

The package holds an R "lazy load" database: Rdata.rdb is a row of blocks, each the size of its content
(4 bytes, big-endian) followed by that content as a zlib stream; a stream is an R object in XDR serialization. A novel is a character vector with
one element a line. Only what such a vector needs of the format is read here ("R Internals", section 1.8).

usage: extract_austen.py OUTPUT_FOLDER
"""
import os
import struct
import sys
import zlib

DATABASE = "/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
# First words of each text, by the name of the file to write.
BOOKS = {"pride.txt": "PRIDE AND PREJUDICE"}
STRSXP, CHARSXP = 16, 9
LIMIT = 16 << 20


def objects(data):
    """Every decompressed block of the database."""
    while len(data) > 4:
        (size,) = struct.unpack(">I", data[:4])
        if size > LIMIT:
            sys.exit(f"{DATABASE}: a block of {size} bytes is larger than the limit of {LIMIT}")
        stream = zlib.decompressobj()
        yield stream.decompress(data[4:], size)
        data = stream.unused_data


def lines(block):
    """The strings of a serialized character vector, or None for any other object."""
    if block[:2] != b"X\n":
        return None
    version, = struct.unpack(">i", block[2:6])
    at = 14
    if version == 3:  # followed by the name of the native encoding
        length, = struct.unpack(">i", block[at:at + 4])
        at += 4 + length
    flags, = struct.unpack(">i", block[at:at + 4])
    if flags & 0xFF != STRSXP:
        return None
    count, = struct.unpack(">i", block[at + 4:at + 8])
    at += 8
    result = []
    for _ in range(count):
        flags, length = struct.unpack(">ii", block[at:at + 8])
        if flags & 0xFF != CHARSXP or length < -1 or at + 8 + max(length, 0) > len(block):
            return None
        at += 8
        result.append(block[at:at + max(length, 0)].decode("utf-8", "replace"))
        at += max(length, 0)
    return result


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        with open(DATABASE, "rb") as file:
            data = file.read()
    except OSError as error:
        sys.exit(f"cannot read {DATABASE}: {error}. Install the package r-cran-janeaustenr")
    os.makedirs(sys.argv[1], exist_ok=True)
    missing = set(BOOKS)
    for block in objects(data):
        text = lines(block)
        if not text:
            continue
        for name, title in BOOKS.items():
            if text[0].strip().upper() == title:
                path = os.path.join(sys.argv[1], name)
                with open(path + ".tmp", "w", encoding="utf-8") as file:
                    file.write("\n".join(text) + "\n")
                os.replace(path + ".tmp", path)
                print(f"{path}: {os.path.getsize(path)} bytes")
                missing.discard(name)
    if missing:
        sys.exit(f"{DATABASE} does not hold {', '.join(sorted(missing))}")


main()
