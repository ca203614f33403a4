#!/usr/bin/python3
"""Goal: the plug-in for SGLang reads settings right, cuts fetches of pages right, and bounds its waits and its log.

Method: tests the parts that neither import SGLang nor call ckv. The rest is tested with SGLang's own classes over real
holders: tests/engines/sglang.

    python3 tests/client/bindings/python/ckv_sglang_test.py
"""

import pathlib
import sys
import threading
import types
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "client/bindings/python"), str(ROOT / "tests/support")]
import skip  # noqa: E402

skip.needs("numpy", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ckv_sglang import calls, identity, keyed, pages, settings  # noqa: E402

PAGE, LAYERS, WIDTH = 16, 2, 40
ROW = LAYERS * WIDTH * 2
WORKED_OUT = [1631843432, 1718243232, 1039368635]  # the first ids of the key abab... for the model below


def config_of(extra, **fields):
    return types.SimpleNamespace(**{"is_mla_model": True, "model_name": "m", "pp_size": 1, "attn_cp_size": 1,
                                    "dcp_size": 1, "extra_config": extra, **fields})


class Settings(unittest.TestCase):
    def test_defaults_and_names(self):
        read = settings.read(config_of({"directory": "d:1", "revision": "r", "backend_name": "ckv", "token_files": "a",
                                        "tenant": None}))
        self.assertEqual(read, settings.Settings("d:1", "m", revision="r", token_files=("a",)))
        read = settings.read(config_of({"directory": "d:1", "revision": "r", "model": "other"}))
        self.assertEqual(read.model, "other")

    def test_an_engine_that_does_not_fit(self):
        for fields, reason in (({"is_mla_model": False}, "not MLA"), ({"attn_cp_size": 2}, "attn_cp_size is 2"),
                               ({"dcp_size": 2}, "dcp_size"), ({"model_name": None}, "no model")):
            with self.subTest(fields), self.assertRaisesRegex(ValueError, reason):
                settings.read(config_of({"directory": "d:1", "revision": "r"}, **fields))

    def test_values_that_do_not_fit(self):
        for extra, reason in (({}, "no directory"), ({"timeout": 0}, "timeout"), ({"timeout": "soon"}, "timeout"),
                              ({"revision": 7}, "revision is 7"), ({"replicas": 0}, "replicas")):
            with self.subTest(extra), self.assertRaisesRegex(ValueError, reason):
                settings.read(config_of({"directory": "d:1", "revision": "r", **extra} if extra else {}))


class Corpus:
    """The facts of a corpus, as Requester.find returns them."""

    layers, row_bytes = LAYERS, 2 * WIDTH

    def __init__(self, counts):
        self.counts = counts

    def chunks(self, begin, end):
        return None, np.asarray(self.counts[begin:end], np.uint32), None


def hash_of(tokens, _prior, size):
    return [f"{tokens[0]}-{i}" for i in range(len(tokens) // size)]


def added(counts, first=100, offsets=None, begins=None, into=None):
    """Pages of a corpus whose chunks have these token counts. Their keys are "FIRST-0", "FIRST-1" and so on."""
    begins = np.cumsum([0, *counts])[:-1] if begins is None else begins
    found = types.SimpleNamespace(corpus=Corpus(counts), token_begins=begins,
                                  offsets=[0] * len(counts) if offsets is None else offsets)
    made = into or pages.Pages(PAGE, hash_of)
    return made, made.add(found, list(range(first, first + sum(counts))))


class PagesOfTokens(unittest.TestCase):
    def cut(self, made, keys, rows_max):
        return [(piece.chunks, piece.tokens, piece.pages) for piece in made.pieces(keys, rows_max * ROW)]

    def test_whole_pages_of_the_prefix_count(self):
        self.assertEqual(added([24, 24, 12])[1], 3)
        # Chunks computed at another position end the prefix, and so does a gap.
        self.assertEqual(added([24, 24, 12], offsets=[0, 24, 48])[1], 1)
        self.assertEqual(added([24, 24, 12], begins=[0, 30, 60])[1], 1)
        self.assertEqual(added([24, 24, 12], begins=[1, 25, 49])[1], 0)

    def test_neighbours_are_read_in_one_fetch(self):
        made, _ = added([24, 24, 12])
        keys = [f"100-{i}" for i in range(3)]
        self.assertEqual(self.cut(made, keys, 1000), [((0, 2), 48, [(0, 0), (1, 16), (2, 32)])])
        self.assertEqual(self.cut(made, keys[2:], 1000), [((1, 2), 24, [(0, 8)])])
        self.assertEqual(self.cut(made, [keys[1], "unknown", keys[2]], 1000), [((0, 2), 48, [(0, 16), (2, 32)])])

    def test_a_fetch_has_a_limit_and_whole_chunks(self):
        made, _ = added([16, 32, 16, 16])
        keys = [f"100-{i}" for i in range(5)]
        # Pages 1 and 2 are in one chunk, which is fetched once, even if it exceeds the limit.
        self.assertEqual(self.cut(made, keys, 20), [((0, 1), 16, [(0, 0)]), ((1, 2), 32, [(1, 0), (2, 16)]),
                                                    ((2, 3), 16, [(3, 0)]), ((3, 4), 16, [(4, 0)])])
        self.assertEqual(self.cut(made, keys, 48), [((0, 2), 48, [(0, 0), (1, 16), (2, 32)]),
                                                    ((2, 4), 32, [(3, 0), (4, 16)])])

    def test_other_corpora_and_orders_begin_another(self):
        made, _ = added([16, 16, 16])
        added([16, 16], first=300, into=made)
        self.assertEqual(self.cut(made, ["100-2", "100-0", "300-1"], 1000),
                         [((2, 3), 16, [(0, 0)]), ((0, 1), 16, [(1, 0)]), ((1, 2), 16, [(2, 0)])])


class Keyed(unittest.TestCase):
    def test_ids_are_those_of_the_key_and_the_model(self):
        shape = identity.Shape(PAGE, 3, 80, 64, 16, False)
        of = {what: keyed.KeyedPages(None, identity.model_of(name, revision, one), one, "p").tokens_of("ab" * 32)
              for what, name, revision, one in (
                  ("same", "m", "r", shape), ("model", "m2", "r", shape), ("revision", "m", "r2", shape),
                  ("layers", "m", "r", identity.Shape(PAGE, 4, 80, 64, 16, False)),
                  ("rope", "m", "r", identity.Shape(PAGE, 3, 80, 60, 20, False)))}
        # Another layout of the host pool has the same rows, so the same ids.
        first = identity.Shape(PAGE, 3, 80, 64, 16, True)
        again = keyed.KeyedPages(None, identity.model_of("m", "r", first), first, "q").tokens_of("ab" * 32)
        self.assertTrue(np.array_equal(of["same"], again))
        self.assertEqual(len({bytes(ids) for ids in of.values()}), len(of))
        # Another version of the plug-in must find the pages. WORKED_OUT was computed once, with sha3's shake_256.
        self.assertEqual(of["same"][:3].tolist(), WORKED_OUT)

    def test_small_pages_are_refused(self):
        shape = identity.Shape(8, 3, 80, 64, 16, False)
        with self.assertRaisesRegex(ValueError, "pages of 8 tokens"):
            keyed.KeyedPages(None, identity.model_of("m", "r", shape), shape, "p")


class Shapes(unittest.TestCase):
    def test_flat_pages_and_rows(self):
        rows = np.arange(PAGE * LAYERS * WIDTH, dtype=np.uint16).reshape(LAYERS, PAGE, WIDTH)
        for token_first in (False, True):
            shape = identity.Shape(PAGE, LAYERS, WIDTH, 32, 8, token_first)
            flat = torch.zeros(rows.size, dtype=torch.bfloat16)
            shape.fill(flat, rows)
            want = rows.transpose(1, 0, 2) if token_first else rows
            self.assertTrue(np.array_equal(flat.view(torch.int16).numpy().view(np.uint16), want.reshape(-1)))
            self.assertTrue(np.array_equal(shape.rows(flat), rows))

    def test_refuses_what_is_no_page(self):
        shape = identity.Shape(PAGE, LAYERS, WIDTH, 32, 8, False)
        for flat in (None, torch.zeros(3, dtype=torch.bfloat16), torch.zeros(shape.page_values),
                     torch.zeros(2 * shape.page_values, dtype=torch.bfloat16)[::2]):
            with self.assertRaisesRegex(ValueError, "a page is"):
                shape.rows(flat)


class Calls(unittest.TestCase):
    def test_close_waits_for_calls_and_lets_none_begin(self):
        some = calls.Calls()
        self.assertTrue(some.begin("get"))
        self.assertFalse(some.close(0.01))
        self.assertFalse(some.begin("get"))
        threading.Timer(0.05, some.end).start()
        self.assertTrue(some.close(10))

    def test_a_pause_is_of_its_kinds(self):
        some = calls.Calls()
        some.pause("set")
        self.assertFalse(some.begin("set"))
        self.assertTrue(some.begin("get"))

    def test_limits_warnings_of_one_kind(self):
        some = calls.Warnings()
        with self.assertLogs("ckv_sglang") as logs:
            for _ in range(3):
                some.warn("get", "%d pages", 5)
            some.warn("set", "other")
            some._next["get"] = 0.0  # as after WARN_EVERY_S
            some.warn("get", "%d pages", 6)
        self.assertEqual([record.getMessage() for record in logs.records],
                         ["ckv: 5 pages", "ckv: other", "ckv: 6 pages (2 more like it since the last one)"])


if __name__ == "__main__":
    unittest.main()
