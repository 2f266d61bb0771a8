"""cc_test of this repository: a test that reads GoogleTest's headers precompiled, which takes half of the time."""

load("@rules_cc//cc:defs.bzl", _cc_test = "cc_test")

_MATCHERS = Label("//base:precompiled_matchers")

def cc_test(deps = [], copts = [], **kwargs):
    """Defines a cc_test whose sources start with base/status_matchers.h where the compiler is GCC.

    Args:
      deps: as in cc_test.
      copts: as in cc_test.
      **kwargs: as in cc_test.
    """
    package = [part for part in [_MATCHERS.workspace_root, _MATCHERS.package] if part]
    options = "/".join(["$(BINDIR)"] + package + [_MATCHERS.name, _MATCHERS.name + ".options"])
    _cc_test(
        copts = copts + ["@" + options],
        deps = deps + [str(_MATCHERS)],
        **kwargs
    )
