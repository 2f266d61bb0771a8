#!/usr/bin/env python3
"""Packs the kit: pack_kit.py --output=FILE.tar.xz --program=FILE ... --file=FILE ... --missing=NAME ...

Programs are stripped and go to bin/. The shared libraries that they need go to lib/, except those of glibc and CUDA,
which the GPU machine must have. manifest.json lists the programs, those that this build lacks, and what the machine
must have. Equal inputs give equal archives.
"""

import argparse
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile

_GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|mvec)\.so)")
_CUDA = re.compile(r"^lib(cuda|cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|nvJitLink)\.so")
_ROOT = "tessera_gpu_kit"
# A dictionary that spans all programs, which share most of their code.
_COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}]


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def dynamic_libraries(program):
    """The shared libraries that a program loads, as {name: path, or None if it was not found}."""
    libraries = {}
    for line in run(["ldd", program]).splitlines():
        found = re.match(r"\s*(\S+) => (not found|/\S+)", line)
        if found:
            libraries[found[1]] = None if found[2] == "not found" else os.path.realpath(found[2])
    return libraries


def newest_glibc(paths):
    versions = set()
    for path in paths:
        versions.update((int(major), int(minor)) for major, minor in
                        re.findall(r"GLIBC_(\d+)\.(\d+)", run(["objdump", "-T", path])))
    return "%d.%d" % max(versions, default=(0, 0))


def stripped(path, directory):
    target = os.path.join(directory, os.path.basename(path))
    subprocess.run(["strip", "--strip-unneeded", "-o", target, path], check=True)
    return target


def add(archive, name, content, executable=False):
    info = tarfile.TarInfo(_ROOT + "/" + name)
    info.size = len(content)
    info.mode = 0o755 if executable else 0o644
    archive.addfile(info, io.BytesIO(content))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def collect(programs):
    """Returns (libraries to pack by name, names of CUDA libraries); exits if a library is missing."""
    carried, cuda = {}, set()
    for program in programs:
        for name, path in dynamic_libraries(program).items():
            if _CUDA.match(name):
                cuda.add(name)
            elif _GLIBC.match(name):
                continue
            elif path is None:
                sys.exit("pack_kit: %s needs %s, which was not found: install its package" % (program, name))
            else:
                carried[name] = path
    return carried, sorted(cuda)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--missing", action="append", default=[], help="a program that this build does not have")
    parser.add_argument("--without_cuda", action="store_true", help="the programs have no code for GPUs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, \
            lzma.open(options.output, "wb", filters=_COMPRESSION) as compressed, \
            tarfile.open(mode="w", fileobj=compressed) as archive:
        carried, cuda = collect(options.program)
        for path in sorted(options.file, key=os.path.basename):
            add(archive, os.path.basename(path), read(path), path.endswith(("run_kit.py", "peer_torch.py")))
        for path in sorted(options.program, key=os.path.basename):
            add(archive, "bin/" + os.path.basename(path), read(stripped(path, directory)), True)
        for name, path in sorted(carried.items()):
            add(archive, "lib/" + name, read(path))
        manifest = {
            "cuda": not options.without_cuda,
            "programs": sorted(os.path.basename(path) for path in options.program),
            "missing": sorted(options.missing),
            "libraries_of_cuda": cuda,
            "glibc": newest_glibc([*options.program, *carried.values()]),
        }
        add(archive, "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")


if __name__ == "__main__":
    main()
