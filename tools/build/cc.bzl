"""cc_library, cc_test and cc_tool of this repository: GCC reads the headers that most sources include in compiled form.

This takes a quarter off the time to compile a library, and a half off that of a test. Targets with options of their own do
without: GCC would replace them, -ffp-contract among others, by the options of the precompiled header. Sources include what
they use all the same, as other compilers read: `--define=precompile=off` compiles without precompiled headers.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")

_COMMON = Label("//base:precompiled_common")
_MATCHERS = Label("//base:precompiled_matchers")
_PLAIN = Label("//base:plain_headers")

def cc_library(name, srcs = [], deps = [], copts = [], **kwargs):
    """Defines a cc_library whose sources start with base/common_headers.h where the compiler is GCC.

    Args:
      name: as in cc_library.
      srcs: as in cc_library; a list.
      deps: as in cc_library.
      copts: as in cc_library.
      **kwargs: as in cc_library.
    """
    if not copts and any([source.endswith(".cc") for source in srcs]):
        copts = _options(_COMMON)
        deps = deps + [str(_COMMON)]
    _cc_library(name = name, srcs = srcs, copts = copts, deps = deps, **kwargs)

def cc_test(srcs, deps = [], copts = [], **kwargs):
    """Defines a cc_test whose sources start with base/status_matchers.h where the compiler is GCC.

    Only if all sources are named *_test.cc: others may be optimised differently, for which a precompiled header is not valid.

    Args:
      srcs: as in cc_test.
      deps: as in cc_test.
      copts: as in cc_test.
      **kwargs: as in cc_test.
    """
    if not copts and all([source.endswith("_test.cc") for source in srcs]):
        copts = _options(_MATCHERS)
        deps = deps + [str(_MATCHERS)]
    _cc_test(srcs = srcs, copts = copts, deps = deps, **kwargs)

def cc_tool(name, srcs, deps, program_deps = [], visibility = None, **kwargs):
    """Defines a program, and the library NAME_subcommand that makes it a command of //tools:tessera.

    Args:
      name: of the program.
      srcs: sources, one of which has TESSERA_TOOL(name).
      deps: as in cc_library.
      program_deps: libraries that a program may lack; those that link the subcommand name them, too.
      visibility: of the program.
      **kwargs: as in cc_binary.
    """
    cc_library(
        name = name + "_subcommand",
        srcs = srcs,
        deps = deps + [str(Label("//tools/cli:main")), str(Label("//tools/cli:tool_registry"))],
        alwayslink = True,
    )
    cc_binary(name = name, deps = [name + "_subcommand"] + program_deps, visibility = visibility, **kwargs)

def _options(header):
    package = [part for part in [header.workspace_root, header.package] if part]
    path = "/".join(["$(BINDIR)"] + package + [header.name, header.name + ".options"])
    return select({str(_PLAIN): [], "//conditions:default": ["@" + path]})
