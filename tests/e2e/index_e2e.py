#!/usr/bin/python3
"""Goal: index keys of sparse attention are fetched as they were put, from every door and after every move. The rows that
they select are those of float64, and so is their attention.

Method: a directory, two holders with folders and a requester. A file with index keys is loaded with two copies, and put
by Python and by gRPC. Rows and keys are then fetched by Python, gRPC and ckvctl, from both copies, after the holders
were killed, after a move, and from a file that was exported. Corpora without an index refuse keys, and the reverse.

    /usr/bin/python3 tests/e2e/index_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl \\
        --library build/dev/client/bindings/c/libckv.so.1
"""

import argparse
import importlib
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, D_ROPE, D_V, LAYERS, PROGRAMS, SCALE, Fleet, Rows, read_safetensors, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALL_S = 60  # on a machine that may be busy
TOKENS, DIM, HEADS = 100, 16, 4
KEY_BYTES = DIM + 4
INDEX = {"dim": DIM, "heads": HEADS, "dtype": "fp8", "d_rope": 8, "rope_style": "half", "scale": 0.125}


class Indexed(Rows):
    """Rows, and their keys: [layer] bytes of 16 e4m3 values and a scale for each token."""

    def __init__(self, seed):
        super().__init__(seed, TOKENS, 0)
        rng = random.Random(seed)
        key = lambda: bytes(rng.randrange(0x7f) for _ in range(DIM)) + struct.pack("<f", rng.uniform(.001, .01))  # noqa: E731
        self.keys = [b"".join(key() for _ in range(TOKENS)) for _ in range(LAYERS)]

    def write(self, path, **override):
        super().write(path, index=json.dumps(INDEX, sort_keys=True, separators=(",", ":")), **override)
        tensors, metadata = read_safetensors(path)
        tensors = {name: tensors[name] for name in sorted(tensors) if name != "token_ids"}
        for layer in range(LAYERS):
            tensors[f"layers.{layer}.index_k"] = ("U8", [TOKENS, KEY_BYTES], self.keys[layer])
        tensors["token_ids"] = ("I32", [TOKENS], struct.pack(f"<{TOKENS}i", *self.token_ids))
        write_safetensors(path, tensors, metadata)


def from_e4m3(numpy, values):
    exponent, mantissa = (values >> 3 & 15).astype(int), (values & 7) / 8
    size = numpy.where(exponent == 0, mantissa * 2.0 ** -6, (1 + mantissa) * 2.0 ** (exponent - 7))
    return numpy.where(values & 128, -size, size)


class IndexTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-index-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2, durable=True)
        cls.addClassCleanup(lambda: cls.fleet.stop())
        os.environ["CKV_LIBRARY"] = PROGRAMS.library
        sys.path.insert(0, str(ROOT / "client/bindings/python"))
        cls.ckv = importlib.import_module("ckv")
        cls.numpy = importlib.import_module("numpy")
        cls.requester = cls.ckv.open(cls.fleet.directory)
        cls.addClassCleanup(cls.requester.close)
        cls.rows = Indexed(1)
        cls.rows.write(cls.folder / "docs.safetensors")
        cls.ctl("corpus", "load", "docs", cls.folder / "docs.safetensors", "--chunk-tokens", "40", "--replicas", "2")

    @classmethod
    def ctl(cls, *arguments, fails=False):
        done = subprocess.run(
            [PROGRAMS.ckvctl, "--directory", cls.fleet.directory, "--requester", cls.fleet.requester, *map(str, arguments)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * CALL_S)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    def fetched(self, corpus, index_keys):
        """The bytes of each layer's rows or keys."""
        with self.requester.resolve(corpus, timeout=CALL_S) as found:
            width = found.index_key_bytes if index_keys else found.row_bytes
            out = self.numpy.zeros((LAYERS, found.token_count, width), self.numpy.uint8)
            self.requester.fetch(found, out, index_keys=index_keys, timeout=CALL_S)
        return [out[layer].tobytes() for layer in range(LAYERS)]

    def expect(self, corpus, rows):
        self.assertEqual(self.fetched(corpus, False), [rows.layer_bytes(layer) for layer in range(LAYERS)])
        self.assertEqual(self.fetched(corpus, True), rows.keys)

    def expect_selected(self, corpus, rows):
        """Selects and attends, by rows and by choice, in both dtypes of queries and with own rows."""
        numpy, best, tokens = self.numpy, 17, 2
        rng = numpy.random.default_rng(5)
        weights = rng.uniform(-1, 1, (tokens, HEADS)).astype(numpy.float32)
        e4m3 = rng.integers(0, 0x7f, (tokens, HEADS, DIM), numpy.uint8) | rng.integers(0, 2, (tokens, HEADS, DIM), numpy.uint8) << 7
        bf16 = (rng.normal(size=(tokens, HEADS, DIM)).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
        of_bf16 = (bf16.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
        attended = (rng.normal(size=(tokens, 2, D_QK)).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
        own_scores = numpy.full((tokens, 3), -numpy.inf, numpy.float32)
        own_scores[:, 1] = 1e30
        with self.requester.resolve(corpus, timeout=CALL_S) as found, self.requester.context(found, timeout=CALL_S) as context:
            for layer in range(LAYERS):
                keys = numpy.frombuffer(rows.keys[layer], numpy.uint8).reshape(TOKENS, KEY_BYTES)
                scales = keys[:, DIM:].copy().view(numpy.float32).astype(numpy.float64)
                for q, values in ((e4m3, from_e4m3(numpy, e4m3)), (bf16, of_bf16)):
                    dots = numpy.einsum("thd,kd->thk", values, from_e4m3(numpy, keys[:, :DIM]) * scales)
                    scores = .125 * numpy.einsum("th,thk->tk", weights.astype(numpy.float64), numpy.maximum(dots, 0))
                    due = numpy.sort(numpy.argsort(-scores, axis=1, kind="stable")[:, :best], axis=1)
                    call = (context, layer, q, weights, best)
                    self.assertEqual(self.requester.select_rows(*call, timeout=CALL_S).tolist(), due.tolist())
                    with self.requester.choose_rows(*call, timeout=CALL_S) as choice:
                        answers = [self.requester.attend(layer, attended, segment, wire="f32", timeout=CALL_S) for segment in (
                            self.ckv.Segment(context, choice=choice, choice_group_rows=2),
                            self.ckv.Segment(context, selected=due, selected_group_rows=2))]
                        self.assertEqual(*[[array.tobytes() for array in answer] for answer in answers])
                    with self.requester.choose_rows(*call, own_scores=own_scores, timeout=CALL_S) as choice:
                        self.assertEqual([choice.own_rows(token).tolist() for token in range(tokens + 1)], [[1], [1], []])
                    selected = self.requester.select_rows(*call, own_scores=own_scores, timeout=CALL_S)
                    self.assertEqual(selected[:, -1].tolist(), [TOKENS + 1] * tokens)

    def model(self, **override):
        index = dict(index_dim=DIM, index_heads=HEADS, index_dtype="fp8", index_d_rope=8, index_rope_style="half_split",
                     index_scale=.125)
        return self.ckv.Model("test/ctl", "1", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=D_ROPE, softmax_scale=SCALE,
                              **{**index, **override})

    def test_a_loaded_file_is_fetched_and_exported(self):
        self.expect("docs", self.rows)
        with self.requester.resolve("docs", timeout=CALL_S) as corpus:
            self.assertEqual((corpus.index_dim, corpus.index_heads, corpus.index_dtype, corpus.index_rope_style),
                             (DIM, HEADS, "fp8", "half_split"))
        self.ctl("corpus", "export", "docs", "--out", self.folder / "again.safetensors")
        (tensors, metadata), (loaded, _) = (read_safetensors(self.folder / f"{name}.safetensors") for name in ("again", "docs"))
        self.assertEqual(tensors, loaded)
        self.assertEqual(json.loads(metadata["index"]), INDEX)
        self.ctl("fetch", "--corpus", "docs", "--out", self.folder / "fetched.safetensors")
        tensors, metadata = read_safetensors(self.folder / "fetched.safetensors")
        for layer in range(LAYERS):
            self.assertEqual(tensors[f"layers.{layer}.ckv"][2], self.rows.layer_bytes(layer))
            self.assertEqual(tensors[f"layers.{layer}.index_k"], ("U8", [TOKENS, KEY_BYTES], self.rows.keys[layer]))
        self.assertEqual(json.loads(metadata["index"]), INDEX)
        self.ctl("fetch", "--corpus", "docs", "--position", "7", "--out", self.folder / "moved.safetensors")
        tensors, metadata = read_safetensors(self.folder / "moved.safetensors")
        self.assertNotIn("index", metadata)
        self.assertEqual(sorted(tensors), [f"layers.{layer}.ckv" for layer in range(LAYERS)])

    def test_selections_are_those_of_float64(self):
        self.expect_selected("docs", self.rows)
        numpy = self.numpy
        q, weights = numpy.zeros((1, HEADS, DIM), numpy.uint8), numpy.zeros((1, HEADS), numpy.float32)
        with self.requester.resolve("docs", timeout=CALL_S) as corpus, self.requester.context(corpus, timeout=CALL_S) as context:
            for call in ((corpus, 0, q, weights, 1), (context, LAYERS, q, weights, 1), (context, 0, q, weights, 0),
                         (context, 0, q[:, 1:], weights, 1), (context, 0, q, weights[:, 1:].copy(), 1),
                         (context, 0, q.astype(numpy.float32), weights, 1)):
                for function in (self.requester.select_rows, self.requester.choose_rows):
                    with self.assertRaises(self.ckv.InvalidArgument):
                        function(*call, timeout=CALL_S)
            choice = self.requester.choose_rows(context, 0, q, weights, 1, timeout=CALL_S)
            segment = self.ckv.Segment(context, choice=choice)
            choice.close()
            with self.assertRaisesRegex(self.ckv.FailedPrecondition, "this Choice is closed"):
                self.requester.attend(0, numpy.zeros((1, D_QK), numpy.uint16), segment, timeout=CALL_S)

    def test_python_puts_keys(self):
        rows = Indexed(2)
        with self.requester.put("put", create=self.model(), timeout=CALL_S) as put:
            put.chunk(rows.token_ids)
            for layer in range(LAYERS):
                put.rows(layer, self.numpy.array(rows.layers[layer], self.numpy.uint16))
            with self.assertRaisesRegex(self.ckv.FailedPrecondition, "0 of 2000 bytes of index keys of layer 0"):
                put.finish(CALL_S)
            for layer in reversed(range(LAYERS)):
                keys = self.numpy.frombuffer(rows.keys[layer], self.numpy.uint8).reshape(TOKENS, KEY_BYTES)
                put.index_keys(layer, keys[:33])
                put.index_keys(layer, keys[33:], 33 * KEY_BYTES)
            put.finish(CALL_S)
        self.expect("put", rows)

    def test_two_models_do_not_mix(self):
        with self.assertRaisesRegex(self.ckv.FailedPrecondition, "index: 4x16 fp8"):
            self.requester.put("docs", create=self.model(index_dim=0), timeout=CALL_S)
        with self.requester.put("plain", create=self.model(index_dim=0), timeout=CALL_S) as put:
            with self.assertRaisesRegex(self.ckv.InvalidArgument, "no index"):
                put.index_keys(0, self.numpy.zeros((1, KEY_BYTES), self.numpy.uint8))
        Rows(3, 20, 0).write(self.folder / "plain.safetensors")
        self.assertIn("index", self.ctl("corpus", "load", "docs", self.folder / "plain.safetensors", "--extend", fails=True))

    def test_zz_kills_moves_and_checks(self):
        for index in range(2):
            process = self.fleet.processes[1 + index]
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.fleet.processes.remove(process)
            self.fleet.processes.insert(1 + index, self.fleet.start_holder(index))
            self.fleet.processes.pop()
            self.expect("docs", self.rows)  # one copy has just been read from disk
            self.expect_selected("docs", self.rows)
        self.ctl("corpus", "verify", "docs")
        self.ctl("corpus", "partition", "docs", "--replicas", "1")
        self.expect("docs", self.rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", required=True)
    parser.parse_args(namespace=PROGRAMS)
    unittest.main(argv=sys.argv[:1])
