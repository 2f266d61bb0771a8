"""@local_python: the headers of this machine's Python, or stubs that let targets be skipped.

TESSERA_PYTHON names the interpreter (default python3). TESSERA_MACHINE, set where programs are built for another machine
(--config=aarch64), hides it; PLATFORM_TAG is then that machine's.
"""

# Prints Python's headers, the suffix of extension modules, Python's tag, the version of the C library, the machine and the
# interpreter.
_QUESTION = """
import importlib.util, os, platform, sys, sysconfig
include = sysconfig.get_paths()["include"]
if os.path.exists(include + "/Python.h") and importlib.util.find_spec("pip") and platform.libc_ver()[0] == "glibc":
    print(include, sysconfig.get_config_var("EXT_SUFFIX"), "cp%d%d" % sys.version_info[:2], platform.libc_ver()[1],
          platform.machine(), sys.executable)
"""

# Prints the version of the C library that the cross compiler uses.
_LIBC_QUESTION = "printf '#include <features.h>\\n__GLIBC__.__GLIBC_MINOR__\\n' | $0-linux-gnu-cpp -P | tail -n 1 | tr -d ' '"

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value: a target that requires it is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
)

cc_library(
    name = "headers",
    hdrs = glob(["python/**"]),
    includes = ["python"],
)
"""

# The versions of the C library whose symbols programs need that are compiled with it or a newer one: threads are in libc
# itself from 2.34 on, C23's strtol is from 2.38 on. make_wheel.py checks that the module needs nothing newer.
_LIBC_STEPS = [(2, 38), (2, 34)]

def _platform_tag(libc, machine):
    version = tuple([int(number) for number in libc.split(".")[:2]])
    for step in _LIBC_STEPS:
        if version >= step:
            version = step
            break
    return "manylinux_%d_%d_%s" % (version[0], version[1], machine)

def _python_configure_impl(ctx):
    python = ctx.os.environ.get("TESSERA_PYTHON", "python3")
    answer = []
    machine = ctx.os.environ.get("TESSERA_MACHINE", "")
    if not machine:
        answer = ctx.execute([python, "-c", _QUESTION]).stdout.strip().split(" ")
    found = len(answer) == 6
    if not found:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no Python with its headers, pip and glibc here: targets that need them are skipped")
        libc = ctx.execute(["sh", "-c", _LIBC_QUESTION, machine]).stdout.strip() if machine else ""
        answer = ["", ".so", "", libc, machine, ""]
    include, suffix, tag, libc, machine, interpreter = answer
    if found:
        ctx.symlink(include, "python")
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", _BUILD)
    ctx.file("defs.bzl", "".join(["%s = %r\n" % constant for constant in [
        ("EXT_SUFFIX", suffix),
        ("PLATFORM_TAG", _platform_tag(libc, machine) if libc else ""),
        ("PYTHON", interpreter),
        ("PYTHON_TAG", tag),
        ("REQUIRES_PLATFORM_TAG", [] if libc else ["@local_python//:missing"]),
        ("REQUIRES_PYTHON", [] if found else ["@local_python//:missing"]),
    ]]))

python_configure = repository_rule(
    doc = "Creates @local_python.",
    implementation = _python_configure_impl,
    environ = ["PATH", "TESSERA_MACHINE", "TESSERA_PYTHON"],
    local = True,
)
