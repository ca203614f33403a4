#!/usr/bin/python3
"""Goal: what an operator does with large corpora survives kill -9, Ctrl-C and restarts, in little memory.

Method: a directory, two holders with folders and a requester on loopback; row files of over 100 MB.
Kills or stops processes at a known point; counts bytes, memory and files. Uses none of ckv's code,
only the two programs.

    python3 tests/e2e/corpus_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import filecmp
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import (D_QK, LAYERS, PROGRAMS, Fleet, Rows, attend, bf16, floats, from_bf16,
                       read_safetensors, write_safetensors)

WAIT_TIMEOUT_S = 60
# 9 KiB a token: a chunk of 128 tokens is 1.1 MiB, 8 of them in flight 9 MiB.
LARGE_LAYERS, LARGE_ROW_BYTES, CHUNK_TOKENS = 8, 1152, 128
CHUNK_BYTES = CHUNK_TOKENS * LARGE_LAYERS * LARGE_ROW_BYTES


def write_large(path, chunks):
    """Writes the rows of `chunks` chunks, laid out as ckvctl corpus export does."""
    tokens = chunks * CHUNK_TOKENS
    rng = random.Random(chunks)
    metadata = {"base_position": "0", "d_rope": "64", "d_v": "512", "model": "test/large",
                "revision": "1", "rope_style": "interleaved", "rope_theta": "10000",
                "softmax_scale": "0.125"}
    header, at = {"__metadata__": metadata}, 0
    for layer in range(LARGE_LAYERS):
        size = tokens * LARGE_ROW_BYTES
        header[f"layers.{layer}.ckv"] = {"dtype": "BF16", "shape": [tokens, LARGE_ROW_BYTES // 2],
                                         "data_offsets": [at, at + size]}
        at += size
    header["token_ids"] = {"dtype": "I32", "shape": [tokens], "data_offsets": [at, at + 4 * tokens]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _ in range(LARGE_LAYERS):
            for _ in range(chunks):
                out.write(rng.randbytes(CHUNK_TOKENS * LARGE_ROW_BYTES))
        out.write(struct.pack(f"<{tokens}i", *(rng.randrange(1000) for _ in range(tokens))))


class CorpusTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-corpus-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=2, durable=True)
        self.addCleanup(self.fleet.stop)
        self.holders = self.fleet.processes[1:3]

    def start(self, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.fleet.requester
        # A build with AddressSanitizer keeps 256 MiB of freed memory otherwise.
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
        with (self.folder / "ctl.out").open("wb") as out, (self.folder / "ctl.err").open("wb") as err:
            return subprocess.Popen([PROGRAMS.ckvctl, *map(str, arguments), "-o", "json"], env=env,
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def measure(self, *arguments):
        """Returns the command's report and its peak memory in bytes.

        Does not use getrusage, which also counts the memory of this process at the fork.
        """
        process, peak = self.start(*arguments), 0
        while process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            for line in status.split("\n"):
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
            try:
                process.wait(0.002)
            except subprocess.TimeoutExpired:
                pass
        self.assertEqual(process.returncode, 0, (self.folder / "ctl.err").read_text())
        return json.loads((self.folder / "ctl.out").read_text()), peak

    def ctl(self, *arguments):
        return self.measure(*arguments)[0]

    def restart_holders(self):
        for process in self.holders:
            process.kill()
            process.wait()
            self.fleet.processes.remove(process)
        self.holders = [self.fleet.start_holder(i) for i in range(2)]
        self.await_true("two holders", lambda: self.holder_count() == 2)

    def holder_count(self):
        """Counts the members. status fails while chunks have no live holder."""
        self.start("status").wait()
        return len(json.loads((self.folder / "ctl.out").read_text())["holders"])

    def await_true(self, what, holds):
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline, what)

    def go_on(self):
        """Resumes h1, and waits until it has a lease again: the old one may have expired."""
        self.holders[1].send_signal(signal.SIGCONT)
        self.await_true("two holders", lambda: self.holder_count() == 2)

    def test_a_load_killed_in_the_middle_sends_nothing_durable_again(self):
        path, chunks = self.folder / "rows.safetensors", 40
        write_large(path, chunks)
        load = ["corpus", "load", "docs", path, "--chunk-tokens", CHUNK_TOKENS]
        # With h1 stopped, the load blocks as soon as the limit of chunks in flight is reached.
        self.holders[1].send_signal(signal.SIGSTOP)
        process = self.start(*load)
        self.await_true("chunks on h0", lambda: self.fleet.durable_count(0) >= 4)
        process.kill()
        process.wait()
        self.go_on()
        there = self.fleet.durable_count(0)
        self.assertLess(there, chunks)
        plan = self.ctl(*load, "--dry-run")
        self.assertEqual(self.fleet.durable_count(0) + self.fleet.durable_count(1),
                         plan["copies_found"])
        report = self.ctl(*load)
        self.assertEqual(report["copies_sent"] + report["copies_found"], chunks)
        self.assertGreaterEqual(report["copies_found"], there)
        self.assertEqual(report["bytes_sent"], report["copies_sent"] * CHUNK_BYTES)
        self.assertEqual(report["chunks_reused"], report["copies_found"])
        self.assertEqual(report["bytes_sent"], plan["bytes_sent"])
        # The same after the holders were killed: their chunks are durable.
        self.restart_holders()
        again = self.ctl(*load, "--replace")
        self.assertEqual((again["bytes_sent"], again["copies_found"]), (0, chunks))
        out = self.folder / "out.safetensors"
        self.ctl("corpus", "export", "docs", "--out", out)
        tensors, metadata = read_safetensors(path)
        self.assertEqual(read_safetensors(out), (tensors, metadata))
        # The export is stable: loaded and exported again, it is the same file.
        self.ctl("corpus", "load", "again", out, "--chunk-tokens", CHUNK_TOKENS)
        self.ctl("corpus", "export", "again", "--out", self.folder / "twice.safetensors")
        self.assertTrue(filecmp.cmp(out, self.folder / "twice.safetensors", shallow=False))

    def test_memory_does_not_grow_with_the_file(self):
        small, large = self.folder / "small.safetensors", self.folder / "large.safetensors"
        write_large(small, 8)
        write_large(large, 128)
        cut = ["--chunk-tokens", CHUNK_TOKENS]
        _, few = self.measure("corpus", "load", "small", small, *cut)
        report, many = self.measure("corpus", "load", "large", large, *cut)
        self.assertEqual(report["bytes_sent"], 128 * CHUNK_BYTES)
        print(f"\nload: {few >> 20} MiB for 9 MiB of rows, {many >> 20} MiB for 144 MiB")
        # Both have 9 MiB of chunks in flight. The rest is buffers that fill up during the load.
        self.assertLess(many - few, 32 << 20)
        _, few = self.measure("corpus", "export", "small", "--out", self.folder / "small.out")
        _, many = self.measure("corpus", "export", "large", "--out", self.folder / "large.out")
        print(f"export: {few >> 20} MiB for 9 MiB of rows, {many >> 20} MiB for 144 MiB")
        self.assertLess(many - few, 16 << 20)
        # Exports and loads a sequence state of llama.cpp.
        states = [self.folder / "small.ggsq", self.folder / "large.ggsq"]
        (_, few), (_, many) = (self.measure("fetch", "--corpus", path.stem, "--out", path)
                               for path in states)
        print(f"fetch: {few >> 20} MiB for 9 MiB of rows, {many >> 20} MiB for 144 MiB")
        # gRPC holds more when the disk is slow: 1 to 7 MiB on an idle machine, 20 next to other tests.
        self.assertLess(many - few, 32 << 20)
        geometry = self.folder / "geometry.json"
        geometry.write_text(json.dumps({
            "model": "test/large", "revision": "2", "layers": LARGE_LAYERS,
            "d_qk": LARGE_ROW_BYTES // 2, "d_v": 512, "d_rope": 64, "dtype": "bf16",
            "rope_style": "interleaved", "rope_theta": 10000, "softmax_scale": 0.125}))
        (_, few), (report, many) = (
            self.measure("corpus", "load", f"{path.stem}-state", path, "--geometry", geometry, *cut)
            for path in states)
        self.assertEqual(report["bytes_sent"], 128 * CHUNK_BYTES)
        print(f"load of a state: {few >> 20} MiB for 9 MiB of rows, {many >> 20} MiB for 144 MiB")
        self.assertLess(many - few, 32 << 20)

    def test_ctrl_c_leaves_nothing_half_written(self):
        path = self.folder / "rows.safetensors"
        write_large(path, 64)
        cut = ["--chunk-tokens", CHUNK_TOKENS]
        self.holders[1].send_signal(signal.SIGSTOP)
        process = self.start("corpus", "load", "docs", path, *cut)
        self.await_true("chunks on h0", lambda: self.fleet.durable_count(0) >= 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(WAIT_TIMEOUT_S), -signal.SIGINT)
        self.go_on()
        self.assertNotIn("docs", [c["name"] for c in self.ctl("corpus", "list")["corpora"]])
        self.ctl("corpus", "load", "docs", path, *cut)

        for kill in (signal.SIGINT, signal.SIGKILL):
            out = self.folder / f"out-{kill}"
            out.mkdir()
            process = self.start("corpus", "export", "docs", "--out", out / "rows.safetensors")
            # 72 MiB take a second. The holders are queried about all chunks before, and the file has no name.
            self.await_true("an open file", lambda p=process: self.writes(p, out) or p.poll() is not None)
            process.send_signal(kill)
            process.wait(WAIT_TIMEOUT_S)
            self.assertEqual(list(out.iterdir()), [])

    @staticmethod
    def writes(process, folder):
        """Whether the process has a non-empty file of the folder open."""
        for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if os.readlink(link).startswith(str(folder)) and link.stat().st_size > 0:
                    return True
            except FileNotFoundError:
                pass
        return False

    def test_standalone_chunks_are_attended_where_they_are_put(self):
        files = [Rows(1, 24, 0), Rows(2, 20, 0)]
        paths = [self.folder / f"rows-{i}.safetensors" for i in range(2)]
        for rows, path in zip(files, paths):
            rows.write(path)
        how = ["--standalone", "--replicas", 2]
        self.ctl("corpus", "load", "both", *paths, *how)
        # In another order the chunks are the same.
        other = self.ctl("corpus", "load", "turned", paths[1], paths[0], *how)
        self.assertEqual((other["chunks_shared"], other["bytes_sent"]), (2, 0))
        rng = random.Random(3)
        queries = [[from_bf16(bf16(rng.gauss(0, 1))) for _ in range(D_QK)] for _ in range(5)]
        query_path = self.folder / "q.safetensors"
        write_safetensors(query_path, {"q": ("F32", [5, D_QK], b"".join(
            struct.pack(f"<{D_QK}f", *q) for q in queries))})
        out = self.folder / "partial.safetensors"
        for layer in range(LAYERS):
            rows = [[from_bf16(v) for v in row] for f in files for row in f.layers[layer]]
            self.ctl("attend", "--corpus", "both", "--layer", layer, "--queries", query_path,
                     "--out", out, "--wire", "f32")
            expected = attend(queries, rows)
            o = floats(read_safetensors(out)[0]["o"])
            for i, (o_row, _, _) in enumerate(expected):
                for c, value in enumerate(o_row):
                    self.assertAlmostEqual(o[i * len(o_row) + c], value, delta=2e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
