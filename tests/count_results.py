"""Adds up the results of one ctest run: the GoogleTest and lint cases in <folder>/<test>.xml, and for a test program
that left no such file (it crashed, or writes none) its own result in <folder>/ctest.xml.

usage: count_results.py FOLDER. Prints the failed cases and "N passed, M failed, K skipped"; exit 1 when one failed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def read_cases(path):
    """The (name, outcome) pairs of one JUnit file; None when it is cut off or is none."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError):
        return None
    return [(f"{case.get('classname')}.{case.get('name')}", outcome(case)) for case in root.iter("testcase")]


def count(folder):
    programs = read_cases(folder / "ctest.xml")
    if programs is None:
        raise SystemExit(f"{folder}/ctest.xml is missing or cut off: ctest did not end well")
    results = []
    for classname, result in programs:
        name = classname.split(".")[-1]
        cases = read_cases(folder / f"{name}.xml")
        results += cases or [(name, result)]
        # A program may fail after its last case (a sanitizer's report at exit): that is a failure of its own.
        if cases and result == "failed" and not any(one == "failed" for _, one in cases):
            results.append((f"{name} (exit status)", "failed"))
    return results


def main():
    results = count(pathlib.Path(sys.argv[1]))
    totals = {kind: sum(one == kind for _, one in results) for kind in ("passed", "failed", "skipped")}
    for name, result in results:
        if result == "failed":
            print(f"FAILED: {name}")
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if totals["failed"] or not results else 0


if __name__ == "__main__":
    sys.exit(main())
