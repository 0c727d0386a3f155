// As emu_instances.cc, a translation unit of its own for the time it takes to compile.
#include "kernels/attention/inst/fa3_fp8_bf16.cu"
#include "kernels/attention/inst/fa3_fp8_f16.cu"
