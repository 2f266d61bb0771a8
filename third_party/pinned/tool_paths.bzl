"""tool_paths: $(CC) and $(AR) of the machine that is compiled for.

With --platforms, @bazel_tools//tools/cpp:current_cc_toolchain gives those of this machine (Bazel 4.2)."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    return [
        DefaultInfo(files = toolchain.all_files),
        platform_common.TemplateVariableInfo({
            "AR": toolchain.ar_executable,
            "CC": toolchain.compiler_executable,
        }),
    ]

tool_paths = rule(
    implementation = _impl,
    attrs = {"_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain")},
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
