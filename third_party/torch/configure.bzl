"""@local_torch: the PyTorch of this machine's Python with its headers, or stubs that let targets be skipped.

TESSERA_PYTHON names the interpreter (default python3), TESSERA_TORCH=off hides its torch. torch is not imported: that takes
seconds, and fails where its CUDA libraries are missing.
"""

# Prints torch's directory and its version.
_QUESTION = """
import importlib.util, re
spec = importlib.util.find_spec("torch")
if spec:
    root = list(spec.submodule_search_locations)[0]
    print(root, re.search(r"__version__ = '([^']+)'", open(root + "/version.py").read()).group(1))
"""

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value: a target that requires it is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
)

# With torch's own pybind11, through which its types are known to Python.
cc_library(
    name = "torch",
    srcs = glob(["lib/*.so"]),
    hdrs = glob(["include/**"]),
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    deps = ["@local_python//:headers"],
)
"""

_LIBRARIES = ["c10", "torch", "torch_cpu", "torch_python"]

_HEADERS = ["ATen", "c10", "caffe2", "pybind11", "torch"]

# The oldest whose backends the adapter can extend.
_OLDEST = (2, 12)

def _is_supported(version):
    parts = version.split("+")[0].split(".")
    return len(parts) > 1 and (int(parts[0]), int(parts[1])) >= _OLDEST

def _torch_configure_impl(ctx):
    python = ctx.os.environ.get("TESSERA_PYTHON", "python3")
    answer = []
    if ctx.os.environ.get("TESSERA_TORCH", "") != "off":
        answer = ctx.execute([python, "-c", _QUESTION]).stdout.strip().split(" ")
    found = len(answer) == 2 and _is_supported(answer[1])
    if not found:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no torch here: targets that need it are skipped")
        answer = ["", ""]
    root, version = answer
    if found:
        for name in _HEADERS:
            ctx.symlink(root + "/include/" + name, "include/" + name)
        for name in _LIBRARIES:
            ctx.symlink("%s/lib/lib%s.so" % (root, name), "lib/lib%s.so" % name)
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", _BUILD)
    ctx.file("defs.bzl", "".join(["%s = %r\n" % constant for constant in [
        ("REQUIRES_TORCH", [] if found else ["@local_torch//:missing"]),
        ("TORCH_VERSION", version),
    ]]))

torch_configure = repository_rule(
    doc = "Creates @local_torch.",
    implementation = _torch_configure_impl,
    environ = ["PATH", "TESSERA_PYTHON", "TESSERA_TORCH"],
    local = True,
)
