#!/usr/bin/env python3
"""Merges gcov JSON and lcov files into one lcov report, with the flags that `bazel coverage` passes."""

import collections
import glob
import gzip
import json
import os
import re
import sys


def parse_flags(arguments):
    flags = collections.defaultdict(list)
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        flags[name].append(value)
    return flags


def add_lcov(path, hits):
    source = None
    with open(path, errors="replace") as file:
        for line in file:
            if line.startswith("SF:"):
                source = line[3:].strip()
            elif line.startswith("DA:") and source:
                number, count = line[3:].strip().split(",")[:2]
                hits[source][int(number)] += int(count)


def add_gcov(path, hits):
    with gzip.open(path) as file:
        for source in json.load(file)["files"]:
            for line in source["lines"]:
                hits[source["file"]][line["line_number"]] += line["count"]


def collect(flags):
    """Reads one test's directories (--coverage_dir) or the list of all tests' reports (--reports_file)."""
    hits = collections.defaultdict(lambda: collections.defaultdict(int))
    for directory in flags["coverage_dir"]:
        for path in glob.glob(os.path.join(directory, "**", "*.gcov.json.gz"), recursive=True):
            add_gcov(path, hits)
        for path in glob.glob(os.path.join(directory, "*.dat")):
            add_lcov(path, hits)
    for listing in flags["reports_file"]:
        with open(listing) as file:
            for path in filter(os.path.exists, (line.strip() for line in file)):
                add_lcov(path, hits)
    return hits


def write_report(path, hits, skipped):
    with open(path, "w") as out:
        for source in sorted(hits):
            name = source.split("/proc/self/cwd/")[-1]
            if any(pattern.match(name) for pattern in skipped):
                continue
            lines = sorted(hits[source].items())
            out.write("SF:%s\n" % name)
            out.writelines("DA:%d,%d\n" % line for line in lines)
            out.write("LH:%d\nLF:%d\nend_of_record\n" % (sum(count > 0 for _, count in lines), len(lines)))


def main():
    flags = parse_flags(sys.argv[1:])
    skipped = [re.compile(pattern + "$") for pattern in flags["filter_sources"]]
    write_report(flags["output_file"][0], collect(flags), skipped)


if __name__ == "__main__":
    main()
