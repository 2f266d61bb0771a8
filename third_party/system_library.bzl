"""system_library: a library of the machine, a pinned one that is built here, or an empty one.

@NAME//:NAME is a cc_library. If the machine has the library, it has the headers, the shared object and
-DTESSERA_HAVE_NAME=1. Otherwise it is built from its pinned archive. If there is none, or it cannot be fetched, the library
is empty. @NAME//:defs.bzl has REQUIRES_NAME, for target_compatible_with: a target that names it is skipped if the library is
missing.

TESSERA_NAME=off (--repo_env) hides it; TESSERA_NAME=FLAVOR requires one of its flavors, and TESSERA_NAME=pinned its pinned
archive. TESSERA_LIBRARIES=pinned (--config=hermetic) does so for all libraries; those without an archive are then missing.
TESSERA_LIBRARIES=system fetches nothing. TESSERA_MACHINE names the machine that programs are built for, as `uname -m` does,
if it is another one (--config=aarch64).
"""

load(":pinned_source.bzl", "SOURCE_ATTRS", "extract_source", "fetch_source", "fetch_wheel")

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

def _machine(ctx):
    return ctx.os.environ.get("TESSERA_MACHINE") or ctx.execute(["uname", "-m"]).stdout.strip()

def _wheels(ctx):
    """The pinned wheels for the machine."""
    return {url: wheel for url, wheel in ctx.attr.wheels.items() if url.endswith(_machine(ctx) + ".whl")}

def _has_pinned(ctx):
    return bool(ctx.attr.urls or _wheels(ctx))

def _fetch_pinned(ctx):
    """Fetches the pinned archives; returns None, or why that is impossible."""
    if not _has_pinned(ctx):
        return "there is no pinned archive of %s for %s" % (ctx.name, _machine(ctx))
    for url, (package, sha256) in _wheels(ctx).items():
        failure = fetch_wheel(ctx, package, url, sha256)
        if failure:
            return failure
    if ctx.attr.urls:
        archive, failure = fetch_source(ctx)
        if failure:
            return failure
        extract_source(ctx, archive)
    ctx.file("WORKSPACE", "")
    ctx.delete("BUILD")
    ctx.symlink(ctx.attr.pinned_build_file, "BUILD.bazel")
    return None

def _use_system(ctx, name, found):
    includes, defines = [], []
    if found:
        defines = ["TESSERA_HAVE_%s=1" % name.upper()] + ctx.attr.defines
        for library in found.libraries:
            ctx.symlink(library, "lib/" + library.split("/")[-1])
        if ctx.path(found.header).dirname not in [ctx.path(d) for d in _INCLUDE_DIRS] and not found.header.startswith("/usr/include/" + name):
            ctx.symlink(ctx.path(found.header).dirname, "include")
            includes = ["include"]
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", _BUILD.format(name = name, defines = defines, includes = includes))

def _system_library_impl(ctx):
    name = ctx.name.replace("+", "~").split("~")[-1]
    upper = name.upper()
    arch = _machine(ctx) + "-linux-gnu"
    origin = ctx.os.environ.get("TESSERA_LIBRARIES", "")
    wanted = ctx.os.environ.get("TESSERA_" + upper, "pinned" if origin == "pinned" else "")
    found, flavor = None, ""
    for name_of_flavor, spec in ctx.attr.flavors.items():
        if not found and wanted in ("", name_of_flavor):
            found = _find_flavor(ctx, arch, spec)
            flavor = name_of_flavor if found else ""
    if not found and wanted not in ("", "off", "pinned"):
        fail("TESSERA_{}={}: no such library here; the known ones are {}, pinned and off.".format(upper, wanted, ", ".join(ctx.attr.flavors)))
    if not found and (wanted == "pinned" or (wanted == "" and origin != "system")):
        failure = _fetch_pinned(ctx)
        if failure and wanted == "pinned" and _has_pinned(ctx):
            fail(failure)
        flavor = "" if failure else "pinned"
    if not flavor:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no %s here: targets that need it are skipped" % name)
    if flavor != "pinned":
        _use_system(ctx, name, found)
    ctx.file("defs.bzl", "{0}_FLAVOR = {1}\nREQUIRES_{0} = {2}\n".format(
        upper,
        repr(flavor),
        [] if flavor else ["@%s//:missing" % name],
    ))

system_library = repository_rule(
    doc = "An optional library of this machine.",
    implementation = _system_library_impl,
    local = True,
    environ = [
        "TESSERA_GLOO",
        "TESSERA_HWLOC",
        "TESSERA_LIBRARIES",
        "TESSERA_LIBURING",
        "TESSERA_LZ4",
        "TESSERA_MACHINE",
        "TESSERA_MPI",
        "TESSERA_ONEDNN",
        "TESSERA_OPENBLAS",
        "TESSERA_OPENSSL",
        "TESSERA_SENTENCEPIECE",
        "TESSERA_UTF8PROC",
        "TESSERA_ZLIB",
        "TESSERA_ZSTD",
    ],
    attrs = dict(
        SOURCE_ATTRS,
        flavors = attr.string_list_dict(mandatory = True, doc = "Name -> header, library files; the first found wins."),
        defines = attr.string_list(),
        wheels = attr.string_list_dict(doc = "Address, which ends in the machine's name -> NAME==VERSION, sha256."),
        pinned_build_file = attr.label(allow_single_file = True, doc = "Builds NAME from the pinned archives."),
    ),
)
