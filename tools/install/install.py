#!/usr/bin/env python3
"""Installs Tessera's libraries with headers and files for CMake and pkg-config.

    ./bazelw run //tools/install -- --prefix=/opt/tessera

The installed tree can be moved. Files of an earlier installation that this one does not contain are removed.
"""

import argparse
import filecmp
import json
import os
import re
import shutil
import sys
import tempfile

# Repositories that are installed with Tessera; all others come from the machine.
BUNDLED = ("com_google_absl", "com_google_highway", "com_github_nlohmann_json")
INSTALLED = "lib/cmake/tessera/installed-files.txt"


def parse():
    parser = argparse.ArgumentParser(
        prog="install", description="Installs Tessera's headers and static libraries, for CMake and pkg-config."
    )
    parser.add_argument("--prefix", required=True, help="directory to install into, such as /opt/tessera")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("--manifest", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--runfiles", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    # bazel run changes the working directory.
    args.prefix = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), os.path.expanduser(args.prefix))
    return args


def split_label(label):
    """Returns repository (empty for Tessera), package and name."""
    repository, _, rest = label.lstrip("@").partition("//")
    package, _, name = rest.partition(":")
    return re.split("[+~]", repository)[-1] if repository else "", package, name or package.split("/")[-1]


class Library:
    """A library of the build, with the names under which it is installed."""

    def __init__(self, record):
        self.label = record["label"]
        self.record = record
        self.repository, self.package, name = split_label(self.label)
        parts = self.package.split("/") if self.package else []
        if not self.repository:
            parts = parts if parts[-1] == name and len(parts) > 1 else parts + [name]
        else:
            parts = (parts or [name]) if parts and parts[-1] == name else parts + [name]
        self.name = ".".join(parts)
        self.archive_name = "libtessera_%s.a" % "_".join(parts)
        self.module = None

    @property
    def is_bundled(self):
        return not self.repository or self.repository in BUNDLED

    def header_path(self, short_path):
        """The path of a header under include/tessera, by which sources include it."""
        path = re.sub(r"^(\.\./|external/)[^/]+/", "", short_path)
        for directory in self.record["includes"]:
            if directory != "." and path.startswith(directory + "/"):
                return path[len(directory) + 1 :]
        return path

    def links(self, runfiles):
        """The linker flags for libraries of the machine."""
        names = ["-l" + re.match(r"lib(.+?)\.so", shared).group(1) for shared in self.record["shared"]]
        if not self.is_bundled:
            # Static libraries of the CUDA toolkit.
            names += [os.path.realpath(os.path.join(runfiles, short)) for _, short in self.record["archives"]]
        return names + [flag for flag in self.record["flags"] if flag.startswith(("-l", "-pthread"))]


def read_manifest(path):
    with open(path) as manifest:
        content = json.load(manifest)
    libraries = {record["label"]: Library(record) for record in content["libraries"]}
    by_name = {}
    for library in libraries.values():
        other = by_name.setdefault(library.name, library)
        if other is not library and library.is_bundled:
            sys.exit("install: %s and %s have the same name, %s" % (other.label, library.label, library.name))
    modules = {}
    for label, module in content["modules"].items():
        modules.setdefault(module, []).append(libraries[label])
    return libraries, modules, content["files"]


def closure(libraries, entries):
    """The libraries that the entries need, each before its own dependencies."""
    order, seen = [], set()

    def visit(library):
        if library.label in seen:
            return
        seen.add(library.label)
        for label in reversed(library.record["dependencies"]):
            visit(libraries[label])
        order.append(library)

    for entry in reversed(entries):
        visit(entry)
    return order[::-1]


def assign_modules(libraries, modules):
    """Assigns each library to the module of its directory, or to the optional component that is its only user."""
    optional = [name for name, entries in modules.items() if all(name != e.package.split("/")[0] for e in entries)]
    regular = [entry for name, entries in modules.items() if name not in optional for entry in entries]
    for library in closure(libraries, regular):
        library.module = "dependencies" if library.repository else library.package.split("/")[0]
    for name in optional:
        for library in closure(libraries, modules[name]):
            library.module = library.module or name


def cmake_libraries(libraries, runfiles):
    lines = ["# Written by the installer; see tessera-config.cmake."]
    for library in reversed(closure(libraries, list(libraries.values()))):
        record = library.record
        words = [library.name]
        if library.is_bundled and record["archives"]:
            words += (["WHOLE"] if record["whole"] else []) + ["ARCHIVE", library.archive_name]
        for keyword, values in (
            ("DEFINES", record["defines"]),
            ("DEPENDS", [libraries[label].name for label in record["dependencies"]]),
            ("LINK", library.links(runfiles)),
        ):
            if values:
                words += [keyword] + values
        lines.append("_tessera_library(%s)" % " ".join(words))
    return "\n".join(lines) + "\n"


def cmake_modules(modules):
    return "# Written by the installer.\n" + "".join(
        "_tessera_module(%s %s)\n" % (name, " ".join(entry.name for entry in entries))
        for name, entries in modules.items()
    )


def cmake_version(version):
    return """set(PACKAGE_VERSION "%s")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
""" % version


def pkg_config(name, version, own, libraries, runfiles):
    """The .pc file of the module that has the libraries `own`, dependents first."""
    required = sorted({libraries[label].module for library in own for label in library.record["dependencies"]} - {name})
    links = ["-L${libdir}"]
    for library in own:
        if not library.record["archives"] or not library.is_bundled:
            links += library.links(runfiles)
        elif library.record["whole"]:
            # A single word, which pkg-config does not split.
            links += ["-Wl,--whole-archive,-l:%s,--no-whole-archive" % library.archive_name] + library.links(runfiles)
        else:
            links += ["-l" + library.archive_name[3:-2]] + library.links(runfiles)
    defines = sorted({"-D" + define for library in own for define in library.record["defines"]})
    return """prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include/tessera

Name: tessera-%s
Description: Tessera, %s
Version: %s
Requires: %s
Cflags: -I${includedir} %s
Libs: %s
""" % (
        name,
        "the libraries that its modules depend on" if name == "dependencies" else "module " + name,
        version,
        " ".join("tessera-" + other for other in required),
        " ".join(defines),
        " ".join(links),
    )


C_PKG_CONFIG = """prefix=${pcfiledir}/../..

Name: tessera
Description: The C interface of Tessera
Version: %s
Cflags: -I${prefix}/include
Libs: -L${prefix}/lib -ltessera
"""


class Tree:
    """The installed tree. Files are written atomically."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.files = []
        self.bytes = 0

    def put(self, path, source=None, text=None):
        target = os.path.join(self.prefix, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".install-")
        try:
            with os.fdopen(handle, "wb") as out:
                if source is None:
                    out.write(text.encode())
                else:
                    with open(source, "rb") as content:
                        shutil.copyfileobj(content, out)
                self.bytes += out.tell()
            os.chmod(temporary, 0o644)
            os.rename(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        self.files.append(path)

    def link(self, path, target):
        temporary = os.path.join(self.prefix, path + ".install-link")
        os.symlink(target, temporary)
        os.rename(temporary, os.path.join(self.prefix, path))
        self.files.append(path)

    def remove_stale(self):
        """Ends the installation: removes files that only an earlier installation has written."""
        try:
            with open(os.path.join(self.prefix, INSTALLED)) as earlier:
                stale = set(earlier.read().split("\n")) - set(self.files) - {"", INSTALLED}
        except FileNotFoundError:
            stale = set()
        for path in stale:
            if not os.path.isabs(path) and ".." not in path.split("/"):
                try:
                    os.unlink(os.path.join(self.prefix, path))
                except FileNotFoundError:
                    pass
        self.put(INSTALLED, text="\n".join(sorted(self.files)) + "\n")


def install(args):
    libraries, modules, files = read_manifest(args.manifest)
    assign_modules(libraries, modules)
    with open(os.path.join(args.runfiles, "MODULE.bazel")) as module:
        version = re.search(r'^module\(name = "tessera", version = "([^"]+)"', module.read(), re.M).group(1)
    tree = Tree(args.prefix)
    headers = {}
    archives = 0
    for library in libraries.values():
        if not library.is_bundled:
            continue
        for path, short in library.record["headers"]:
            source = os.path.join(args.runfiles, short)
            name = library.header_path(short)
            if name not in headers:
                headers[name] = source
                tree.put("include/tessera/" + name, source)
            elif not filecmp.cmp(headers[name], source, shallow=False):
                sys.exit("install: %s and %s would both be %s" % (headers[name], source, name))
        if len(library.record["archives"]) > 1:
            sys.exit("install: %s has several archives" % library.label)
        for _, short in library.record["archives"]:
            tree.put("lib/" + library.archive_name, os.path.join(args.runfiles, short))
            archives += 1
    cmake = "lib/cmake/tessera/"
    tree.put(cmake + "tessera-libraries.cmake", text=cmake_libraries(libraries, args.runfiles))
    tree.put(cmake + "tessera-modules.cmake", text=cmake_modules(modules))
    tree.put(cmake + "tessera-config-version.cmake", text=cmake_version(version))
    order = closure(libraries, list(libraries.values()))
    for name in sorted({library.module for library in order}):
        own = [library for library in order if library.module == name]
        tree.put("lib/pkgconfig/tessera-%s.pc" % name, text=pkg_config(name, version, own, libraries, args.runfiles))
    for place, short in files.items():
        tree.put(place, os.path.join(args.runfiles, short))
    tree.link("lib/libtessera.so", "libtessera.so.1")
    tree.put("lib/pkgconfig/tessera.pc", text=C_PKG_CONFIG % version)
    # Written last, because CMake searches for it.
    tree.put(
        cmake + "tessera-config.cmake", os.path.join(args.runfiles, "tools/install/tessera-config.cmake")
    )
    tree.remove_stale()
    if not args.quiet:
        print(
            "installed %d headers and %d libraries (%.0f MiB) in %s\nCMake: find_package(tessera) with -DCMAKE_PREFIX_PATH=%s; "
            "components: %s\npkg-config: PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config --cflags --libs tessera-collectives"
            % (len(headers), archives, tree.bytes / 2**20, args.prefix, args.prefix, ", ".join(modules), args.prefix)
        )


def main():
    args = parse()
    try:
        install(args)
    except OSError as error:
        sys.exit("install: %s: %s" % (error.filename or args.prefix, error.strerror))


if __name__ == "__main__":
    main()
