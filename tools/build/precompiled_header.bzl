"""precompiled_header: headers that GCC reads in compiled form in every source that starts with them.

A `.gch` file is valid only for the options that it was compiled with; GCC otherwise reads the header itself. The header is
therefore compiled by an ordinary cc_library, whose source is named like a test's if tests read it, so that every option of
the command line, the toolchain and the configuration, --per_file_copt included, is the same as for those sources.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@rules_cc//cc:defs.bzl", "cc_library")

def _impl(ctx):
    name = ctx.label.name
    header = ctx.actions.declare_file("%s/%s.h" % (name, name))
    ctx.actions.write(header, _includes(ctx.attr.headers) + "\n")
    options = ctx.actions.declare_file(name + ".options", sibling = header)
    if _is_clang(ctx):
        ctx.actions.write(options, "")
        files = [header, options]
    else:
        # -fpch-deps: a change of any header that is compiled in compiles the source again.
        ctx.actions.write(options, "-include %s.h -fpch-deps\n" % name)
        compiled = ctx.actions.declare_file(name + ".h.gch", sibling = header)
        ctx.actions.symlink(output = compiled, target_file = _object(ctx.attr.compiled))
        files = [header, options, compiled, ctx.file.source]
    context = cc_common.create_compilation_context(
        headers = depset(files),
        quote_includes = depset([header.dirname]),
    )
    return [cc_common.merge_cc_infos(cc_infos = [CcInfo(compilation_context = context)] + [d[CcInfo] for d in ctx.attr.deps])]

def _is_clang(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = "c++-compile")
    return "clang" in compiler.split("/")[-1]

def _object(library):
    for linker_input in library[CcInfo].linking_context.linker_inputs.to_list():
        if linker_input.owner == library.label:
            part = linker_input.libraries[0]
            return (part.pic_objects or part.objects)[0]
    fail("%s has no object file" % library.label)

_precompiled_header = rule(
    implementation = _impl,
    attrs = {
        "compiled": attr.label(mandatory = True, providers = [CcInfo]),
        "deps": attr.label_list(providers = [CcInfo]),
        "headers": attr.string_list(mandatory = True),
        "source": attr.label(mandatory = True, allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    provides = [CcInfo],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _includes(headers):
    return "\n".join(["#include \"%s\"" % header for header in headers])

def precompiled_header(name, headers, deps, testonly = False, **kwargs):
    """Defines NAME, a library whose dependents are compiled with the options in the file <package>/NAME/NAME.options.

    Args:
      name: name of the library.
      headers: paths of the headers, as in an #include.
      deps: the libraries that have the headers.
      testonly: whether only sources named *_test.cc read them.
      **kwargs: visibility.
    """
    source = name + ("_test.cc" if testonly else ".cc")
    native.genrule(
        name = name + "_source",
        testonly = testonly,
        outs = [source],
        cmd = "echo '%s' > $@" % _includes(headers),
    )
    cc_library(
        name = name + "_compiled",
        testonly = testonly,
        srcs = [source],
        copts = ["-x", "c++-header"],
        linkstatic = True,
        deps = deps,
    )
    _precompiled_header(
        name = name,
        testonly = testonly,
        compiled = ":" + name + "_compiled",
        headers = headers,
        source = source,
        deps = deps,
        **kwargs
    )
