"""ELF files (64-bit, little-endian) that are copied into wheels: their libraries, search paths and required versions."""

import os
import platform
import re
import struct
import subprocess
import tempfile

# Libraries of the system that a wheel of PEP 600 may use.
SYSTEM_LIBRARIES = re.compile(r"(ld-linux-[\w-]+|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so\.\d+")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH, _DT_IGNORED = 5, 15, 29, 0x6FFFFEF0
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


def _machine(path):
    """Returns the machine of a program, as `uname -m` does."""
    with open(path, "rb") as file:
        (machine,) = struct.unpack_from("<H", file.read(20), 18)
    return {62: "x86_64", 183: "aarch64"}[machine]


def _run(tool, *arguments, path):
    """Runs a tool of the path's machine on it and returns its output."""
    machine = _machine(path)
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"
    return subprocess.run([prefix + tool, *arguments, path], check=True, capture_output=True, text=True).stdout


class ElfFile:
    """The bytes of a program or a shared library, without debug symbols."""

    def __init__(self, path):
        with tempfile.TemporaryDirectory() as directory:
            copy = os.path.join(directory, "copy")
            _run("strip", "--strip-unneeded", "-o", copy, path=path)
            with open(copy, "rb") as file:
                self.bytes = bytearray(file.read())
        self._segments = list(self._read_segments())
        self._dynamic = {self._tag(at): at for at in self._dynamic_entries()}

    def _read_segments(self):
        (table,) = struct.unpack_from("<Q", self.bytes, 32)
        entry_size, count = struct.unpack_from("<HH", self.bytes, 54)
        for at in range(table, table + count * entry_size, entry_size):
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", self.bytes, at)
            yield kind, offset, address, size

    def _tag(self, entry):
        return struct.unpack_from("<q", self.bytes, entry)[0]

    def _value(self, tag):
        return struct.unpack_from("<Q", self.bytes, self._dynamic[tag] + 8)[0]

    def _dynamic_entries(self):
        for kind, offset, _, size in self._segments:
            if kind == _PT_DYNAMIC:
                yield from range(offset, offset + size, 16)

    def _offset(self, address):
        return next(
            offset + address - start
            for kind, offset, start, size in self._segments
            if kind == _PT_LOAD and start <= address < start + size
        )

    def _string_at(self, index):
        begin = self._offset(self._value(_DT_STRTAB)) + index
        return self.bytes[begin : self.bytes.index(0, begin)].decode()

    def set_search_path(self, path=None):
        """Makes `path` the only search path, also for the libraries of its libraries; None removes all search paths."""
        for tag in {_DT_RPATH, _DT_RUNPATH} & self._dynamic.keys():
            entry, index = self._dynamic[tag], self._value(tag)
            if path is None:
                struct.pack_into("<q", self.bytes, entry, _DT_IGNORED)
                continue
            space = len(self._string_at(index))
            if len(path) > space:
                raise ValueError(f"there is no space for the search path {path}")
            begin = self._offset(self._value(_DT_STRTAB)) + index
            self.bytes[begin : begin + space] = path.encode().ljust(space, b"\0")
            struct.pack_into("<q", self.bytes, entry, _DT_RPATH)

    def replace_version(self, old, new):
        """Requires `new` in the place of `old`, for symbols that their library defines with both versions."""
        found = {self._string_at(struct.unpack_from("<I", self.bytes, at + 8)[0]): at for at in self._required_versions()}
        if old in found and new in found:
            for field in (0, 8):  # The hash of the name, and its place among the strings.
                to, source = found[old] + field, found[new] + field
                self.bytes[to : to + 4] = self.bytes[source : source + 4]

    def _required_versions(self):
        if _DT_VERNEED not in self._dynamic:
            return
        at = self._offset(self._value(_DT_VERNEED))
        for _ in range(self._value(_DT_VERNEEDNUM)):
            _, count, _, first, following = struct.unpack_from("<HHIII", self.bytes, at)
            version = at + first
            for _ in range(count):
                yield version
                version += struct.unpack_from("<I", self.bytes, version + 12)[0]
            at += following


def newest_version(path, library):
    """Returns the newest version of GLIBC or GLIBCXX that the file requires, as (2, 34); () if none."""
    found = re.findall(rf"\(?{library}_([\d.]+)", _run("objdump", "-T", path=path))
    return max((tuple(map(int, text.split("."))) for text in found), default=())


def symbols_of_version(path, version):
    """Returns the symbols that the file requires with a version such as GLIBCXX_3.4.30."""
    return re.findall(rf"\({re.escape(version)}\) (\S+)", _run("objdump", "-T", path=path))


def libraries_of(program):
    """Returns the paths by name of the shared libraries that a program and its libraries need, but not those of every system.

    For another machine, only the search path of the program itself has them.
    """
    if _machine(program) == platform.machine():
        places = dict(re.findall(r"(\S+) => (/\S+)", _run("ldd", path=program)))
    else:
        path = "".join(re.findall(r"RUNPATH.*\[(.*)\]", _run("readelf", "-d", path=program)))
        folders = path.replace("$ORIGIN", os.path.dirname(os.path.realpath(program))).split(":")
        places = {file: os.path.join(folder, file) for folder in folders if os.path.isdir(folder) for file in os.listdir(folder)}
    found, pending = {}, [program]
    while pending:
        for name in re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "-d", path=pending.pop())):
            if name in found or SYSTEM_LIBRARIES.fullmatch(name):
                continue
            if name not in places:
                raise ValueError(f"{program}: {name} was not found")
            found[name] = places[name]
            pending.append(places[name])
    return found
