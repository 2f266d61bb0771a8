#!/usr/bin/env python3
"""Adds up the build event files and checks of one CI run: count_results.py DIRECTORY.

Prints the failures and a final line "N passed, N failed"; exits with 1 if anything failed or nothing ran.
"""

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def read_events(path):
    with open(path, errors="replace") as file:
        for line in file:
            yield json.loads(line)


def count_cases(path):
    """(passed, failed, skipped) test cases of one test.xml."""
    counts = [0, 0, 0]
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (ElementTree.ParseError, OSError):
        return counts
    for case in cases:
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.get("result") == "skipped" or case.find("skipped") is not None
        counts[1 if failed else 2 if skipped else 0] += 1
    return counts


def xml_paths(event):
    for output in event.get("testResult", {}).get("testActionOutput", []):
        if output["name"] == "test.xml":
            yield urllib.parse.unquote(output["uri"][len("file://"):])


def count_run(name, path, exit_code):
    """One bazel test: its passed and failed targets, skipped targets, and test cases.

    A target counts as skipped if it skipped all of its test cases.
    """
    passed, failed, skipped, cases_of = [], [], [], {}
    for event in read_events(path) if os.path.exists(path) else ():
        identity = event["id"]
        if "testSummary" in identity:
            if event["testSummary"]["overallStatus"] in ("PASSED", "FLAKY"):
                passed.append(identity["testSummary"]["label"])
            else:
                failed.append("%s %s" % (name, identity["testSummary"]["label"]))
        elif "targetCompleted" in identity and event.get("aborted", {}).get("reason") == "SKIPPED":
            skipped.append(identity["targetCompleted"]["label"])
        for xml in xml_paths(event):
            label = identity["testResult"]["label"]
            cases_of[label] = [a + b for a, b in zip(cases_of.get(label, (0, 0, 0)), count_cases(xml))]
    skipped += [label for label in passed if cases_of.get(label, [1])[:2] == [0, 0] and cases_of[label][2] > 0]
    passed = len(set(passed) - set(skipped))
    cases = [sum(counts) for counts in zip((0, 0, 0), *cases_of.values())]
    if exit_code != 0 and not failed:
        failed.append("%s: bazel exited with %d" % (name, exit_code))
    print("%s: %d test targets passed, %d failed, %d skipped; test cases: %d passed, %d failed, %d skipped" %
          (name, passed, len(failed), len(skipped), *cases))
    for label in skipped:
        print("  skipped here: %s" % label)
    return passed, failed


def main():
    directory = sys.argv[1]
    passed, failed = 0, []
    with open(os.path.join(directory, "exit_codes")) as file:
        for line in file:
            name, code = line.split()
            run_passed, run_failed = count_run(name, os.path.join(directory, name + ".json"), int(code))
            passed += run_passed
            failed += run_failed
    with open(os.path.join(directory, "checks")) as file:
        for line in file:
            name, _, result = line.strip().rpartition(" ")
            if result == "passed":
                passed += 1
            else:
                failed.append(name)
    for name in failed:
        print("FAILED: %s" % name)
    print("%d passed, %d failed" % (passed, len(failed)))
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
