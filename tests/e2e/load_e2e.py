#!/usr/bin/python3
"""Goal: a load keeps its promises: acknowledged is safe, too large is refused first, a changed file is refused.

Method: kills a directory in memory right after each acknowledgement, and starts it again. Holders with little room, one
of them nearly full. Files that are truncated and overwritten while ckvctl reads them. Uses none of ckv's code, only the
two programs.

    python3 tests/e2e/load_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK as ROW
from ctl_fleet import LAYERS, PROGRAMS, Fleet, Rows, write_safetensors

WAIT_TIMEOUT_S = 60
KILLS = 3
INVALID, UNAVAILABLE, EXHAUSTED = 2, 4, 6
D_QK = 512  # of large files: 1 KiB a token and layer
MIB = 1 << 20


def write_large(path, tokens, seed):
    """Rows of LAYERS x tokens x 1 KiB."""
    ids = struct.pack(f"<{tokens}i", *((seed * 7919 + i * i) % 30000 for i in range(tokens)))
    tensors = {"token_ids": ("I32", [tokens], ids)}
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.ckv"] = ("BF16", [tokens, D_QK], bytes([seed, 0x3c]) * (tokens * D_QK))
    write_safetensors(path, tensors, {"model": "test/large", "revision": "1", "d_v": "448", "d_rope": "64",
                                      "rope_style": "interleaved", "rope_theta": "10000", "softmax_scale": "0.1",
                                      "base_position": "0"})


def read_bytes(pid):
    """Bytes that the process has read by system calls. Libraries are mapped, so they do not count."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as io:
            return int(io.readline().split()[1])
    except OSError:
        return 0


class LoadTest(unittest.TestCase):
    def setUp(self):
        self.held = tempfile.TemporaryDirectory(prefix="ckv-load-")
        self.folder = pathlib.Path(self.held.name)
        self.fleet = None

    def tearDown(self):
        if self.fleet is not None:
            self.fleet.stop()
        self.held.cleanup()

    def environment(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        environment.update(CKV_REQUESTER=self.fleet.requester, CKV_DIRECTORY=self.fleet.directory)
        return environment

    def run_ctl(self, *arguments):
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=self.environment(), timeout=120,
                              capture_output=True, text=True, check=False)

    def ctl(self, *arguments):
        done = self.run_ctl(*arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done

    def ids_of(self, name):
        shown = json.loads(self.ctl("corpus", "show", name, "-o", "json").stdout)
        return [chunk["id"] for chunk in shown["chunks"]]

    def restart_directory(self):
        process = self.fleet.processes[0]
        process.kill()
        process.wait()
        self.fleet.start("directory", "--role=directory", listen=self.fleet.directory)
        self.fleet.processes[0] = self.fleet.processes.pop()

    def await_corpora(self, names):
        """Waits until corpus list has all `names`, which all holders must have reported, or until the timeout."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while True:
            shown = {name: self.run_ctl("corpus", "show", name, "-o", "json").returncode for name in names}
            if not any(shown.values()) or time.monotonic() > deadline:
                return shown

    @unittest.mock.patch.dict(os.environ, CKV_LEASE_TTL="1s")  # a directory learns for three of them
    def test_an_acknowledged_change_survives_a_kill_of_a_directory_in_memory(self):
        self.fleet = Fleet(self.folder, holders=2)
        names, ids = [], {}
        for kill in range(KILLS):
            name = f"c{kill}"
            path = self.folder / f"{name}.safetensors"
            Rows(kill, 64, 0).write(path)
            loaded = self.run_ctl("corpus", "load", name, path, "--chunk-tokens", "16")
            self.restart_directory()
            self.assertEqual(loaded.returncode, 0, loaded.stderr)
            self.assertNotIn("warning", loaded.stderr)
            names.append(name)
            self.assertEqual(self.await_corpora(names), {one: 0 for one in names}, f"after kill {kill}")
            ids[name] = self.ids_of(name)
            self.assertEqual(len(ids[name]), 4)
        # Extended, then dropped: both are changes.
        Rows(0, 64, 0).write(self.folder / "c0.safetensors")
        Rows(99, 32, 64).write(self.folder / "tail.safetensors")
        extended = self.run_ctl("corpus", "load", "c0", self.folder / "tail.safetensors", "--extend")
        self.restart_directory()
        self.assertEqual(extended.returncode, 0, extended.stderr)
        self.await_corpora(names)
        self.assertEqual(self.ids_of("c0")[:4], ids["c0"])
        self.assertEqual(len(self.ids_of("c0")), 6)
        dropped = self.run_ctl("corpus", "drop", "c1")
        self.restart_directory()
        self.assertEqual(dropped.returncode, 0, dropped.stderr)
        self.await_corpora([name for name in names if name != "c1"])
        self.assertEqual(self.run_ctl("corpus", "show", "c1").returncode, 3)

    def test_corpora_of_old_weights_are_dropped_together(self):
        self.fleet = Fleet(self.folder, holders=1)
        for name, model, revision in (("a", "m", "1"), ("b", "m", "2"), ("c", "m", "1"), ("d", "n", "1")):
            path = self.folder / f"{name}.safetensors"
            Rows(ord(name), 32, 0).write(path, model=model, revision=revision)
            self.ctl("corpus", "load", name, path, "--chunk-tokens", "16")
        self.ctl("corpus", "load", "private", self.folder / "a.safetensors", "--tenant", "acme", "--chunk-tokens", "16")
        would = json.loads(self.run_ctl("corpus", "drop", "--revision", "1", "--dry-run", "-o", "json").stdout)
        self.assertEqual((would["corpora"], would["chunks_dropped"]), (["a", "c", "d"], 0))
        done = json.loads(self.run_ctl("corpus", "drop", "--revision", "1", "--model", "m", "-o", "json").stdout)
        # Those of a are private's, too.
        self.assertEqual((done["corpora"], done["chunks_dropped"]), (["a", "c"], 2))
        listed = json.loads(self.run_ctl("corpus", "list", "-o", "json").stdout)["corpora"]
        self.assertEqual({one["name"] for one in listed}, {"b", "d"})
        self.assertEqual(self.run_ctl("corpus", "show", "private", "--tenant", "acme").returncode, 0)
        self.assertEqual(self.run_ctl("corpus", "drop", "--revision", "3").returncode, 3)
        for arguments in ([], ["b", "--revision", "1"], ["b", "--dry-run"]):
            self.assertEqual(self.run_ctl("corpus", "drop", *arguments).returncode, INVALID, arguments)

    def test_a_load_that_cannot_wait_reports_it(self):
        self.fleet = Fleet(self.folder, holders=2)
        path = self.folder / "rows.safetensors"
        Rows(1, 64, 0).write(path)
        self.ctl("corpus", "load", "a", path, "--chunk-tokens", "16")
        # It has its chunks already, so only the change is left to record. Its lease lasts longer than the load.
        holder = self.fleet.processes[2]
        holder.send_signal(signal.SIGSTOP)
        done = self.run_ctl("corpus", "drop", "a")
        holder.send_signal(signal.SIGCONT)
        self.assertIn("h1", done.stderr)
        self.assertIn("have not recorded it yet", done.stderr)

    def test_reports_what_is_written_and_refused(self):
        self.fleet = Fleet(self.folder, holders=1)
        rows, queries, out = self.folder / "rows", self.folder / "q", self.folder / "out"
        Rows(1, 64, 0).write(rows)
        self.ctl("corpus", "load", "docs", rows, "--chunk-tokens", "16")
        one = 0x3f80  # 1 in bf16
        write_safetensors(queries, {"q": ("BF16", [1, ROW], struct.pack(f"<{ROW}H", *[one] * ROW))})
        attend = ["attend", "--corpus", "docs", "--layer", "0", "--queries", queries, "--out"]
        self.ctl(*attend, out)
        # Nothing follows the tensor in a pipe: the summary is on stderr.
        piped = subprocess.run([PROGRAMS.ckvctl, *map(str, attend), "/dev/stdout"], env=self.environment(),
                               capture_output=True, timeout=60, check=True)
        self.assertEqual(piped.stdout, out.read_bytes())
        self.assertIn(b"holders:", piped.stderr)
        full = self.run_ctl(*attend, "/dev/full")
        self.assertEqual(full.returncode, EXHAUSTED, full.stderr)
        write_safetensors(queries, {"q": ("BF16", [1, ROW], struct.pack(f"<{ROW}H", 0x7f7f, *[one] * (ROW - 1)))})
        refused = self.run_ctl(*attend, out)
        self.assertEqual(refused.returncode, INVALID, refused.stderr)
        self.assertIn("query row 0: value 0 is 3.38953e+38", refused.stderr)
        for arguments, code, told in (
                (["chunk", "pin", "--corpus", "docs", "--ordinal", "0", "--for", "0s"], INVALID, "must be longer than 0"),
                (["bogus", "--help"], INVALID, "not known here: bogus"),
                (["corpus", "bogus", "--help"], INVALID, "not known here: bogus"),
                (["--tenant", "acme", "corpus", "load", "docs", rows], 8, "is shared: tenant 'acme' reads it"),
                (["characterize", "--dir", "/proc/x"], 7, "name another with --dir")):
            done = self.run_ctl(*arguments)
            self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
            self.assertIn(told, done.stderr)
        status = self.run_ctl("status", "--directory", self.fleet.requester)
        self.assertEqual(status.returncode, UNAVAILABLE, status.stderr)
        self.assertIn("is no directory", status.stdout)
        narrow, wide = (subprocess.run([PROGRAMS.ckvctl, "status"], env={**self.environment(), "COLUMNS": columns},
                                       capture_output=True, text=True, timeout=60, check=True)
                        for columns in ("40", "200"))
        self.assertGreater(narrow.stdout.count("\n"), wide.stdout.count("\n"))  # its tables are split

    def start_small(self, *capacities):
        self.fleet = Fleet(self.folder, holders=0)
        for i, capacity in enumerate(capacities):
            self.fleet.start(f"h{i}", "--role=holder", f"--directory={self.fleet.directory}",
                             f"--store-capacity={capacity}MiB")

    def test_room_is_looked_at_first_and_dealt(self):
        self.start_small(24, 64)
        small, large, huge = (self.folder / name for name in ("small", "large", "huge"))
        write_large(small, 8 * 1024, 1)  # 16 MiB
        write_large(large, 24 * 1024, 2)  # 48 MiB
        write_large(huge, 40 * 1024, 3)  # 80 MiB
        self.ctl("corpus", "load", "small", small, "--chunk-tokens", "1024")  # 8 MiB on each
        # 24 MiB on each would be one chunk more than h0 has room for: h1 gets more.
        self.ctl("corpus", "load", "large", large, "--chunk-tokens", "1024")
        holders = json.loads(self.ctl("status", "-o", "json").stdout)["holders"]
        counts = {holder["id"]: holder["chunk_count"] for holder in holders}
        self.assertEqual(sum(counts.values()), 8 + 24)
        self.assertLess(counts["h0"], counts["h1"])
        begin = time.monotonic()
        refused = self.run_ctl("corpus", "load", "huge", huge, "--chunk-tokens", "1024")
        self.assertEqual(refused.returncode, EXHAUSTED, refused.stderr)
        for part in ("no room for", "h0 has room for", "h1 has room for", "ckvctl corpus partition NAME --weights"):
            self.assertIn(part, refused.stderr)
        self.assertLess(time.monotonic() - begin, WAIT_TIMEOUT_S)
        # A text is refused before it is prefilled: no progress is shown, and nothing is put.
        text = self.folder / "text"
        text.write_bytes(bytes(range(97, 123)) * 400)
        replicated = self.run_ctl("corpus", "load", "text", text, "--text", "--replicas", "2")
        self.assertEqual(replicated.returncode, EXHAUSTED, replicated.stderr)
        self.assertNotIn("chunk copies are put", replicated.stderr)
        moved = self.run_ctl("corpus", "partition", "large", "--weights", "h1=0")
        self.assertEqual(moved.returncode, EXHAUSTED, moved.stderr)
        self.assertIn("h0 has room for", moved.stderr)

    def load_while(self, change):
        """Loads a file of 64 MiB, and calls `change` with its path once some of it is read."""
        path = self.folder / "file"
        write_large(path, 32 * 1024, 5)
        process = subprocess.Popen([PROGRAMS.ckvctl, "corpus", "load", "f", str(path), "--chunk-tokens", "512"],
                                   env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None and read_bytes(process.pid) < 6 * MIB:
            pass
        process.send_signal(signal.SIGSTOP)
        change(path)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=WAIT_TIMEOUT_S)
        self.assertEqual(process.returncode, INVALID, out + err)
        self.assertIn(str(path), err)
        self.assertIn("changed while it was read", err)
        self.assertEqual(self.run_ctl("corpus", "show", "f").returncode, 3, "nothing is published")

    def test_a_file_that_changes_is_refused(self):
        self.start_small(256)

        def overwrite(path):
            with path.open("r+b") as file:
                file.seek(-MIB, os.SEEK_END)
                file.write(b"other rows" * 100)

        self.load_while(lambda path: os.truncate(path, 20 * MIB))
        self.load_while(overwrite)
        self.load_while(lambda path: os.truncate(path, 100 * MIB))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    known, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = known.ckvd, known.ckvctl
    unittest.main(argv=[sys.argv[0], *rest])
