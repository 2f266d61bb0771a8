"""@local_cuda: the CUDA toolkit and NCCL of this machine, or stubs that let targets be skipped.

Looked for in CUDA_HOME, CUDA_PATH, /usr/local/cuda and the distribution's place (/usr). TESSERA_CUDA=off hides it,
TESSERA_CUDA=required (--config=cuda) turns its absence into an error, TESSERA_CUDA_ARCHS names the code to compile.
"""

_DEFAULT_ARCHS = "sm_80,sm_90a,compute_90"

_LIBRARY_DIRS = ["lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]

# name: (file, link options, libraries it needs)
_LIBRARIES = {
    "cublas": ("libcublas.so", [], [":cublasLt"]),
    "cublasLt": ("libcublasLt.so", [], []),
    "cudart": ("libcudart_static.a", ["-ldl", "-lrt", "-pthread"], []),
    "nccl": ("libnccl.so", [], []),
}

_BUILD_HEAD = """load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has these values: a target that requires one of them is skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "missing",
    constraint_setting = ":presence",
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
"""

_BUILD_LIBRARY = """
cc_library(
    name = "{name}",
    srcs = {srcs},
    linkopts = {linkopts},
    target_compatible_with = {compatible},
    deps = {deps},
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
    text = _BUILD_HEAD.format(defines = ["TESSERA_HAVE_CUDA=1"] if root else [])
    missing = ["@local_cuda//:missing"]
    present = {}
    for name, (file_name, linkopts, needs) in _LIBRARIES.items():
        path = _find_library(ctx, root, file_name) if root else None
        present[name] = path != None
        if path:
            ctx.symlink(path, "lib/" + file_name)
        text += _BUILD_LIBRARY.format(
            name = name,
            srcs = ["lib/" + file_name] if path else [],
            linkopts = linkopts,
            compatible = [] if path else missing,
            deps = [":headers"] + needs,
        )
    if not present["nccl"]:
        # Bazel repeats it at every build that looks here.
        # buildifier: disable=print
        print("no %s here: targets that need it are skipped" % ("NCCL" if root else "CUDA toolkit"))
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", text)
    ctx.file("defs.bzl", "\n".join([
        "CUDA_ROOT = " + repr(root),
        "CUDA_ARCHS = " + repr(ctx.os.environ.get("TESSERA_CUDA_ARCHS", _DEFAULT_ARCHS).split(",")),
        "REQUIRES_CUDA = " + repr([] if root else missing),
        "REQUIRES_NCCL = " + repr([] if present["nccl"] else ["@local_cuda//:missing_nccl"]),
    ]) + "\n")

cuda_configure = repository_rule(
    doc = "The CUDA toolkit of this machine.",
    implementation = _local_cuda_impl,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "TESSERA_CUDA", "TESSERA_CUDA_ARCHS"],
)
