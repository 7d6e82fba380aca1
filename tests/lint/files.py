"""Checks on single files: size, name, leftovers, and what belongs to one machine only."""

import re

CODE = (".h", ".cc", ".cu", ".cuh", ".py", ".proto", ".sh")
JUNK_DRAWER = re.compile(r"(^|_)(utils?|helpers?|misc|manager|common_utils|stuff)(_test)?$")
# Written in two halves, so that this file does not find itself.
MARKER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b")
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.$}])/(" + "|".join(["wo" + "rk", "ro" + "ot", "fa" + "rm", "ho" + "me"]) + r")/\w")
REGISTRY = re.compile(r"\b(deb|security|snapshot)\." + r"debian\.org|archive\." + r"ubuntu\.com|pypi\." + r"org|"
                      + r"python" + r"hosted\.org|download\." + r"pytorch\.org|pypi\." + r"nvidia\.com")


def budget(path):
    """(warn, fail) lines of a file."""
    if path.startswith("worker/core/kernels/"):
        return 600, 700
    if path.startswith("tests/"):
        return 700, 900
    return 400, 600


def read_exceptions(tree):
    """path -> reason, from tests/lint/size_exceptions.txt: 'path: reason' a line."""
    pairs = [line.split(":", 1) for line in tree.lines("tests/lint/size_exceptions.txt")
             if line.strip() and not line.startswith("#")]
    return {pair[0].strip(): pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def check_sizes(tree):
    exceptions = read_exceptions(tree)
    for path in tree.files(*CODE):
        count, (warn, fail) = len(tree.lines(path)), budget(path)
        if count > fail and path not in exceptions:
            yield path, f"{count} lines; at most {fail}", "split it by subject"
        elif count > warn and path not in exceptions:
            tree.warn(path, f"{count} lines; from {warn} on it is likely that two subjects live here")
    for path, reason in exceptions.items():
        if not reason:
            yield "tests/lint/size_exceptions.txt", f"{path} has no reason", "write 'path: reason'"
        if not tree.exists(path):
            yield "tests/lint/size_exceptions.txt", f"{path} does not exist", "remove the line"


def check_names(tree):
    for path in tree.files():
        name = path.rsplit("/", 1)[-1]
        for part in [*path.split("/")[:-1], name.split(".")[0]]:
            if JUNK_DRAWER.search(part):
                yield path, f"'{part}' says nothing about what is inside", "name it after its subject"


def check_leftovers(tree):
    for path in tree.files(*CODE, ".txt", ".cmake", ".yaml", ".yml", ".md", "setup", "quickstart", "run", "fix"):
        for number, line in enumerate(tree.lines(path), 1):
            if MARKER.search(line):
                yield f"{path}:{number}", "a marker of unfinished work", "finish it, or file an issue and remove the mark"


def check_machine_paths(tree):
    for path in tree.text_files():
        for number, line in enumerate(tree.lines(path), 1):
            if MACHINE_PATH.search(line):
                yield f"{path}:{number}", "a path of one machine", "use a relative path, a variable or a placeholder"
            if REGISTRY.search(line):
                yield f"{path}:{number}", "the host of a package registry", "leave it to the machine's own configuration"
