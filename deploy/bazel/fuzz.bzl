"""strata_fuzz_test: one fuzz target, run as a plain test on its corpus and as a libFuzzer binary on demand."""

load("//deploy/bazel:copts.bzl", "STRATA_COPTS")

def strata_fuzz_test(name, srcs, corpus, deps):
    """`srcs` define LLVMFuzzerTestOneInput; `corpus` are files, each one input.

    `name` is a test that runs every input of the corpus once, with any compiler. `name`_libfuzzer fuzzes:
    bazel run --config=fuzz //pkg:name_libfuzzer -- FOLDER -max_total_time=60
    """
    native.cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = ["$(locations %s)" % c for c in corpus],
        copts = STRATA_COPTS,
        data = corpus,
        deps = deps + ["//deploy/bazel:fuzz_replay"],
    )
    native.cc_binary(
        name = name + "_libfuzzer",
        testonly = True,
        srcs = srcs,
        copts = STRATA_COPTS,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
