#!/usr/bin/python3
"""Goal: ckv_sglang gives the rows of the tokens that a key stands for, or a miss.

Method: stand-ins of HiCacheStorage's signatures and of ckv (ckv_stand_in). Pages are compared with
the corpus' rows. It proves nothing about SGLang or ckv's library.
"""

import abc
import hashlib
import logging
import pathlib
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import skip  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "client" / "python")]
skip.needs("numpy", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

import ckv_stand_in  # noqa: E402

sys.modules["ckv"] = ckv_stand_in

from ckv_sglang import storage  # noqa: E402

D_QK, LAYERS, PAGE = 40, 2, 16
TOKENS = np.arange(100, 160, dtype="<i4")  # chunks of 24, 24, 12: pages cross them


def hash_of(tokens, prior):
    digest = hashlib.sha256(bytes.fromhex(prior) if prior else b"")
    for token in tokens:
        digest.update(token.to_bytes(4, "little"))
    return digest.hexdigest()


def keys_of(tokens):
    keys, prior = [], None
    for i in range(len(tokens) // PAGE):
        prior = hash_of([int(t) for t in tokens[i * PAGE:(i + 1) * PAGE]], prior)
        keys.append(prior)
    return keys


class Base(abc.ABC):
    """As HiCacheStorage: the same methods are abstract."""

    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None):
        pass

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None):
        pass

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None):
        pass

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        pass

    @abc.abstractmethod
    def exists(self, key):
        pass


class Pool:
    """As MLATokenToKVPoolHost, of 8 pages."""

    def __init__(self, layout):
        self.layout = layout
        shape = (8 * PAGE, LAYERS, 1, D_QK) if layout == "page_first" else (LAYERS, 8 * PAGE, 1, D_QK)
        self.buffer = torch.zeros(shape, dtype=torch.bfloat16)

    def get_dummy_flat_data_page(self):
        return torch.zeros(LAYERS * PAGE * D_QK, dtype=torch.bfloat16)

    def set_from_flat_data_page(self, index, flat):
        if self.layout == "page_first":
            self.buffer[index:index + PAGE] = flat.view(PAGE, LAYERS, 1, D_QK)
        else:
            self.buffer[:, index:index + PAGE] = flat.view(LAYERS, PAGE, 1, D_QK)

    def rows(self):
        return (self.buffer.transpose(0, 1) if self.layout == "page_first" else self.buffer)[:, :, 0]


class Storage(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.WARNING)
        rows = torch.randn(LAYERS, len(TOKENS), D_QK).to(torch.bfloat16)
        self.rows = rows
        self.corpus = ckv_stand_in.Corpus(rows.view(torch.int16).numpy().view(np.uint16), (24, 24, 12), 32, 0.2)
        self.requester = ckv_stand_in.Requester(self.corpus, ckv_stand_in.found_of(self.corpus))
        self.keys = keys_of(TOKENS)

    def tearDown(self):
        logging.disable(logging.NOTSET)

    def make(self, layout="layer_first", **config):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokens"
            TOKENS.tofile(path)
            extra = {"directory": "x:1", "page_size": PAGE, "token_files": [str(path)]}
            fields = {"is_mla_model": True, "model_name": "test/model", "tp_rank": 0, "tp_size": 8,
                      "extra_config": extra, **config}
            kind = storage.storage_over(Base, hash_of, lambda *_, **__: self.requester)
            one = kind(types.SimpleNamespace(**fields), {})  # as _create_dynamic_backend calls it
        one.register_mem_pool_host(Pool(layout))
        return one

    def test_pages_are_the_rows_of_their_tokens_in_each_layout(self):
        for layout in ("layer_first", "page_first", "page_first_direct"):
            with self.subTest(layout):
                one = self.make(layout)
                targets = [one.mem_pool_host.get_dummy_flat_data_page() for _ in self.keys]
                for i, page in enumerate(one.batch_get(self.keys, targets)):
                    want = self.rows[:, i * PAGE:(i + 1) * PAGE]
                    want = want.transpose(0, 1) if layout == "page_first" else want
                    self.assertTrue(torch.equal(page, want.reshape(-1)))
                    self.assertIs(page, targets[i])

    def test_only_the_chunks_of_a_page_are_fetched(self):
        one = self.make()
        self.assertIsNotNone(one.get(self.keys[2], one.mem_pool_host.get_dummy_flat_data_page()))
        self.assertEqual(self.requester.fetched, [(1, 2)])
        one.get(self.keys[1], one.mem_pool_host.get_dummy_flat_data_page())
        self.assertEqual(self.requester.fetched[1:], [(0, 2)])

    def test_unknown_keys_between_known_ones_are_misses(self):
        one = self.make()
        keys = [self.keys[0], "00" * 32, "11" * 32, self.keys[2], self.keys[1]]
        got = one.batch_get(keys, [one.mem_pool_host.get_dummy_flat_data_page() for _ in keys])
        self.assertEqual([page is not None for page in got], [True, False, False, True, True])
        for page, i in ((got[0], 0), (got[3], 2), (got[4], 1)):
            self.assertTrue(torch.equal(page, self.rows[:, i * PAGE:(i + 1) * PAGE].reshape(-1)))
        self.assertEqual(one.batch_exists(keys), 1)
        self.assertEqual(one.batch_exists(self.keys), 3)

    def test_the_same_page_behind_another_prefix_is_unknown(self):
        other = np.concatenate([TOKENS[PAGE:2 * PAGE], TOKENS[PAGE:2 * PAGE]])
        self.assertFalse(any(self.make().exists(key) for key in keys_of(other)))

    def test_batch_get_v1_fills_the_pool(self):
        one = self.make("page_first")
        indices = torch.tensor([*range(64, 80), *range(0, 16), *range(16, 32)])
        self.assertEqual(one.batch_get_v1([self.keys[0], "00" * 32, self.keys[1]], indices),
                         [True, False, True])
        got, want = one.mem_pool_host.rows(), torch.zeros(LAYERS, 8 * PAGE, D_QK, dtype=torch.bfloat16)
        want[:, 64:80], want[:, 16:32] = self.rows[:, :16], self.rows[:, 16:32]
        self.assertTrue(torch.equal(got, want))

    def test_a_failed_fetch_is_a_miss_and_touches_nothing(self):
        one = self.make()
        self.requester.fail = ckv_stand_in.Unavailable("h0")
        target = one.mem_pool_host.get_dummy_flat_data_page()
        self.assertIsNone(one.get(self.keys[0], target))
        self.assertFalse(target.any())

    def test_set_stores_nothing(self):
        one = self.make()
        self.assertFalse(one.set("00" * 32, torch.zeros(1)))
        self.assertFalse(one.exists("00" * 32))
        self.assertTrue(one.set(self.keys[0]))
        self.assertEqual(one.batch_set_v1([self.keys[0], "00" * 32], None), [True, False])

    def test_chunks_computed_elsewhere_end_the_prefix(self):
        self.requester.found = ckv_stand_in.found_of(self.corpus, offsets=[0, 24, 48])
        self.assertEqual(self.make().batch_exists(self.keys), 1)
        self.requester.found = ckv_stand_in.found_of(self.corpus, begins=[1, 25, 49])
        with self.assertRaisesRegex(ValueError, "no whole page"):
            self.make()

    def test_other_engines_are_refused(self):
        for config in ({"is_mla_model": False}, {"pp_size": 2}, {"model_name": "other"}, {"extra_config": {}}):
            with self.subTest(config), self.assertRaises(ValueError):
                self.make(**config)
        one = self.make("page_head")
        with self.assertRaises(ValueError):
            one.get(self.keys[0], one.mem_pool_host.get_dummy_flat_data_page())
        one = self.make()
        with self.assertRaises(ValueError):
            one.get(self.keys[0], torch.zeros(3, dtype=torch.bfloat16))


if __name__ == "__main__":
    unittest.main()
