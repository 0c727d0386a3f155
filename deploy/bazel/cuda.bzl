"""cuda_kernels: sources compiled by nvcc behind the ptxas gate, with a golden of their opcode counts."""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "NVCC", "NVCC_VERSION")

def _objects_impl(ctx):
    objects = []
    reports = []
    for src in ctx.files.srcs:
        stem = ctx.label.name + "/" + src.basename
        object = ctx.actions.declare_file(stem + ".o")
        report = ctx.actions.declare_file(stem + ".ptxas")
        ctx.actions.run(
            executable = ctx.executable._gate,
            arguments = [NVCC, ",".join(ctx.attr.archs), src.path, object.path, report.path] + ctx.attr.nvccopts,
            inputs = depset([src] + ctx.files.hdrs),
            outputs = [object, report],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            # The compiler is not an input; its version stands for it in the cache's key.
            env = {"STRATA_NVCC_VERSION": NVCC_VERSION},
        )
        objects.append(object)
        reports.append(report)
    sass = ctx.actions.declare_file(ctx.label.name + ".sass")
    ctx.actions.run(
        executable = ctx.executable._cubin,
        arguments = ["sass", NVCC_VERSION, sass.path] + [o.path for o in objects],
        inputs = objects,
        outputs = [sass],
        mnemonic = "CubinSass",
        env = {"PATH": "/usr/bin:/bin"},
    )
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(ptxas = depset(reports), sass = depset([sass])),
    ]

_cuda_objects = rule(
    implementation = _objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu", ".cc"]),
        "hdrs": attr.label_list(allow_files = True),
        "archs": attr.string_list(),
        "nvccopts": attr.string_list(),
        "_gate": attr.label(default = "//deploy/bazel:nvcc_gate.sh", executable = True, cfg = "host", allow_single_file = True),
        "_cubin": attr.label(default = "//deploy/bazel:cubin.py", executable = True, cfg = "host", allow_single_file = True),
    },
)

def cuda_kernels(name, srcs, hdrs = [], archs = ["80", "90a"], golden = "sass.golden", nvccopts = [], visibility = None):
    """Compiles `srcs` (.cu, or .cc read as CUDA) with nvcc for every arch.

    Defines, where nvcc is:
      <name>: a cc_library of the objects (its users link @cuda//:cudart_static), always linked whole.
      <name>_objects: the objects; output groups `ptxas` (registers, shared memory) and `sass` (opcode counts).
    and everywhere <name>_sass_test: the opcode counts equal `golden`; without nvcc it prints the skip.

    Spills, local memory, an ignored setmaxnreg, and wgmmas that ptxas serializes or guards are errors of the build.

    Args:
      name: of the library.
      srcs: translation units.
      hdrs: everything they include, also indirectly: add //kernels/kx:headers.
      archs: as in sm_<arch>.
      golden: file in this package; deploy/bazel/update_sass_goldens.sh writes it.
      nvccopts: more options of nvcc.
      visibility: of the library.
    """
    if not CUDA_AVAILABLE:
        native.sh_test(
            name = name + "_sass_test",
            size = "small",
            srcs = ["//deploy/bazel:skip.sh"],
            args = ["no_nvcc", "'no nvcc on this machine: kernels of //%s:%s not compiled'" % (native.package_name(), name)],
        )
        return
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        archs = archs,
        nvccopts = nvccopts,
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [":" + name + "_objects"],
        alwayslink = True,
        visibility = visibility,
        deps = ["@cuda//:cudart_static"],
    )
    native.filegroup(
        name = name + "_sass",
        srcs = [":" + name + "_objects"],
        output_group = "sass",
    )
    native.sh_test(
        name = name + "_sass_test",
        size = "small",
        srcs = ["//deploy/bazel:cubin.py"],
        args = ["compare", "$(location %s)" % golden, "$(location :%s_sass)" % name],
        data = [golden, ":" + name + "_sass"],
        tags = ["sass"],
    )

def cuda_device_test(name, kernels):
    """A program of CUDA objects (one of them with main) and a test that runs it.

    `name`_program is defined where nvcc is. The program says "SKIPPED: REASON" and exits with 0 where there is no GPU.

    Args:
      name: of the test.
      kernels: cuda_kernels libraries.
    """
    if not CUDA_AVAILABLE:
        native.sh_test(
            name = name,
            size = "small",
            srcs = ["//deploy/bazel:skip.sh"],
            args = ["no_nvcc", "'no nvcc on this machine: nothing to run on a GPU'"],
        )
        return
    native.cc_binary(
        name = name + "_program",
        testonly = True,
        deps = kernels,
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["//deploy/bazel:device_test.sh"],
        args = ["$(location //deploy/bazel:skip.sh)", "$(location :%s_program)" % name],
        data = ["//deploy/bazel:skip.sh", ":%s_program" % name],
        tags = ["gpu"],
    )

def nvcc_gate_test(name, srcs, hdrs = [], archs = ["80"]):
    """A test that each source, which holds a planted fault, is refused by the gate.

    Args:
      name: of the test.
      srcs: sources whose first line is `// refused: TEXT`, TEXT being what the gate must say.
      hdrs: what they include.
      archs: as in cuda_kernels.
    """
    if not CUDA_AVAILABLE:
        native.sh_test(
            name = name,
            size = "small",
            srcs = ["//deploy/bazel:skip.sh"],
            args = ["no_nvcc", "'no nvcc on this machine: the gate has nothing to refuse'"],
        )
        return
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["//deploy/bazel:nvcc_gate_test.sh"],
        args = ["$(location //deploy/bazel:nvcc_gate.sh)", NVCC, ",".join(archs)] + ["$(location %s)" % s for s in srcs],
        data = ["//deploy/bazel:nvcc_gate.sh"] + srcs + hdrs,
    )
