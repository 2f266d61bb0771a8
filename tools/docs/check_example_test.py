#!/usr/bin/env python3
"""The check finds a README that is out of date."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_example  # noqa: E402

SOURCE = "// A comment.\n\n#include <iostream>\n\nint main() {}\n"
README = "# Title\n\n```cpp\n#include <iostream>\n\nint main() {}\n```\nprints\n```text\n1 2\n```\n"


class CheckExampleTest(unittest.TestCase):
    def test_accepts_unchanged_examples(self):
        self.assertEqual(check_example.problems(README, SOURCE, "1 2\n"), [])

    def test_finds_changed_source_and_output(self):
        self.assertEqual(len(check_example.problems(README, SOURCE + "// more\n", "1 2\n")), 1)
        self.assertEqual(len(check_example.problems(README, SOURCE, "1 3\n")), 1)
        self.assertEqual(len(check_example.problems("", SOURCE, "1 2\n")), 2)


if __name__ == "__main__":
    unittest.main()
