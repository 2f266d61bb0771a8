#!/usr/bin/env python3
"""The committed tables agree with Python's Unicode data, and the check detects differences."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import generate_character_tables as tables  # noqa: E402

with open(os.path.join(HERE, "character_tables.h")) as FILE:
    COMMITTED = FILE.read()


class CharacterTablesTest(unittest.TestCase):
    def test_agrees_with_pythons_data(self):
        self.assertEqual(tables.problems(COMMITTED), [])

    def test_generator_output_has_no_problems(self):
        self.assertEqual(tables.problems(tables.source()), [])

    def test_sees_a_wrong_edge(self):
        self.assertIn("    65, 26, ", COMMITTED)
        found = tables.problems(COMMITTED.replace("    65, 26, ", "    66, 25, ", 1))
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0], "U\\+0041: the table says False, category is Lu")

    def test_sees_edges_that_are_not_in_pairs(self):
        wrong = COMMITTED.replace("kNumberGaps[] = {", "kNumberGaps[] = {1, ", 1)
        self.assertIn("the edges of Number are not in order or not in pairs", tables.problems(wrong))

    def test_edges_join_neighbours(self):
        self.assertEqual(tables.edges([1, 2, 3, 7, 9, 10]), [1, 4, 7, 8, 9, 11])
        self.assertEqual(tables.edges([]), [])


if __name__ == "__main__":
    unittest.main()
