"""strata_cc_proto: .proto files to a cc_library, by Debian's protoc and its gRPC plugin."""

def strata_cc_proto(name, srcs, deps = [], visibility = None):
    """All `srcs` of one package become one library; imports are relative to the workspace root."""
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc", stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    native.genrule(
        name = name + "_protoc",
        srcs = srcs,
        outs = outs,
        cmd = "protoc -I. -I/usr/include --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin $(SRCS)",
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
