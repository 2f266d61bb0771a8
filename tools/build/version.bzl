"""The version of Tessera, as in MODULE.bazel."""

VERSION = "0.1.0"
