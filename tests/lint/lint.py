"""Checks of the source tree that no compiler makes. Needs Python 3.11 and no packages.

usage: lint.py [--xml FILE] [CHECK ...]     without a CHECK: all of them. Exit 0 clean, 1 findings, 2 usage.

Each finding is "place: what is wrong", and the line after it says how to mend it.
"""

import argparse
import pathlib
import sys
import time
import xml.etree.ElementTree as ElementTree

import documents
import files
import layers
import tools
from tree import Tree

CHECKS = {
    "includes": layers.check_includes,
    "links": layers.check_links,
    "sizes": files.check_sizes,
    "names": files.check_names,
    "leftovers": files.check_leftovers,
    "machine_paths": files.check_machine_paths,
    "documents": documents.check_documents,
    "comments": documents.check_comments,
    "format": tools.check_format,
    "scripts": tools.check_scripts,
}


def run_check(root, name):
    tree = Tree(root)
    started = time.monotonic()
    findings = list(CHECKS[name](tree))
    for where, message in tree.warnings:
        print(f"warning: {where}: {message}")
    for where, message, fix in findings:
        print(f"{where}: {message}\n    fix: {fix}")
    for reason in tree.skipped:
        print(f"SKIPPED: {name}: {reason}")
    return findings, tree.skipped, time.monotonic() - started


def write_xml(path, outcomes):
    suite = ElementTree.Element("testsuite", name="lint", tests=str(len(outcomes)))
    for name, (findings, skipped, seconds) in outcomes.items():
        case = ElementTree.SubElement(suite, "testcase", classname="lint", name=name, time=f"{seconds:.3f}")
        if findings:
            text = "\n".join(f"{where}: {message}" for where, message, _ in findings)
            ElementTree.SubElement(case, "failure", message=f"{len(findings)} findings").text = text
        elif skipped:
            ElementTree.SubElement(case, "skipped", message=skipped[0])
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", nargs="*", help=f"one of {', '.join(CHECKS)}")
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--xml", help="write the results in JUnit form")
    options = parser.parse_args()
    unknown = [name for name in options.check if name not in CHECKS]
    if unknown:
        parser.error(f"unknown check '{unknown[0]}'; one of {', '.join(CHECKS)}")
    outcomes = {name: run_check(options.root, name) for name in options.check or CHECKS}
    if options.xml:
        write_xml(options.xml, outcomes)
    found = sum(len(findings) for findings, _, _ in outcomes.values())
    print(f"lint: {len(outcomes)} checks, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
