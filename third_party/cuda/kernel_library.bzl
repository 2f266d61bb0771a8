"""kernel_library: CUDA kernels and their host code from one source, for the GPU and emulated on the CPU."""

load("@local_cuda//:defs.bzl", "REQUIRES_CUDA")
load("@rules_cc//cc:defs.bzl", "cc_library")
load("//third_party/cuda:cuda_library.bzl", "cuda_library")

def kernel_library(
        name,
        kernels = [],
        srcs = [],
        hdrs = [],
        deps = [],
        native_srcs = [],
        native_deps = [],
        emulated_srcs = [],
        emulated_deps = [],
        narrow_kernels = [],
        mixed_kernels = [],
        testonly = False,
        visibility = None):
    """Makes NAME_native, which needs the CUDA toolkit, and NAME_emulated, which does not.

    Args:
      name: the common part of the names.
      kernels: .cu files. Everything in them is in a namespace TESSERA_KERNELS, which is `native` or `emulated`.
      srcs: .cc files of the host, compiled once for each.
      hdrs: headers, for both.
      deps: dependencies of both.
      native_srcs: .cc files for the GPU only, as for libraries of CUDA.
      native_deps: their dependencies.
      emulated_srcs: .cc files for the emulation only.
      emulated_deps: their dependencies.
      narrow_kernels: kernels that do not access 16 bytes of global memory at a time, for cuda_library's test.
      mixed_kernels: kernels that also access single elements of one or two bytes, likewise.
      testonly: of NAME_native; NAME_emulated is for tests.
      visibility: of both.
    """
    if kernels:
        cuda_library(
            name = name + "_kernels",
            srcs = kernels,
            hdrs = hdrs,
            copts = ["-DTESSERA_KERNELS=native", "-fmad=false"],
            mixed_kernels = mixed_kernels,
            narrow_kernels = narrow_kernels,
            testonly = testonly,
            visibility = ["//visibility:private"],
            deps = deps + ["//base/cuda:kernel"],
        )
    cc_library(
        name = name + "_native",
        srcs = srcs + native_srcs,
        hdrs = hdrs,
        local_defines = ["TESSERA_KERNELS=native"],
        testonly = testonly,
        target_compatible_with = REQUIRES_CUDA,
        visibility = visibility,
        deps = deps + native_deps + ([":" + name + "_kernels"] if kernels else []),
    )
    generated = []
    for kernel in kernels:
        source = kernel.replace(".cu", "_emulated.cc")
        native.genrule(
            name = source + "_source",
            outs = [source],
            cmd = "echo '#include \"%s/%s\"' > $@" % (native.package_name(), kernel),
            visibility = ["//visibility:private"],
        )
        generated.append(source)
    cc_library(
        name = name + "_emulated",
        srcs = srcs + emulated_srcs + generated,
        hdrs = hdrs,
        copts = ["-O2", "-ffp-contract=off"],
        local_defines = ["TESSERA_KERNELS=emulated"],
        testonly = True,
        textual_hdrs = kernels,
        visibility = visibility,
        deps = deps + emulated_deps + [
            "//base/cuda:kernel",
            "//base/cuda/testing:emulation",
        ],
    )
