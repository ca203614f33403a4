#!/usr/bin/python3
"""Goal: chunks that everybody asks for get a leased copy on another holder, by themselves, and every answer stays the same.

Method: a directory and two holders, on loopback. A corpus is on one holder, whose kernels are slow. Engines query it without a pause
until the directory lists leased copies. Uses none of ckv's code, only the programs.

    python3 tests/e2e/hot_copies_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl \\
        --attend-caller build/dev/bin/attend_caller
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, LAYERS, PROGRAMS, Fleet, Rows

TOKENS, CHUNK_TOKENS, CALLERS = 20_000, 1024, 6
# Three seconds past the elbow, a plan and a copy take some seconds; other work may share the machine.
COPIED_TIMEOUT_S = 90


def cheap_rows(tokens):
    """Rows that repeat: only their number matters."""
    rows = Rows(1, 500, 0)
    rows.token_ids = [(7 * i) % 1000 for i in range(tokens)]
    rows.layers = [[rows.layers[layer][i % 500] for i in range(tokens)] for layer in range(LAYERS)]
    return rows


class HotCopiesTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckv-hot-")
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        # All programs have the same slow kernels. A new holder would take its share by a move.
        with unittest.mock.patch.dict(os.environ, CKV_KERNEL_TARGET="SCALAR"):
            self.fleet = Fleet(folder, holders=1, local_cache="0", directory_options=["--repair-fill-new-holders=off"])
        self.addCleanup(self.fleet.stop)
        path = folder / "rows.safetensors"
        cheap_rows(TOKENS).write(path)
        loaded = self.fleet.run_ctl("corpus", "load", "docs", path, "--chunk-tokens", CHUNK_TOKENS)
        self.assertEqual(loaded.returncode, 0, loaded.stderr)
        with unittest.mock.patch.dict(os.environ, CKV_KERNEL_TARGET="SCALAR"):
            self.fleet.start_holder(1)

    def chunks(self):
        shown = self.fleet.run_ctl("corpus", "show", "docs", "-o", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return json.loads(shown.stdout)["chunks"]

    def leased(self):
        return [chunk["leased"] for chunk in self.chunks() if chunk.get("leased")]

    def start_callers(self):
        callers = []
        for _ in range(CALLERS):
            caller = subprocess.Popen([PROGRAMS.attend_caller, self.fleet.requester, "docs", str(D_QK)], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(caller.stdout.close)
            self.addCleanup(caller.kill)
            self.assertEqual(caller.stdout.readline(), "answered\n")
            callers.append(caller)
        return callers

    def end(self, callers):
        for caller in callers:
            caller.stdin.close()
        for caller in callers:
            told = json.loads(caller.stdout.read())
            caller.wait(20)
            self.assertEqual((told["failed"], told["changed"]), (0, 0), told["first_error"])

    def test_a_hot_corpus_gains_leased_copies(self):
        self.assertEqual(self.leased(), [])
        callers = self.start_callers()
        until = time.monotonic() + COPIED_TIMEOUT_S
        while not (leased := self.leased()) and time.monotonic() < until:
            time.sleep(0.5)  # between two looks
        self.end(callers)
        self.assertTrue(leased, "no leased copy is listed")
        self.assertEqual({tuple(names) for names in leased}, {("h1",)})
        # No version of the corpus has them: its own places are as they were.
        self.assertEqual({tuple(chunk["holders"]) for chunk in self.chunks()}, {("h0",)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for program in ("ckvd", "ckvctl", "attend_caller"):
        parser.add_argument(f"--{program.replace('_', '-')}", type=pathlib.Path, required=True)
    parser.parse_args(namespace=PROGRAMS)
    unittest.main(argv=sys.argv[:1])
