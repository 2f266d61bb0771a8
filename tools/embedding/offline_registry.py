#!/usr/bin/env python3
"""Makes a local registry with which Bazel 7 resolves MODULE.bazel without a network.

    offline_registry.py DIRECTORY BAZEL_COMMAND...

Bazel's own module depends on others that a C++ build never loads. This script runs `BAZEL_COMMAND --registry=file://DIRECTORY`
(for example `bazel build --nobuild //topology:mesh`) and adds an empty module for each one that Bazel misses, until the command
passes. Later commands with the same --registry need no network either.
"""

import json
import os
import re
import subprocess
import sys

_MISSING = re.compile(r"module ([\w.-]+)@([\w.+-]+) not found in registries")
_CC_RULES = ["cc_binary", "cc_import", "cc_library", "cc_proto_library", "cc_test", "cc_toolchain", "cc_toolchain_suite",
             "objc_library"]


def write(path, text=""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def add_module(registry, name, version):
    """An empty module; for rules_cc a module with the rules that are built into Bazel."""
    module = 'module(name = "%s", version = "%s")\n' % (name, version)
    entry = os.path.join(registry, "modules", name, version)
    write(os.path.join(entry, "MODULE.bazel"), module)
    write(os.path.join(entry, "source.json"), json.dumps({"type": "local_path", "path": name}))
    source = os.path.join(registry, "sources", name)
    write(os.path.join(source, "MODULE.bazel"), module)
    write(os.path.join(source, "BUILD"))
    if name == "rules_cc":
        write(os.path.join(source, "cc", "BUILD"))
        write(os.path.join(source, "cc", "defs.bzl"), "".join("%s = native.%s\n" % (rule, rule) for rule in _CC_RULES))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    registry, command = os.path.abspath(sys.argv[1]), sys.argv[2:]
    write(os.path.join(registry, "bazel_registry.json"), json.dumps({"module_base_path": "sources"}))
    added = set()
    while True:
        result = subprocess.run(command + ["--registry=file://" + registry], stderr=subprocess.PIPE, text=True)
        missing = _MISSING.search(result.stderr)
        if not missing or missing.groups() in added:
            sys.stderr.write(result.stderr)
            sys.exit(result.returncode)
        added.add(missing.groups())
        add_module(registry, *missing.groups())


if __name__ == "__main__":
    main()
