#!/usr/bin/env python3
"""Compares a README with an example: check_example.py README SOURCE PROGRAM.

The README must contain the source as a fenced code block (without its leading comment, if preferred) and the program's
standard output as another.
"""

import re
import subprocess
import sys


def code_blocks(markdown):
    """Returns the contents of the fenced code blocks, without trailing white space."""
    return [block.strip() for block in re.findall(r"^```[^\n]*\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)]


def without_leading_comment(source):
    lines = source.splitlines()
    while lines and (lines[0].startswith("//") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines).strip()


def problems(markdown, source, output):
    """Returns the problems as text; empty if there are none."""
    blocks = code_blocks(markdown)
    found = []
    if source.strip() not in blocks and without_leading_comment(source) not in blocks:
        found.append("no code block equals the example's source:\n" + without_leading_comment(source))
    if output.strip() not in blocks:
        found.append("no code block equals the output of the example:\n" + output)
    return found


def main():
    readme, source, program = sys.argv[1:]
    with open(readme) as file:
        markdown = file.read()
    with open(source) as file:
        text = file.read()
    output = subprocess.run(["./" + program], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    found = problems(markdown, text, output)
    for problem in found:
        print("%s: %s" % (readme, problem))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
