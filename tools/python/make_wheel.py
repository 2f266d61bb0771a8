#!/usr/bin/env python3
"""Writes a wheel: an archive of a package with an extension module and its metadata (PEP 427)."""

import argparse
import base64
import hashlib
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", required=True, help="the extension module")
    parser.add_argument("--readme", required=True)
    parser.add_argument("--summary", required=True)
    parser.add_argument("--requires", action="append", default=[], help="a package that it needs, such as torch==2.15.*")
    parser.add_argument("--entry_point", action="append", default=[], help="GROUP:NAME=OBJECT")
    parser.add_argument("--out", required=True, help="NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    parser.add_argument("files", nargs="+", help="files of the package")
    return parser.parse_args()


def stripped(path):
    """Returns the module without debug symbols and without the search paths of this build's libraries.

    The system's loader finds the libraries that the module needs, or torch has already loaded them.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = os.path.join(directory, "module")
        subprocess.run(["strip", "--strip-unneeded", "-o", copy, path], check=True)
        with open(copy, "rb") as file:
            return without_search_path(bytearray(file.read()))


def without_search_path(elf):
    """Replaces DT_RPATH and DT_RUNPATH of a 64-bit little-endian ELF file by entries that loaders ignore."""
    pt_dynamic, dt_null, ignored, paths = 2, 0, 0x6FFFFEF0, (15, 29)
    (table,) = struct.unpack_from("<Q", elf, 32)
    entry_size, count = struct.unpack_from("<HH", elf, 54)
    for at in range(table, table + count * entry_size, entry_size):
        (kind,) = struct.unpack_from("<I", elf, at)
        offset, _, _, size = struct.unpack_from("<QQQQ", elf, at + 8)
        if kind != pt_dynamic:
            continue
        for entry in range(offset, offset + size, 16):
            (tag,) = struct.unpack_from("<q", elf, entry)
            if tag == dt_null:
                break
            if tag in paths:
                struct.pack_into("<q", elf, entry, ignored)
    return bytes(elf)


def newest_glibc(path):
    """Returns the newest version of the C library that the module needs, as (2, 34)."""
    text = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
    versions = {tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", text)}
    return max(versions)


def metadata(name, version, args, readme):
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {name.replace('_', '-')}\n"
        f"Version: {version}\n"
        f"Summary: {args.summary}\n"
        "License: Apache-2.0\n"
        "Requires-Python: >=3.10\n"
        + "".join(f"Requires-Dist: {package}\n" for package in args.requires)
        + "Description-Content-Type: text/markdown\n\n"
        + readme
    )


def entry_points(given):
    groups = {}
    for text in given:
        group, _, entry = text.partition(":")
        groups.setdefault(group, []).append(entry)
    return "\n".join("\n".join([f"[{group}]", *entries, ""]) for group, entries in groups.items())


def main():
    args = parse()
    name, version, tag, abi, platform = os.path.basename(args.out)[: -len(".whl")].split("-")
    promised = tuple(map(int, re.match(r"manylinux_(\d+)_(\d+)_", platform).groups()))
    if newest_glibc(args.module) > promised:
        sys.exit(f"make_wheel: the module needs GLIBC_{newest_glibc(args.module)}, newer than the tag {platform}")
    info = f"{name}-{version}.dist-info"
    with open(args.readme, encoding="utf-8") as file:
        readme = file.read()
    contents = {f"{name}/{os.path.basename(args.module)}": stripped(args.module)}
    for path in args.files:
        base = os.path.basename(path)
        with open(path, "rb") as file:
            # PACKAGE_*.py is a module beside the package.
            contents[base if base.startswith(f"{name}_") else f"{name}/{base}"] = file.read()
    contents[f"{info}/METADATA"] = metadata(name, version, args, readme).encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\nTag: {tag}-{abi}-{platform}\n".encode()
    )
    if args.entry_point:
        contents[f"{info}/entry_points.txt"] = entry_points(args.entry_point).encode()
    record = []
    for path, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}")
    record.append(f"{info}/RECORD,,")
    contents[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    with zipfile.ZipFile(args.out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
