#!/usr/bin/python3
"""The checks of the docs see what is wrong: a block without a mark, a path or a metric that is gone."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
import pages  # noqa: E402

LINKS = pathlib.Path(__file__).with_name("links.py")


class Blocks(unittest.TestCase):
    def errors(self, text):
        return [what for _, what in pages.blocks(text)[1]]

    def test_a_block_has_its_mark_and_its_code(self):
        found, errors = pages.blocks("Run:\n\n<!-- run -->\n```sh\nls\ntrue\n```\n")
        self.assertEqual(errors, [])
        self.assertEqual([(b.line, b.language, b.mark, b.code) for b in found],
                         [(5, "sh", "run", "ls\ntrue\n")])

    def test_commands_need_a_mark_of_their_own(self):
        self.assertEqual(len(self.errors("```sh\nls\n```\n")), 1)
        self.assertEqual(len(self.errors("<!-- run -->\n```sh\nls\n```\n```sh\nls\n```\n")), 1)
        self.assertEqual(len(self.errors("<!-- run -->\nText.\n```sh\nls\n```\n")), 1)
        # Not to run needs a reason.
        self.assertEqual(len(self.errors("<!-- not run -->\n```sh\nls\n```\n")), 1)
        self.assertEqual(self.errors("<!-- not run: root only -->\n```sh\nls\n```\n"), [])

    def test_marks_of_several_hosts(self):
        found, errors = pages.blocks("<!-- file on host-1: a.yaml -->\n```yaml\na: 1\n```\n"
                                     "<!-- run on host-1, host-2 -->\n```sh\nls\n```\n"
                                     "<!-- prints -->\n```text\nx\n```\n<!-- shows: a b -->\n```text\nx\n```\n")
        self.assertEqual(errors, [])
        self.assertEqual([b.mark for b in found],
                         ["file on host-1: a.yaml", "run on host-1, host-2", "prints", "shows: a b"])
        self.assertEqual([pages.is_configuration(b) for b in found], [True, False, False, False])
        self.assertEqual(len(self.errors("<!-- prints -->\n```sh\nls\n```\n")), 1)
        self.assertEqual(len(self.errors("<!-- run on host-1 -->\n```text\nls\n```\n")), 1)

    def test_lines_that_an_output_lacks(self):
        output = "NAME   STATE\nh1     10.0.0.1:7401   answers\n"
        for expected, missing in (("h1 10.0.0.1:7401 answers\n", []), ("h1 ... answers", []),
                                  ("STATE\nh1", []), ("h1 ... STATE", ["h1 ... STATE"]),
                                  ("answers ... h1", ["answers ... h1"]), ("h.", ["h."])):
            with self.subTest(expected=expected):
                self.assertEqual(list(pages.lines_missing(expected, output)), missing)

    def test_no_code_escapes(self):
        self.assertEqual(len(self.errors("Run:\n\n    ls\n")), 1)
        self.assertEqual(len(self.errors("```\nls\n```\n")), 1)
        self.assertEqual(len(self.errors("```text\nls\n")), 1)
        self.assertEqual(self.errors("```text\nls\n```\n"), [])


class Links(unittest.TestCase):
    def run_links(self, readme, *arguments, room="", has_table=False):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path in ("deploy/handbook", "deploy/adr", "client/call", "server"):
                (root / path).mkdir(parents=True)
            (root / "README.md").write_text("| `client/` | `call` |\n" * has_table + readme)
            if room or has_table:
                (root / "client/call/README.md").write_text(room)
            (root / "client/call/route.h").write_text("// Routes.\n")
            (root / "server/metrics.cc").write_text('Gauge("ckv_holder_chunks", "Chunks.")\n')
            run = subprocess.run([sys.executable, LINKS, "--root", name, *arguments],
                                 capture_output=True, text=True)
            return run.returncode, run.stdout, (root / "README.md").read_text()

    def test_names_that_are_there(self):
        code, out, _ = self.run_links("[a](client/call/route.h), `client/call/`, `client/*/route.h`, "
                                      "`ckv_holder_chunks{a}`, [web](https://ckv.example/x), [b](#b)\n")
        self.assertEqual(code, 0, out)

    def test_names_that_are_not(self):
        for text in ("[a](client/b.h)", "`client/b.h`", "`client/*_stub.h`", "`ckv_holder_rows`",
                     "`client/call/{route,b}.h`"):
            with self.subTest(text=text):
                code, out, _ = self.run_links(text + "\n")
                self.assertEqual(code, 1, out)
                self.assertIn("README.md:1: ", out)

    def test_files_in_blocks_of_code(self):
        self.assertEqual(self.run_links("```text\nsee client/call/route.h: it routes\n```\n")[0], 0)
        self.assertEqual(self.run_links("```text\nsee client/b.h\n```\n")[0], 1)
        # What is built, what a command writes, what a model's name looks like.
        self.assertEqual(self.run_links("```sh\nbuild/client/b.h client/b a.txt\n```\n")[0], 0)

    def test_a_folder_names_its_own_files(self):
        for text, code in (("`route.h`, `client/call/route.h`, `x.y`", 0), ("`b.h`", 1)):
            with self.subTest(text=text):
                self.assertEqual(self.run_links("", room=text, has_table=True)[0], code)

    def test_the_table_of_folders_has_every_room(self):
        code, out, _ = self.run_links("", room="Routes.\n")
        self.assertEqual(code, 1)
        self.assertIn("no client/call", out)

    def test_follows_what_moved(self):
        text = "`client/route.h`, [a](client/route.h)\n```text\nclient/route.h\n```\n"
        code, out, _ = self.run_links(text)
        self.assertEqual(code, 1)
        self.assertIn("client/call/route.h is (--fix)", out)
        code, _, fixed = self.run_links(text, "--fix")
        self.assertEqual(code, 0)
        self.assertEqual(fixed, text.replace("client/", "client/call/"))


if __name__ == "__main__":
    unittest.main()
