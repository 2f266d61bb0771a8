#!/usr/bin/env python3
"""The check rejects forbidden dependencies and accepts allowed ones."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_layers  # noqa: E402


class CheckLayersTest(unittest.TestCase):
    def test_names_the_module_or_the_repository_of_a_label(self):
        self.assertEqual(check_layers.module_of("//topology:mesh"), "topology")
        self.assertEqual(check_layers.module_of("//base:byte_size.h"), "base")
        self.assertEqual(check_layers.module_of("@hwloc//:hwloc"), "@hwloc")
        self.assertEqual(check_layers.module_of("@@hwloc//:hwloc"), "@hwloc")
        self.assertEqual(check_layers.module_of("@//base:x"), "base")

    def test_finds_planted_edges(self):
        planted = {
            "base/dtype": ["//topology:rank", "@com_google_highway//:hwy"],
            "topology": ["//collectives:communicator", "//tools/cli", "@mpi//:mpi"],
            "collectives/mpi": ["//pipeline:schedule"],
            "pipeline": ["//tensor_parallel:linear", "//topology:mesh", "//zero3:state"],
            "tensor_parallel": ["//pipeline:schedule", "//offload:tier"],
            "zero3": ["//pipeline:schedule", "//tensor_parallel:linear"],
            "offload": ["//collectives:communicator", "//topology:mesh"],
            "tools/train/settings": ["//tools/train/model:llama_stage", "//tools/train/loop"],
            "tools/train/report": ["//tools/train/loop:worker", "//tools/train:train_tool"],
            "tools/train/unknown": ["//tools/train/settings", "//tools/train/unknown:x"],
        }
        for package, labels in planted.items():
            self.assertEqual(check_layers.forbidden(package, labels), labels, package)

    def test_passes_allowed_edges(self):
        allowed = {
            "base": ["//base:byte_size", "@com_github_nlohmann_json//:json", "@com_google_absl//absl/status:status"],
            "topology/cluster": ["//base:byte_size", "//topology:rank", "@hwloc//:hwloc"],
            "zero3": ["//offload:tier", "//collectives:communicator"],
            "tools/train": ["//zero3:state", "//tools/train/launch:finish", "@mpi//:mpi"],
            "tools/train/report": ["//tools/train/predict", "//tools/train/report:spans", "//tools/cli", "@mpi//:mpi"],
        }
        for package, labels in allowed.items():
            self.assertEqual(check_layers.forbidden(package, labels), [], package)

    def test_package_groups_agree_with_the_table(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "BUILD")) as file:
            groups = dict(re.findall(r'name = "users_of_(\w+)",\s*packages = \[(.*?)\]', file.read(), flags=re.S))
        self.assertEqual(set(groups), set(check_layers.ALLOWED) - {"base"})
        for module, packages in groups.items():
            users = {user for user, allowed in check_layers.ALLOWED.items() if module in allowed}
            self.assertEqual(re.findall(r"//(\w+)/\.\.\.", packages), sorted(users | {module, "tools"}), module)


if __name__ == "__main__":
    unittest.main()
