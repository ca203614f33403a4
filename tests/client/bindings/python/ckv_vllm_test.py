#!/usr/bin/python3
"""Goal: the plug-in for vLLM reads settings, requests and models correctly, or refuses them with a reason.

Method: tests the parts that do not import vLLM. The rest is tested in stock vLLM: tests/engines/vllm.

    python3 tests/client/bindings/python/ckv_vllm_test.py
"""

import copy
import json
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "client/bindings/python"), str(ROOT / "tests/support")]
import skip  # noqa: E402

skip.needs("numpy", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ckv_vllm import (announced_chunks, contexts, counts, hooks, identity, limits, load_report, messages,  # noqa: E402
                      prefill_times, prefix, recent_chunks, request_params, rope, route, rule, scheduler_side, settings, worker_side)

RequestParams = request_params.RequestParams
SETTINGS = settings.read({"directory": "d:1"})
LITE = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, num_hidden_layers=27, rope_theta=10000,
            index_topk=None, rope_parameters=None, rope_scaling={
                "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                "mscale": 0.707, "mscale_all_dim": 0.707})


class Settings(unittest.TestCase):
    def test_names_are_the_daemons(self):
        read = settings.read({"directory": "d:1", "local-cache-bytes": 7, "deadline": "2.5", "policy": "route"})
        self.assertEqual((read.local_cache_bytes, read.deadline, read.policy), (7, 2.5, "route"))

    def test_names_invalid_settings(self):
        for extra, reason in (({}, "directory"), ({"directory": "d:1", "foo": 1}, "'foo'"),
                              ({"directory": "d:1", "deadline": 0}, "deadline"),
                              ({"directory": "d:1", "deadline": "soon"}, "deadline"),
                              ({"directory": "d:1", "local_cache_bytes": -1}, "local_cache_bytes"),
                              ({"directory": "d:1", "lookup": "yes"}, "lookup"),
                              ({"directory": "d:1", "policy": "best"}, "policy"),
                              ({"directory": "d:1", "publish": "all"}, "publish"),
                              ({"directory": "d:1", "chunk_tokens": 8}, "chunk_tokens"),
                              ({"directory": "d:1", "precision": "best"}, "precision"),
                              ({"directory": "d:1", "rule_times": 0}, "rule_times")):
            with self.assertRaisesRegex(ValueError, reason):
                settings.read(extra)


class Rules(unittest.TestCase):
    def test_the_longest_frequent_beginning_is_due_once(self):
        one, same = rule.Rule(tokens=40, times=2, step=20), list(range(100))
        self.assertEqual(one.due(same[:90] + [7] * 50), 0)
        self.assertEqual(one.due(same[:70] + [8] * 50), 60, "whole chunks of what both have")
        self.assertEqual(one.due(same[:70] + [9] * 50), 0, "it was due")
        self.assertEqual(one.due(same[:85] + [9] * 50), 80, "longer than what was")
        self.assertEqual([one.due(same[:39]), one.due(same[:39])], [0, 0], "shorter than 40")

    def test_remembered_prompts_have_a_limit(self):
        one, limit = rule.Rule(1, 2, 1), rule.REMEMBERED_MAX
        try:
            rule.REMEMBERED_MAX = 8
            one.due([1])
            for i in range(2, 20):
                one.due([i])
            self.assertEqual((len(one._seen), one.due([1]), one.due([19])), (8, 0, 1))
        finally:
            rule.REMEMBERED_MAX = limit


class Counted(unittest.TestCase):
    def test_taken_counts_are_not_reported_again_and_nothing_shrinks(self):
        one = counts.Counts()
        one.add("loaded_tokens", 5)
        one.add("loaded_tokens", -3)
        one.add("refused_requests")
        self.assertEqual(one.take(), {"loaded_tokens": 5, "refused_requests": 1})
        self.assertEqual(one.take(), {})
        with self.assertRaises(KeyError):
            one.add("nosuch")


class Parameters(unittest.TestCase):
    def read(self, asked, **changes):
        return request_params.read({"kv_transfer_params": {"ckv": asked}},
                                   settings.read({"directory": "d:1", **changes}))

    def test_a_request_without_parameters_needs_nothing(self):
        for extra in (None, {}, {"kv_transfer_params": None}, {"kv_transfer_params": {"other": 1}}):
            self.assertEqual(request_params.read(extra, SETTINGS), RequestParams())

    def test_a_corpus_has_the_servers_policy_unless_it_names_one(self):
        self.assertEqual(self.read({"corpus": "a"}), RequestParams(("a",), "auto"))
        self.assertEqual(self.read({"corpus": ["a", "b"], "policy": "cache"}), RequestParams(("a", "b"), "cache"))
        self.assertFalse(self.read({"corpus": "a", "policy": "fetch"}).routes)

    def test_vllm_xargs_have_text(self):
        for value, wanted in (("a", RequestParams(("a",), "auto")), (["a", "b"], RequestParams(("a", "b"), "auto")),
                              ('{"corpus": "a", "policy": "fetch"}', RequestParams(("a",), "fetch")),
                              ('{"publish": "a"}', RequestParams((), "", "a"))):
            self.assertEqual(request_params.read({"ckv": value}, SETTINGS), wanted, value)
        asked = {"kv_transfer_params": {"ckv": {"corpus": "b"}}, "ckv": "a"}
        self.assertEqual(request_params.read(asked, SETTINGS).corpus, ("b",))
        self.assertEqual(request_params.read({"ckv": ' ["a", "b"]'}, SETTINGS).corpus, ("a", "b"))
        self.assertEqual(request_params.read({"kv_transfer_params": {"ckv": None}, "ckv": "a"}, SETTINGS).corpus, ("a",))
        deep = '{"corpus":' + "[" * 100_000
        for value in ("", '{"corpus": ', "{}x", 3, [], ["a", 3], '{"corpse": "a"}', deep, '{"corpus": "\\ud800"}', "a\nb"):
            with self.assertRaises(request_params.Refused) as refused:
                request_params.read({"ckv": value}, SETTINGS)
            self.assertLess(len(str(refused.exception)), 600)

    def test_a_policy_is_one_of_the_policies(self):
        for policy in ([], {}, None, "", 0, False, "best", ["route"]):
            for asked in ({"corpus": "a", "policy": policy}, {"policy": policy}):
                with self.assertRaises(request_params.Refused, msg=asked):
                    self.read(asked)

    def test_refuses_contradictions(self):
        for asked in ("a", {"corpus": ""}, {"corpus": 3}, {"corpus": ["a", "a"]}, {"corpus": "a", "policy": "best"},
                      {"policy": "route"}, {"corpus": "a", "publish": "b"}, {"corpus": "a\0"}, {"corpse": "a"},
                      {"corpus": ["a", "b"], "policy": "fetch"}):
            with self.assertRaises(request_params.Refused, msg=asked):
                self.read(asked)
        with self.assertRaises(request_params.Refused):
            self.read({"publish": "b"}, publish="off")
        with self.assertRaises(request_params.Refused):
            self.read({}, required=True)
        with self.assertRaises(request_params.Refused):
            request_params.read({"kv_transfer_params": {"ckv_corpus": "a"}}, SETTINGS)


class Identity(unittest.TestCase):
    def test_a_fingerprint_depends_on_what_shapes_rows_and_nothing_else(self):
        config = {"kv_lora_rank": 512, "rope_theta": 10000, "max_position_embeddings": 1}
        base = identity.fingerprint(config, "w", "bf16", "", "auto")
        self.assertEqual(base, identity.fingerprint({**config, "max_position_embeddings": 2, "_name_or_path": "x"}, "w",
                                                    "bf16", "", "auto"))
        others = [identity.fingerprint({**config, "rope_theta": 20000}, "w", "bf16", "", "auto"),
                  identity.fingerprint(config, "v", "bf16", "", "auto"), identity.fingerprint(config, "w", "f16", "", "auto"),
                  identity.fingerprint(config, "w", "bf16", "fp8", "auto"), identity.fingerprint(config, "w", "bf16", "", "fp8")]
        self.assertEqual(len({base, *others}), 6)

    def test_weights_differ_by_their_values(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with self.assertRaises(identity.Unsupported):
                identity.weights_digest(folder)
            header = json.dumps({"x": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
            values = np.zeros(1 << 20, np.uint8)
            digests = set()
            for seed in range(3):  # a fine-tune: one value in a thousand differs
                values[::1000] += seed
                (folder / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
                digests.add(identity.weights_digest(folder))
            self.assertEqual(len(digests), 3)

    def test_a_models_geometry(self):
        model = identity.model_of("lite", types.SimpleNamespace(**LITE), "r")
        self.assertEqual((model.d_qk, model.d_v, model.d_rope, model.layers), (576, 512, 64, 27))
        self.assertAlmostEqual(model.softmax_scale, 0.1147213867929261)  # 192^-.5 x 1.2608^2
        self.assertEqual((model.yarn_factor, model.yarn_mscale_all_dim), (40, 0.707))
        plain = identity.model_of("v2", types.SimpleNamespace(**{**LITE, "rope_scaling": None}), "r")
        self.assertAlmostEqual(plain.softmax_scale, 192**-0.5)
        for change in ({"kv_lora_rank": None}, {"index_topk": 2048}, {"rope_scaling": {"type": "linear", "factor": 2}}):
            with self.assertRaises(identity.Unsupported):
                identity.model_of("x", types.SimpleNamespace(**{**LITE, **change}), "r")


class Rotations(unittest.TestCase):
    def table(self, model, positions=4096):
        angles = np.arange(positions)[:, None] * rope.frequencies(model)
        both = rope.amplitude(model) * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        return torch.from_numpy(both).to(torch.bfloat16)

    def model(self, **changes):
        return identity.model_of("x", types.SimpleNamespace(**{**LITE, **changes}), "r")

    def test_tables_of_another_rope_are_refused(self):
        yarn, plain, base = self.model(), self.model(rope_scaling=None), self.model(rope_scaling=None, rope_theta=10500)
        scaled = self.model(rope_scaling={**LITE["rope_scaling"], "mscale": 1.0})
        rope.check(yarn, [torch.zeros(8, 128), self.table(yarn)])  # plus another table, for example an indexer's
        rope.check(plain, [self.table(plain, positions=100)])
        for model, table in ((yarn, plain), (plain, yarn), (plain, base), (yarn, scaled)):
            with self.assertRaisesRegex(identity.Unsupported, "rotations differ"):
                rope.check(model, [self.table(table)])
        with self.assertRaisesRegex(identity.Unsupported, "no table"):
            rope.check(plain, [torch.zeros(8, 128)])


class Limits(unittest.TestCase):
    def config(self, **changes):
        return types.SimpleNamespace(**{
            "parallel_config": types.SimpleNamespace(), "device_config": types.SimpleNamespace(device_type="cpu"),
            "speculative_config": None, "model_config": types.SimpleNamespace(use_mla=True),
            "cache_config": types.SimpleNamespace(cache_dtype="auto"),
            "kv_transfer_config": types.SimpleNamespace(kv_load_failure_policy="fail"), **changes})

    def test_a_gpu_is_refused_unless_it_is_to_be_tried(self):
        tried = settings.read({"directory": "d:1", "try_gpu": True})
        gpu = self.config(device_config=types.SimpleNamespace(device_type="cuda"))
        limits.check(self.config(), None, SETTINGS)
        limits.check(gpu, None, tried)
        for config, given in ((gpu, SETTINGS), (self.config(device_config=types.SimpleNamespace(device_type="xpu")), tried)):
            with self.assertRaisesRegex(identity.Unsupported, "never run on a GPU|type xpu"):
                limits.check(config, None, given)

    def test_refuses_unproven_versions(self):
        for changes in ({"parallel_config": types.SimpleNamespace(pipeline_parallel_size=2)},
                        {"parallel_config": types.SimpleNamespace(decode_context_parallel_size=2)},
                        {"speculative_config": object()}, {"model_config": types.SimpleNamespace(use_mla=False)},
                        {"cache_config": types.SimpleNamespace(cache_dtype="fp8")},
                        {"kv_transfer_config": types.SimpleNamespace(kv_load_failure_policy="recompute")}):
            with self.assertRaises(identity.Unsupported):
                limits.check(self.config(**changes), None, SETTINGS)


class Caches(unittest.TestCase):
    def test_layers_are_the_models(self):
        def cache(*shape, dtype=torch.bfloat16):
            return torch.zeros(*shape, dtype=dtype)

        names = [f"model.layers.{i}.self_attn.attn" for i in range(3)]
        layers = worker_side.layers_of({name: cache(4, 1, 16, 576) for name in reversed(names)})
        self.assertEqual([(i, tuple(one.shape)) for i, one in layers.items()], [(i, (4, 16, 576)) for i in range(3)])
        for wrong in ({"x": cache(4, 16, 576)}, {names[1]: cache(4, 16, 576)}, {names[0]: cache(4, 16, 576, dtype=torch.float16)},
                      {names[0]: cache(4, 2, 16, 576)}, {names[0]: cache(4, 16, 576), names[0] + ".indexer": cache(4, 16, 576)}):
            with self.assertRaises(identity.Unsupported):
                worker_side.layers_of(wrong)


class Batches(unittest.TestCase):
    def test_rows_are_found_by_the_blocks_that_they_write(self):
        message = lambda name, blocks: messages.Route(name, [], "route", blocks, 40)  # noqa: E731
        # "a" and "b" share their first block. Their order in the batch differs from that of the messages.
        routes = {7: message("a", [3, 7]), 9: message("b", [3, 9])}
        metadata = types.SimpleNamespace(query_start_loc=torch.tensor([0, 1, 2, 2, 9]),
                                         slot_mapping=torch.tensor([9 * 16 + 4, 5 * 16, *range(7 * 16, 7 * 16 + 7), -1]))
        rows = route.rows_of(metadata, routes, 16)
        self.assertEqual([(row.route.request_id, row.begin, row.end) for row in rows], [("b", 0, 1), ("a", 2, 9)])
        with self.assertRaises(RuntimeError):
            route.rows_of(metadata, {4: message("c", [4])}, 16)

    def test_long_prompts_are_several_calls(self):
        message = messages.Route("a", [], "route", [1], 100)
        rows = [route.Row(message, 0, 3), route.Row(message, 3, 103)]
        calls = route.pieces_of(rows, 40)
        self.assertEqual([[(b, e) for _, b, e in call] for call in calls],
                         [[(0, 3), (3, 40)], [(40, 80)], [(80, 103)]])

    def test_only_rows_of_a_failed_corpus_are_computed_apart(self):
        kept = contexts.Contexts(SETTINGS, None, "r")
        rows = [route.Row(messages.Route(name, [[name, 1, 1, "x"]], "route", [1], 1), 0, 1) for name in "abc"]
        self.assertEqual((kept.apart([]), kept.apart(rows)), ([], [rows]))
        kept.failed(rows[1].route)
        self.assertEqual(kept.apart(rows), [[rows[0], rows[2]], [rows[1]]])

    def test_whole_blocks_and_never_the_last_token(self):
        for have, prompt, want in ((1000, 1040, 992), (160, 160, 144), (161, 161, 160), (15, 100, 0), (0, 5, 0)):
            self.assertEqual(prefix.whole_blocks(have, prompt, 16), want)


class Stopped(unittest.TestCase):
    """The weights are replaced while requests run. Uses one thread, the scheduler's."""

    def test_known_requests_route_and_publish_nothing_more(self):
        side = object.__new__(scheduler_side.SchedulerSide)
        side._block_size, side._loads, side._stopped, side.counts = 16, [], "", counts.Counts()
        side._announced, side._loading, side._prefills = announced_chunks.AnnouncedChunks(), {}, prefill_times.PrefillTimes()
        side._announced.stored(messages.Chunks(bytes(32), [16], list(range(16))))
        known = {"routed": scheduler_side.Known(RequestParams(("a",), "route"), [], block_ids=[3]),
                 "published": scheduler_side.Known(RequestParams(publish="b"), [], prompt=[1, 2], block_ids=[4]),
                 "plain": scheduler_side.Known(RequestParams(), [], looks_up=True)}
        output = types.SimpleNamespace(
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[],
                                                        resumed_req_ids=None),
            scheduled_new_reqs=[types.SimpleNamespace(req_id=one, num_computed_tokens=0) for one in known],
            num_scheduled_tokens={one: 2 for one in known})
        side._known = copy.deepcopy(known)
        step = side.step(output)
        self.assertEqual(([3], ["published"], {}), ([*step.routes], [one.request_id for one in step.publishes],
                                                    step.refused))
        side._known = copy.deepcopy(known)
        side.stop("other weights")
        step = side.step(output)
        self.assertEqual(({}, []), (step.routes, step.publishes))
        self.assertEqual({"routed": "ckv is off: other weights"}, step.refused)
        self.assertEqual((0, False), side.matched(types.SimpleNamespace(request_id="plain"), 0))
        self.assertEqual([bytes(32)], list(side.take_events())[-1].removed)


class Events(unittest.TestCase):
    """The events that are reported to routers. Their form in vLLM's classes is tested in vLLM."""

    IDS = [bytes([one]) * 32 for one in range(5)]

    def chunks(self, count, parent=0):
        sizes = [16, 16, 7, 16, 16][parent:count]
        return messages.Chunks(b"".join(self.IDS[parent:count]), sizes, list(range(sum(sizes))))

    def test_each_chunk_is_reported_once_behind_its_parent(self):
        known = announced_chunks.AnnouncedChunks()
        known.stored(self.chunks(2))
        (event,) = known.take()
        self.assertEqual((event.stored, event.removed), (self.chunks(2), []))
        known.stored(self.chunks(2))
        self.assertEqual([], list(known.take()))
        known.stored(self.chunks(3))
        (event,) = known.take()
        self.assertEqual(event.stored, messages.Chunks(self.IDS[2], [7], list(range(32, 39)), self.IDS[1]))

    def test_a_removed_chunk_is_reported_again_when_it_is_back(self):
        known = announced_chunks.AnnouncedChunks()
        known.stored(self.chunks(3))
        known.removed(self.IDS[2] + self.IDS[4])
        known.removed(self.IDS[2])
        events = list(known.take())
        self.assertEqual([[], [self.IDS[2]]], [event.removed for event in events], "4 was never announced, 2 is gone already")
        known.stored(self.chunks(3))
        (event,) = known.take()
        self.assertEqual((self.IDS[2], self.IDS[1]), (event.stored.ids, event.stored.parent))
        known.removed()
        (event,) = known.take()
        self.assertEqual({*self.IDS[:3]}, {*event.removed})

    def test_old_chunks_are_forgotten(self):
        known = announced_chunks.AnnouncedChunks()
        with unittest.mock.patch.object(announced_chunks, "CHUNKS_MAX", 2):
            known.stored(self.chunks(3))
        self.assertEqual(self.IDS[1:3], list(known._announced))
        self.assertEqual({self.IDS[0], self.IDS[1]}, set(known._after))

    def test_chunks_that_a_look_up_no_longer_finds_are_withdrawn(self):
        known = announced_chunks.AnnouncedChunks()
        known.stored(self.chunks(4))
        other = messages.Chunks(self.IDS[4], [16], list(range(100, 116)), self.IDS[0])
        known.stored(other)  # behind the first chunk, too
        list(known.take())
        prompt = self.chunks(5).tokens

        def found(count, complete=True):
            return prefix.Prefix(sum(self.chunks(count).sizes), b"".join(self.IDS[:count]),
                                 tuple(self.chunks(count).sizes), complete)

        for kept in (found(4), found(5), found(0, complete=False), found(1, complete=False)):
            known.looked_up(kept, prompt)
        known.looked_up(found(0), list(range(1000, 1100)))
        self.assertEqual([], list(known.take()), "all was found, or it is not known, or it is another prompt")
        known.looked_up(found(1), prompt)
        (event,) = known.take()
        self.assertEqual(self.IDS[1:4], event.removed)
        known.looked_up(found(0), prompt)
        (event,) = known.take()
        self.assertEqual(self.IDS[:1], event.removed, "the chunk behind it is of another prompt")
        known.stored(self.chunks(2))
        (event,) = known.take()
        self.assertEqual(self.chunks(2), event.stored)
        known.removed()
        self.assertEqual(({}, {}), (known._announced, known._after))

    def test_a_load_is_reported_when_it_has_ended(self):
        side = object.__new__(scheduler_side.SchedulerSide)
        side._stopped, side._announced, side._loading, side._known = "", announced_chunks.AnnouncedChunks(), {}, {}
        side._lookups = types.SimpleNamespace(failed=lambda ids: None)
        side._loaded = {"whole": self.chunks(2), "failed": self.chunks(3)}
        side.loads_failed({"failed": "too late"})
        side.loads_ended(["whole", "failed", "other"])
        self.assertEqual([self.chunks(2)], [event.stored for event in side.take_events()])
        side._loaded = {"again": self.chunks(2)}
        side.loads_failed({"again": "too late"})
        (event,) = side.take_events()
        self.assertEqual(self.IDS[:2], event.removed)

    def test_reports_nothing_unless_vllm_has_events_on(self):
        for config, want in ((None, False), (types.SimpleNamespace(enable_kv_cache_events=False), False),
                             (types.SimpleNamespace(enable_kv_cache_events=True), True)):
            self.assertEqual(want, announced_chunks.events_enabled(types.SimpleNamespace(kv_events_config=config)))
        self.assertFalse(announced_chunks.events_enabled(types.SimpleNamespace()), "a vLLM without events")
        side = object.__new__(scheduler_side.SchedulerSide)
        side._stopped, side._announced = "", None
        side.stored([self.chunks(2)])
        self.assertEqual([], list(side.take_events()))


class Loads(unittest.TestCase):
    """The load of an engine of 100 blocks of 16 tokens, 10 bytes each."""

    def test_a_step_gives_room_queue_and_batch(self):
        load = load_report.EngineLoad(batch_max=8, block_count=100, block_size=16, token_bytes=10).step(
            1.0, {"a": 17, "b": 1}, {"a": 17, "b": 32}, known_count=5)
        self.assertEqual((load.free_bytes, load.queued, load.batch, load.batch_max), (96 * 160, 3, 2, 8))
        self.assertEqual((load.iteration_base_us, load.iteration_request_us), (0, 0))

    def test_the_line_is_that_of_steps_that_only_decode(self):
        engine, now, load = load_report.EngineLoad(8, 100, 16, 10), 0.0, None
        for at in range(400):
            batch = at % 4 + 1
            names = [f"r{one}" for one in range(batch)]
            # A prefill takes a second and counts nowhere; an idle time neither.
            scheduled = dict.fromkeys(names, 1 if at % 10 else 900)
            load = engine.step(now, scheduled, dict.fromkeys(names, 20), batch)
            now += (5000 + 300 * batch) / 1e6 if at % 10 else 0.9
            if at % 50 == 49:
                engine.step(now, {}, {}, 0)
                now += 0.01
        self.assertAlmostEqual(load.iteration_base_us, 5000, delta=1)
        self.assertAlmostEqual(load.iteration_request_us, 300, delta=1)

    def test_one_batch_has_no_slope_and_no_time_is_negative(self):
        times = load_report.IterationTimes()
        self.assertEqual(times.line(), (0, 0))
        for _ in range(300):
            times.add(4, 1000.0)
        self.assertAlmostEqual(times.line()[0], 1000, delta=1e-6)
        self.assertEqual(times.line()[1], 0)
        times = load_report.IterationTimes()
        for batch, us in ((1, 10), (8, 800)):
            times.add(batch, us)
        base, slope = times.line()
        self.assertTrue(base == 0 and 90 < slope < 110, (base, slope))

    def test_a_name_is_the_servers(self):
        self.assertEqual(load_report.name_of("[fe80::1]:8000"), "vllm--fe80--1--8000")
        self.assertEqual(load_report.name_of("10.0.0.7:8000", 1), "vllm-10.0.0.7-8000-1")


class Recent(unittest.TestCase):
    """The chunks that an engine of 100 tokens reports."""

    @staticmethod
    def found(*chunks):
        return prefix.Prefix(10 * len(chunks), b"".join(one * 32 for one in chunks), (10,) * len(chunks))

    def test_chunks_of_recent_requests_are_listed_as_long_as_they_have_room(self):
        recent = recent_chunks.RecentChunks(100)
        self.assertIsNone(recent.take())
        recent.used("1", self.found(b"a", b"b"), 40)
        self.assertEqual(recent.take(), [b"a" * 32, b"b" * 32], "a prefix cache needs the beginning most")
        self.assertIsNone(recent.take(), "no change")
        recent.used("2", self.found(b"c"), 30)
        recent.used("2", self.found(b"c"), 40)  # the same request, some tokens later
        recent.used("3", self.found(b"a"), 20)  # the same rows, used again
        self.assertEqual(recent.take(), [b"a" * 32, b"c" * 32, b"b" * 32])
        recent.used("4", prefix.Prefix(), 30)  # 90 so far; the rest of the first prompt makes room
        self.assertIsNone(recent.take(), "the rest of a prompt goes before its chunks")
        recent.used("5", prefix.Prefix(), 10)
        self.assertEqual(recent.take(), [b"a" * 32, b"c" * 32])
        recent.again()
        self.assertEqual(recent.take(), [b"a" * 32, b"c" * 32])

    def test_the_beginning_of_a_prompt_stays(self):
        recent = recent_chunks.RecentChunks(100)
        long = self.found(*(bytes([97 + at]) for at in range(12)))
        recent.used("1", long, 500)
        self.assertEqual(recent.take(), [bytes([97 + at]) * 32 for at in range(10)])


class Used(unittest.TestCase):
    """Which requests count as used."""

    class Load:
        def __init__(self):
            self.calls = []

        def used(self, request_id, found, tokens):
            self.calls.append((request_id, found.token_count, tokens))

        def step(self, *_):
            pass

        def forget(self):
            self.calls.append("forget")

    def side(self):
        side = object.__new__(scheduler_side.SchedulerSide)
        side._load, side._known, side._announced, side._stopped = self.Load(), {}, None, ""
        side._lookups = types.SimpleNamespace(end=lambda _: None)
        return side

    def test_only_requests_with_blocks_count_and_none_after_a_stop(self):
        side = self.side()
        for name in ("given", "waits"):
            known = scheduler_side.Known(RequestParams(), [])
            known.found = Recent.found(b"a", b"b")
            side._known[name] = known
        request = types.SimpleNamespace(request_id="given", num_prompt_tokens=25, num_tokens=31)
        side.allocated(request, [1, 2], 0)
        side.finished(request)
        side.finished(types.SimpleNamespace(request_id="waits", num_prompt_tokens=25, num_tokens=25))
        self.assertEqual(side._load.calls, [("given", 20, 25), ("given", 20, 31)])
        side.stop("other weights")
        self.assertEqual(side._load.calls[-1], "forget")


class Prefills(unittest.TestCase):
    """Steps of requests with these new tokens, and when each began."""

    @staticmethod
    def times(*steps):
        measured = prefill_times.PrefillTimes()
        return [measured.step(now, scheduled, usable) for now, scheduled, usable in steps]

    def test_a_step_that_prefills_is_timed_by_the_next(self):
        self.assertEqual(self.times((1.0, {"a": 200, "b": 1}, True), (1.5, {"a": 1, "b": 1}, True), (1.6, {"a": 1}, True)),
                         [None, prefill_times.Prefill(200, 0.5), None])

    def test_a_prompt_of_several_steps_is_timed_in_each(self):
        self.assertEqual(self.times((1.0, {"a": 512}, True), (2.0, {"a": 512}, True), (2.5, {"a": 1}, True)),
                         [None, prefill_times.Prefill(512, 1.0), prefill_times.Prefill(512, 0.5)])

    def test_other_steps_are_not_timed(self):
        for first, second in (({"a": 63}, {"a": 1}), (dict.fromkeys("abcd", 1), {"a": 1}), ({"a": 200}, {"b": 200}), ({"a": 200}, {})):
            self.assertEqual(self.times((1.0, first, True), (2.0, second, True)), [None, None])
        many = {"a": 64, **{f"r{one}": 1 for one in range(30)}}
        self.assertEqual(self.times((1.0, many, True), (2.0, many, True)), [None, None])
        self.assertEqual(self.times((1.0, {"a": 200}, False), (2.0, {"a": 1}, True)), [None, None])


class Traces(unittest.TestCase):
    def test_only_well_formed_contexts_of_one_request_are_passed_on(self):
        good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        for headers, want in ((None, ""), ({}, ""), ({"traceparent": good}, good), ({"traceparent": good + "\n"}, ""),
                              ({"traceparent": "00-" + "0" * 32 + "-" + "b" * 16 + "-01"}, ""),
                              ({"traceparent": "00-" + "a" * 32 + "-" + "0" * 16 + "-01"}, ""),
                              ({"traceparent": good.upper()}, ""), ({"traceparent": b"x"}, "")):
            self.assertEqual(want, request_params.trace_of(types.SimpleNamespace(trace_headers=headers)), headers)
        self.assertEqual("", request_params.trace_of(types.SimpleNamespace()))
        rows = [types.SimpleNamespace(route=messages.Route("r", [], "route", [], 1, trace)) for trace in (good, "", good)]
        for pieces, want in (([(rows[0], 0, 1)], good), ([(rows[1], 0, 1)], None),
                             ([(rows[0], 0, 1), (rows[0], 1, 2)], good), ([(rows[0], 0, 1), (rows[2], 1, 2)], None)):
            self.assertEqual(want, route.trace_of(pieces))


class Hooks(unittest.TestCase):
    def test_without_vllm_nothing_is_wrapped_and_the_reason_is_logged(self):
        differences = hooks.differences()
        self.assertEqual(len(differences), len(hooks.EXPECTED))
        with self.assertRaisesRegex(hooks.OtherVersion, "process_inputs"):
            hooks.check_installed()


if __name__ == "__main__":
    unittest.main()
