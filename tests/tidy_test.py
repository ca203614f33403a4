#!/usr/bin/python3
"""Each rule of tests/tidy.py refuses the smallest file that breaks it, and a clean tree passes."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import commits  # noqa: E402

TIDY = pathlib.Path(__file__).with_name("tidy.py")

CLEAN = {
    "store/a.h": '// What a is.\n\n#pragma once\n\nint A();\n',
    "store/a.cc": '#include "store/a.h"\n\nint A() { return 1; }\n',
    "store/README.md": "# store\n\n* Uses: nothing.\n* Used by: nothing.\n",
    "tests/store/a_test.cc": '#include "store/a.h"\n',
}


def tidy(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, TIDY, root], capture_output=True, text=True)


class Tidy(unittest.TestCase):
    def refuses(self, words, **extra):
        files = dict(CLEAN)
        files.update({name.replace("__", "/").replace("_h", ".h").replace("_cc", ".cc"): text
                      for name, text in extra.items()})
        run = tidy(files)
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn(words, run.stdout)

    def test_clean_tree_passes(self):
        run = tidy(CLEAN)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_layering(self):
        self.refuses("store may not include transport",
                     store__a_cc='#include "store/a.h"\n#include "transport/fabric.h"\n')
        self.refuses("attention may not include store",
                     attention__b_cc='#include "store/a.h"\n')

    def test_classes(self):
        functions = "".join(f"  int F{i}() const {{ return {i}; }}\n" for i in range(41))
        members = "".join(f"  std::function<int(int)> f{i}_ ABSL_GUARDED_BY(mu_);\n  int m{i}_ = 0;\n" for i in range(13))
        head = "// B.\n\n#pragma once\n"
        self.refuses("Many declares 41 functions, limit 40", store__b_h=f"{head}class Many {{\n public:\n{functions}}};\n")
        self.refuses("Wide has 26 data members, limit 25", store__b_h=f"{head}class Wide final {{\n{members}}};\n")
        self.refuses("Inner has 26", store__b_h=f"{head}class Outer {{\n  class Inner {{\n{members}}};\n}};\n")
        run = tidy({**CLEAN, "store/a.h": f"{head}struct Record {{\n{members}}};\nint A();\n"})
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_modules(self):
        self.refuses("store/memory may not include store",
                     store__memory__b_h='// B.\n\n#pragma once\n#include "store/a.h"\n')
        self.refuses("client/call may not include client/roof",
                     client__call__b_h='// B.\n\n#pragma once\n#include "client/requester.h"\n')
        self.refuses("a module that tests/tidy.py does not know", store__attic__b_cc="int B();\n")
        self.refuses("no README.md", store__disk__b_cc="int B();\n")
        self.refuses("files side by side", **{f"store__b{i}_h": "// B.\n" for i in range(41)})
        self.refuses("more than 18 lines", **{"store__README.md": "line\n" * 19})
        self.refuses("does not begin with a title", **{"store__README.md": "#store\n"})

    def test_a_modules_readme_names_who_uses_it(self):
        files = {"store/a.h": '// A.\n\n#pragma once\n#include "proto/b.h"\n', "proto/b.h": "// B.\n\n#pragma once\n",
                 "proto/README.md": "# proto\n\n* Uses: nothing.\n* Used by: `store`.\n"}
        self.refuses("store/README.md:1: does not say what the module uses", **files)
        run = tidy({**CLEAN, **files, "store/README.md": "# store\n\n* Uses: `proto`.\n* Used by: nothing.\n"})
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_types_have_their_names_alone(self):
        header = "// B.\n\n#pragma once\n\nnamespace ckv%s {\n\nstruct Cover {\n};\n\n}  // namespace ckv\n"
        self.refuses("ckv::Cover is a type of store/a.h, too", store__a_h=header % "", store__b_h=header % "")
        self.assertNotIn("is a type of", tidy({**CLEAN, "store/a.h": header % "", "store/b.h": header % "::b"}).stdout)
        for form in ("class Cover final\n    : public A,\n      public B {", "class ABSL_LOCKABLE Cover {",
                     "struct [[nodiscard]] Cover {", "struct alignas(64) Cover\n{"):
            self.refuses("ckv::Cover is a type of store/a.h, too", store__a_h=header % "",
                         store__b_h=(header % "").replace("struct Cover {", form))
        two = "namespace ckv {\nstruct X;\n}  // namespace ckv\n\nnamespace ckv::b {\n\nstruct Cover {\n};\n}\n"
        self.assertNotIn("is a type of", tidy({**CLEAN, "store/a.h": header % "",
                                               "store/b.h": "// B.\n\n#pragma once\n\n" + two}).stdout)

    def test_the_daemon_does_not_include_the_program(self):
        self.refuses("server/daemon may not include client/tools/ctl",
                     server__daemon__b_cc='#include "client/tools/ctl/ctl.h"\n')

    def test_commits(self):
        with tempfile.TemporaryDirectory() as root:
            def git(*arguments):
                return subprocess.run(["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
                                      capture_output=True, text=True, check=True).stdout.strip()

            def commit(*messages):
                git("commit", "--allow-empty", "-q", *(word for message in messages for word in ("-m", message)))

            git("init", "-q")
            commit("x" * 80)
            base = git("rev-parse", "HEAD")
            commit("store: one thing", "It was another.")
            self.assertEqual(list(commits.breaches(root, base)), [])
            commit("x" * 73, "Why.")
            commit("store: no body")
            commit("store: a full stop.", "Why.")
            self.assertEqual([what.split(",")[0].split(":")[0] for _, what in commits.breaches(root, base)],
                             ["a subject that ends with a full stop", "no body", "a subject of 73 characters"])
            self.assertEqual(list(commits.breaches(root, "0" * 40)), [])

    def test_arrows_run_one_way(self):
        text = TIDY.read_text()
        self.assertIn('"store/memory": "attention* proto*"', text)
        circle = text.replace('"store/memory": "attention* proto*"', '"store/memory": "store/disk"')
        with tempfile.TemporaryDirectory() as folder:
            changed = pathlib.Path(folder) / "tidy.py"
            changed.write_text(circle)
            for beside in ("class_limits.py", "commits.py", "module_uses.py"):
                shutil.copy(TIDY.with_name(beside), folder)
            run = subprocess.run([sys.executable, changed, folder], capture_output=True, text=True)
        self.assertIn("arrows in a circle among", run.stdout)

    def test_grpc_stays_at_the_edge(self):
        self.refuses("stay at the edge", store__a_cc='#include <grpcpp/grpcpp.h>\n')
        self.refuses("stay at the edge", store__a_cc='#include "proto/convert.h"\n')

    def test_verbs_stays_in_its_files(self):
        self.refuses("libibverbs", store__a_cc='#include <infiniband/verbs.h>\n')

    def test_prometheus_stays_in_its_file(self):
        self.refuses("prometheus-cpp", server__a_h='// A.\n#pragma once\n'
                     '#include <prometheus/exposer.h>\n')

    def test_sizes(self):
        self.refuses("502 lines", store__a_cc='#include "store/a.h"\n' + "\n" * 501)
        body = "\n".join(f"  x += {i};" for i in range(70))
        self.refuses("a function of", store__a_cc=f'#include "store/a.h"\nint A() {{\n{body}\n}}\n')
        self.refuses("characters, limit 100", store__a_cc="// " + "x" * 100 + "\n")

    def test_forbidden_words(self):
        for line, words in [
            ("void F() { usleep(1); }", "sleeps"),
            ("void F() { throw 1; }", "throws"),
            ("class A { friend class ATest; };", "befriends"),
            ("using namespace std;", "using namespace"),
            ("auto t = std::chrono::steady_clock::now();", "reads time"),
            ("void F(void* p) { _tile_loadd(0, p, 64); }", "tile intrinsics"),
            ("void F(__tile1024i* p) { __tile_zero(p); }", "tile intrinsics"),
            ("void F() { __builtin_ia32_tilezero(0); }", "tile intrinsics"),
            ("#include <amxintrin.h>", "tile intrinsics"),
            ("#include <amxtileintrin.h>", "tile intrinsics"),
            ("void F() {\n  static const std::string s = Read();\n}", "a static object"),
            ("Clock* F() {\n  static RealClock clock;\n  return &clock;\n}", "a static object"),
        ]:
            with self.subTest(line=line):
                self.refuses(words, store__a_cc=f'#include "store/a.h"\n{line}\n')

    def test_words_in_comments_and_strings_are_fine(self):
        files = dict(CLEAN)
        files["store/a.cc"] = ('#include "store/a.h"\n// never throw, nor _tile_zero\n'
                               'const char* s = "usleep(1)";\n')
        self.assertEqual(tidy(files).returncode, 0)

    def test_python_of_its_own_choice(self):
        for name, text in (
                ("tests/a.py", "#!/usr/bin/env python3\n"),
                ("tests/a.py", 'run(["python3", "-c", code])\n'),
                ("tests/a.py", "run('/usr/bin/python3', code)\n"),
                ("deploy/a.sh", "set -e\npython3 tests/tidy.py\n"),
                ("deploy/a.sh", "exec /usr/bin/python3 tests/tidy.py\n"),
                ("deploy/a.sh", 'said=$(python -c "print(1)")\n'),
                ("tests/CMakeLists.txt", "add_test(NAME a COMMAND python3 a.py)\n"),
                ("tests/CMakeLists.txt", "find_package(Python3 REQUIRED COMPONENTS Interpreter)\n"),
                ("client/a.cmake", "find_program(PYTHON python3)\n")):
            with self.subTest(name=name, text=text):
                run = tidy({**CLEAN, name: text})
                self.assertEqual(run.returncode, 1, run.stdout)
                self.assertIn("Python", run.stdout)
        for name, text in (
                ("tests/a.py", "#!/usr/bin/python3\nrun([sys.executable, 'python.txt'])\n"),
                ("deploy/a.sh", "# python3 is Debian's\napt-get install python3-numpy; ../python.sh x\n"),
                ("tests/CMakeLists.txt", "add_test(NAME python_e2e COMMAND ${CKV_PYTHON} python/a.py)\n")):
            with self.subTest(name=name, text=text):
                run = tidy({**CLEAN, name: text})
                self.assertEqual(run.returncode, 0, run.stdout)

    def test_a_skip_without_a_remedy(self):
        self.refuses("a skip without",
                     tests__store__a_test_cc='#include "store/a.h"\nTEST(A, B) { GTEST_SKIP() << "no"; }\n')
        self.refuses("a skip without", **{"tests/a.py": "self.skipTest('not root')\n"})
        self.refuses("a skip without", **{"tests/a.py": "    @unittest.skipIf(True, 'not root')\n"})
        run = tidy({**CLEAN, "tests/a.py": "self.skipTest(skip.say('not root', 'sudo'))\n", "tests/store/a_test.cc":
                    '#include "store/a.h"\nTEST(A, B) { GTEST_SKIP() << "no; to run it: " << "buy one"; }\n'})
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_a_long_source_opens_with_its_order_of_work(self):
        code = '#include "store/a.h"\n\nnamespace {\n\n{}int A() { return 1; }\n\n}  // namespace\n'
        tail = "int v = 0;\n" * 160
        two = "// Opens a.\n// Then closes it.\n"
        for text in ("", "// Opens a.\n\n", two):  # none, one line, and one on the definition
            with self.subTest(text=text):
                self.refuses("without a first comment", store__a_cc=code.replace("{}", text) + tail)
        self.refuses("without a first comment", store__a_cc=code.replace("{}", "") + two + "\n" + tail)
        self.refuses("without a first comment", store__a_cc="#include <a>\n" * 40 + two + "\n" + tail)
        for text in (two + "\n" + code.replace("{}", ""), code.replace("{}", two + "\n")):
            with self.subTest(text=text):
                run = tidy({**CLEAN, "store/a.cc": text + tail})
                self.assertEqual(run.returncode, 0, run.stdout)
        run = tidy({**CLEAN, "store/a.cc": code.replace("{}", "") + "int v = 0;\n" * 100})
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_headers(self):
        self.refuses("a header nobody includes", store__lonely_h="// Alone.\n\n#pragma once\n")
        self.refuses("opens with one sentence", store__a_h="#pragma once\n")
        self.refuses("no #pragma once", store__a_h="// What a is.\n")

    def test_untested_source(self):
        self.refuses("a .cc without a test", store__b_cc="int B() { return 2; }\n")

    def test_wire_struct_without_size(self):
        self.refuses("without a static_assert",
                     transport__w_h="// Wire.\n\n#pragma once\nstruct AckHeader {\n  int a;\n};\n")


if __name__ == "__main__":
    unittest.main()
