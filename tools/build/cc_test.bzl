"""cc_test of this repository: a test that reads GoogleTest's headers precompiled, which takes half of the time."""

load("@rules_cc//cc:defs.bzl", _cc_test = "cc_test")

_MATCHERS = Label("//base:precompiled_matchers")

def cc_test(srcs, deps = [], copts = [], **kwargs):
    """Defines a cc_test.

    Where the compiler is GCC, sources named *_test.cc start with base/status_matchers.h. Other sources may be optimised
    differently, for which a precompiled header is not valid.

    Args:
      srcs: as in cc_test.
      deps: as in cc_test.
      copts: as in cc_test.
      **kwargs: as in cc_test.
    """
    if all([source.endswith("_test.cc") for source in srcs]):
        package = [part for part in [_MATCHERS.workspace_root, _MATCHERS.package] if part]
        options = "/".join(["$(BINDIR)"] + package + [_MATCHERS.name, _MATCHERS.name + ".options"])
        copts = copts + ["@" + options]
        deps = deps + [str(_MATCHERS)]
    _cc_test(srcs = srcs, copts = copts, deps = deps, **kwargs)
