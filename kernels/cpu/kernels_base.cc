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

#define STRATA_ISA base
#define STRATA_ISA_LEVEL 0
#define STRATA_ISA_NAME "x86-64"
#include "kernels/cpu/kernels.inc"
