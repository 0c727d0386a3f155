#!/usr/bin/env python3
"""Sums the test cases in Bazel's test.xml files, prints each skip's reason and one closing line.

usage: count_results.py TESTLOGS_FOLDER CHECKS_FILE   (a line `pass` or `fail` for each check outside of Bazel)
"""
import contextlib
import os
import re
import sys
import time
import xml.etree.ElementTree

MAX_AGE_SECONDS = 3 * 3600  # older results belong to an earlier run


def print_why(case, log):
    """What a failed case said, or the end of its log: Bazel printed that far above, where it may be cut away by whoever keeps
    the output."""
    text = "\n".join(failure.get("message") or "" for failure in case.findall("failure"))
    if not text.strip():
        with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()[-2000:]
    for line in text.splitlines()[-20:]:
        print(f"    {line}")


def cases_of_script(log):
    """What a script's log says of its cases: how many passed, and the reasons of skips. Scripts that use unittest print a line
    for each case; others are one case, which a line `skipped: REASON` says was not tried."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    reasons = [first or second for line in lines
               for first, second in re.findall(r"^skipped: (.*)|\.\.\. skipped [\"'](.*)[\"']$", line)]
    passed = sum(line.endswith("... ok") for line in lines)
    return passed or int(not reasons), reasons


def main():
    logs, checks = sys.argv[1:3]
    passed = failed = skipped = 0
    with open(checks, encoding="utf-8") as file:
        for line in file:
            passed += line.strip() == "pass"
            failed += line.strip() == "fail"
    for folder, _, files in os.walk(logs):
        path = os.path.join(folder, "test.xml")
        if "test.xml" not in files or time.time() - os.path.getmtime(path) > MAX_AGE_SECONDS:
            continue
        name = "//" + os.path.relpath(folder, logs)
        try:
            cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
        except xml.etree.ElementTree.ParseError as error:
            print(f"{name}: unreadable result: {error}")
            failed += 1
            continue
        if not cases:
            print(f"{name}: no test case ran")
            failed += 1
        for case in cases:
            reason = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"FAILED {name} {case.get('classname')}.{case.get('name')}")
                print_why(case, os.path.join(folder, "test.log"))
            elif reason is not None or case.get("result") == "skipped":
                skipped += 1
                text = (reason.get("message") or reason.text or "") if reason is not None else ""
                print(f"SKIPPED {name} {case.get('classname')}.{case.get('name')}: {' '.join(text.split()) or 'no reason'}")
            else:
                more, reasons = cases_of_script(os.path.join(folder, "test.log")) if case.get("classname") is None else (1, [])
                passed += more
                skipped += len(reasons)
                for text in reasons:
                    print(f"SKIPPED {name}: {text}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
