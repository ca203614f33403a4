#!/usr/bin/python3
"""tests/prose.py finds each kind of breach where it is, and leaves code, tables and names alone."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(__file__).with_name("tidy.py")
LONG = " ".join(["word"] * 26)
SHORT = " ".join(["word"] * 25)


def prose(files, *arguments):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, TIDY, "--prose", "--root", root, *arguments],
                              capture_output=True, text=True)


class Prose(unittest.TestCase):
    def finds(self, name, text, *wanted):
        """The breaches of one file, as "line: rule", are exactly those wanted."""
        run = prose({name: text})
        lines = run.stdout.splitlines()[:-1]
        found = [line[len(name) + 1:] for line in lines]
        self.assertEqual(len(found), len(wanted), run.stdout)
        for line, start in zip(found, wanted):
            self.assertTrue(line.startswith(start), f"{line!r} is not {start!r}")
        self.assertEqual(run.returncode, 1 if wanted else 0, run.stdout + run.stderr)

    def test_clean_text_passes(self):
        self.finds("store/a.h", f"// Opens the store. {SHORT}.\n#pragma once\n")
        self.finds("README.md", f"# ckv\n\n{SHORT}.\n")

    def test_long_sentences(self):
        self.finds("store/a.h", f"// {LONG}.\n", "1: long: 26 words")
        self.finds("proto/ckv/v1/a.proto", f"// {LONG}.\n", "1: long")
        self.finds("README.md", f"Short.\n\n{LONG}.\n", "3: long")
        self.finds("deploy/handbook/operate.md", f"{LONG}.\n", "1: long")
        self.finds("client/call/README.md", f"{LONG}.\n", "1: long")
        # A .cc file's comments are for its maintainer: only the word rules apply.
        self.finds("store/a.cc", f"// {LONG}.\n")

    def test_a_sentence_runs_over_lines_and_is_found_where_it_begins(self):
        half = " ".join(["word"] * 13)
        self.finds("store/a.h", f"// Short one. {half}\n// {half}.\nint a;\n", "1: long")
        self.finds("store/a.h", f"// Short one.\n// {half}\n// {half}.\n", "2: long")
        # Two comments, of two fields.
        self.finds("store/a.h", f"int a;  // {half}\nint b;  // {half}\n")
        # One comment, continued in the same column.
        self.finds("store/a.h", f"int a;  // {half}\n        // {half}\n", "1: long")

    def test_abbreviations_and_code_spans_end_no_sentence(self):
        half = " ".join(["word"] * 13)
        self.finds("store/a.h", f"// {half}, e.g. {half}.\n", "1: long")
        self.finds("README.md", f"{half} `ckvctl status. Then more` {half}.\n", "1: long")
        # A code span is one word.
        self.finds("README.md", f"`{LONG}` is short.\n")

    def test_code_tables_and_drawings_are_left_alone(self):
        self.finds("store/a.h", f"// Use:\n//\n//   Open(such, {LONG.replace(' ', ', ')});\n//\n// Done.\n")
        self.finds("store/a.h", "//   NotFound   gone; absent: never\n", "1: clause")
        self.finds("store/a.h", f"//   NotFound   {SHORT}\n//   Aborted    {SHORT}\n")
        self.finds("README.md", f"Run:\n\n    {LONG} such\n\n```sh\n{LONG} such\n```\n")
        self.finds("README.md", f"| {SHORT} | {SHORT} |\n| --- | --- |\n")
        self.finds("README.md", f"| {SHORT} | {LONG} |\n", "1: long")

    def test_each_item_of_a_list_is_its_own(self):
        items = "".join(f"* {SHORT}\n" for _ in range(3))
        self.finds("README.md", items)
        self.finds("README.md", items + f"* {SHORT}\n  word\n", "4: long")

    def test_openers(self):
        for word in ("Of", "What", "Where", "Whoever"):
            with self.subTest(word=word):
                rules = ["1: opener"] + (["1: word"] if word == "Whoever" else [])
                self.finds("store/a.cc", f"// Clean. {word} it is.\n", *rules)
        self.finds("store/a.h", "size_t a;  // of rows in memory\n", "1: opener")
        self.finds("store/a.h", "// The share, of\n// what there is.\n")
        self.finds("store/a.h", "// What is it?\n")
        self.finds("server/a.cc", 'const char* kHelp = "What it is";\n', "1: opener")
        self.finds("server/a.cc", 'const char* kHelp = "what it is";\n')

    def test_clauses(self):
        for word in ("null", "0", "absent", "empty"):
            with self.subTest(word=word):
                self.finds("store/a.h", f"// The folder; {word}: none.\n", "1: clause")
                self.finds("store/a.h", f"// The folder. {word.title()}: none.\n", "1: clause")
        self.finds("server/a.cc", '#include "a.h"\nF("the folder; "\n  "empty: none");\n',
                   "2: clause")
        self.finds("proto/ckv/v1/a.proto", "int32 a = 1;  // the folder; absent: none\n", "1: clause")

    def test_words(self):
        self.finds("store/a.cc", "// Does such things for so long.\n", "1: word: such",
                   "1: word: so long")
        self.finds("store/a.cc", "// For whoever reads what it was asked for.\n", "1: word: whoever",
                   "1: word: what it was")
        self.finds("store/a.cc", 'return Error("no such file");\n')
        self.finds("store/a.cc", 'return Error("such a file is"\n  " one");\n', "1: word: such")

    def test_words_of_posture_and_speech_are_for_people(self):
        for text in ("The rows lie in the store.", "The header tells how long it is.", "Nobody reads it.", "It is made anew.",
                     "The chunk stands at the end.", "Rows come near."):
            with self.subTest(text=text):
                self.finds("store/a.h", f"// {text}\n", "1: word: ")
        self.finds("store/a.h", "// A `told` of its own, a stand-in, and what FP8 stands for.\n")

    def test_words_of_posture_and_speech_in_strings(self):
        for text in ("nobody reads it", "the log says why", "no reply came", "the holder is asked", "rows beside it"):
            with self.subTest(text=text):
                self.finds("store/a.cc", f'auto x = "{text}";\n', "1: word: ")
                self.finds("store/a.h", f'auto x =\n    "fails: "\n    "{text}";\n', "2: word: ")
                self.finds("client/bindings/python/ckv/a.py", f'x = 1\nraise ValueError("fails: "\n   f"{text}: {{x}}")\n', "2: word: ")
                self.finds("tests/a.py", f'x = "{text}"\n')
        for text in ("told", "nobody", "what `come` is", "a stand-in reads it"):  # one word is a name
            with self.subTest(text=text):
                self.finds("store/a.cc", f'auto x = "{text}";\n')
                self.finds("client/bindings/python/ckv/a.py", f'x = "{text}"\n')
        # A comment is for those who read the code.
        self.finds("store/a.cc", "// Rows beside the header.\n")
        # Of Python, this rule alone is checked.
        self.finds("client/bindings/python/ckv/a.py", 'x = "What such a file is"  # nobody\n')

    def test_names_of_tests(self):
        for name in ("TheLogSaysWhy", "NobodyReads", "RowsAreMadeAnew", "ACallAsksTwice", "OfNothingIsDone",
                     "WhatIsWrongIsNamed", "StructsOfBeforeWork", "LiesAsItIsDocumented", "OneBesideAnother"):
            with self.subTest(name=name):
                for macro in ("TEST", "TEST_F", "TEST_P"):
                    self.finds("tests/a_test.cc", f"\n{macro}(Suite, {name}) {{}}\n", "2: name: ")
        self.finds("tests/a_test.cc", "TEST_F(Suite,\n       TheLogSaysWhy) {}\n", "2: name: says")
        self.finds("tests/a_test.py", "class A:\n    def test_the_log_says_why(self):\n", "2: name: says")
        self.finds("tests/a_test.py", "class A:\n    def test_what_is_wrong(self):\n", "2: name: what")
        for text in ("TEST(Suite, RefusesAFrameOfAnotherVersion) {}\n", "TEST(Nobody, KeepsWhatWasPut) {}\n",
                     "TEST(Suite, AnAMXUnitStandsInForAnother) {}\n", "int TheLogSaysWhy();\n",
                     "// TEST(Suite, TheLogSaysWhy)\n"):
            with self.subTest(text=text):
                self.finds("tests/a_test.cc", text)

    def test_strings_are_not_comments(self):
        self.finds("store/a.cc", 'const char* a = "http://such";\n')

    def test_the_allow_list(self):
        files = {"store/a.h": "// Such is life.\n"}
        entry = "store/*.h: Such is life # a saying\n"
        self.assertEqual(prose({**files, "tests/prose_allow.txt": "# Why.\n" + entry}).returncode, 0)
        # An entry needs its justification, and something to allow.
        self.assertNotEqual(
            prose({**files, "tests/prose_allow.txt": "store/*.h: Such is life\n"}).returncode, 0)
        run = prose({"tests/prose_allow.txt": entry})
        self.assertEqual(run.returncode, 1)
        self.assertIn("tests/prose_allow.txt:1: allows what is not there", run.stdout)

    def test_counts_and_choice_of_files(self):
        files = {"store/a.h": "// Such a thing, such another.\n", "server/b.h": "// Such.\n"}
        self.assertIn("    2 store/a.h\n", prose(files, "--count").stdout)
        self.assertNotIn("server", prose(files, "--count", "store").stdout)

    def test_tests_and_other_folders_are_not_read(self):
        self.finds("tests/a.cc", "// Such.\n")
        self.finds("deploy/adr/0001-a.md", "Such.\n")


if __name__ == "__main__":
    unittest.main()
