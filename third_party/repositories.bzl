"""The repositories of Tessera's dependencies, for a WORKSPACE and for a MODULE.bazel.

A WORKSPACE that embeds Tessera calls one function. Every repository is declared through maybe(), so earlier declarations
of the workspace are kept:

    local_repository(name = "tessera", path = "...")
    load("@tessera//third_party:repositories.bzl", "tessera_repositories")
    tessera_repositories()

MODULE.bazel uses the same list (module_extension.bzl).
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load(":bazel_compat.bzl", "coverage_tools", "native_rules")
load(":pinned_source.bzl", "apt_sources", "pinned_source", "pinned_wheel")
load(":system_library.bzl", "system_library")
load("//third_party/cuda:configure.bzl", "cuda_configure")
load("//third_party/python:configure.bzl", "python_configure")
load("//third_party/torch:configure.bzl", "torch_configure")

def tessera_repositories():
    """Declares every repository that Tessera's targets name."""
    _bazel_rules()
    declare_libraries(maybe)

def declare_libraries(declare):
    """Calls `declare(repository_rule, name = ..., ...)` for every library and toolkit; the rules of Bazel itself are not among them."""
    _source_libraries(declare)
    _system_libraries(declare)
    declare(cuda_configure, name = "local_cuda")
    declare(python_configure, name = "local_python")
    declare(torch_configure, name = "local_torch")

def _bazel_rules():
    maybe(native_rules, name = "rules_cc", directory = "cc", rules = [
        "cc_binary",
        "cc_import",
        "cc_library",
        "cc_proto_library",
        "cc_test",
        "cc_toolchain",
        "cc_toolchain_suite",
        "objc_library",
    ])
    maybe(native_rules, name = "rules_java", directory = "java", rules = [
        "java_binary",
        "java_import",
        "java_library",
        "java_proto_library",
        "java_runtime",
        "java_toolchain",
    ])
    maybe(coverage_tools, name = "remote_coverage_tools")

def _source_libraries(declare):
    declare(apt_sources, name = "tessera_apt_sources")
    declare(
        pinned_source,
        name = "bazel_skylib",
        urls = ["https://github.com/bazelbuild/bazel-skylib/releases/download/1.0.3/bazel-skylib-1.0.3.tar.gz"],
        sha256 = "1c531376ac7e5a180e0237938a2536de0c54d93f5c278634818e0efc952dd56c",
        distribution_package = "bazel-skylib",
        distribution_file = "bazel-skylib_1.0.3.orig.tar.xz",
        distribution_sha256 = "b22f0f38d9a1ac565fce8a43df3d284f6b8e5e8775bda54b5cb687bed46b6ea4",
        distribution_strip_prefix = "bazel-skylib-1.0.3",
    )
    declare(
        pinned_source,
        name = "com_google_absl",
        urls = ["https://github.com/abseil/abseil-cpp/archive/refs/tags/20220623.1.tar.gz"],
        sha256 = "91ac87d30cc6d79f9ab974c51874a704de9c2647c40f6932597329a282217ba8",
        strip_prefix = "abseil-cpp-20220623.1",
        distribution_package = "abseil",
        distribution_file = "abseil_20220623.1.orig.tar.gz",
        distribution_sha256 = "abfe2897f3a30edaa74bc34365afe3c2a3cd012091a97dc7e008f7016adcd5fe",
        distribution_strip_prefix = "abseil-20220623.1",
        patch_cmds = [
            # Bazel 4.2's @platforms knows no wasm CPUs.
            "sed -i 's#@platforms//cpu:wasm[0-9]*#@platforms//cpu:s390x#' absl/BUILD.bazel",
            # From GCC 13 on no other header brings it in.
            "sed -i '1i #include <cstdint>' absl/container/internal/container_memory.h absl/strings/internal/str_format/extension.h",
        ],
    )
    declare(
        pinned_source,
        name = "com_google_googletest",
        urls = ["https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz"],
        sha256 = "81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2",
        strip_prefix = "googletest-release-1.12.1",
        distribution_package = "googletest",
        distribution_file = "googletest_1.12.1.orig.tar.gz",
    )
    declare(
        pinned_source,
        name = "com_github_google_benchmark",
        urls = ["https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz"],
        sha256 = "6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7",
        strip_prefix = "benchmark-1.7.1",
        distribution_package = "benchmark",
        distribution_file = "benchmark_1.7.1.orig.tar.gz",
    )
    declare(
        pinned_source,
        name = "com_github_google_glog",
        urls = ["https://github.com/google/glog/archive/refs/tags/v0.6.0.tar.gz"],
        sha256 = "8a83bf982f37bb70825df71a9709fa90ea9f4447fb3c099e1d720a439d88bad6",
        strip_prefix = "glog-0.6.0",
        distribution_package = "google-glog",
        distribution_file = "google-glog_0.6.0.orig.tar.gz",
    )
    declare(
        pinned_source,
        name = "com_github_gflags_gflags",
        urls = ["https://github.com/gflags/gflags/archive/refs/tags/v2.2.2.tar.gz"],
        sha256 = "34af2f15cf7367513b352bdcd2493ab14ce43692d2dcd9dfc499492966c64dcf",
        strip_prefix = "gflags-2.2.2",
        distribution_package = "gflags",
        distribution_file = "gflags_2.2.2.orig.tar.gz",
    )
    declare(
        pinned_source,
        name = "com_github_nlohmann_json",
        urls = ["https://github.com/nlohmann/json/archive/refs/tags/v3.11.2.tar.gz"],
        sha256 = "d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273",
        strip_prefix = "json-3.11.2",
        distribution_package = "nlohmann-json3",
        distribution_file = "nlohmann-json3_3.11.2.orig.tar.gz",
        build_file = "//third_party:nlohmann_json.BUILD",
    )
    declare(
        pinned_source,
        name = "com_google_highway",
        urls = ["https://github.com/google/highway/archive/refs/tags/1.0.3.tar.gz"],
        sha256 = "566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e",
        strip_prefix = "highway-1.0.3",
        distribution_package = "highway",
        distribution_file = "highway_1.0.3.orig.tar.gz",
        build_file = "//third_party:highway.BUILD",
    )
    declare(
        pinned_wheel,
        name = "pybind11",
        package = "pybind11==3.1.0",
        file_name = "pybind11-3.1.0-py3-none-any.whl",
        sha256 = "b8488090f8acffbcb6b5d6a85571a6827a0a2981ffb75e5a0b27b87c4a6b7dd0",
        build_file = "//third_party:pybind11.BUILD",
    )

def _system_libraries(declare):
    # Programs need a library of the flavor "static" only where they are built.
    declare(system_library, name = "hwloc", flavors = {
        "hwloc": ["hwloc.h", "libhwloc.so"],
    })
    declare(
        system_library,
        name = "mpi",
        defines = ["MPICH_SKIP_MPICXX", "OMPI_SKIP_MPICXX"],
        flavors = {
            "openmpi": ["/usr/lib/{arch}/openmpi/include/mpi.h", "libmpi.so"],
            "mpich": ["/usr/include/{arch}/mpich/mpi.h", "libmpich.so"],
        },
    )
    declare(system_library, name = "gloo", flavors = {
        "gloo": ["gloo/config.h", "libgloo.so"],
    })
    declare(system_library, name = "liburing", flavors = {
        "static": ["liburing.h", "liburing.a"],
        "liburing": ["liburing.h", "liburing.so"],
    })
    declare(system_library, name = "lz4", flavors = {
        "static": ["lz4.h", "liblz4.a"],
        "lz4": ["lz4.h", "liblz4.so"],
    })
    declare(system_library, name = "onednn", flavors = {
        "openmp": ["oneapi/dnnl/dnnl.hpp", "libdnnl.so"],
    })
    declare(system_library, name = "openblas", flavors = {
        "pthread": ["/usr/include/{arch}/openblas-pthread/cblas.h", "libopenblas.so"],
        "openblas": ["openblas/cblas.h", "libopenblas.so"],
    })
    declare(system_library, name = "openssl", flavors = {
        "openssl": ["openssl/ssl.h", "libssl.so", "libcrypto.so"],
    })
    declare(system_library, name = "sentencepiece", flavors = {
        "sentencepiece": ["sentencepiece_processor.h", "libsentencepiece.so"],
    })
    declare(system_library, name = "utf8proc", flavors = {
        "static": ["utf8proc.h", "libutf8proc.a"],
        "utf8proc": ["utf8proc.h", "libutf8proc.so"],
    })
    declare(system_library, name = "zlib", flavors = {
        "static": ["zlib.h", "libz.a"],
        "zlib": ["zlib.h", "libz.so"],
    })
    declare(system_library, name = "zstd", flavors = {
        "static": ["zstd.h", "libzstd.a"],
        "zstd": ["zstd.h", "libzstd.so"],
    })
