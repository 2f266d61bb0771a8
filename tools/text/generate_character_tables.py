#!/usr/bin/env python3
"""Writes or checks character_tables.h: which code points are letters (general category L*) and numbers (N*).

    python3 generate_character_tables.py > character_tables.h
    python3 generate_character_tables.py --check=character_tables.h

Uses the module unicodedata2 if it is installed, else Python's unicodedata. The check works with any version: code points
assigned in both versions must agree.
"""

import itertools
import re
import sys
import textwrap

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


GUARD = "TESSERA_TOOLS_TEXT_CHARACTER_TABLES_H_"


def table(name, values):
    """Returns the lines of a table of the gaps between ascending values."""
    gaps = ", ".join(str(after - before) for before, after in itertools.pairwise([0] + values))
    lines = textwrap.wrap(gaps + "};", width=80, initial_indent="    ", subsequent_indent="    ")
    return ["inline constexpr uint16_t k%sGaps[] = {" % name] + lines


def source():
    lines = [
        "// Made by generate_character_tables.py from Unicode %s; not edited." % unicodedata.unidata_version,
        "#ifndef " + GUARD,
        "#define " + GUARD,
        "",
        "#include <cstdint>",
        "",
        "namespace tessera::text::internal {",
        "",
        "// Runs of letters (general category L*) and numbers (N*), by the gaps between",
        "// their edges, of which the first is from 0. The edges of a run are its first",
        "// code point and the one after its last.",
        "// clang-format off",
    ]
    for name, category in sorted(CLASSES.items()):
        lines += table(name, edges(members_of(category)))
    lines += ["// clang-format on", "", "}  // namespace tessera::text::internal", ""]
    return "\n".join(lines + ["#endif  // " + GUARD, ""])


def read_table(text, name):
    body = re.search(r"k%sGaps\[\] = \{(.*?)\}" % name, text, re.DOTALL).group(1)
    return list(itertools.accumulate(int(gap) for gap in re.findall(r"[0-9]+", body)))


def version(text):
    return [int(part) for part in text.split(".")]


def problems(text):
    """Returns the differences between the committed table and this Python's data."""
    table_version = re.search(r"from Unicode ([0-9.]+);", text).group(1)
    newer = version(unicodedata.unidata_version) > version(table_version)
    same = unicodedata.unidata_version == table_version
    found = []
    for name, category in CLASSES.items():
        ends = read_table(text, name)
        if ends != sorted(set(ends)) or len(ends) % 2 != 0:
            found.append("the edges of %s are not in order or not in pairs" % name)
        held = set()
        for first, end in zip(ends[::2], ends[1::2]):
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
