"""Repositories that Bazel 4.2 would otherwise download for plain C++ builds and tests."""

def _native_rules_impl(ctx):
    ctx.file("WORKSPACE", "")
    ctx.file(ctx.attr.directory + "/BUILD", "")
    ctx.file(ctx.attr.directory + "/defs.bzl", "".join(["%s = native.%s\n" % (r, r) for r in ctx.attr.rules]))

native_rules = repository_rule(
    doc = "A rules_* repository whose defs.bzl exports the rules that are built into Bazel.",
    implementation = _native_rules_impl,
    attrs = {
        "directory": attr.string(mandatory = True),
        "rules": attr.string_list(mandatory = True),
    },
)

def _coverage_tools_impl(ctx):
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", """package(default_visibility = ["//visibility:public"])

[sh_binary(name = name, srcs = ["lcov.py"]) for name in ("lcov_merger", "coverage_report_generator")]
""")
    ctx.symlink(ctx.attr._script, "lcov.py")

coverage_tools = repository_rule(
    doc = "remote_coverage_tools without the Java archive that Bazel downloads.",
    implementation = _coverage_tools_impl,
    attrs = {"_script": attr.label(default = "//third_party:lcov.py", allow_single_file = True)},
)
