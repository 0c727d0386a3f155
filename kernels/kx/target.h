// Which of the two targets is being compiled, and the words a kernel is declared with.
//   nvcc: KX_GPU. Every primitive is one PTX instruction or a compiler builtin.
//   g++ or clang: KX_EMU. Every primitive is a call into the emulator (kernels/kx/emu).
// Nothing here needs a CUDA header, so hosts may include the parameter structs of any kernel.
#ifndef KERNELS_KX_TARGET_H_
#define KERNELS_KX_TARGET_H_

#if defined(__CUDACC__)
#define KX_GPU 1
#define KX_DEVICE __device__ __forceinline__
#define KX_HOST_DEVICE __host__ __device__ __forceinline__
#define KX_KERNEL __global__
#define KX_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define KX_GRID_CONSTANT const __grid_constant__
#define KX_UNROLL _Pragma("unroll")
#define KX_NO_UNROLL _Pragma("unroll 1")
#else
#define KX_EMU 1
#define KX_DEVICE inline
#define KX_HOST_DEVICE inline
#define KX_KERNEL inline
#define KX_LAUNCH_BOUNDS(...)
#define KX_GRID_CONSTANT const
#define KX_UNROLL
#define KX_NO_UNROLL
#endif

#endif  // KERNELS_KX_TARGET_H_
