#!/usr/bin/python3
"""Goal: ckv_vllm's arithmetic is right on stand-ins of vLLM's signatures.

Method: the base kernel is torch attention over own rows, ckv is ckv_stand_in. Outputs are compared
with float32 attention over the corpus and the own rows together. It proves nothing about vLLM,
ckv's library or a GPU.
"""

import importlib
import pathlib
import pickle
import sys
import types
import unittest
from unittest import mock

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

from ckv_vllm import attend, keys, loads, prefix, settings, tensors  # noqa: E402

D_QK, D_V, LAYERS, HEADS, SCALE = 40, 32, 2, 3, 0.2
# The merged o is rounded to f32 once and the parts have errors of f32 sums of 100 terms.
TOLERANCE = 2e-5
LAYER = types.SimpleNamespace(layer_name="model.layers.1.self_attn.attn")


def rows_of(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def corpus_of(counts=(24, 24, 12)):
    rows = rows_of(1, LAYERS, sum(counts), D_QK)
    bits = rows.view(torch.int16).numpy().view(np.uint16)
    return ckv_stand_in.Corpus(bits, counts, D_V, SCALE)


class Base:
    """As MLAAttentionImpl: attends own rows, and tells the lse in a layout, form and dtype."""

    layout, form, lse_dtype, steps = tensors.TOKENS_HEADS, "natural", torch.float32, 1
    dcp_world_size = 1

    def __init__(self):
        self.scale = SCALE

    def forward_mha(self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale):
        return "mha"

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        tokens = q.shape[0]
        done = ckv_stand_in.partial(q.reshape(-1, D_QK).float(), kv_c_and_k_pe_cache.float(), D_V, SCALE)
        lse = torch.from_numpy(ckv_stand_in.lse_from_partial(done.m, done.l, self.form))
        lse = lse.reshape(tokens, HEADS).to(self.lse_dtype)
        if self.layout == tensors.HEADS_TOKENS:
            lse = lse.T.contiguous()
        if self.layout == tensors.SEQUENCES_HEADS_STEPS:
            lse = lse.reshape(-1, self.steps, HEADS).transpose(1, 2).contiguous()
        return torch.from_numpy(done.o).reshape(tokens, HEADS, D_V), lse


class Some:
    """A source whose spans are given."""

    timeout = 1.0

    def __init__(self, requester, spans, prefills=False):
        self.requester, self.corpus, self.prefills = requester, requester.corpus, prefills
        context = requester.context([ckv_stand_in.Part(requester.corpus)])
        self.given = [attend.Span(context, begin, count) for begin, count in spans]

    def spans(self, attn_metadata, tokens):
        return self.given

    def prefills_attend(self, attn_metadata):
        return self.prefills


def variant(**fields):
    return type("Variant", (Base,), fields)


def impl(base, source, **options):
    return attend.impl_over(base, lambda: source, layout=base.layout, form=base.form, **options)()


class Forward(unittest.TestCase):
    def setUp(self):
        self.requester = ckv_stand_in.Requester(corpus_of())
        self.q, self.own = rows_of(2, 4, HEADS, D_QK), rows_of(3, 9, D_QK)
        everything = torch.cat([ckv_stand_in.from_bits(self.requester.corpus.rows[1]), self.own.float()])
        self.want = ckv_stand_in.partial(self.q.reshape(-1, D_QK).float(), everything, D_V, SCALE)

    def check(self, base, o, lse, tokens):
        want_o = torch.from_numpy(self.want.o).reshape(4, HEADS, D_V)
        want = torch.from_numpy(ckv_stand_in.lse_from_partial(self.want.m, self.want.l, base.form))
        got = tensors.rows_of_lse(lse, base.layout, 4, HEADS)
        for token in tokens:
            self.assertLess((o[token] - want_o[token]).abs().max(), TOLERANCE)
            self.assertLess((got[token] - want.reshape(4, HEADS)[token]).abs().max(), TOLERANCE)

    def test_all_rows_equal_attention_over_everything(self):
        for fields in (dict(), dict(form="base2"), dict(layout=tensors.HEADS_TOKENS),
                       dict(layout=tensors.SEQUENCES_HEADS_STEPS, form="flashmla"),
                       dict(layout=tensors.SEQUENCES_HEADS_STEPS, form="flashmla", steps=2)):
            with self.subTest(fields):
                base = variant(**fields)
                one = impl(base, Some(self.requester, [(0, 4)]))
                o, lse = one.forward_mqa(self.q, self.own, None, LAYER)
                self.assertEqual(lse.shape, Base.forward_mqa(base(), self.q, self.own, None, LAYER)[1].shape)
                self.check(base, o, lse, range(4))
                self.assertTrue(self.requester.tickets[-1].closed)

    def test_a_pair_of_queries_is_the_concatenated_one(self):
        one = impl(Base, Some(self.requester, [(0, 4)]))
        pair = (self.q[..., :D_V].contiguous(), self.q[..., D_V:].contiguous())
        self.check(Base, *one.forward_mqa(pair, self.own, None, LAYER), range(4))

    def test_tokens_equal_to_heads_are_not_transposed(self):
        base = variant(layout=tensors.HEADS_TOKENS)
        q = self.q[:HEADS]
        one = impl(base, Some(self.requester, [(0, HEADS)]))
        o, lse = one.forward_mqa(q, self.own, None, LAYER)
        want = ckv_stand_in.lse_from_partial(self.want.m, self.want.l).reshape(4, HEADS)[:HEADS]
        self.assertLess(np.abs(lse.T.numpy() - want).max(), TOLERANCE)

    def test_sequences_without_a_corpus_keep_their_bits(self):
        one = impl(Base, Some(self.requester, [(0, 1), (2, 1)]))
        o, lse = one.forward_mqa(self.q, self.own, None, LAYER)
        self.check(Base, o, lse, [0, 2])
        own_o, own_lse = Base().forward_mqa(self.q, self.own, None, LAYER)
        for token in (1, 3):
            self.assertTrue(torch.equal(o[token], own_o[token]))
            self.assertTrue(torch.equal(lse[token], own_lse[token]))
            self.assertGreater((own_o[token] - torch.from_numpy(self.want.o).reshape(
                4, HEADS, D_V)[token]).abs().max(), 0.01)

    def test_without_spans_nothing_is_submitted(self):
        one = impl(Base, Some(self.requester, []))
        o, lse = one.forward_mqa(self.q, self.own, None, LAYER)
        self.assertTrue(torch.equal(o, Base().forward_mqa(self.q, self.own, None, LAYER)[0]))
        self.assertEqual(self.requester.tickets, [])

    def test_an_error_of_ckv_is_raised_and_the_ticket_closed(self):
        self.requester.fail = ckv_stand_in.Unavailable("h0")
        one = impl(Base, Some(self.requester, [(0, 4)]))
        with self.assertRaises(ckv_stand_in.Unavailable):
            one.forward_mqa(self.q, self.own, None, LAYER)
        self.assertTrue(self.requester.tickets[-1].closed)

    def test_a_kernel_that_fails_closes_the_ticket(self):
        def fail(self, *arguments):
            raise RuntimeError("kernel")
        one = impl(variant(forward_mqa=fail), Some(self.requester, [(0, 4)]))
        with self.assertRaises(RuntimeError):
            one.forward_mqa(self.q, self.own, None, LAYER)
        self.assertTrue(self.requester.tickets[-1].closed)

    def test_an_empty_own_part_leaves_the_corpus(self):
        o = torch.full((1, HEADS, D_V), float("nan"))
        got = ckv_stand_in.answer(self.want.o[:HEADS], self.want.m[:HEADS], self.want.l[:HEADS])
        o, _ = attend.merge_local(o, torch.full((1, HEADS), float("inf")), np.array([0]), got, "flashmla")
        self.assertTrue(np.allclose(o.reshape(HEADS, D_V).numpy(), got.o, atol=1e-6))

    def test_what_would_be_wrong_is_refused(self):
        coarse = variant(lse_dtype=torch.bfloat16)
        self.refuse(coarse, "too coarse")
        self.refuse(variant(dcp_world_size=2), "context parallelism")
        self.refuse(variant(__init__=lambda self: setattr(self, "scale", 0.3)), "softmax scale")
        self.refuse(Base, "layer number", layer=types.SimpleNamespace(layer_name="lm_head"))
        self.refuse(Base, "not rising", spans=[(2, 1), (0, 1)])
        self.refuse(Base, "rows of 40", q=self.q[..., :D_V])
        self.refuse(Base, "quantised", q=self.q.to(torch.int8))
        silent = variant(forward_mqa=lambda self, q, *rest: (q, None))
        self.refuse(silent, "no log-sum-exp")
        one = impl(coarse, Some(self.requester, [(0, 4)]), allow_coarse_lse=True)
        self.assertEqual(one.forward_mqa(self.q, self.own, None, LAYER)[1].dtype, torch.bfloat16)

    def refuse(self, base, text, layer=LAYER, spans=((0, 4),), q=None):
        one = impl(base, Some(self.requester, spans))
        with self.assertRaisesRegex(ValueError, text):
            one.forward_mqa(self.q if q is None else q, self.own, None, layer)

    def test_prefills_that_would_miss_the_corpus_are_refused(self):
        with self.assertRaises(NotImplementedError):
            impl(Base, Some(self.requester, [], prefills=True)).forward_mha(1, 2, 3, 4, 5, 6)
        self.assertEqual(impl(Base, Some(self.requester, [])).forward_mha(1, 2, 3, 4, 5, 6), "mha")

    def test_every_sequence_stands_behind_the_corpus(self):
        source = attend.EverySequence(self.requester, "docs")
        self.assertEqual((list(self.requester.parts[0].chunks), list(self.requester.parts[0].offsets)),
                         ([0, 1, 2], [-60, -60, -60]))
        self.check(Base, *impl(Base, source).forward_mqa(self.q, self.own, None, LAYER), range(4))


class Prefixes(unittest.TestCase):
    def test_a_prefix_ends_at_a_hole_or_another_offset(self):
        self.assertEqual(prefix.prefix_of([0, 24, 48], [0, 0, 0], [24, 24, 12]), prefix.Prefix(3, 60))
        self.assertEqual(prefix.prefix_of([0, 25], [0, 0], [24, 24]), prefix.Prefix(1, 24))
        self.assertEqual(prefix.prefix_of([0, 24], [0, 24], [24, 24]), prefix.Prefix(1, 24))
        self.assertEqual(prefix.prefix_of([1], [0], [24]), prefix.Prefix(0, 0))
        self.assertEqual(prefix.prefix_of([0], [-5], [24]), prefix.Prefix(0, 0))

    def test_blocks_are_whole_and_leave_a_token(self):
        for have, prompt, want in ((60, 100, 48), (64, 100, 64), (64, 64, 48), (64, 65, 64), (0, 1, 0), (5, 0, 0)):
            self.assertEqual(prefix.whole_blocks(have, prompt, 16), want)

    def test_slots(self):
        self.assertEqual(prefix.slots_of([7, 2], 4, 2, 6).tolist(), [30, 31, 8, 9])
        with self.assertRaises(ValueError):
            prefix.slots_of([7, 2], 4, 2, 9)


class ConnectorBase:
    """As KVConnectorBase_V1."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        self.metadata = None

    def bind_connector_metadata(self, metadata):
        self.metadata = metadata

    def _get_connector_metadata(self):
        return self.metadata


class Metadata:
    def __init__(self, loads):
        self.loads = loads


class Connector(unittest.TestCase):
    NAMES = [f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS)]

    def setUp(self):
        self.corpus = corpus_of()
        self.requester = ckv_stand_in.Requester(self.corpus, ckv_stand_in.found_of(self.corpus))
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"directory": "x:1"}),
            cache_config=types.SimpleNamespace(block_size=16))
        self.one = loads.connector_over(ConnectorBase, Metadata, lambda _: self.requester)(config, 0)
        self.request = types.SimpleNamespace(request_id="r", prompt_token_ids=list(range(70)))
        self.caches = {name: torch.zeros(8, 16, D_QK, dtype=torch.bfloat16) for name in self.NAMES}

    def schedule(self, computed=0):
        count, later = self.one.get_num_new_matched_tokens(self.request, computed)
        blocks = types.SimpleNamespace(get_block_ids=lambda: ([5, 3, 6, 1, 0],))
        self.one.update_state_after_alloc(self.request, blocks, count)
        self.assertFalse(later)
        meta = pickle.loads(pickle.dumps(self.one.build_connector_meta(None)))
        self.one.bind_connector_metadata(meta)
        return count

    def test_rows_come_to_their_slots_and_to_no_other(self):
        for computed in (0, 16):
            with self.subTest(computed):
                self.setUp()
                self.assertEqual(self.schedule(computed), 48 - computed)
                self.one.register_kv_caches(self.caches)
                self.one.start_load_kv(None)
                for layer, name in enumerate(self.NAMES):
                    self.one.wait_for_layer_load(name)
                    got, want = self.caches[name].float(), torch.zeros(8, 16, D_QK)
                    rows = ckv_stand_in.from_bits(self.corpus.rows[layer])
                    for i, block in enumerate([5, 3, 6]):
                        if i * 16 >= computed:
                            want[block] = rows[16 * i:16 * i + 16]
                    self.assertTrue(torch.equal(got, want))
                self.one.wait_for_save()
                self.assertTrue(self.requester.tickets[-1].closed)

    def test_a_prompt_that_is_not_found_is_computed(self):
        for error in (ckv_stand_in.NotFound(), ckv_stand_in.Unavailable()):
            self.requester.found = error
            self.assertEqual(self.one.get_num_new_matched_tokens(self.request, 0), (0, False))
        self.requester.found = ckv_stand_in.found_of(self.corpus)
        self.assertEqual(self.one.get_num_new_matched_tokens(self.request, 64), (0, False))
        self.request.prompt_token_ids = None  # a prompt of embeddings
        self.assertEqual(self.one.get_num_new_matched_tokens(self.request, 0), (0, False))

    def test_pictures_are_looked_up_by_their_own_keys(self):
        """Of the newer requests of vLLM and of the older ones; the worker looks up what the scheduler did."""
        place = types.SimpleNamespace(offset=4, length=9)
        newer = {"mm_features": [types.SimpleNamespace(identifier="hash", mm_position=place)]}
        older = {"mm_hashes": ["hash"], "mm_positions": [place], "mm_inputs": [object()]}
        for fields in (newer, older):
            self.setUp()
            vars(self.request).update(fields)
            self.schedule()
            self.one.register_kv_caches(self.caches)
            self.one.start_load_kv(None)
            want = [(4, 9, keys.digest_of("hash"))]
            self.assertEqual(self.requester.keys, [want, want])
        self.assertNotEqual(keys.digest_of("hash"), keys.digest_of("other"))

    def test_what_has_no_key_is_not_looked_up(self):
        nameless = types.SimpleNamespace(identifier=None, mm_hash=None, mm_position=None)
        for fields in ({"lora_request": object()}, {"cache_salt": "s"}, {"prompt_embeds": object()},
                       {"mm_features": [nameless]}, {"mm_inputs": [object()]},
                       {"mm_hashes": ["a"], "mm_positions": []}):
            self.setUp()
            vars(self.request).update(fields)
            self.assertEqual(self.one.get_num_new_matched_tokens(self.request, 0), (0, False))
            self.assertEqual(self.requester.keys, [])

    def test_what_changed_between_scheduler_and_worker_is_refused(self):
        self.schedule()
        self.one.register_kv_caches(self.caches)
        self.requester.found = ckv_stand_in.found_of(self.corpus, begins=[0, 25, 50])
        with self.assertRaisesRegex(ValueError, "24 are left"):
            self.one.start_load_kv(None)

    def test_a_growing_cover_does_not_move_what_was_offered(self):
        self.requester.found = ckv_stand_in.found_of(self.corpus, begins=[0, 25, 50])
        count, _ = self.one.get_num_new_matched_tokens(self.request, 0)
        self.requester.found = ckv_stand_in.found_of(self.corpus)
        blocks = types.SimpleNamespace(get_block_ids=lambda: ([5, 3, 6, 1, 0],))
        self.one.update_state_after_alloc(self.request, blocks, count)
        (load,) = self.one.build_connector_meta(None).loads
        self.assertEqual((load.token_begin, load.token_end, load.tokens), (0, 16, list(range(70))))

    def test_errors_and_missed_layers_are_raised(self):
        self.schedule()
        self.one.register_kv_caches(self.caches)
        self.one.start_load_kv(None)
        self.one.wait_for_layer_load(self.NAMES[0])
        with self.assertRaisesRegex(RuntimeError, r"\[1\]"):
            self.one.wait_for_save()
        self.requester.fail = ckv_stand_in.Unavailable("h0")
        self.one.start_load_kv(None)
        with self.assertRaises(ckv_stand_in.Unavailable):
            self.one.wait_for_layer_load(self.NAMES[0])

    def test_a_layer_in_time_or_an_error(self):
        self.schedule()
        self.one.register_kv_caches(self.caches)
        self.one.start_load_kv(None)
        self.requester.tickets[-1].result = False
        with self.assertRaises(ckv_stand_in.DeadlineExceeded):
            self.one.wait_for_layer_load(self.NAMES[0])

    def test_other_caches_are_refused(self):
        for caches in ({"x": torch.zeros(1, 1, D_QK, dtype=torch.bfloat16)}, {},
                       {self.NAMES[0]: torch.zeros(1, 1, D_QK)},
                       {name: torch.zeros(1, 1, D_QK, dtype=torch.bfloat16)
                        for name in (self.NAMES[0], "model.layers.0.self_attn.indexer.k_cache")}):
            with self.assertRaises(ValueError):
                self.one.register_kv_caches(caches)


class Modules(unittest.TestCase):
    """The files that import vLLM, on modules that have the names they take."""

    REGISTRY = "vllm.v1.attention.backends.registry"

    def stand_in(self, name, **fields):
        module = types.ModuleType(name)
        module.__dict__.update(fields)
        return {name: module}

    def backend(self):
        class Backend:
            get_impl_cls = staticmethod(lambda: Base)
            get_builder_cls = staticmethod(lambda: type("Builder", (), {"_cudagraph_support": "ALWAYS"}))
        return Backend

    def test_the_backend_is_registered_and_never_captured(self):
        registered = {}
        modules = {
            **self.stand_in(self.REGISTRY, register_backend=registered.__setitem__,
                            AttentionBackendEnum=types.SimpleNamespace(CUSTOM="custom")),
            **self.stand_in("vllm.v1.attention.backend",
                            AttentionCGSupport=types.SimpleNamespace(NEVER="never")),
            **self.stand_in("vllm.v1.attention.backends.mla.flashmla", FlashMLABackend=self.backend())}
        environment = {"CKV_VLLM_DIRECTORY": "x:1", "CKV_VLLM_CORPUS": "docs"}
        with mock.patch.dict(sys.modules, modules), mock.patch.dict("os.environ", environment):
            import ckv_vllm
            ckv_vllm.register()
            module, name = registered["custom"].rsplit(".", 1)
            got = getattr(importlib.import_module(module), name)
        self.assertTrue(issubclass(got.get_impl_cls(), Base))
        self.assertEqual(got.get_builder_cls()._cudagraph_support, "never")

    def test_the_connector_has_metadata_that_travels(self):
        modules = self.stand_in("vllm.distributed.kv_transfer.kv_connector.v1.base",
                                KVConnectorBase_V1=ConnectorBase, KVConnectorMetadata=object)
        with mock.patch.dict(sys.modules, modules):
            from ckv_vllm import connector
            load = loads.Load("r", [1, 2], 0, 2, [3])
            got = pickle.loads(pickle.dumps(connector.CkvConnectorMetadata([load])))
        self.assertTrue(issubclass(connector.CkvConnector, ConnectorBase))
        self.assertEqual(got.loads, [load])

    def test_a_base_with_other_methods_is_refused(self):
        old = type("Old", (), {"_forward_decode": None})
        with self.assertRaises(TypeError):
            attend.impl_over(old, None, layout=tensors.TOKENS_HEADS, form="natural")


class Settings(unittest.TestCase):
    def test_extra_config_goes_before_the_environment(self):
        got = settings.read({"directory": "a:1"}, {"CKV_VLLM_DIRECTORY": "b:1", "CKV_VLLM_TENANT": "t",
                                                   "CKV_VLLM_ALLOW_COARSE_LSE": "1"})
        self.assertEqual((got.directory, got.tenant, got.allow_coarse_lse), ("a:1", "t", True))
        for wrong in ({}, {"CKV_VLLM_DIRECTORY": "b:1", "CKV_VLLM_BASE": "x"},
                      {"CKV_VLLM_DIRECTORY": "b:1", "CKV_VLLM_ALLOW_COARSE_LSE": "maybe"}):
            with self.assertRaises(ValueError):
                settings.read(None, wrong)
        empty = {f"CKV_VLLM_{name}": "" for name in ("DIRECTORY", "TENANT", "CORPUS", "BASE", "TIMEOUT", "ALLOW_COARSE_LSE")}
        self.assertEqual(settings.read({"directory": "a:1"}, empty), settings.read({"directory": "a:1"}, {}))


if __name__ == "__main__":
    unittest.main()
