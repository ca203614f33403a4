#!/usr/bin/python3
"""Goal: a fault planted into a tree fails the static checks: an unguarded access, a header that does not
compile alone, a finding of clang-tidy or cppcheck.

Method: a tree of three small files in its own git repository, with the real checks and the real .clang-tidy.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "support"))
import skip  # noqa: E402

CLEAN = {
    "server/counter.h": """// Counts.
#pragma once
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
class Counter {
 public:
  int Next() ABSL_LOCKS_EXCLUDED(mu_);
 private:
  absl::Mutex mu_;
  int value_ ABSL_GUARDED_BY(mu_) = 0;
};
""",
    "server/counter.cc": """#include "server/counter.h"
int Counter::Next() {
  absl::MutexLock lock(&mu_);
  return ++value_;
}
""",
    "server/sum.cc": "int Sum(int a, int b) { return a + b; }\n",
    "tests/sum_test.cc": "int Sum(int a, int b);\nint main() { return Sum(1, -1); }\n",
}
UNGUARDED = CLEAN["server/counter.cc"].replace("  absl::MutexLock lock(&mu_);\n", "")
MISNAMED = "int Sum(int a, int b) {\n  int TheSum = a + b;\n  return TheSum;\n}\n"
BEYOND = "int Sum(int a, int b) {\n  int both[2] = {a, b};\n  return both[0] + both[2];\n}\n"
LINT = ("--only", "clang-tidy")


class Tree:
    def __init__(self, root):
        self.root = root
        shutil.copy(HERE.parent / ".clang-tidy", root)
        self.git("init", "--quiet")
        self.commit()
        self.write(CLEAN)
        self.commit()
        self.commit()  # the last one changed nothing
        (root / "build").mkdir()
        (root / ".gitignore").write_text("/build/\n")
        self.list_units()

    def list_units(self):
        build = self.root / "build"
        names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.cc"))
        (build / "compile_commands.json").write_text(json.dumps([
            {"directory": str(build), "file": str(self.root / name),
             "command": f"clang++-14 -std=c++20 -I{self.root} -o {name}.o -c {self.root / name}"} for name in names]))

    def git(self, *words):
        subprocess.run(["git", "-C", self.root, "-c", "user.name=ckv", "-c", "user.email=ckv", *words], check=True,
                       capture_output=True)

    def write(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "more")

    def check(self, *arguments):
        done = subprocess.run([sys.executable, HERE / "static_checks.py", self.root / "build", "--root", self.root, *arguments],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class StaticChecks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ckv-static-")
        self.addCleanup(folder.cleanup)
        self.tree = Tree(pathlib.Path(folder.name).resolve())

    def expect(self, words, *arguments):
        code, said = self.tree.check(*arguments)
        self.assertEqual(code, 1, said)
        self.assertIn(words, said)

    def test_a_clean_tree_passes(self):
        code, said = self.tree.check("--all")
        self.assertEqual(code, 0, said)

    def test_an_unguarded_access_fails_at_any_age(self):
        self.tree.write({"server/counter.cc": UNGUARDED})
        self.tree.commit()
        for _ in range(2):
            self.tree.commit()
        self.expect("requires holding mutex 'mu_'", "--changed", "1", "--only", "thread-safety")

    def test_a_changed_file_that_forgot_an_include_fails(self):
        self.tree.write({"server/another.cc": '#include "server/counter.h"\nint Two(Counter& c) { return c.Next() + c.Next(); }\n'})
        self.tree.list_units()
        self.tree.commit()
        code, said = self.tree.check("--changed", "1", "--only", "thread-safety")
        self.assertEqual(code, 0, said)
        self.tree.write({"server/another.cc": "int Two(Counter& c) { return c.Next() + c.Next(); }\n"})
        self.expect("unknown type name 'Counter'", "--changed", "1", "--only", "thread-safety")

    def test_a_header_that_does_not_compile_alone_fails(self):
        lacking = CLEAN["server/counter.h"].replace('#include "absl/synchronization/mutex.h"\n', "")
        user = '#include "absl/synchronization/mutex.h"\n' + CLEAN["server/counter.cc"]
        for changes in (("--changed", "1"), ("--all",)):
            self.tree.write({"server/counter.h": lacking, "server/counter.cc": user})
            self.expect("server/counter.h does not compile alone", *changes, "--only", "headers")

    def test_a_header_of_which_only_a_header_changed_fails(self):
        self.tree.write({"server/text.h": "// A text.\n#pragma once\n#include <string>\n",
                         "server/name.h": '// A name.\n#pragma once\n#include "server/text.h"\nusing Name = std::string;\n',
                         "server/names.h": '// Its user.\n#pragma once\n#include "server/name.h"\n'})
        for _ in range(2):
            self.tree.commit()
        code, said = self.tree.check("--changed", "1", "--only", "headers")
        self.assertEqual(code, 0, said)
        self.tree.write({"server/text.h": "// No text.\n#pragma once\n"})
        self.expect("server/name.h does not compile alone", "--changed", "1", "--only", "headers")

    def test_a_fragment_need_not_compile_alone(self):
        self.tree.write({"server/part.inl.h": "// Half of a class.\n int half_ = Other();\n"})
        code, said = self.tree.check("--all", "--only", "headers")
        self.assertEqual(code, 0, said)

    def test_a_header_for_programs_of_others_need_not_compile_here(self):
        self.tree.write({"server/plugin.h": '// For an engine.\n#pragma once\n#include "engine/api.h"\n'})
        code, said = self.tree.check("--all", "--only", "headers")
        self.assertEqual(code, 0, said)

    def test_reports_the_limit_of_headers(self):
        code, said = self.tree.check("--changed", "1", "--only", "headers", "--headers-limit-s", "-1")
        self.assertEqual(code, 0, said)
        self.assertIn("headers alone: 1 of them left out", said)

    def test_reports_the_limit_of_thread_safety(self):
        self.tree.write({"server/counter.cc": UNGUARDED})
        code, said = self.tree.check("--changed", "1", "--only", "thread-safety", "--safety-limit-s", "-1")
        self.assertEqual(code, 0, said)
        self.assertIn("thread safety: 2 of them left out", said)

    def test_lints_what_the_last_commits_changed(self):
        self.tree.write({"server/sum.cc": MISNAMED})
        self.expect("invalid case style for variable 'TheSum'", "--changed", "1", *LINT)  # not committed yet
        self.tree.commit()
        self.expect("invalid case style for variable 'TheSum'", "--changed", "1", *LINT)
        self.tree.commit()
        code, said = self.tree.check("--changed", "1", *LINT)
        self.assertEqual(code, 0, said)
        self.assertIn("clang-tidy: 0 files", said)
        self.expect("invalid case style for variable 'TheSum'", "--changed", "2", *LINT)

    def test_a_changed_header_is_linted_through_its_file(self):
        self.tree.write({"server/counter.h": CLEAN["server/counter.h"].replace("value_", "Value")})
        self.tree.write({"server/counter.cc": CLEAN["server/counter.cc"].replace("value_", "Value")})
        self.tree.commit()
        header = (self.tree.root / "server/counter.h").read_text()
        self.tree.write({"server/counter.h": header + "// More.\n"})
        self.tree.commit()
        code, said = self.tree.check("--changed", "1", *LINT)  # only a comment changed
        self.assertEqual(code, 0, said)
        self.assertIn("clang-tidy: 0 files", said)
        self.tree.write({"server/counter.h": header + "extern int more;\n"})
        self.tree.commit()
        self.expect("invalid case style for private member 'Value'", "--changed", "1", *LINT)

    def test_findings_of_cppcheck_fail(self):
        self.tree.write({"server/sum.cc": BEYOND})
        self.tree.commit()
        self.expect("arrayIndexOutOfBounds", "--changed", "1", "--only", "cppcheck")

    def test_a_file_that_is_gone_is_no_finding(self):
        (self.tree.root / "tests/sum_test.cc").unlink()  # the build is not configured again yet
        code, said = self.tree.check("--changed", "1", "--only", "cppcheck")
        self.assertEqual(code, 0, said)

    def test_reports_the_limit(self):
        code, said = self.tree.check("--changed", "9", "--limit-s", "-1", *LINT)
        self.assertEqual(code, 0, said)
        self.assertIn("clang-tidy: 3 of them left out", said)

    def test_a_shallow_clone_has_what_it_has(self):
        self.tree.write({"server/sum.cc": MISNAMED})
        self.tree.commit()
        for depth, words in (("1", "any file may have changed"), ("2", "of the last 30 commits 1 are here")):
            with self.subTest(depth=depth), tempfile.TemporaryDirectory() as name:
                root = pathlib.Path(name).resolve() / "clone"
                subprocess.run(["git", "clone", "--quiet", "--depth", depth, f"file://{self.tree.root}", root], check=True)
                clone = Tree.__new__(Tree)
                clone.root = root
                (root / "build").mkdir()
                listed = (self.tree.root / "build/compile_commands.json").read_text()
                (root / "build/compile_commands.json").write_text(listed.replace(str(self.tree.root), str(root)))
                code, said = clone.check("--changed", "30", *LINT)
                self.assertEqual(code, 1, said)
                self.assertIn(words, said)
                self.assertIn("invalid case style for variable 'TheSum'", said)


if __name__ == "__main__":
    absent = [program for program in ("clang++-14", "clang-tidy-14", "cppcheck", "git") if shutil.which(program) is None]
    if absent:
        sys.exit(skip.lacks(f"no {' and no '.join(absent)} here"))
    unittest.main()
