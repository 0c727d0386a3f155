"""Compiler options of every target; a target names one of these lists and nothing else."""

STRATA_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wno-sign-compare",
    "-fno-strict-aliasing",
]

# Numeric code. No contraction: a fused multiply-add is written where the numerics contract asks for
# one, so a result never depends on what the compiler found to fuse. No fast-math anywhere.
STRATA_KERNEL_COPTS = STRATA_COPTS + [
    "-O3",
    "-ffp-contract=off",
    "-fopenmp",
    # GCC 12 reports its own AVX-512 intrinsics, which start from undefined registers on purpose.
    "-Wno-maybe-uninitialized",
]
