"""@local_cuda: the CUDA toolkit, cuDNN and NCCL of this machine, or stubs that let targets be skipped.

Looked for in CUDA_HOME, CUDA_PATH, /usr/local/cuda and the distribution's place (/usr). TESSERA_CUDA=off hides it,
TESSERA_CUDA=required (--config=cuda) turns its absence into an error, TESSERA_CUDA_ARCHS names the code to compile.
"""

_DEFAULT_ARCHS = "sm_80,sm_90a,compute_90"

_LIBRARY_DIRS = ["lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]

# Of the other libraries only the headers are needed: programs load cuBLASLt, cuDNN and NCCL when they use them
# (base/device/cuda_library.h).
_RUNTIME = "libcudart_static.a"

_BUILD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has these values: a target that requires one of them is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
)

constraint_setting(name = "cudnn_presence")

constraint_value(
    name = "missing_cudnn",
    constraint_setting = ":cudnn_presence",
)

constraint_setting(name = "nccl_presence")

constraint_value(
    name = "missing_nccl",
    constraint_setting = ":nccl_presence",
)

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], exclude_directories = 1),
    defines = {defines},
    includes = ["include"],
)

cc_library(
    name = "cudart",
    srcs = {runtime},
    linkopts = ["-ldl", "-lrt", "-pthread"],
    target_compatible_with = {compatible},
    deps = [":headers"],
)
"""

def _find_root(ctx):
    env = ctx.os.environ
    wanted = env.get("TESSERA_CUDA", "")
    if wanted not in ("", "off", "required"):
        fail("TESSERA_CUDA={}: expected off or required, or nothing.".format(wanted))
    candidates = [d for d in [env.get("CUDA_HOME"), env.get("CUDA_PATH"), "/usr/local/cuda", "/usr"] if d]
    if wanted != "off":
        for root in candidates:
            if ctx.path(root + "/bin/nvcc").exists:
                return root
    if wanted == "required":
        fail("--config=cuda: no bin/nvcc under {}. Install the CUDA toolkit or set CUDA_HOME.".format(", ".join(candidates)))
    return None

def _find_library(ctx, root, file_name):
    for directory in _LIBRARY_DIRS:
        path = ctx.path("%s/%s/%s" % (root, directory, file_name))
        if path.exists:
            return path
    return None

def _local_cuda_impl(ctx):
    root = _find_root(ctx)
    if root:
        ctx.symlink(root + "/include", "include")
    missing = ["@local_cuda//:missing"]
    runtime = _find_library(ctx, root, _RUNTIME) if root else None
    if runtime:
        ctx.symlink(runtime, "lib/" + _RUNTIME)
    text = _BUILD.format(
        defines = ["TESSERA_HAVE_CUDA=1"] if root else [],
        runtime = ["lib/" + _RUNTIME] if runtime else [],
        compatible = [] if runtime else missing,
    )
    has_cudnn = root and ctx.path(root + "/include/cudnn.h").exists
    has_nccl = root and ctx.path(root + "/include/nccl.h").exists
    if not has_nccl:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no %s here: targets that need it are skipped" % ("NCCL" if root else "CUDA toolkit"))
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", text)
    ctx.file("defs.bzl", "\n".join([
        "CUDA_ROOT = " + repr(root),
        "CUDA_ARCHS = " + repr(ctx.os.environ.get("TESSERA_CUDA_ARCHS", _DEFAULT_ARCHS).split(",")),
        "REQUIRES_CUDA = " + repr([] if root else missing),
        "REQUIRES_CUDNN = " + repr([] if has_cudnn else ["@local_cuda//:missing_cudnn"]),
        "REQUIRES_NCCL = " + repr([] if has_nccl else ["@local_cuda//:missing_nccl"]),
    ]) + "\n")

cuda_configure = repository_rule(
    doc = "The CUDA toolkit of this machine.",
    implementation = _local_cuda_impl,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "TESSERA_CUDA", "TESSERA_CUDA_ARCHS"],
)
