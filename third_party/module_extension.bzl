"""The module extension that provides the repositories of repositories.bzl to MODULE.bazel. Bazel 7 and later.

A root module replaces one of them with override_repo (Bazel 7.4 and later), for example to link its own Abseil:

    bazel_dep(name = "tessera")
    bazel_dep(name = "abseil-cpp", version = "20240722.0")

    dependencies = use_extension("@tessera//third_party:module_extension.bzl", "dependencies")
    override_repo(dependencies, com_google_absl = "abseil-cpp")
"""

load(":repositories.bzl", "declare_libraries")

def _declare(repository_rule, name, **attributes):
    repository_rule(name = name, **attributes)

def _dependencies_impl(_module_context):
    declare_libraries(_declare)

dependencies = module_extension(
    doc = "Tessera's libraries: pinned sources and what the machine has.",
    implementation = _dependencies_impl,
)
