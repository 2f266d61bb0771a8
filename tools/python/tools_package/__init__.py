"""The tools of Tessera: `tessera train`, `tessera plan` and others, as one program with the libraries that it needs."""

from __future__ import annotations

import os
import sys

__all__ = ["PROGRAM", "main"]

# The path of the program.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tessera_tools")


def main() -> None:
    """Replaces this process by the program, with the same arguments: the command `tessera`."""
    os.execv(PROGRAM, ["tessera", *sys.argv[1:]])
