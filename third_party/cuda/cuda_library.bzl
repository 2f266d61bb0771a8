"""cuda_library: .cu files compiled by nvcc into a static library; skipped where there is no CUDA toolkit."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_cuda//:defs.bzl", "CUDA_ARCHS", "CUDA_ROOT", "REQUIRES_CUDA")

_MODE_FLAGS = {
    "dbg": ["-g", "-lineinfo"],
    "fastbuild": ["-O1"],
    "opt": ["-O3", "-DNDEBUG"],
}

def _gencode(arch):
    """sm_90a -> machine code for it; compute_90 -> PTX."""
    return "-gencode=arch=compute_%s,code=%s" % (arch.split("_")[1], arch)

def _include_flags(context):
    directories = depset(transitive = [context.includes, context.quote_includes, context.system_includes])
    return ["-isystem=" + d if "external/" in d else "-I" + d for d in directories.to_list()]

def _compile(ctx, toolchain, context, source):
    output = ctx.actions.declare_file("_nvcc/%s/%s.o" % (ctx.label.name, source.basename))
    usage = ctx.actions.declare_file("_nvcc/%s/%s.usage" % (ctx.label.name, source.basename))
    args = ctx.actions.args()
    args.add_all(["-x", "cu", "-c", source, "-o", output, "-std=c++20", "-I."])
    # Names of temporary files and the directory of the build are parts of symbols otherwise.
    args.add_all(["-objtemp", "-Xcudafe", "--orig_src_path_name=" + source.path])
    args.add("-diag-suppress=554")  # A conversion operator of views that one of its instances does not need.
    args.add_all(["--resource-usage", "-ccbin", toolchain.compiler_executable, "--expt-relaxed-constexpr"])
    args.add_all([_gencode(arch) for arch in CUDA_ARCHS])
    args.add_all(["-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror,-Wno-unknown-pragmas,-Wno-maybe-uninitialized"])
    args.add_all(_MODE_FLAGS[ctx.var["COMPILATION_MODE"]])
    args.add_all(context.defines, before_each = "-D")
    args.add_all(_include_flags(context))
    args.add_all(ctx.attr.copts)
    # g++ 12 takes moves of Abseil's InlinedVector for uses of uninitialised memory here. (-Wno-maybe-uninitialized)
    # nvcc writes warnings and ptxas's report to the same stream.
    ctx.actions.run_shell(
        command = 'usage=$1; shift; "$@" 2> "$usage" || { grep -v -e "ptxas info" -e "bytes stack frame" "$usage" >&2; exit 1; }; grep -i "warning" "$usage" >&2 || true',
        arguments = [usage.path, CUDA_ROOT + "/bin/nvcc", args],
        inputs = depset([source] + ctx.files._toolkit, transitive = [context.headers, toolchain.all_files]),
        outputs = [output, usage],
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s with nvcc" % source.short_path,
        use_default_shell_env = True,
    )
    return output, usage

def _cuda_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = [dep[CcInfo] for dep in ctx.attr.deps + [ctx.attr._cudart]]
    own = CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)))
    context = cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = deps).compilation_context
    compiled = [_compile(ctx, toolchain, context, source) for source in ctx.files.srcs]
    objects = depset([output for output, _ in compiled])
    linking_context, outputs = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(objects = objects, pic_objects = objects),
        name = ctx.label.name,
        disallow_dynamic_library = True,
        linking_contexts = [dep.linking_context for dep in deps],
    )
    library = outputs.library_to_link
    archive = library.pic_static_library or library.static_library
    return [
        DefaultInfo(files = depset([archive] if archive else [])),
        OutputGroupInfo(machine_code = depset([file for files in compiled for file in files])),
        cc_common.merge_cc_infos(direct_cc_infos = [own, CcInfo(linking_context = linking_context)], cc_infos = deps),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "_cudart": attr.label(default = "@local_cuda//:cudart"),
        "_toolkit": attr.label(default = "@local_cuda//:toolkit"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)

# Fetched only where there is a toolkit.
_DISASSEMBLER = [] if REQUIRES_CUDA else [
    "@nvidia_cuobjdump//:nvidia/cu13/bin/cuobjdump",
    "@nvidia_nvdisasm//:nvidia/cu13/bin/nvdisasm",
]

def cuda_library(name, target_compatible_with = [], testonly = False, narrow_kernels = [], mixed_kernels = [], **kwargs):
    """Makes NAME, and NAME_sass_test, which checks the machine code of its kernels (sass_test.py).

    Args:
      name: of the library.
      target_compatible_with: in addition to the CUDA toolkit.
      testonly: of both.
      narrow_kernels: those that do not access 16 bytes of global memory at a time.
      mixed_kernels: those that also access single elements of one or two bytes.
      **kwargs: of the library.
    """
    compatible = target_compatible_with + REQUIRES_CUDA
    _cuda_library(name = name, target_compatible_with = compatible, testonly = testonly, **kwargs)
    native.filegroup(
        name = name + "_machine_code",
        srcs = [":" + name],
        output_group = "machine_code",
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    native.sh_test(
        name = name + "_sass_test",
        size = "medium",
        srcs = ["//third_party/cuda:sass_test.py"],
        args = ["--tool=$(location %s)" % tool for tool in _DISASSEMBLER] +
               ["--narrow=" + ",".join(narrow_kernels), "--mixed=" + ",".join(mixed_kernels)] +
               ["$(locations :%s_machine_code)" % name],
        data = [":%s_machine_code" % name] + _DISASSEMBLER,
        target_compatible_with = compatible + ["@platforms//cpu:x86_64"],
        visibility = ["//visibility:private"],
    )
