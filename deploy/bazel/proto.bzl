"""strata_cc_proto: .proto files to a cc_library, by Debian's protoc and its gRPC plugin."""

def strata_cc_proto(name, srcs, deps = [], imports = [], visibility = None):
    """All `srcs` of one package become one library; imports are relative to the workspace root.

    Args:
      name: of the library.
      srcs: .proto files of this package.
      deps: the libraries of what they import.
      imports: .proto files of other packages that they import, also indirectly.
      visibility: of the library.
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc", stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    native.genrule(
        name = name + "_protoc",
        srcs = srcs + imports,
        outs = outs,
        cmd = "protoc -I. -I/usr/include --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              " ".join(["$(location %s)" % src for src in srcs]),
        message = "Generating C++ from " + native.package_name(),
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["//third_party/system:grpc"],
    )
