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

# The packages of the trainer in their order: each may depend on earlier ones, and tools/train itself on all.
TRAIN_ORDER = ["tools/train/" + name for name in (
    "settings", "watch", "model", "step", "checkpoint", "predict", "report", "sample", "loop", "launch")]


def module_of(label):
    """Returns the module or repository: "topology" for //topology:mesh, "@com_google_absl" for @com_google_absl//absl/status."""
    repository, _, rest = label.partition("//")
    return repository.replace("@@", "@") if repository.strip("@") else rest.split(":")[0].split("/")[0]


def allowed(package):
    """Returns the names that `package` may depend on: modules and repositories, or packages of the trainer."""
    if package in TRAIN_ORDER:
        return TRAIN_ORDER[:TRAIN_ORDER.index(package) + 1]
    module = package.split("/")[0]
    return sorted(ALLOWED.get(module, set()) | {module, "third_party"})


def forbidden(package, labels):
    """Returns the labels that `package` may not depend on. In tools/ only packages of the trainer are restricted."""
    if package.startswith("tools/train/"):
        name_of = lambda label: label.partition("//")[2].split(":")[0]
        labels = [label for label in labels if name_of(label).startswith("tools/train")]
    elif package.startswith("tools"):
        return []
    else:
        name_of = module_of
    return [label for label in labels if name_of(label) not in allowed(package)]


def main():
    package, path = sys.argv[1:]
    with open(path) as file:
        labels = file.read().split()
    if not labels:
        sys.exit("//%s: the query gave no labels: nothing was checked" % package)
    wrong = forbidden(package, labels)
    for label in wrong:
        print("//%s depends on %s; it may name only %s" % (package, label, ", ".join(allowed(package))))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
