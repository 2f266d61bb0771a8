#!/usr/bin/env python3
"""Writes a wheel: an archive of a package with an extension module or a program and its metadata (PEP 427)."""

import argparse
import base64
import hashlib
import os
import re
import sys
import zipfile

from elf_files import ElfFile, libraries_of, newest_version, symbols_of_version


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", help="the extension module")
    parser.add_argument("--program", help="a program that is installed with the libraries that it needs")
    parser.add_argument("--runfile", action="append", default=[], help="NAME=FILE, which the program finds among its runfiles")
    parser.add_argument("--readme", required=True)
    parser.add_argument("--summary", required=True)
    parser.add_argument("--requires", action="append", default=[], help="a package that it needs, such as torch==2.15.*")
    parser.add_argument("--entry_point", action="append", default=[], help="GROUP:NAME=OBJECT")
    parser.add_argument("--out", required=True, help="NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    parser.add_argument("files", nargs="+", help="files of the package")
    return parser.parse_args()


def native_file(path, promised, search_path=None):
    """Returns the bytes of a program or a shared library for systems with the C library of the wheel's tag, as (2, 34).

    The system's loader finds the libraries that it needs in `search_path`, or has already loaded them.
    """
    if newest_version(path, "GLIBC") > promised:
        sys.exit(f"make_wheel: {path} needs GLIBC {newest_version(path, 'GLIBC')}, newer than {promised} of the wheel's tag")
    elf = ElfFile(path)
    elf.set_search_path(search_path)
    # The C++ library of GCC 12 still defines this function with its older version, and RHEL 9 has only that.
    if set(symbols_of_version(path, "GLIBCXX_3.4.30")) == {"_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"}:
        elf.replace_version("GLIBCXX_3.4.30", "GLIBCXX_3.4.11")
    return bytes(elf.bytes)


def program_files(name, path, runfiles, promised):
    """Returns by name the files of a program, which stands in the package, of its libraries and its runfiles."""
    program = f"{name}/bin/{os.path.basename(path)}"
    libraries = libraries_of(path)
    files = {f"{name}.libs/{library}": native_file(place, promised) for library, place in libraries.items()}
    files[program] = native_file(path, promised, f"$ORIGIN/../../{name}.libs")
    for runfile, _, source in (text.partition("=") for text in runfiles):
        with open(source, "rb") as file:
            files[f"{program}.runfiles/{runfile}"] = file.read()
    return files


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
    info = f"{name}-{version}.dist-info"
    with open(args.readme, encoding="utf-8") as file:
        readme = file.read()
    contents = {}
    if args.module:
        contents[f"{name}/{os.path.basename(args.module)}"] = native_file(args.module, promised)
    if args.program:
        contents |= program_files(name, args.program, args.runfile, promised)
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
            entry.external_attr = (0o100755 if "/bin/" in path else 0o100644) << 16
            wheel.writestr(entry, data, compresslevel=9)
    return 0


if __name__ == "__main__":
    sys.exit(main())
