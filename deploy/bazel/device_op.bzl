"""device_op: a folder kernels/<op> whose launch.cc holds all its kernels, for the GPU and for the emulator."""

load("//deploy/bazel:copts.bzl", "STRATA_KERNEL_COPTS")
load("//deploy/bazel:cuda.bzl", "cuda_kernels")

def device_op(name, hdrs, headers = [], deps = [], launch_deps = []):
    """Defines, for launch.h and launch.cc of this package:

      launch: the header, for callers that do not know where kernels run.
      <name>_emulated: on the emulator (tests only).
      <name>_cuda: by nvcc, with its sass test against sass.golden (see cuda_kernels).
      <name>_headers: `hdrs` and launch.h.

    Args:
      name: of the op.
      hdrs: headers of this package besides launch.h.
      headers: header groups (filegroups) of other packages that launch.cc includes besides kernels/gpu's.
      deps: the libraries of the same headers.
      launch_deps: what launch.h includes besides dtypes, arguments and launch types.
    """
    native.filegroup(
        name = name + "_headers",
        srcs = hdrs + ["launch.h"],
    )
    native.cc_library(
        name = "launch",
        hdrs = ["launch.h"],
        deps = [
            "//kernels:dtype",
            "//kernels:op_args",
            "//kernels/kx:launch_types",
        ] + launch_deps,
    )
    native.cc_library(
        name = name + "_emulated",
        testonly = True,
        srcs = ["launch.cc"],
        hdrs = hdrs,
        copts = STRATA_KERNEL_COPTS,
        deps = [
            ":launch",
            "//kernels/gpu:gpu_emulated",
        ] + deps,
        # Callers know launch.h only.
        alwayslink = True,
    )
    cuda_kernels(
        name = name + "_cuda",
        srcs = ["launch.cc"],
        hdrs = [
            ":" + name + "_headers",
            "//kernels/gpu:headers",
        ] + headers,
    )
