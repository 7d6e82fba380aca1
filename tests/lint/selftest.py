"""The checks find what they should, and only that: each case lays a small tree and reads the findings.

usage: selftest.py [--xml FILE]
"""

import argparse
import pathlib
import sys
import tempfile
import unittest

import lint
from tree import Tree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import count_results


def findings(check, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [f"{where}: {message}" for where, message, _ in lint.CHECKS[check](Tree(folder))]


class Includes(unittest.TestCase):
    def check(self, user, included, expected):
        header = {"spec/job_spec.h": "", "server/jobs/job.h": "", "worker/agent/a.h": "", "worker/core/base/e.h": "",
                  "worker/core/kernels/cpu/c.h": "", "worker/protocol/m.h": "", "proto/common/r.h": "",
                  "server/store/s.h": "", "tests/support/t.h": "", "client/lib/c.h": ""}
        found = findings("includes", {**header, user: f"#include {included}\n"})
        self.assertEqual(len(found), expected, found)

    def test_spec_is_for_all(self):
        self.check("worker/core/train/t.cc", '"spec/job_spec.h"', 0)
        self.check("server/store/x.cc", '"spec/job_spec.h"', 0)

    def test_server_never_worker_nor_the_reverse(self):
        self.check("server/jobs/x.cc", '"worker/agent/a.h"', 1)
        self.check("server/jobs/x.cc", '"worker/protocol/m.h"', 1)
        self.check("worker/agent/x.cc", '"server/jobs/job.h"', 1)

    def test_server_order(self):
        self.check("server/jobs/x.cc", '"server/store/s.h"', 0)
        self.check("server/store/x.cc", '"server/jobs/job.h"', 1)
        self.check("server/scheduler/x.cc", '"server/store/s.h"', 1)

    def test_agent_never_core(self):
        self.check("worker/agent/x.cc", '"worker/core/base/e.h"', 1)
        self.check("worker/agent/x.cc", '"worker/protocol/m.h"', 0)

    def test_core_never_contract(self):
        self.check("worker/core/train/x.cc", '"proto/common/r.h"', 2)
        self.check("worker/core/train/x.cc", "<grpcpp/grpcpp.h>", 1)
        self.check("worker/trainer/x.cc", "<google/protobuf/message.h>", 1)

    def test_core_order(self):
        self.check("worker/core/quant/x.cc", '"worker/core/base/e.h"', 0)
        self.check("worker/core/base/x.cc", '"worker/core/kernels/cpu/c.h"', 1)
        self.check("worker/core/layers/x.cc", '"worker/core/kernels/cpu/c.h"', 1)

    def test_cpu_and_cuda_kernels_are_apart(self):
        self.check("worker/core/kernels/cuda/x.cc", '"worker/core/kernels/cpu/c.h"', 1)

    def test_client_never_server_or_worker(self):
        self.check("client/cli/x.cc", '"client/lib/c.h"', 0)
        self.check("client/lib/x.cc", '"server/jobs/job.h"', 1)
        self.check("client/cli/x.cc", '"worker/protocol/m.h"', 1)

    def test_nothing_uses_tests(self):
        self.check("client/cli/x.cc", '"tests/support/t.h"', 1)
        self.check("tests/unit/x.cc", '"tests/support/t.h"', 0)

    def test_libtorch_only_in_the_core(self):
        self.check("worker/core/layers/x.cc", "<ATen/ATen.h>", 0)
        self.check("worker/agent/x.cc", "<ATen/ATen.h>", 1)

    def test_from_the_root_and_existing(self):
        self.check("server/jobs/x.cc", '"job.h"', 1)
        self.check("server/jobs/x.cc", '"server/jobs/none.h"', 1)
        self.check("server/jobs/x.cc", '"proto/coat/v1/types.pb.h"', 0)


class Links(unittest.TestCase):
    def test_link_lines_follow_the_same_table(self):
        tree = {"server/jobs/CMakeLists.txt": "coat_library(DEPS coat_worker_agent)\n",
                "worker/agent/CMakeLists.txt": "coat_library(DEPS coat_worker_protocol)  # coat_server_jobs\n",
                "worker/protocol/CMakeLists.txt": "coat_library(DEPS\n  coat_proto)\n"}
        found = findings("links", tree)
        self.assertEqual(len(found), 2, found)
        self.assertIn("server/jobs may not link coat_worker_agent", found[0])
        self.assertIn("worker/protocol links protobuf", found[1])


class Files(unittest.TestCase):
    def test_size_budget(self):
        long = "int x;\n" * 601
        self.assertEqual(len(findings("sizes", {"server/a.cc": long})), 1)
        self.assertEqual(len(findings("sizes", {"tests/a.cc": long})), 0)
        excepted = {"server/a.cc": long, "tests/lint/size_exceptions.txt": "server/a.cc: a table\n"}
        self.assertEqual(findings("sizes", excepted), [])
        self.assertEqual(len(findings("sizes", {"tests/lint/size_exceptions.txt": "server/a.cc:\n"})), 2)

    def test_junk_drawers(self):
        for name in ("server/utils.h", "server/helpers/a.h", "worker/string_util.cc", "a/job_manager.h"):
            self.assertTrue(findings("names", {name: ""}), name)
        self.assertEqual(findings("names", {"server/utilization.h": "", "worker/agent/attempt.h": ""}), [])

    def test_leftovers(self):
        self.assertEqual(len(findings("leftovers", {"a.cc": "// TO" + "DO: later\n", "b.md": "FIX" + "ME\n"})), 2)
        self.assertEqual(findings("leftovers", {"a.cc": "int todos = 1;\n"}), [])

    def test_machine_paths_and_registries(self):
        self.assertEqual(len(findings("machine_paths", {"a.md": "see /ro" + "ot/x and\n/wo" + "rk/y\n"})), 2)
        self.assertEqual(len(findings("machine_paths", {"a.sh": "curl pypi." + "org\n"})), 1)
        self.assertEqual(findings("machine_paths", {"a.md": "tests/work/x $HOME/root/y\n"}), [])


class Documents(unittest.TestCase):
    def test_links(self):
        tree = {"a.md": "[x](docs/b.md) [y](none.md) [z](https://example.org)\n", "docs/b.md": "[up](../a.md#x)\n"}
        found = findings("documents", tree)
        self.assertEqual(found, ["a.md:1: the link 'none.md' leads nowhere"])

    def test_named_paths(self):
        tree = {"a.md": "`deploy/setup --for run`, `deploy/none`, `build/x`, `deploy/<name>`, `deploy/*`\n", "deploy/setup": ""}
        self.assertEqual(findings("documents", tree), ["a.md:1: 'deploy/none' does not exist"])

    def test_comments(self):
        tree = {"spec/a.h": "// see spec/b.h and spec/a.h\nint x;  // trailing\n"}
        self.assertEqual(len(findings("comments", tree)), 1)


class Tools(unittest.TestCase):
    def test_scripts(self):
        tree = {"a.sh": "#!/bin/bash\nif true\n", "b": "#!/usr/bin/env bash\necho ok\n"}
        found = findings("scripts", tree)
        self.assertTrue(found and all(one.startswith("a.sh") for one in found), found)

    def test_format(self):
        if lint.tools.find_clang_format() is None:
            self.skipTest("clang-format 14 is not installed")
        found = findings("format", {"a.cc": "int  x;\n", "b.cc": "int x;\n", ".clang-format": "BasedOnStyle: Google\n"})
        self.assertEqual(len(found), 1, found)
        self.assertIn("a.cc", found[0])


class CountResults(unittest.TestCase):
    """What tests/run prints last decides whether a change lands: a crash must count."""

    PASSED = '<testsuite><testcase classname="A" name="x" status="run"/></testsuite>'

    def count(self, programs, files):
        with tempfile.TemporaryDirectory() as folder:
            cases = "".join(f'<testcase classname="{name}" name="{name}" status="{status}">{inner}</testcase>'
                            for name, status, inner in programs)
            pathlib.Path(folder, "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text)
            outcomes = [one for _, one in count_results.count(pathlib.Path(folder))]
        return tuple(outcomes.count(kind) for kind in ("passed", "failed", "skipped"))

    def test_cases_of_a_program(self):
        text = ('<testsuites><testsuite><testcase classname="A" name="x" status="run"/>'
                '<testcase classname="A" name="y" status="run"><failure message="no"/></testcase>'
                '<testcase classname="A" name="z" status="run"><skipped message="no GPU"/></testcase></testsuite></testsuites>')
        self.assertEqual(self.count([("t", "fail", "<failure/>")], {"t.xml": text}), (1, 1, 1))

    def test_a_crash_is_a_failure(self):
        self.assertEqual(self.count([("t", "fail", "<failure/>")], {}), (0, 1, 0))
        self.assertEqual(self.count([("t", "fail", "<failure/>")], {"t.xml": "<testsuites><tests"}), (0, 1, 0))

    def test_a_bad_exit_after_good_cases_is_a_failure(self):
        self.assertEqual(self.count([("t", "fail", "<failure/>")], {"t.xml": self.PASSED}), (1, 1, 0))
        self.assertEqual(self.count([("t", "run", "")], {"t.xml": self.PASSED}), (1, 0, 0))

    def test_a_program_that_was_not_run(self):
        self.assertEqual(self.count([("t", "notrun", "<skipped/>")], {}), (0, 0, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--xml")
    options = parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    names = [test.id() for group in suite for test in group]
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    if options.xml:
        bad = {test.id(): text for test, text in result.failures + result.errors}
        skipped = {test.id(): reason for test, reason in result.skipped}
        outcomes = {name: ([(name, bad[name], "")] if name in bad else [], [skipped[name]] if name in skipped else [], 0.0)
                    for name in names}
        lint.write_xml(options.xml, outcomes)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
