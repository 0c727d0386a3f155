// The kernels and their launchers for the emulator: what nvcc makes of the same files for the GPU.
#include "kernels/attention/inst/fa2_bwd_bf16.cu"
#include "kernels/attention/inst/fa2_bwd_f16.cu"
#include "kernels/attention/inst/fa2_fwd_bf16.cu"
#include "kernels/attention/inst/fa2_fwd_f16.cu"
#include "kernels/attention/inst/fa3_bwd_bf16.cu"
#include "kernels/attention/inst/fa3_bwd_f16.cu"
#include "kernels/attention/inst/fa3_fwd_bf16.cu"
#include "kernels/attention/inst/fa3_fwd_f16.cu"
