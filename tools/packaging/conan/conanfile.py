"""A recipe for Conan 2 of the tree that it is in: conan create tools/packaging/conan

Bazel builds it, with the machine's libraries (third_party/system_packages.txt). CMake finds the installed
tessera-config.cmake: find_package(tessera COMPONENTS topology).
"""

import io
import os
import re
import subprocess
import tarfile

from conan import ConanFile
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt

_TREE = ("..", "..", "..")


class Tessera(ConanFile):
    name = "tessera"
    license = "Apache-2.0"
    description = "Libraries and tools for training models that do not fit on one device"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"cuda": [True, False], "bazel_flags": ["ANY"]}
    default_options = {"cuda": False, "bazel_flags": ""}

    def set_version(self):
        source = load(self, os.path.join(self.recipe_folder, *_TREE, "tools/build/version.bzl"))
        self.version = re.search(r'^VERSION = "(.*)"$', source, re.M).group(1)

    def export(self):
        copy(self, "system_packages.txt", os.path.join(self.recipe_folder, *_TREE, "third_party"), self.export_folder)

    def export_sources(self):
        tree = os.path.join(self.recipe_folder, *_TREE)
        head = subprocess.run(["git", "-C", tree, "archive", "HEAD"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(head)) as archive:
            archive.extractall(self.export_sources_folder)

    def system_requirements(self):
        rows = [line.split() for line in load(self, os.path.join(self.recipe_folder, "system_packages.txt")).splitlines()]
        Apt(self).install([row[2] for row in rows if row[0] == "build"])

    def package_id(self):
        del self.info.options.bazel_flags

    def _bazel(self, command, arguments=""):
        flags = f"--config={'cuda' if self.options.cuda else 'nocuda'} {self.options.bazel_flags}"
        if self.settings.build_type == "Debug":
            flags += " --config=dbg"
        self.run(
            f"./bazelw --output_user_root={self.build_folder}/../bazel --max_idle_secs=60 {command} --color=no --curses=no "
            f"--noshow_progress --repo_env=TESSERA_LIBRARIES=system {flags} //tools/install {arguments}",
            cwd=self.source_folder,
        )

    def build(self):
        self._bazel("build")

    def package(self):
        self._bazel("run", f"-- --quiet --prefix={self.package_folder}")
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/tessera"]
