"""system_library: a library of the machine, or an empty one if the machine has none.

@NAME//:NAME is a cc_library. If the machine has the library, it has the headers, the shared object and
-DTESSERA_HAVE_NAME=1; elsewhere it is empty. @NAME//:defs.bzl has REQUIRES_NAME, for target_compatible_with: a
target that names it is skipped if the library is missing.

TESSERA_NAME=off (--repo_env) hides it; TESSERA_NAME=FLAVOR requires one of its flavors.
"""

_INCLUDE_DIRS = ["/usr/include", "/usr/local/include"]

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value: a target that requires it is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
)

cc_library(
    name = "{name}",
    srcs = glob(["lib/*"]),
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = {includes},
)
"""

def _library_dirs(arch):
    return ["/usr/lib/" + arch, "/usr/lib64", "/usr/lib", "/usr/local/lib"]

def _first_existing(ctx, paths):
    for path in paths:
        if ctx.path(path).exists:
            return path
    return None

def _find_flavor(ctx, arch, spec):
    """The header's path and the libraries' paths of one flavor, or None where one of them is missing."""
    header = spec[0].format(arch = arch)
    found = _first_existing(ctx, [header] if header.startswith("/") else [d + "/" + header for d in _INCLUDE_DIRS])
    libraries = [_first_existing(ctx, [d + "/" + lib for d in _library_dirs(arch)]) for lib in spec[1:]]
    return struct(header = found, libraries = libraries) if found and None not in libraries else None

def _system_library_impl(ctx):
    name = ctx.name.replace("+", "~").split("~")[-1]
    upper = name.upper()
    arch = ctx.execute(["uname", "-m"]).stdout.strip() + "-linux-gnu"
    wanted = ctx.os.environ.get("TESSERA_" + upper, "")
    found, flavor_found = None, ""
    for flavor, spec in ctx.attr.flavors.items():
        if not found and wanted in ("", flavor):
            found, flavor_found = _find_flavor(ctx, arch, spec), flavor
    if not found and wanted not in ("", "off"):
        fail("TESSERA_{}={}: no such library here; the known ones are {} and off.".format(upper, wanted, ", ".join(ctx.attr.flavors)))

    if not found:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no %s here: targets that need it are skipped" % name)
    includes, defines = [], []
    if found:
        defines = ["TESSERA_HAVE_%s=1" % upper] + ctx.attr.defines
        for library in found.libraries:
            ctx.symlink(library, "lib/" + library.split("/")[-1])
        if ctx.path(found.header).dirname not in [ctx.path(d) for d in _INCLUDE_DIRS] and not found.header.startswith("/usr/include/" + name):
            ctx.symlink(ctx.path(found.header).dirname, "include")
            includes = ["include"]
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", _BUILD.format(name = name, defines = defines, includes = includes))
    ctx.file("defs.bzl", "{0}_FLAVOR = {1}\nREQUIRES_{0} = {2}\n".format(
        upper,
        repr(flavor_found if found else ""),
        [] if found else ["@%s//:missing" % name],
    ))

system_library = repository_rule(
    doc = "An optional library of this machine.",
    implementation = _system_library_impl,
    local = True,
    environ = [
        "TESSERA_GLOO",
        "TESSERA_HWLOC",
        "TESSERA_LIBURING",
        "TESSERA_LZ4",
        "TESSERA_MPI",
        "TESSERA_OPENBLAS",
        "TESSERA_OPENSSL",
        "TESSERA_SENTENCEPIECE",
        "TESSERA_ZSTD",
    ],
    attrs = {
        "flavors": attr.string_list_dict(mandatory = True, doc = "Name -> header, library files; the first found wins."),
        "defines": attr.string_list(),
    },
)
