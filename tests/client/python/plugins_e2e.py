#!/usr/bin/python3
"""Goal: what the plug-ins ask is what the real package ckv and real holders answer.

Method: a directory and two holders, a corpus of three chunks in a chain. Stand-ins take the place of vLLM's and SGLang's
classes, torch on the CPU that of the engine. It proves nothing about vLLM, SGLang or a GPU.

    /usr/bin/python3 tests/client/python/plugins_e2e.py --ckvd ... --ckvctl ... --library libckv.so
"""

import argparse
import hashlib
import os
import pathlib
import sys
import tempfile
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path[:0] = [str(HERE.parents[2] / "client" / "python"), str(HERE.parents[1] / "e2e")]
import numpy as np  # noqa: E402
import torch  # noqa: E402
from ctl_fleet import PROGRAMS, Fleet  # noqa: E402

import ckv  # noqa: E402
from ckv_sglang import storage  # noqa: E402
from ckv_vllm import attend, loads, tensors  # noqa: E402

D_QK, D_V, LAYERS, HEADS, SCALE = 40, 32, 2, 3, 0.2
COUNTS, BLOCK = (24, 24, 12), 16
MODEL = ckv.Model("test/plugins", "1", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=8, softmax_scale=SCALE)
# o on the wire is bf16: 8 bits.
TOLERANCE = 1 / 128
LAYER = types.SimpleNamespace(layer_name="model.layers.1.self_attn.attn")


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def bits(tensor):
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


def attention(q, rows):
    """o and the natural lse of queries [n, d_qk] over rows [tokens, d_qk]."""
    logits = (q.float() @ rows.float().T) * SCALE
    return torch.softmax(logits, dim=1) @ rows.float()[:, :D_V], torch.logsumexp(logits, dim=1)


def hash_of(tokens, prior):
    digest = hashlib.sha256(bytes.fromhex(prior) if prior else b"")
    for token in tokens:
        digest.update(token.to_bytes(4, "little"))
    return digest.hexdigest()


class Attention:
    """As MLAAttentionImpl: attends own rows."""

    dcp_world_size = 1

    def __init__(self):
        self.scale = SCALE

    def forward_mha(self, *_):
        raise NotImplementedError

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        o, lse = attention(q.reshape(-1, D_QK), kv_c_and_k_pe_cache)
        return o.reshape(len(q), HEADS, D_V), lse.reshape(len(q), HEADS)


class Source:
    """All tokens attend the corpus."""

    timeout = 10.0

    def __init__(self, requester, corpus):
        self.requester, self.corpus = requester, corpus
        self.context = requester.context([ckv.Part(corpus)])

    def spans(self, attn_metadata, tokens):
        return [attend.Span(self.context, 0, 2), attend.Span(self.context, 2, tokens - 2)]

    def prefills_attend(self, attn_metadata):
        return False


class Storage:
    """As HiCacheStorage."""

    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host


class PluginsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-plugins-")
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2)
        cls.requester = ckv.open(cls.fleet.directory)
        cls.tokens = np.arange(100, 100 + sum(COUNTS), dtype=np.int32)
        cls.rows = random(1, LAYERS, len(cls.tokens), D_QK)
        with cls.requester.put("docs", create=MODEL) as put:
            begin = 0
            for count in COUNTS:
                put.chunk(cls.tokens[begin:begin + count])
                for layer in range(LAYERS):
                    put.rows(layer, cls.rows[layer, begin:begin + count])
                begin += count
            put.finish()
        cls.corpus = cls.requester.resolve("docs")

    @classmethod
    def tearDownClass(cls):
        cls.requester.close()
        cls.fleet.stop()
        cls.temporary.cleanup()

    def test_vllm_attends_the_corpus_and_own_rows(self):
        source = Source(self.requester, self.corpus)
        one = attend.impl_over(Attention, lambda: source, layout=tensors.TOKENS_HEADS, form="natural")()
        q, own = random(2, 4, HEADS, D_QK), random(3, 9, D_QK)
        o, lse = one.forward_mqa(q, own, None, LAYER)
        want_o, want_lse = attention(q.reshape(-1, D_QK), torch.cat([self.rows[1], own]))
        self.assertLess((o.float().reshape(-1, D_V) - want_o).abs().max(), TOLERANCE)
        self.assertLess((lse.reshape(-1) - want_lse).abs().max(), 1e-4)
        # The error of a call that cannot be, and no answer.
        with self.assertRaises(ckv.InvalidArgument):
            one.forward_mqa(q, own, None, types.SimpleNamespace(layer_name="model.layers.7.self_attn.attn"))
        source.context.close()
        with self.assertRaises(ckv.FailedPrecondition):
            one.forward_mqa(q, own, None, LAYER)

    def test_vllm_loads_a_prefix_into_paged_memory(self):
        cache = torch.zeros(8, BLOCK, D_QK, dtype=torch.bfloat16)
        blocks, want = [5, 2, 7], 48  # chunks of 24 and 24: three blocks
        load = loads.Load("r", [int(t) for t in self.tokens[:want]], BLOCK, blocks)
        fetching = loads.Fetching(self.requester, load, range(LAYERS), BLOCK, D_QK, 10.0)
        try:
            for layer in range(LAYERS):
                cache.zero_()
                fetching.into(layer, cache)
                for i, block in enumerate(blocks):
                    due = self.rows[layer, i * BLOCK:(i + 1) * BLOCK] if i > 0 else torch.zeros_like(cache[0])
                    self.assertTrue(torch.equal(cache[block], due), f"layer {layer}, block {block}")
        finally:
            fetching.close()
        gone = loads.Load("r", [7] * want, 0, blocks)
        with self.assertRaises(ckv.NotFound):
            loads.Fetching(self.requester, gone, range(LAYERS), BLOCK, D_QK, 10.0)

    def test_sglang_reads_pages(self):
        file = self.folder / "tokens"
        self.tokens.astype("<i4").tofile(file)
        config = types.SimpleNamespace(is_mla_model=True, model_name=MODEL.model, extra_config={
            "directory": self.fleet.directory, "page_size": BLOCK, "token_files": [str(file)]})
        backend = storage.storage_over(Storage, hash_of)(config)
        backend.register_mem_pool_host(types.SimpleNamespace(layout="layer_first"))
        keys, prior = [], None
        # The last 12 tokens are too few for a head, and a page has 16: two whole pages and one behind them.
        for i in range(3):
            prior = hash_of([int(t) for t in self.tokens[i * BLOCK:(i + 1) * BLOCK]], prior)
            keys.append(prior)
        self.assertEqual(backend.batch_exists(keys + ["none"]), 3)
        pages = [torch.zeros(LAYERS * BLOCK * D_QK, dtype=torch.bfloat16) for _ in keys]
        for i, page in enumerate(backend.batch_get(keys, pages)):
            self.assertTrue(torch.equal(page.view(LAYERS, BLOCK, D_QK), self.rows[:, i * BLOCK:(i + 1) * BLOCK]), i)
        self.assertIsNone(backend.get("none", pages[0]))
        backend.requester.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", required=True)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    os.environ["CKV_LIBRARY"] = options.library
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
