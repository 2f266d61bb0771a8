"""layer_lock: the test that a package has only dependencies that its layer allows.

Call it at the end of every BUILD file of a module and of the trainer, with no arguments. It asks Bazel itself, through a
genquery, for the direct dependencies of every shipped rule of the package (tests, benchmarks and other testonly rules are
exempt), and fails on an edge that //tools/layers:check_layers.py does not allow.
"""

_LOCKED_KINDS = ["cc_library", "cc_binary", "_cuda_library"]

def layer_lock():
    shipped = [
        "//%s:%s" % (native.package_name(), name)
        for name, rule in native.existing_rules().items()
        if rule["kind"] in _LOCKED_KINDS and not rule.get("testonly")
    ]
    if not shipped:
        return
    native.genquery(
        name = "layer_edges",
        testonly = True,
        expression = "deps(set(%s), 1)" % " ".join(shipped),
        opts = ["--noimplicit_deps"],
        scope = shipped,
        visibility = ["//visibility:private"],
    )
    native.sh_test(
        name = "layer_lock_test",
        size = "small",
        srcs = ["//tools/layers:check_layers.py"],
        args = [native.package_name(), "$(location :layer_edges)"],
        data = [":layer_edges"],
        visibility = ["//visibility:private"],
    )
