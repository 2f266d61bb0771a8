#!/usr/bin/env python3
"""Fails on a dependency that a package's layer does not allow: check_layers.py PACKAGE FILE_OF_LABELS."""

import sys

# The modules and external repositories on which the shipped code of each module may depend.
ALLOWED = {
    "base": {"@com_google_absl", "@com_github_nlohmann_json", "@local_cuda"},
    "topology": {"base", "@com_google_absl", "@com_github_nlohmann_json", "@hwloc", "@local_cuda"},
    "collectives": {
        "topology",
        "base",
        "@com_google_absl",
        "@com_github_nlohmann_json",
        "@com_google_highway",
        "@gloo",
        "@local_cuda",
        "@mpi",
        "@openssl",
    },
    "pipeline": {"collectives", "base", "@com_google_absl", "@com_github_nlohmann_json"},
    "tensor_parallel": {
        "collectives",
        "topology",
        "base",
        "@com_github_nlohmann_json",
        "@com_google_absl",
        "@com_google_highway",
        "@local_cuda",
        "@onednn",
        "@openblas",
    },
    "zero3": {"collectives", "offload", "topology", "base", "@com_google_absl", "@com_github_nlohmann_json"},
    "offload": {
        "base",
        "@com_google_absl",
        "@com_github_nlohmann_json",
        "@com_google_highway",
        "@liburing",
        "@lz4",
        "@zstd",
    },
}


def module_of(label):
    """Returns the module or repository: "topology" for //topology:mesh, "@com_google_absl" for @com_google_absl//absl/status."""
    repository, _, rest = label.partition("//")
    return repository.replace("@@", "@") if repository.strip("@") else rest.split(":")[0].split("/")[0]


def forbidden(package, labels):
    """Returns the labels that `package` may not depend on. tools/ may depend on everything."""
    module = package.split("/")[0]
    if module == "tools":
        return []
    allowed = ALLOWED[module] | {module, "third_party"}
    return [label for label in labels if module_of(label) not in allowed]


def main():
    package, path = sys.argv[1:]
    with open(path) as file:
        labels = file.read().split()
    if not labels:
        sys.exit("//%s: the query gave no labels: nothing was checked" % package)
    wrong = forbidden(package, labels)
    for label in wrong:
        print("//%s depends on %s; %s may name only %s" % (
            package, label, package.split("/")[0], ", ".join(sorted(ALLOWED[package.split("/")[0]]))))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
