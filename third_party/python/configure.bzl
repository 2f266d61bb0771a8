"""@local_python: the headers of this machine's Python and of pybind11, or stubs that let targets be skipped.

TESSERA_PYTHON names the interpreter (default python3).
"""

# Prints Python's headers, the suffix of extension modules, the tags of Python and of this machine, the interpreter, and the
# directory of pybind11's headers.
_QUESTION = """
import os, platform, sys, sysconfig
include = sysconfig.get_paths()["include"]
bindings = [d for d in ("/usr/include", "/usr/local/include") if os.path.exists(d + "/pybind11/pybind11.h")]
if bindings and os.path.exists(include + "/Python.h"):
    print(include, sysconfig.get_config_var("EXT_SUFFIX"), "cp%d%d" % sys.version_info[:2],
          "manylinux_%s_%s" % (platform.libc_ver()[1].replace(".", "_"), platform.machine()), sys.executable, bindings[0])
"""

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value: a target that requires it is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
)

cc_library(
    name = "pybind11",
    hdrs = glob([
        "bindings/**",
        "python/**",
    ]),
    includes = [
        "bindings",
        "python",
    ],
)
"""

def _python_configure_impl(ctx):
    python = ctx.os.environ.get("TESSERA_PYTHON", "python3")
    answer = ctx.execute([python, "-c", _QUESTION]).stdout.strip().split(" ")
    found = len(answer) == 6
    if not found:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no headers of Python and pybind11 here: targets that need them are skipped")
        answer = ["", ".so", "", "", "", ""]
    include, suffix, tag, platform, interpreter, bindings = answer
    if found:
        ctx.symlink(include, "python")
        ctx.symlink(bindings + "/pybind11", "bindings/pybind11")
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", _BUILD)
    ctx.file("defs.bzl", "".join(["%s = %r\n" % constant for constant in [
        ("EXT_SUFFIX", suffix),
        ("PLATFORM_TAG", platform),
        ("PYTHON", interpreter),
        ("PYTHON_TAG", tag),
        ("REQUIRES_PYTHON", [] if found else ["@local_python//:missing"]),
    ]]))

python_configure = repository_rule(
    doc = "Creates @local_python.",
    implementation = _python_configure_impl,
    environ = ["PATH", "TESSERA_PYTHON"],
    local = True,
)
