"""Inspects a machine: its GPUs, the shared libraries of CUDA, and programs of the toolkit.

As a program, it prints the libraries that the kit's programs load, with path and version, as JSON.
"""

import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import sys

_TOOLKITS = ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"]


def site_packages():
    """All site-packages directories of this Python and of others on PATH."""
    found = [path for path in sys.path if path.endswith("-packages")]
    for directory in os.environ.get("PATH", "").split(os.pathsep) + ["/opt/conda/bin", "/opt/venv/bin"]:
        prefix = os.path.dirname(directory.rstrip("/"))
        found += glob.glob(os.path.join(prefix, "lib", "python3*", "site-packages"))
        found += glob.glob(os.path.join(prefix, "lib", "python3*", "dist-packages"))
    return list(dict.fromkeys(os.path.realpath(path) for path in found if os.path.isdir(path)))


def toolkits():
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [root for root in dict.fromkeys(filter(None, named + _TOOLKITS)) if os.path.isdir(root)]


def library_directories():
    """Directories with CUDA libraries: first PyTorch's packages, whose versions match each other, then toolkits."""
    directories = []
    for packages in site_packages():
        directories += sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))
        directories += glob.glob(os.path.join(packages, "torch", "lib"))
    for root in toolkits():
        directories += [os.path.join(root, name) for name in ("lib64", "lib")]
    return [path for path in directories if os.path.isdir(path)]


def find_library(name, directories):
    """The directory that contains a library; None if at most the system's loader finds it."""
    return next((path for path in directories if os.path.exists(os.path.join(path, name))), None)


def missing_libraries(names, directories):
    """For each library that is not found, its name and the nearest other version."""
    missing = []
    for name in names:
        if find_library(name, directories) or _loads(name):
            continue
        stem = name.split(".so")[0]
        others = [path for directory in directories for path in glob.glob(os.path.join(directory, stem + ".so.*"))]
        missing.append(name + (" (there is %s)" % others[0] if others else ""))
    return missing


# Libraries that programs load on first use: the function that returns the version, how it returns it, the
# oldest version that is accepted, and the Python package that has the library.
_LOADED = {
    "libcublasLt.so.13": ("cublasLtGetVersion", ctypes.c_size_t, 0, "nvidia-cublas"),
    "libcudnn.so.9": ("cudnnGetVersion", ctypes.c_size_t, 90600, "nvidia-cudnn-cu13"),
    "libnccl.so.2": ("ncclGetVersion", None, 0, "nvidia-nccl-cu13"),
}


def loaded_libraries():
    """{name: {path, version}, or {error} if the library cannot be loaded}, as the loader of this process finds them."""
    found = {}
    for name, (function, result, _, _) in _LOADED.items():
        try:
            library = ctypes.CDLL(name)
            call = getattr(library, function)
            number = ctypes.c_int()
            if result is None:
                call(ctypes.byref(number))
            else:
                call.restype = result
                number.value = call()
            found[name] = {"path": _mapped_path(name), "version": number.value}
        except (OSError, AttributeError) as error:
            found[name] = {"error": str(error)}
    return found


def _mapped_path(name):
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = [line.split(None, 5)[-1].strip() for line in file if "/" in line]
    return next((path for path in paths if os.path.basename(path).startswith(name)), None)


def problems_of_libraries(found):
    """Returns a line for each library that is missing or too old."""
    problems = []
    for name, (_, _, oldest, package) in _LOADED.items():
        library = found.get(name, {"error": "not looked for"})
        if "error" in library:
            problems.append("%s: %s (the Python package %s has it)" % (name, library["error"], package))
        elif library["version"] < oldest:
            problems.append("%s: version %d at %s, %d or newer is needed (the Python package %s has it)" % (
                name, library["version"], library["path"], oldest, package))
    return problems


def _loads(name):
    """True if the system's loader finds a library."""
    for directory in ["/lib", "/usr/lib", "/lib64", "/usr/lib64", *glob.glob("/usr/lib/*-linux-gnu")]:
        if os.path.exists(os.path.join(directory, name)):
            return True
    return False


def environment_of_programs(kit):
    """The environment in which the kit's programs find their libraries; the kit's own libraries come first."""
    environment = dict(os.environ)
    paths = [os.path.join(kit, "lib"), *library_directories()]
    paths += [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    environment["LD_LIBRARY_PATH"] = ":".join(paths)
    return environment


def find_gpus():
    """The driver's names of the GPUs; a text with the reason if there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1 of a CUDA driver was not found"
    code = driver.cuInit(0)
    if code != 0:
        return "the CUDA driver does not start (cuInit returned %d)" % code
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the CUDA driver sees no device; look at CUDA_VISIBLE_DEVICES"
    return [_gpu_name(driver, ordinal) for ordinal in range(count.value)]


def gpu_names():
    """find_gpus without the reason."""
    gpus = find_gpus()
    return gpus if isinstance(gpus, list) else []


def _gpu_name(driver, ordinal):
    text = ctypes.create_string_buffer(256)
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(text, len(text), device)
    return text.value.decode(errors="replace")


def driver_cuda_version():
    """The newest version of CUDA that the driver supports, as (13, 0); None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def find_program(name):
    """A program of the toolkit: on PATH, in a toolkit, or in a Python package."""
    found = shutil.which(name)
    if found:
        return found
    patterns = [os.path.join(root, "bin", name) for root in toolkits()]
    patterns += [os.path.join(root, name, name) for root in toolkits()]
    patterns += [os.path.join(packages, "nvidia", "*", "bin", name) for packages in site_packages()]
    patterns += ["/opt/nvidia/nsight-compute/*/" + name]
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))
                 if os.access(path, os.X_OK)), None)


def run_text(command, timeout=60, env=None):
    """Exit code and output of a command; the code is None if the command did not start or timed out."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, env=env,
                              stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def python_with_torch():
    """(interpreter, version of torch), or (None, the reason)."""
    reasons = []
    for python in dict.fromkeys([sys.executable, shutil.which("python3"), shutil.which("python"),
                                 "/opt/conda/bin/python", "/opt/venv/bin/python"]):
        if not python or not os.path.exists(python):
            continue
        code, text = run_text([python, "-c", "import torch; print(torch.__version__, torch.version.cuda)"], 120)
        if code == 0:
            return python, text.strip().splitlines()[-1]
        reasons.append("%s: %s" % (python, (text.strip().splitlines() or ["no output"])[-1]))
    return None, "; ".join(reasons)


def glibc():
    """The version of glibc, as (2, 36); None if the C library is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def describe():
    """Describes the machine, as a dictionary for the results."""
    query = "name,driver_version,memory.total,power.limit,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max"
    code, text = run_text(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"])
    return {
        "nvidia_smi": dict(zip(query.split(","), [f.strip() for f in text.splitlines()[0].split(",")]))
        if code == 0 and text.strip() else None,
        "python": sys.version.split()[0],
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "glibc": "%d.%d" % glibc() if glibc() else None,
        "compute_sanitizer": find_program("compute-sanitizer"),
        "ncu": find_program("ncu"),
    }


if __name__ == "__main__":
    print(json.dumps(loaded_libraries(), indent=1))
