"""installer: a program that installs C++ libraries, and all that they need, for CMake and pkg-config."""

_LibrariesInfo = provider(fields = {
    "files": "depset of the headers and archives",
    "records": "depset of JSON objects, one for each library; dependents follow their dependencies",
})

def _archive(library):
    return library.pic_static_library or library.static_library

def _is_header(file):
    return file.extension in ["h", "hpp", "inc", "cuh"] or file.basename.endswith("-inl.h")

def _record_libraries_impl(target, ctx):
    if CcInfo not in target or ctx.rule.kind == "_precompiled_header":
        return []
    attrs = ctx.rule.attr
    deps = [
        dep
        for name in ["deps", "actual", "_cudart"]
        for dep in ([getattr(attrs, name)] if type(getattr(attrs, name, [])) == "Target" else getattr(attrs, name, []))
        if _LibrariesInfo in dep
    ]
    headers = [
        file
        for name in ["hdrs", "textual_hdrs", "srcs"]
        for file in getattr(ctx.rule.files, name, [])
        if name == "textual_hdrs" or _is_header(file)
    ]
    archives, shared, flags = [], [], []
    whole = False
    for linked in target[CcInfo].linking_context.linker_inputs.to_list():
        if linked.owner != target.label:
            continue
        flags += linked.user_link_flags
        for library in linked.libraries:
            if _archive(library):
                archives.append(_archive(library))
                whole = whole or library.alwayslink
            elif library.dynamic_library:
                shared.append(library.dynamic_library.basename)
    record = struct(
        label = str(target.label),
        headers = [[file.path, file.short_path] for file in headers],
        archives = [[file.path, file.short_path] for file in archives],
        shared = shared,
        whole = whole,
        flags = flags,
        defines = [ctx.expand_make_variables("defines", define, {}) for define in getattr(attrs, "defines", [])],
        includes = getattr(attrs, "includes", []),
        dependencies = [str(dep.label) for dep in deps],
    )
    return [_LibrariesInfo(
        files = depset(headers + archives, transitive = [dep[_LibrariesInfo].files for dep in deps]),
        records = depset(
            [record.to_json() if not hasattr(json, "encode") else json.encode(record)],
            transitive = [dep[_LibrariesInfo].records for dep in deps],
            order = "postorder",
        ),
    )]

_record_libraries = aspect(
    implementation = _record_libraries_impl,
    attr_aspects = ["deps", "actual", "_cudart"],
)

def _installer_impl(ctx):
    libraries = [dep[_LibrariesInfo] for dep in ctx.attr.libraries]
    manifest = ctx.actions.declare_file(ctx.label.name + ".json")
    records = depset(transitive = [library.records for library in libraries], order = "postorder")
    ctx.actions.write(manifest, "{\"libraries\": [\n%s\n], \"modules\": %s, \"files\": %s}\n" % (
        ",\n".join(records.to_list()),
        json.encode({str(dep.label): module for dep, module in ctx.attr.libraries.items()}),
        json.encode({place: dep.files.to_list()[0].short_path for dep, place in ctx.attr.files.items()}),
    ))
    program = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(program, is_executable = True, content = """#!/bin/bash
set -euo pipefail
# The tree beside the program may be of an earlier build while a test runs.
root=${RUNFILES_DIR:-${TEST_SRCDIR:-$(readlink -f "$0").runfiles}}/%s
exec python3 "$root/%s" --manifest="$root/%s" --runfiles="$root" "$@"
""" % (ctx.workspace_name, ctx.file._program.short_path, manifest.short_path))
    return [DefaultInfo(
        executable = program,
        runfiles = ctx.runfiles(
            files = [manifest, ctx.file._program] + ctx.files.data + ctx.files.files,
            transitive_files = depset(transitive = [library.files for library in libraries]),
        ),
    )]

installer = rule(
    doc = "`bazel run` it with --prefix=DIRECTORY.",
    implementation = _installer_impl,
    executable = True,
    attrs = {
        "libraries": attr.label_keyed_string_dict(
            doc = "The entry points, each with the name of its module.",
            aspects = [_record_libraries],
            providers = [CcInfo],
        ),
        "files": attr.label_keyed_string_dict(allow_files = True, doc = "Other files, each with its place in the installation."),
        "data": attr.label_list(allow_files = True),
        "_program": attr.label(default = ":install.py", allow_single_file = True),
    },
)
