#!/usr/bin/env python3
"""Writes or checks character_tables.cc: which code points are letters (general category L*) and numbers (N*).

    python3 generate_character_tables.py > character_tables.cc     # then clang-format -i character_tables.cc
    python3 generate_character_tables.py --check=character_tables.cc

Uses the module unicodedata2 if it is installed, else Python's unicodedata. The check works with any version: code points
assigned in both versions must agree.
"""

import re
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

CODE_POINTS = 0x110000
CLASSES = {"Letter": "L", "Number": "N"}


def edges(members):
    """Returns the ranges of the sorted code points: [first, past the last, first, past the last, ...]."""
    found = []
    for code in members:
        if found and found[-1] == code:
            found[-1] = code + 1
        else:
            found += [code, code + 1]
    return found


def members_of(category):
    return [code for code in range(CODE_POINTS) if unicodedata.category(chr(code))[0] == category]


def source():
    lines = [
        "// Made by generate_character_tables.py from Unicode %s; not edited." % unicodedata.unidata_version,
        '#include "tools/text/character_tables.h"',
        "",
        "namespace tessera::text::internal {",
        "",
        "const char kUnicodeVersion[] = \"%s\";" % unicodedata.unidata_version,
    ]
    for name, category in sorted(CLASSES.items()):
        values = edges(members_of(category))
        lines += ["", "const uint32_t k%sEdges[] = {%s};" % (name, ", ".join("0x%x" % v for v in values))]
        lines += ["const int k%sEdgeCount = %d;" % (name, len(values))]
    return "\n".join(lines + ["", "}  // namespace tessera::text::internal", ""])


def read_table(text, name):
    body = re.search(r"k%sEdges\[\] = \{(.*?)\}" % name, text, re.DOTALL).group(1)
    return [int(value, 16) for value in re.findall(r"0x[0-9a-f]+", body)]


def version(text):
    return [int(part) for part in text.split(".")]


def problems(text):
    """Returns the differences between the committed table and this Python's data."""
    table_version = re.search(r'kUnicodeVersion\[\] =\s*"([^"]*)"', text).group(1)
    newer = version(unicodedata.unidata_version) > version(table_version)
    same = unicodedata.unidata_version == table_version
    found = []
    for name, category in CLASSES.items():
        table = read_table(text, name)
        if table != sorted(set(table)) or len(table) % 2 != 0:
            found.append("the edges of %s are not in order or not in pairs" % name)
        count = int(re.search(r"k%sEdgeCount = (\d+)" % name, text).group(1))
        if count != len(table):
            found.append("k%sEdgeCount is %d for %d edges" % (name, count, len(table)))
        held = set()
        for first, end in zip(table[::2], table[1::2]):
            held.update(range(first, end))
        for code in range(CODE_POINTS):
            ours, known = code in held, unicodedata.category(chr(code))
            theirs = known[0] == category
            # Code points that only the newer version assigns are ignored.
            unknown = not same and (ours if not newer else theirs) and (known == "Cn" if not newer else True)
            if ours != theirs and not unknown:
                found.append("U+%04X: the table says %s, category is %s" % (code, ours, known))
    return found


def main():
    if len(sys.argv) == 2 and sys.argv[1].startswith("--check="):
        with open(sys.argv[1].split("=", 1)[1]) as file:
            found = problems(file.read())
        print("\n".join(found[:20]) or "the tables agree with Unicode %s" % unicodedata.unidata_version)
        sys.exit(1 if found else 0)
    sys.stdout.write(source())


if __name__ == "__main__":
    main()
