"""@local_cuda: the CUDA toolkit, cuDNN and NCCL of this machine, or stubs that let targets be skipped.

Looked for in CUDA_HOME, CUDA_PATH, /usr/local/cuda and the distribution's place (/usr). TESSERA_CUDA=off hides it,
TESSERA_CUDA=required (--config=cuda) turns its absence into an error, TESSERA_CUDA=wheels (--config=cuda_hermetic) takes
all from pinned wheels instead. TESSERA_CUDA_ARCHS names the code to compile.
"""

load("//third_party:pinned_source.bzl", "PYPI", "fetch_wheel")

_DEFAULT_ARCHS = "sm_80,sm_90a,compute_90"

_LIBRARY_DIRS = ["lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]

# Of the other libraries only the headers are needed: programs load cuBLASLt, cuDNN and NCCL when they use them
# (base/device/cuda_library.h).
_RUNTIME = "libcudart_static.a"

# Package: its place at the package index, its platform, sha256.
_WHEELS = {
    "nvidia-cublas==13.1.0.3": [
        "e7/44/423ac00af4dd95a5aeb27207e2c0d9b7118702149bf4704c3ddb55bb7429",
        "manylinux_2_27_x86_64",
        "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    ],
    "nvidia-cuda-cccl==13.0.85": [
        "ab/fb/0384bb2129bed6b1b39f8e44471c615ab5ab29b7e55817538a1d390d8f84",
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
    ],
    "nvidia-cuda-crt==13.0.88": [
        "05/69/a1ec4d9f0747d85964206feb47bf359f48a2d6af74c0add8abba6efe3dda",
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
    ],
    "nvidia-cuda-nvcc==13.0.88": [
        "71/8b/a546c12881fffeba927d810598987df25d74b8b241788c7db8dfc93b0173",
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    ],
    "nvidia-cuda-runtime==13.0.96": [
        "2e/24/d1558f3b68b1d26e706813b1d10aa1d785e4698c425af8db8edc3dced472",
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    ],
    "nvidia-cudnn-cu13==9.19.0.56": [
        "a3/22/0b4b932655d17a6da1b92fa92ab12844b053bb2ac2475e179ba6f043da1e",
        "manylinux_2_27_x86_64",
        "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
    ],
    "nvidia-nccl-cu13==2.28.9": [
        "b0/b4/878fefaad5b2bcc6fcf8d474a25e3e3774bc5133e4b58adff4d0bca238bc",
        "manylinux_2_18_x86_64",
        "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
    ],
    "nvidia-nvvm==13.0.88": [
        "15/b0/ee41e6d1108d959b5097163e7190c2d0f7857dea75606ce358f0275891b4",
        "manylinux2010_x86_64.manylinux_2_12_x86_64",
        "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
    ],
}

# The root of their toolkit in the repository.
_TOOLKIT = "nvidia/cu13"

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

# What nvcc reads, if it is not the machine's.
filegroup(
    name = "toolkit",
    srcs = glob({toolkit}),
)

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], exclude_directories = 1),
    defines = {defines},
    includes = ["include"] + {includes},
)

cc_library(
    name = "cudart",
    srcs = {runtime},
    linkopts = ["-ldl", "-lrt", "-pthread"],
    target_compatible_with = {compatible},
    deps = [":headers"],
)
"""

def _fetch_toolkit(ctx):
    """Fetches the pinned wheels, and returns the root of the toolkit that they make."""
    machine = ctx.execute(["uname", "-m"]).stdout.strip()
    if machine != "x86_64":
        fail("--config=cuda_hermetic: its wheels are for x86_64, and this machine is {}. Install the CUDA toolkit.".format(machine))
    for package, (place, platform, sha256) in _WHEELS.items():
        name = package.replace("-", "_").replace("==", "-")
        failure = fetch_wheel(ctx, package, "%s%s/%s-py3-none-%s.whl" % (PYPI, place, name, platform), sha256)
        if failure:
            fail(failure)
        ctx.delete("distfile")
    result = ctx.execute(["cp", "-rl", "nvidia/cudnn/include", "nvidia/cudnn/lib", "nvidia/nccl/include", "nvidia/nccl/lib", _TOOLKIT])
    if result.return_code:
        fail("@{}: {}".format(ctx.name, result.stderr))
    return str(ctx.path(_TOOLKIT))

def _find_root(ctx):
    env = ctx.os.environ
    wanted = env.get("TESSERA_CUDA", "")
    if wanted not in ("", "off", "required", "wheels"):
        fail("TESSERA_CUDA={}: expected off, required or wheels, or nothing.".format(wanted))
    if wanted == "wheels":
        return _fetch_toolkit(ctx)
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
    is_fetched = ctx.os.environ.get("TESSERA_CUDA") == "wheels"
    if root:
        ctx.symlink(root + "/include", "include")
    missing = ["@local_cuda//:missing"]
    runtime = _find_library(ctx, root, _RUNTIME) if root else None
    if runtime:
        ctx.symlink(runtime, "lib/" + _RUNTIME)
    text = _BUILD.format(
        toolkit = [_TOOLKIT + "/bin/**", _TOOLKIT + "/nvvm/**"] if is_fetched else [],
        includes = ["include/cccl"] if is_fetched else [],
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
        "CUDA_ROOT = " + repr("external/%s/%s" % (ctx.name, _TOOLKIT) if is_fetched else root),
        "CUDA_ARCHS = " + repr(ctx.os.environ.get("TESSERA_CUDA_ARCHS", _DEFAULT_ARCHS).split(",")),
        "REQUIRES_CUDA = " + repr([] if root else missing),
        "REQUIRES_CUDNN = " + repr([] if has_cudnn else ["@local_cuda//:missing_cudnn"]),
        "REQUIRES_NCCL = " + repr([] if has_nccl else ["@local_cuda//:missing_nccl"]),
    ]) + "\n")

cuda_configure = repository_rule(
    doc = "The CUDA toolkit of this machine, or of pinned wheels.",
    implementation = _local_cuda_impl,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "TESSERA_CUDA", "TESSERA_CUDA_ARCHS", "TESSERA_PYTHON"],
)
