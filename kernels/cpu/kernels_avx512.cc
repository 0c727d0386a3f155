// The kernels compiled for one instruction set; see kernels.inc. Headers come first: nothing they define may
// be compiled for instructions the CPU might not have.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/validate.h"
#include "kernels/workspace.h"

#if !defined(__clang__)
// GCC 12's own intrinsics pass a deliberately undefined vector (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define STRATA_ISA avx512
#define STRATA_ISA_LEVEL 2
#define STRATA_ISA_NAME "avx512"
#include "kernels/cpu/kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif
