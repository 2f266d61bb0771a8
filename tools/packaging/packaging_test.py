#!/usr/bin/env python3
"""Checks that the recipes agree with the tree: packaging_test.py INSTALL LABEL...

INSTALL is the program of //tools/install; the LABELs are the targets that recipes may name.
"""

import fnmatch
import glob
import json
import os
import re
import subprocess
import sys
import unittest

INSTALL = os.path.abspath(sys.argv[1])
LABELS = sys.argv[2:]
DIRECTORY = "tools/packaging/"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def paragraphs(text):
    """The paragraphs of a Debian control file, each as {field: value}."""
    return [
        {name: value.strip() for name, value in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", paragraph, re.M)}
        for paragraph in text.strip().split("\n\n")
    ]


def packages(dependencies):
    return {re.match(r"[\w.+-]+", item.strip()).group() for item in dependencies.split(",") if item.strip()[:1] not in ("", "$")}


SOURCE, *BINARIES = paragraphs(read(DIRECTORY + "debian/control"))


class Recipes(unittest.TestCase):
    def test_versions_are_equal(self):
        version = re.search(r'^VERSION = "(.*)"$', read("tools/build/version.bzl"), re.M).group(1)
        self.assertIn(f'name = "tessera", version = "{version}"', read("MODULE.bazel"))
        self.assertEqual(re.search(r"^## ([\d.]+)", read("CHANGELOG.md"), re.M).group(1), version)
        self.assertEqual(json.loads(read(DIRECTORY + "vcpkg/tessera/vcpkg.json"))["version"], version)

    def test_debian_builds_with_the_packages_that_bazelw_installs(self):
        rows = [line.split() for line in read("third_party/system_packages.txt").splitlines() if line[:1] not in ("", "#")]
        wanted = {row[2] for row in rows if row[0] == "build" or row[0] == "engines" and row[2].endswith("-dev")}
        self.assertEqual(packages(SOURCE["Build-Depends"]) - {"debhelper-compat"}, wanted)
        development = next(package for package in BINARIES if package["Package"].endswith("-dev"))
        libraries = {name for name in wanted if name.endswith("-dev")}
        self.assertEqual(packages(development["Depends"]) - {"libtessera1"}, libraries)

    def test_every_installed_file_is_in_one_package(self):
        prefix = os.path.join(os.environ["TEST_TMPDIR"], "usr")
        subprocess.run([INSTALL, "--quiet", "--prefix=" + prefix], check=True)
        files = [
            os.path.relpath(os.path.join(directory, name), os.path.dirname(prefix))
            for directory, _, names in os.walk(prefix)
            for name in names
        ]
        self.assertGreater(len(files), 500)
        patterns = {path: read(path).split() for path in glob.glob(DIRECTORY + "debian/*.install")}
        for file in files:
            found = [
                path
                for path, own in patterns.items()
                if any(file.startswith(pattern + "/") or fnmatch.fnmatch(file, pattern) for pattern in own)
            ]
            self.assertEqual(len(found), 1, f"{file} is in {found}")
        installed = {os.path.join(DIRECTORY, "debian", package["Package"] + ".install") for package in BINARIES}
        self.assertEqual(set(patterns), installed)
        # Code of others that is installed has its licence in the packages.
        modules = {line.split()[0][len("_tessera_module(") :] for line in read(
            prefix + "/lib/cmake/tessera/tessera-modules.cmake").splitlines() if line.startswith("_tessera_module(")}
        others = set(os.listdir(prefix + "/include/tessera")) - modules
        licensed = re.findall(r"usr/include/tessera/(\w+)/\*", read(DIRECTORY + "debian/copyright"))
        self.assertEqual(others, set(licensed))

    def test_recipes_name_existing_targets(self):
        paths = ["debian/rules", "vcpkg/tessera/portfile.cmake", "conan/conanfile.py", "../../.bcr/presubmit.yml"]
        for path in paths:
            labels = re.findall(r"(?<!:)//\w[\w/:]*", read(DIRECTORY + path))
            self.assertTrue(labels, path)
            self.assertLessEqual(set(labels), set(LABELS), path)

    def test_container_and_registry_name_files_of_the_other_recipes(self):
        names = set(re.findall(r"(tessera-\w+)_\*\.deb", read(DIRECTORY + "Containerfile")))
        self.assertTrue(names)
        self.assertLessEqual(names, {package["Package"] for package in BINARIES})
        self.assertIn("name=tessera-$version", read(DIRECTORY + "package"))
        self.assertEqual(json.loads(read(".bcr/source.template.json"))["strip_prefix"], "tessera-{VERSION}")
        self.assertEqual(json.loads(read(".bcr/metadata.template.json"))["versions"], [])


unittest.main(argv=sys.argv[:1])
