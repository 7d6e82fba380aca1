"""Checks that another program makes: clang-format on C++, bash and shellcheck on scripts."""

import shutil
import subprocess

CLANG_FORMAT_VERSION = 14


def find_clang_format():
    """The program of the one version that decides, or None."""
    for name in (f"clang-format-{CLANG_FORMAT_VERSION}", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if f"version {CLANG_FORMAT_VERSION}." in version:
                return name
    return None


def cxx_files(tree):
    return tree.files(".h", ".cc", ".cu", ".cuh")


def check_format(tree):
    program = find_clang_format()
    if program is None:
        tree.skip(f"clang-format {CLANG_FORMAT_VERSION} is not installed (deploy/setup installs it)")
        return
    files = cxx_files(tree)
    for start in range(0, len(files), 50):
        result = subprocess.run([program, "--dry-run", "-Werror", *files[start : start + 50]], cwd=tree.root,
                                capture_output=True, text=True, check=False)
        seen = set()
        for line in result.stderr.splitlines():
            path = line.split(":")[0]
            if "clang-format-violations" in line and path not in seen:
                seen.add(path)
                yield ":".join(line.split(":")[:2]), "is not formatted", f"tests/lint/fix {path}"
        if result.returncode and not seen:
            yield "clang-format", result.stderr.strip()[:400], "mend what it names"


def shell_files(tree):
    return [path for path in tree.text_files()
            if path.endswith(".sh") or (tree.lines(path)[:1] and tree.lines(path)[0].startswith("#!")
                                        and "bash" in tree.lines(path)[0])]


def check_scripts(tree):
    files = shell_files(tree)
    for path in files:
        result = subprocess.run(["bash", "-n", path], cwd=tree.root, capture_output=True, text=True, check=False)
        if result.returncode:
            yield path, result.stderr.strip(), "mend the syntax"
    if not shutil.which("shellcheck"):
        tree.skip("shellcheck is not installed (deploy/setup installs it); bash -n was run")
        return
    result = subprocess.run(["shellcheck", "-x", "--format=gcc", *files], cwd=tree.root, capture_output=True, text=True,
                            check=False)
    for line in result.stdout.splitlines():
        where, _, message = line.partition(": ")
        yield where, message, "see the SC number's page of shellcheck"
