#!/usr/bin/env python3
"""The committed tables agree with Python's Unicode data, and the check detects differences."""

import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import generate_character_tables as tables  # noqa: E402

with open(os.path.join(HERE, "character_tables.cc")) as FILE:
    COMMITTED = FILE.read()


class CharacterTablesTest(unittest.TestCase):
    def test_agrees_with_pythons_data(self):
        self.assertEqual(tables.problems(COMMITTED), [])

    def test_generator_output_has_no_problems(self):
        self.assertEqual(tables.problems(tables.source()), [])

    def test_sees_a_wrong_edge(self):
        self.assertIn("0x41,", COMMITTED)
        found = tables.problems(COMMITTED.replace("0x41,", "0x42,", 1))
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], "U\\+0041: the table says False, category is Lu")

    def test_sees_a_wrong_count(self):
        wrong = re.sub(r"kNumberEdgeCount = \d+", "kNumberEdgeCount = 3", COMMITTED)
        self.assertEqual(len(tables.problems(wrong)), 1)

    def test_edges_join_neighbours(self):
        self.assertEqual(tables.edges([1, 2, 3, 7, 9, 10]), [1, 4, 7, 8, 9, 11])
        self.assertEqual(tables.edges([]), [])


if __name__ == "__main__":
    unittest.main()
