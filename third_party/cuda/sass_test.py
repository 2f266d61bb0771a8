#!/usr/bin/env python3
"""Checks the machine code of kernels: no stack frames, no local memory, and 16-byte accesses to global memory.

    sass_test.py --tool=cuobjdump --tool=nvdisasm --narrow=KERNEL,... --mixed=KERNEL,... FILE...

Each FILE is an object of nvcc (.o) or the report that ptxas wrote with it (.usage). Of the instances of a kernel for the
same types, for example with and without aligned memory, one must load or store 16 bytes at a time, unless --narrow names
the kernel, and that one must access no element of one or two bytes alone, unless --mixed names the kernel. ForEachPack is
named by the function that it applies.
"""

import argparse
import collections
import os
import re
import subprocess
import sys

_TYPES = {"5, 10, true": "F16", "8, 7, true": "BF16", "4, 3, false": "E4M3", "5, 2, true": "E5M2"}


def demangled(names):
    names = sorted(names)
    output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, output.splitlines()))


def short_name(name):
    """`RowKernel<BF16, true>` for the demangled name of a kernel."""
    name = re.sub(r"^void |\(anonymous namespace\)::", "", name)
    for format, short in _TYPES.items():
        name = name.replace("tessera::SmallFloat<tessera::FloatFormat<%s> >" % format, short)
    name = re.sub(r"\b(?:\w+::)+", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:i]
    return name


def family(name):
    """The kernel and its types, without numbers and flags, and with one type for words of any size."""
    name = re.sub(r"Pack<unsigned long, 2>|unsigned \w+", "word", name)
    return re.sub(r"\b(?:true|false|\d+)\b| ", "", name)


def base_name(name):
    body = re.match(r"ForEachPack<\d+, (\w+)", name)
    return body.group(1) if body else name.split("<")[0]


def frames(usage):
    """{kernel: bytes of its largest stack frame} from ptxas's report."""
    largest = collections.Counter()
    for name, size in re.findall(r"Function properties for (\S+)\n\s+(\d+) bytes stack frame", usage):
        largest[name] = max(largest[name], int(size))
    return largest


def kernels(sass):
    """Yields (kernel, Counter of the operations that access memory) for each kernel of each architecture."""
    for text in sass.split("\tFunction : ")[1:]:
        name, code = text.split("\n", 1)
        counts = collections.Counter()
        for kind, flags in re.findall(r" (LDL|STL|LDG|STG|LD|ST)((?:\.\w+)*) ", code):
            counts["local" if kind in ("LDL", "STL") else "global"] += 1
            counts["wide"] += ".128" in flags
            counts["alone"] += kind not in ("LDL", "STL") and bool(re.search(r"\.[US](8|16)\b", flags))
        yield name.strip(), counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", action="append", default=[], help="a program of the CUDA toolkit")
    parser.add_argument("--narrow", default="", help="names of kernels that access less than 16 bytes")
    parser.add_argument("--mixed", default="", help="names of kernels that also access single elements")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    # cuobjdump looks for nvdisasm in PATH.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(tool)) for tool in options.tool] + [os.environ["PATH"]])
    narrow = set(filter(None, options.narrow.split(",")))
    mixed = set(filter(None, options.mixed.split(",")))

    largest, found = collections.Counter(), []
    for file in options.files:
        if file.endswith(".usage"):
            with open(file) as usage:
                largest |= frames(usage.read())
        else:
            sass = subprocess.run(["cuobjdump", "-sass", file], capture_output=True, text=True)
            if sass.returncode != 0:
                sys.exit("cuobjdump -sass %s: %s" % (file, sass.stderr))
            found += kernels(sass.stdout)
    if not found:
        sys.exit("no kernel in " + " ".join(options.files))

    names = {name: short_name(long) for name, long in demangled({name for name, _ in found} | set(largest)).items()}
    errors, widths = [], collections.defaultdict(collections.Counter)
    alone = collections.defaultdict(dict)  # By kernel and types: the fewest single elements of a wide instance.
    for name, size in sorted(largest.items()):
        if size > 0:
            errors.append("%s has a stack frame of %d bytes" % (names[name], size))
    for name, counts in found:
        kernel, types = base_name(names[name]), family(names[name])
        if counts["local"]:
            errors.append("%s accesses local memory in %d places" % (names[name], counts["local"]))
        if counts["global"]:
            widths[kernel][types] += counts["wide"]
        if counts["wide"]:
            alone[kernel][types] = min(counts["alone"], alone[kernel].get(types, counts["alone"]))
    narrow_found = {kernel for kernel, families in widths.items() if 0 in families.values()}
    mixed_found = {kernel for kernel, families in alone.items() if any(families.values())}
    for kernel in sorted(narrow_found - narrow):
        errors.append("%s accesses less than 16 bytes at a time: mend it, or name it in narrow_kernels" % kernel)
    for kernel in sorted(mixed_found - mixed):
        errors.append("%s accesses single elements beside 16 bytes: mend it, or name it in mixed_kernels" % kernel)
    for kernel in sorted((narrow - narrow_found) | (mixed - mixed_found)):
        errors.append("%s is named as an exception, but is none or does not exist" % kernel)
    print("\n".join(errors))
    print("%d kernels, %d errors" % (len(found), len(errors)))
    sys.exit(bool(errors))


main()
