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
load(":pinned_source.bzl", "PYPI", "apt_sources", "pinned_source", "pinned_wheel")
load(":system_library.bzl", "system_library")
load("//third_party/cuda:configure.bzl", "cuda_configure")
load("//third_party/python:configure.bzl", "python_configure")
load("//third_party/torch:configure.bzl", "torch_configure")

# Where archives are that apt, too, knows.
_DEBIAN = "https://deb.debian.org/debian/pool/main/"

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
        url = PYPI + "33/fd/8762f7ee3e4e4be6d1d846cffb4916dd9bb02b2f800d3603718a0efe494c/pybind11-3.1.0-py3-none-any.whl",
        sha256 = "b8488090f8acffbcb6b5d6a85571a6827a0a2981ffb75e5a0b27b87c4a6b7dd0",
        build_file = "//third_party:pybind11.BUILD",
    )

    # cuobjdump starts nvdisasm. They read the code of older toolkits too.
    for tool, place, sha256 in [
        (
            "cuobjdump",
            "07/70/2cea1817edfd186883b357cffa78dd47757ba33e4eef3bd0141a4f4b4109",
            "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58",
        ),
        (
            "nvdisasm",
            "64/4a/c84a14209a549d97831a02d111d943f47c995d4d3beaa3416daa3b534abb",
            "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca",
        ),
    ]:
        declare(
            pinned_wheel,
            name = "nvidia_" + tool,
            package = "nvidia-cuda-%s==13.5.37" % tool,
            url = PYPI + "%s/nvidia_cuda_%s-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl" % (place, tool),
            sha256 = sha256,
            build_file = "//third_party/cuda:disassembler.BUILD",
        )


def _system_libraries(declare):
    # Programs need a library of the flavor "static" only where they are built.
    declare(
        system_library,
        name = "hwloc",
        flavors = {
            "hwloc": ["hwloc.h", "libhwloc.so"],
        },
        pinned_build_file = "//third_party/pinned:hwloc.BUILD",
        urls = [_DEBIAN + "h/hwloc/hwloc_2.9.0.orig.tar.bz2"],
        sha256 = "b3fb1a43a14d8fbcd8e976de5ede2ea7ce1d768ed173adb33c7ceaaf098dc970",
        strip_prefix = "hwloc-2.9.0",
        distribution_package = "hwloc",
        distribution_file = "hwloc_2.9.0.orig.tar.bz2",
    )
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
    declare(
        system_library,
        name = "liburing",
        flavors = {
            "static": ["liburing.h", "liburing.a"],
            "liburing": ["liburing.h", "liburing.so"],
        },
        pinned_build_file = "//third_party/pinned:liburing.BUILD",
        urls = [_DEBIAN + "libu/liburing/liburing_2.3.orig.tar.gz"],
        sha256 = "2eac26f880125d83f75ba8641fde5d88226dd352d3cee95d45a9128758a8f1be",
        strip_prefix = "liburing-2.3",
        distribution_package = "liburing",
        distribution_file = "liburing_2.3.orig.tar.gz",
    )
    declare(
        system_library,
        name = "lz4",
        flavors = {
            "static": ["lz4.h", "liblz4.a"],
            "lz4": ["lz4.h", "liblz4.so"],
        },
        pinned_build_file = "//third_party/pinned:lz4.BUILD",
        urls = [_DEBIAN + "l/lz4/lz4_1.9.4.orig.tar.gz"],
        sha256 = "0b0e3aa07c8c063ddf40b082bdf7e37a1562bda40a0ff5272957f3e987e0e54b",
        strip_prefix = "lz4-1.9.4",
        distribution_package = "lz4",
        distribution_file = "lz4_1.9.4.orig.tar.gz",
    )
    declare(
        system_library,
        name = "onednn",
        flavors = {
            "openmp": ["oneapi/dnnl/dnnl.hpp", "libdnnl.so"],
        },
        pinned_build_file = "//third_party/pinned:onednn.BUILD",
        wheels = {
            PYPI + "65/b4/792e6d3ef02a0e14fdc0392bd378dc78f3c8356e6a40fda8c0b9366628a1/onednn_cpu_gomp-2023.2.0-py2.py3-none-manylinux1_x86_64.whl": [
                "onednn-cpu-gomp==2023.2.0",
                "2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb",
            ],
            PYPI + "d4/26/e1f06fc4810583d892831817e3217d32be475dd740c86c0b4058cec9d172/onednn_devel_cpu_gomp-2023.2.0-py2.py3-none-manylinux1_x86_64.whl": [
                "onednn-devel-cpu-gomp==2023.2.0",
                "9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284",
            ],
        },
    )
    declare(
        system_library,
        name = "openblas",
        flavors = {
            "pthread": ["/usr/include/{arch}/openblas-pthread/cblas.h", "libopenblas.so"],
            "openblas": ["openblas/cblas.h", "libopenblas.so"],
        },
        pinned_build_file = "//third_party/pinned:openblas.BUILD",
        wheels = {
            PYPI + "75/93/56ce22e41d59a45b885ac67f53425cd012329cb1e4de3285bebc4f8ad4bc/scipy_openblas32-0.3.34.481.3-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl": [
                "scipy-openblas32==0.3.34.481.3",
                "0595f94cd58c1f8a0d90c975621f4587337a003916b1979e834ebdf2cb5d9504",
            ],
            PYPI + "04/3e/19a35f6b50552df2fa9464b526d0a4f98f4f9e7789b2adbb813d598640f7/scipy_openblas32-0.3.34.481.3-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl": [
                "scipy-openblas32==0.3.34.481.3",
                "e085dddbc5b9aa130f83def515d31c440e69f387a90c7e63b154a5575b4466bc",
            ],
        },
    )
    declare(
        system_library,
        name = "openssl",
        flavors = {
            "openssl": ["openssl/ssl.h", "libssl.so", "libcrypto.so"],
        },
        pinned_build_file = "//third_party/pinned:openssl.BUILD",
        urls = [
            "https://deb.debian.org/debian-security/pool/updates/main/o/openssl/openssl_3.0.22.orig.tar.gz",
            "https://github.com/openssl/openssl/releases/download/openssl-3.0.22/openssl-3.0.22.tar.gz",
        ],
        sha256 = "67ebca7e50d17383028045486653492195b83db95f8558709701bb47b5c1ef81",
        strip_prefix = "openssl-3.0.22",
        distribution_package = "openssl",
        distribution_file = "openssl_3.0.22.orig.tar.gz",
    )
    declare(
        system_library,
        name = "sentencepiece",
        flavors = {
            "sentencepiece": ["sentencepiece_processor.h", "libsentencepiece.so"],
        },
        pinned_build_file = "//third_party/pinned:sentencepiece.BUILD",
        urls = [_DEBIAN + "s/sentencepiece/sentencepiece_0.1.97.orig.tar.gz"],
        sha256 = "56430381f45dc6debfd2e0cbde4f039f9499c49ca825af184b0cbf318c17a18f",
        strip_prefix = "sentencepiece-0.1.97",
        distribution_package = "sentencepiece",
        distribution_file = "sentencepiece_0.1.97.orig.tar.gz",
    )
    declare(
        system_library,
        name = "utf8proc",
        flavors = {
            "static": ["utf8proc.h", "libutf8proc.a"],
            "utf8proc": ["utf8proc.h", "libutf8proc.so"],
        },
        pinned_build_file = "//third_party/pinned:utf8proc.BUILD",
        urls = [_DEBIAN + "u/utf8proc/utf8proc_2.8.0.orig.tar.gz"],
        sha256 = "a0a60a79fe6f6d54e7d411facbfcc867a6e198608f2cd992490e46f04b1bcecc",
        strip_prefix = "utf8proc-2.8.0",
        distribution_package = "utf8proc",
        distribution_file = "utf8proc_2.8.0.orig.tar.gz",
    )
    declare(
        system_library,
        name = "zlib",
        flavors = {
            "static": ["zlib.h", "libz.a"],
            "zlib": ["zlib.h", "libz.so"],
        },
        pinned_build_file = "//third_party/pinned:zlib.BUILD",
        urls = [_DEBIAN + "z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2"],
        sha256 = "71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1",
        strip_prefix = "zlib-1.2.13.dfsg",
        distribution_package = "zlib",
        distribution_file = "zlib_1.2.13.dfsg.orig.tar.bz2",
    )
    declare(
        system_library,
        name = "zstd",
        flavors = {
            "static": ["zstd.h", "libzstd.a"],
            "zstd": ["zstd.h", "libzstd.so"],
        },
        pinned_build_file = "//third_party/pinned:zstd.BUILD",
        urls = [_DEBIAN + "libz/libzstd/libzstd_1.5.4+dfsg2.orig.tar.xz"],
        sha256 = "8cf4bbb65e77ec348d052c8d6230eba66d435bddf64c8b5be2fcb16880c19953",
        strip_prefix = "zstd-1.5.4",
        distribution_package = "libzstd",
        distribution_file = "libzstd_1.5.4+dfsg2.orig.tar.xz",
    )
