#!/usr/bin/python3
"""Goal: tests/run.sh and .ci/run install the same, and end with what failed, was skipped or was left out, and what would run it.

Method: both scripts in a tree of their own, whose tests are shell commands and whose scripts of deploy/ note how they are called.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ("tests/run.sh", "tests/outcome.py", "tests/durations.py", ".ci/run", "deploy/python.sh", "deploy/configure.sh")
PRESETS = ("release", "asan", "tsan")
SCRIPT = '#!/bin/sh\necho "$(basename "$0") $*" >>calls\n'


class Tree:
    def __init__(self, root):
        self.root = root
        for name in OURS:
            (root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for name, more in (("install-packages", ""), ("build", ""), ("check", ""), ("llama-headers", "exit 77\n")):
            self.script(name, more)
        listed = ", ".join(f'{{ "name": "{name}", "generator": "Ninja", "binaryDir": "${{sourceDir}}/build/{name}" }}'
                           for name in PRESETS)
        tests = ", ".join(f'{{ "name": "{name}", "configurePreset": "{name}" }}' for name in PRESETS)
        (root / "CMakePresets.json").write_text(
            f'{{ "version": 6, "configurePresets": [ {listed} ], "testPresets": [ {tests} ] }}')
        self.tests(good="exit 0")

    def script(self, name, more):
        path = self.root / f"deploy/{name}.sh"
        path.write_text(SCRIPT + more)
        path.chmod(0o755)

    def tests(self, **commands):
        lines = ["cmake_minimum_required(VERSION 3.25)", "project(a LANGUAGES NONE)", "enable_testing()"]
        for name, command in {"rdma": "exit 0", **commands}.items():
            (self.root / f"{name}.test").write_text(command)
            lines += [f"add_test(NAME {name} COMMAND /bin/sh ${{CMAKE_SOURCE_DIR}}/{name}.test)",
                      f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)"]
        lines.append("set_tests_properties(rdma PROPERTIES LABELS rdma)")
        (self.root / "CMakeLists.txt").write_text("\n".join(lines) + "\n")

    def run(self, *command):
        """(exit code, the last lines, which scripts were called)"""
        (self.root / "calls").write_text("")
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stderr.rpartition("== outcome\n")[2], (self.root / "calls").read_text().splitlines()


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ckv-run-")
        self.addCleanup(folder.cleanup)
        self.tree = Tree(pathlib.Path(folder.name))

    def test_both_install_the_same(self):
        installed = []
        for command in ("tests/run.sh", ".ci/run"):
            code, said, calls = self.tree.run(command)
            self.assertEqual(code, 0, said)
            installed.append([call for call in calls if call.startswith("install-packages")])
        self.assertEqual(installed[0], ["install-packages.sh build", "install-packages.sh tests"])
        self.assertEqual(installed[0], installed[1])

    def test_names_what_is_left_out(self):
        code, said, calls = self.tree.run("tests/run.sh")
        self.assertEqual(code, 0, said)
        for words in ("preset asan\n    to run it: tests/run.sh --preset asan", "to run it: tests/run.sh --preset tsan",
                      "to run it: tests/run.sh --rdma", "to run it: deploy/check.sh --changed",
                      "no headers of llama.cpp\n    to run it: install npm"):
            self.assertIn(words, said)
        self.assertFalse([call for call in calls if call.startswith("check")])
        _, said, calls = self.tree.run(".ci/run")
        self.assertEqual([call for call in calls if call.startswith("check")], ["check.sh --lint"])
        self.assertIn("the unit tests of control code, preset release", said)
        self.assertEqual(said.count("left out:"), len(PRESETS) + 2, said)  # and the headers, by preset
        for preset in PRESETS:
            self.assertIn(f"{preset}: ", said)

    def test_a_folder_of_another_compiler_begins_again(self):
        programs = self.tree.root / "programs"
        programs.mkdir()
        (programs / "cmake").write_text(f'#!/bin/sh\necho "cmake $*" >>{self.tree.root}/calls\n')
        (programs / "cmake").chmod(0o755)
        cache = self.tree.root / "build/asan/CMakeCache.txt"
        cache.parent.mkdir(parents=True)
        for compiler, wanted in (("/usr/bin/c++", "cmake --fresh --preset asan"), ("/usr/bin/clang++-14", "cmake --preset asan")):
            cache.write_text(f"CMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
            _, _, calls = self.tree.run("env", f"PATH={programs}:{os.environ['PATH']}", "deploy/configure.sh", "asan")
            self.assertEqual(calls, [wanted])

    def test_asan_checks_thread_safety(self):
        """--lint leaves that to the build of asan, whose warnings are errors."""
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        asan = next(preset for preset in presets if preset["name"] == "asan")
        self.assertEqual(asan["cacheVariables"]["CKV_THREAD_SAFETY"], "ON")
        self.assertEqual(asan["inherits"][0], "clang")

    def test_a_skip_without_a_remedy_fails_the_run(self):
        self.tree.tests(page="echo 'SKIPPED: no browser; to run it: apt install one'\nexit 77")
        code, said, _ = self.tree.run("tests/run.sh")
        self.assertEqual(code, 0, said)
        self.assertIn("skipped: page (release)\n    no browser\n    to run it: apt install one\n", said)
        self.tree.tests(page="exit 77")
        code, said, _ = self.tree.run("tests/run.sh")
        self.assertEqual(code, 1, said)

    def test_ci_repeats_a_failure_once(self):
        flaky = "test -e seen && exit 0\ntouch seen\nexit 1"
        self.tree.tests(now_and_then=flaky)
        code, said, _ = self.tree.run(".ci/run")
        self.assertEqual(code, 0, said)
        self.assertIn("FLAKY: now_and_then (release)", said)
        for seen in self.tree.root.rglob("seen"):
            seen.unlink()
        code, said, _ = self.tree.run("tests/run.sh")
        self.assertNotEqual(code, 0)
        self.assertIn("FAILED: now_and_then (release)", said)

    def test_static_checks_that_fail_end_ci(self):
        self.tree.script("check", "exit 1\n")
        code, _, calls = self.tree.run(".ci/run")
        self.assertEqual(code, 1)
        self.assertFalse([call for call in calls if call.startswith("build")])

    def test_without_the_right_to_install_it_tests_what_it_can(self):
        self.tree.script("install-packages", '[ "$1" = build ]\n')
        code, said, _ = self.tree.run("tests/run.sh")
        self.assertEqual(code, 0, said)
        code, _, _ = self.tree.run(".ci/run")
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()
