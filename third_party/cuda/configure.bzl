"""Looks for nvcc once per machine and writes what it found into the repository @cuda.

@cuda//:defs.bzl: CUDA_AVAILABLE, NVCC (absolute path), NVCC_VERSION, CUDA_ROOT. With CUDA, @cuda also has the targets
`headers` and `cudart_static`. Without it the same file says so, one line is printed, and rules that need nvcc define
only a test that prints the skip.
"""

def _find_nvcc(repository_ctx):
    candidates = []
    for variable in ["CUDA_HOME", "CUDA_PATH"]:
        root = repository_ctx.os.environ.get(variable)
        if root:
            candidates.append(root + "/bin/nvcc")
    on_path = repository_ctx.which("nvcc")
    if on_path:
        candidates.append(str(on_path))
    candidates.append("/usr/local/cuda/bin/nvcc")
    for candidate in candidates:
        if repository_ctx.path(candidate).exists:
            return candidate
    return None

def _impl(repository_ctx):
    nvcc = None
    version = ""
    if repository_ctx.os.environ.get("STRATA_CUDA", "auto") != "off":
        nvcc = _find_nvcc(repository_ctx)
    if nvcc:
        result = repository_ctx.execute([nvcc, "--version"])
        for word in result.stdout.replace("\n", " ").split(" "):
            if result.return_code == 0 and word.startswith("V"):
                version = word[1:]
        if not version:
            # buildifier: disable=print
            print("CUDA: %s does not run (%s): built without CUDA" % (nvcc, result.stderr.strip()))
            nvcc = None
    else:
        # buildifier: disable=print
        print("CUDA: no nvcc (CUDA_HOME, PATH, /usr/local/cuda) or STRATA_CUDA=off: built without CUDA")
    root = nvcc[:-len("/bin/nvcc")] if nvcc else ""
    repository_ctx.file("defs.bzl", "\n".join([
        '"""Written by //third_party/cuda:configure.bzl."""',
        "CUDA_AVAILABLE = %s" % bool(nvcc),
        'NVCC = "%s"' % (nvcc or ""),
        'NVCC_VERSION = "%s"' % version,
        'CUDA_ROOT = "%s"' % root,
        "",
    ]))
    build = 'package(default_visibility = ["//visibility:public"])\n'
    if nvcc:
        repository_ctx.symlink(root + "/include", "include")
        repository_ctx.symlink(root + "/lib64/libcudart_static.a", "libcudart_static.a")
        build += """
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/vector_types.h"]),
    includes = ["include"],
)

cc_library(
    name = "cudart_static",
    srcs = ["libcudart_static.a"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
    deps = [":headers"],
)
"""
    repository_ctx.file("BUILD", build)

cuda_configure = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME", "CUDA_PATH", "PATH", "STRATA_CUDA"],
    local = True,
    doc = "STRATA_CUDA=off (--repo_env) builds as a machine without nvcc does.",
)
