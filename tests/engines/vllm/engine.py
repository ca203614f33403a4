"""Runs stock vLLM in this process, over a running fleet. Uses the environment of venv.py.

    engine.py CASE --model DIR --directory HOST:PORT --ckvctl PROGRAM --holders PID,PID,...

Exits with 0 if the case passes. vllm_e2e.py calls it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # functions for ranks
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from prompts import text  # noqa: E402
from reference import Reference  # noqa: E402

LOGPROBS, STEPS = 20, 12
# How much more routed and fetched answers may err than vLLM's own prefills do: the mean of many, of a few,
# and one of 12 tokens alone. All err by .02 here; an answer over another corpus errs by .2 to .9.
FACTOR, MANY, FEW_FACTOR, ONE_FACTOR, WRONG_MIN = 1.1, 20, 1.3, 1.6, 0.1
DEADLINE_S = 4.0
ARGUMENTS = argparse.Namespace()


def ckv_of(**asked):
    return {"kv_transfer_params": {"ckv": asked}}


class Engine:
    """One LLM, and the reference that its answers are compared with."""

    def __init__(self, extra=None, **arguments):
        from vllm import LLM
        from vllm.config import KVEventsConfig

        self.reference = Reference(ARGUMENTS.model)
        transfer = {"kv_connector": "CkvConnector", "kv_connector_module_path": "ckv_vllm.connector",
                    "kv_role": "kv_both", "kv_connector_extra_config": {
                        "directory": ARGUMENTS.directory, "deadline": DEADLINE_S, "min_tokens": 64, **(extra or {})}}
        self.llm = LLM(**{"model": ARGUMENTS.model, "skip_tokenizer_init": True, "max_model_len": 4096,
                          "dtype": "bfloat16", "enforce_eager": True, "seed": 1, "kv_transfer_config": transfer,
                          "disable_log_stats": False, **arguments,
                          "kv_events_config": KVEventsConfig(enable_kv_cache_events=True, publisher="null")})
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.events = []  # the events that vLLM would have published
        self.core.scheduler.kv_event_publisher.publish = lambda batch: self.events.extend(batch.events)

    @staticmethod
    def params(asked, count):
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, detokenize=False, ignore_eos=True,
                              logprobs=LOGPROBS, extra_args=asked)

    def run(self, prompts, asked=None, steps=STEPS, salt=None):
        asked = asked if isinstance(asked, list) else [asked] * len(prompts)
        steps = steps if isinstance(steps, list) else [steps] * len(prompts)
        params = [self.params(one, count) for one, count in zip(asked, steps)]
        salted = {"cache_salt": salt} if salt else {}
        return self.llm.generate([{"prompt_token_ids": prompt, **salted} for prompt in prompts], params, use_tqdm=False)

    def publish(self, name, tokens):
        """Has the engine prefill and publish a corpus, and waits until it is there."""
        self.run([tokens], ckv_of(publish=name), steps=1)
        return self.wait_for(name)

    def wait_for(self, name):
        """Waits for a corpus. Returns the output of ckvctl corpus show."""
        end = time.monotonic() + 30
        while time.monotonic() < end:  # the command takes its time
            shown = subprocess.run([ARGUMENTS.ckvctl, "--directory", ARGUMENTS.directory, "corpus", "show", name],
                                   capture_output=True, text=True, check=False)
            if shown.returncode == 0:
                return shown.stdout
        raise AssertionError(f"{name} was not published: {shown.stderr}")

    def reset(self):
        """Empties vLLM's own cache."""
        assert self.llm.reset_prefix_cache() is not False

    def counted(self, name):
        """The value of a metric of the plug-in in vLLM's own metrics."""
        (one,) = [metric for metric in self.llm.get_metrics() if metric.name == f"vllm:ckv_{name}"]
        return one.value

    def events_of(self, tokens):
        """The events that report chunks of these tokens in ckv, as (position of the first token, block size, event)."""
        found = []
        for event in self.events:
            if getattr(event, "ownership", None) == "ckv" and type(event).__name__ == "BlockStored":
                at = next((at for at in range(len(tokens)) if tokens[at:at + len(event.token_ids)] == event.token_ids), None)
                if at is not None:
                    found.append((at, event.block_size, event))
        return found

    def engines(self):
        """The engines in the output of `ckvctl status`."""
        told = subprocess.run([ARGUMENTS.ckvctl, "--directory", ARGUMENTS.directory, "status", "-o", "json"],
                              capture_output=True, text=True, check=False)
        return json.loads(told.stdout)["engines"]

    def free_blocks(self):
        return self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def registered(name):
    """The value of a metric of the plug-in, with its fraction, which LLM.get_metrics cuts off."""
    import prometheus_client

    return sum(sample.value for metric in prometheus_client.REGISTRY.collect() if metric.name == f"vllm:ckv_{name}"
               for sample in metric.samples if sample.name.endswith("_total"))


def is_stopped(pid):
    """Whether all threads of the process are stopped."""
    states = [task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return all(state == "T" for state in states)


@contextlib.contextmanager
def stopped(pids, seconds=None):
    """Stops the processes during the with-block, or for `seconds`; the block's end then waits for that time."""
    def go_on():
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 10
    while not all(is_stopped(pid) for pid in pids) and time.monotonic() < end:
        pass  # a signal takes time to reach all threads; they answer until then
    timer = threading.Timer(seconds, go_on) if seconds else None
    if timer:
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.join()
        go_on()


class Case(unittest.TestCase):
    ENGINE = {}
    EXTRA = {}
    CORPORA = {"law": text(5, 700), "code": text(6, 300)}
    engine = None
    own = text(1, 40)
    local_error = 0.0  # the mean error of its own prefills
    errors = []        # of answers that used ckv, and of others in the same batch

    @classmethod
    def setUpClass(cls):
        """Makes one engine for each process: vLLM does not release all of the first one."""
        if Case.engine is None:
            Case.engine = Engine(cls.EXTRA, **cls.ENGINE)
            for name, tokens in cls.CORPORA.items():
                Case.engine.publish(name, tokens)
            Case.engine.reset()
            prompts = [text(80 + i, 60 * i) + cls.own for i in range(1, 7)]
            errors = [Case.engine.reference.error(prompt, *Case.engine.run([prompt])) for prompt in prompts]
            Case.local_error = sum(errors) / len(errors)

    def right(self, answer, *before):
        """Checks that the answer is as close to float32 as vLLM's own. `before`: the corpora and the prompt."""
        prompt = [token for tokens in before for token in tokens]
        error = self.engine.reference.error(prompt, answer, [len(tokens) for tokens in before[:-1]])
        self.assertLess(error, ONE_FACTOR * self.local_error, f"vLLM itself: {self.local_error}")
        Case.errors.append(error)

    def tells_routers(self, tokens, chunk_tokens=512):
        """Checks that events reported a corpus in ckv once: its whole chunks, and the rest after them."""
        (first, first_size, head), (rest, rest_size, tail) = self.engine.events_of(tokens)
        whole = len(tokens) // chunk_tokens * chunk_tokens
        self.assertEqual((first, first_size, rest, rest_size), (0, chunk_tokens, whole, len(tokens) - whole))
        self.assertEqual([head.token_ids, tail.token_ids], [tokens[:whole], tokens[whole:]])
        self.assertEqual((head.parent_block_hash, tail.parent_block_hash), (None, head.block_hashes[-1]))
        self.assertEqual({(one.medium, one.locality) for one in (head, tail)}, {("STORAGE", "REMOTE")})

    def told_by(self, answer):
        return (answer.kv_transfer_params or {}).get("ckv")


class Routes(Case):
    def test_every_policy_is_as_exact_as_vllm_itself(self):
        law, code = self.CORPORA["law"], self.CORPORA["code"]
        for policy in ("route", "cache", "auto"):
            (answer,) = self.engine.run([self.own], ckv_of(corpus="law", policy=policy))
            self.right(answer, law, self.own)
            self.assertEqual(self.told_by(answer), {"corpus": "law", "policy": policy, "tokens": len(law)})
            self.assertGreater(self.engine.reference.error(code + self.own, answer), WRONG_MIN, "it attends the corpus")
        (answer,) = self.engine.run([self.own], ckv_of(corpus=["code", "law"], policy="route"))
        self.right(answer, code, law, self.own)

    def test_a_batch_has_requests_of_two_corpora_and_of_none(self):
        names = ["law", "code", None, "code", "law", None]
        owns = [text(100 + i, 16 + 6 * i) for i in range(len(names))]
        before = self.engine.free_blocks()
        answers = self.engine.run(owns, [ckv_of(corpus=name, policy="route") if name else None for name in names])
        for name, own, answer in zip(names, owns, answers):
            self.right(answer, self.CORPORA[name] if name else [], own)
        self.assertEqual(self.engine.free_blocks(), before)

    def test_a_chunk_keeps_the_rows_of_its_first_producer(self):
        """A second prefill rounds differently, in a batch of other shapes. Answers over either are equally exact."""
        from ckv_vllm import route

        tokens = text(33, 300)
        publisher, ended = route.WORKER.publisher, threading.Event()
        put = publisher._put
        publisher._put = lambda copied: (put(copied), ended.set())
        self.engine.publish("twice", tokens)
        # The corpus is there before the publisher has counted it.
        self.assertTrue(ended.wait(30), "it was not put")
        ended.clear()
        counted = []
        for prompts in ([text(37, 20)], [tokens, text(34, 90), text(35, 200)]):
            self.engine.run(prompts, [ckv_of(publish="twice") if prompt is tokens else None for prompt in prompts], steps=1,
                            salt="here")
            if tokens in prompts:
                self.assertTrue(ended.wait(30), "it was not put")
            self.engine.run([text(36, 20)], steps=1)  # counts are sent with steps
            counted.append(self.engine.counted("published_tokens"))
        publisher._put = put
        self.assertEqual(counted[0], counted[1])
        (over_first,) = self.engine.run([self.own], ckv_of(corpus="twice", policy="route"))
        (over_second,) = self.engine.run([tokens + self.own], salt="here")
        self.right(over_first, tokens, self.own)
        self.right(over_second, tokens + self.own)

    def test_equal_own_tokens_over_different_corpora_share_no_block(self):
        own = text(7, 200)  # several blocks
        for name in ("law", "code", "law", None):
            (answer,) = self.engine.run([own], ckv_of(corpus=name, policy="route") if name else None)
            self.right(answer, self.CORPORA[name] if name else [], own)

    def test_requests_that_share_their_first_blocks_keep_their_own_rows(self):
        """With prefix caching they share blocks. When some end, vLLM moves others to their place in the batch."""
        same = text(17, 128)
        prompts = [same + text(20 + i, 5 + 9 * i) for i in range(6)]
        ckv_law = ckv_of(corpus="law", policy="route")
        self.engine.run([same], ckv_law)
        answers = self.engine.run(prompts, ckv_law, steps=[2, 5, 8, 24, 12, 20])
        for prompt, answer in zip(prompts, answers):
            self.right(answer, self.CORPORA["law"], prompt)

    def test_refuses_requests_that_cannot_be_answered_in_full(self):
        from vllm.exceptions import VLLMValidationError

        cases = [({"corpus": "nosuch"}, "no corpus 'nosuch'"), ({"corpus": "law", "policy": "x"}, "policy is 'x'"),
                 ({"corpus": "law", "more": 1}, "'more'"), ({"policy": "route"}, "without a corpus"),
                 ({"corpus": "law", "policy": "route", "publish": "x"}, "not published"),
                 ({"corpus": ["law", "code"], "policy": "fetch"}, "takes one corpus")]
        for asked, reason in cases:
            with self.assertRaisesRegex(VLLMValidationError, reason):
                self.engine.run([self.own], ckv_of(**asked))
        for extra in ({"ckv_corpus": "law"}, {"ckv_resolved": ["x"]}):
            with self.assertRaisesRegex(VLLMValidationError, "ckv"):
                self.engine.run([self.own], extra)
        self.right(self.engine.run([self.own])[0], self.own)


class Loads(Case):
    def test_rows_are_found_by_the_prompt_and_by_name(self):
        law = self.CORPORA["law"]
        for asked in (None, ckv_of(corpus="law", policy="fetch")):
            self.engine.reset()
            prompts = [law + self.own, text(3, 50), law + text(2, 60)]
            answers = self.engine.run(prompts, [asked, None, asked])
            for prompt, answer in zip(prompts, answers):
                self.right(answer, prompt)
            self.assertGreaterEqual(answers[0].num_cached_tokens, len(law) // 32 * 32 - 32)
            self.assertEqual(answers[1].num_cached_tokens, 0)
        self.assertEqual(self.told_by(answers[0])["policy"], "fetch")
        self.tells_routers(law)

    def test_routers_are_notified_of_publications_of_others(self):
        """They get the events once it was loaded here."""
        law, side = self.CORPORA["law"], self.engine.core.scheduler.connector._scheduler
        side._announced.removed()
        self.engine.run([text(33, 20)], steps=1)
        self.assertTrue([one for one in self.engine.events if type(one).__name__ == "BlockRemoved"
                         and one.ownership == "ckv"])
        self.engine.events.clear()
        self.engine.reset()
        self.engine.run([law + text(34, 20)], steps=1)
        self.tells_routers(law)

    def test_simultaneous_requests_load_once(self):
        """They do if vLLM shares blocks among them. Each is equally exact, and each is reported to have the rows."""
        law, caching = self.CORPORA["law"], self.engine.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
        self.engine.reset()
        before = self.engine.counted("loaded_requests")
        prompts = [law + text(60 + i, 20) for i in range(4)]
        for prompt, answer in zip(prompts, self.engine.run(prompts)):
            self.right(answer, prompt)
            self.assertGreater(answer.num_cached_tokens, 0)
        self.assertEqual(self.engine.counted("loaded_requests") - before, 1 if caching else 4)

    def test_metrics_count_what_was_done(self):
        law, names = self.CORPORA["law"], ("loaded_requests", "loaded_tokens", "routed_tokens", "routed_calls", "load_failed_requests")
        before = {name: self.engine.counted(name) for name in names}
        self.engine.reset()
        (answer,) = self.engine.run([law + text(31, 20)], steps=1)
        self.engine.run([self.own], ckv_of(corpus="law", policy="route"), steps=3)
        self.engine.run([text(32, 20)], steps=1)  # vLLM reports the metrics of a step with the next one
        self.assertEqual({name: self.engine.counted(name) - before[name] for name in names}, {
            "loaded_requests": 1, "loaded_tokens": answer.num_cached_tokens, "load_failed_requests": 0,
            "routed_tokens": len(self.own) + 2, "routed_calls": 3 * self.engine.reference.config["num_hidden_layers"]})

    def test_steps_that_prefill_show_the_cost_of_prefill(self):
        names = ("prefilled_tokens", "prefill_seconds")
        before = [registered(name) for name in names]
        began = time.monotonic()
        for seed in range(41, 44):  # from the third on, contexts compare with it
            self.engine.run([text(seed, 300)], steps=3)
        took = time.monotonic() - began
        tokens, seconds = (registered(name) - was for name, was in zip(names, before))
        self.assertEqual(tokens, 900)
        self.assertTrue(0 < seconds < took, (seconds, took))
        # A routed request also waits for holders, so its prefill is not counted.
        self.engine.run([text(44, 300)], ckv_of(corpus="law", policy="route"), steps=3)
        self.assertEqual(registered("prefilled_tokens") - before[0], 900)

    def test_a_prompt_that_is_all_there_has_its_last_token_computed(self):
        law = self.CORPORA["law"][:512]  # one chunk, which is whole blocks
        self.engine.reset()
        (answer,) = self.engine.run([law])
        self.right(answer, law)
        self.assertLess(answer.num_cached_tokens, len(law))
        self.assertGreater(answer.num_cached_tokens, 0)


class Failures(Case):
    """The directory and holders stop, continue, and end. In this order, since nothing restarts those that end."""

    def test_1_a_directory_that_stops_delays_no_request(self):
        """A request that names an unresolved corpus gets an error. All others are answered as before."""
        from vllm.exceptions import VLLMValidationError

        law, other = self.CORPORA["law"], text(9, 30)
        self.engine.reset()
        # Not for longer: without their directory, holders refuse all requests after half a lease.
        with stopped([ARGUMENTS.directory_pid], seconds=2.0):
            with self.assertRaisesRegex(VLLMValidationError, "cannot be looked up"):
                self.engine.run([self.own], ckv_of(corpus="unknown", policy="route"))
            answers = self.engine.run([other, law + self.own, self.own], [None, None, ckv_of(corpus="law", policy="route")])
        for prompt, answer in zip(([other], [law, self.own], [law, self.own]), answers):
            self.right(answer, *prompt)
        self.right(self.engine.run([self.own], ckv_of(corpus="law", policy="route"))[0], law, self.own)

    def test_2_holders_that_stop_for_a_while_lose_no_request(self):
        law, other = self.CORPORA["law"], text(9, 30)
        self.engine.reset()
        with stopped(ARGUMENTS.holders, seconds=1.5):
            routed, plain = self.engine.run([self.own, other], [ckv_of(corpus="law", policy="route"), None])
        self.right(routed, law, self.own)
        self.right(plain, other)

    def test_3_an_aborted_load_returns_its_blocks_once_no_write_is_pending(self):
        """vLLM keeps the blocks until the load is reported, at its deadline at the latest."""
        law, other, before = self.CORPORA["law"], text(9, 30), self.engine.free_blocks()
        self.engine.reset()
        core, failed = self.engine.llm.llm_engine, self.engine.counted("load_failed_requests")
        with stopped(ARGUMENTS.holders):
            core.add_request("aborted", {"prompt_token_ids": law + self.own}, self.engine.params(None, 4))
            self.until(lambda: self.engine.core.scheduler.connector._scheduler._loading, core.step)
            core.abort_request(["aborted"])
            held = before - self.engine.free_blocks()
            self.assertGreater(held, 0, "the blocks are another's while a holder may write to them")
            self.right(self.engine.run([other])[0], other)
            self.until(lambda: self.engine.free_blocks() == before, lambda: self.engine.run([other], steps=1))
        self.engine.run([other], steps=1)
        self.assertEqual(self.engine.counted("load_failed_requests") - failed, 1)

    def until(self, holds, act):
        end = time.monotonic() + DEADLINE_S + 2
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come in time")
            act()

    def test_9_a_corpus_that_fails_ends_its_requests_alone(self):
        law, other = self.CORPORA["law"], text(9, 30)
        before, failed = self.engine.free_blocks(), self.engine.counted("route_failed_requests")
        self.right(self.engine.run([self.own], ckv_of(corpus="law", policy="route"))[0], law, self.own)
        for pid in ARGUMENTS.holders:
            os.kill(pid, signal.SIGKILL)
        self.engine.reset()
        begin = time.monotonic()
        routed, plain, loaded = self.engine.run([self.own, other, law + self.own],
                                                [ckv_of(corpus="law", policy="route"), None, None])
        took = time.monotonic() - begin
        self.assertEqual(routed.outputs[0].finish_reason, "error")
        self.assertEqual(list(routed.outputs[0].token_ids), [], "no token of a step that failed")
        self.assertIn("Unavailable", routed.kv_transfer_params["ckv"]["error"])
        self.right(plain, other)
        self.right(loaded, law, self.own)  # computed here
        self.assertEqual(loaded.num_cached_tokens, 0)
        self.assertLess(took, 3 * DEADLINE_S + 20)
        self.assertEqual(self.engine.counted("route_failed_requests") - failed, 1)
        self.assertEqual(self.engine.free_blocks(), before)
        self.right(self.engine.run([other])[0], other)


class FewBlocks(Case):
    """Has so few blocks that vLLM preempts requests, and resumes them on others. Uses the reference backend."""

    ENGINE = {"num_gpu_blocks_override": 48, "max_model_len": 512, "attention_backend": "CPU_MLA"}
    EXTRA = {"publish": "rule", "rule_tokens": 128, "chunk_tokens": 64, "local_cache_bytes": 1_600_000}
    CORPORA = {"law": text(5, 300), "code": text(6, 200), "long": text(7, 400)}  # of 4,608 bytes a token

    def test_preempted_requests_continue_over_their_corpora(self):
        scheduler, preempted = self.engine.core.scheduler, []
        preempt = scheduler._preempt_request
        scheduler._preempt_request = lambda request, *a, **k: (preempted.append(request.request_id), preempt(request, *a, **k))[1]
        names = ["law", "code", None, "code", "law", None, "law", "code"]
        owns = [text(100 + i, 60 + 6 * i) for i in range(len(names))]
        before = self.engine.free_blocks()
        answers = self.engine.run(owns, [ckv_of(corpus=name, policy="route") if name else None for name in names], steps=48)
        self.assertGreater(len(preempted), 0, "there were blocks enough")
        for name, own, answer in zip(names, owns, answers):
            self.right(answer, self.CORPORA[name] if name else [], own)
        self.assertEqual(self.engine.free_blocks(), before)

    def test_rows_that_do_not_fit_the_cache_are_routed(self):
        """One corpus fits, two do not, and the third never does. All are attended, also in one batch."""
        names = ["law", "code", "law", "long"]
        for name in names:
            self.right(self.engine.run([self.own], ckv_of(corpus=name, policy="cache"))[0], self.CORPORA[name], self.own)
        for policy in ("cache", "auto"):
            answers = self.engine.run([self.own] * 4, [ckv_of(corpus=name, policy=policy) for name in names])
            for name, answer in zip(names, answers):
                self.right(answer, self.CORPORA[name], self.own)

    def test_a_beginning_that_repeats_is_published(self):
        """The rule publishes it. A third prompt with it loads its rows, and is equally exact."""
        same = text(41, 200)
        for i in range(2):
            self.engine.run([same + text(42 + i, 10)], steps=1)
        shown = self.engine.wait_for("prompts")
        self.assertIn("192", shown, "the beginning's whole chunks")
        self.engine.reset()
        prompt = same + text(45, 15)
        (answer,) = self.engine.run([prompt])
        self.assertGreater(answer.num_cached_tokens, 0)
        self.right(answer, prompt)


class Replaced(Case):
    """Weights are replaced, as a training loop does. Runs last: the plug-in is off from then on."""

    CORPORA = {}

    def test_rows_of_other_weights_are_neither_offered_nor_routed(self):
        prompt = text(41, 200) + text(45, 15)
        self.assertFalse(self.engine.llm.reset_prefix_cache(reset_connector=True), "it is not as if all were well")
        (answer,) = self.engine.run([prompt])
        self.right(answer, prompt)
        self.assertEqual(answer.num_cached_tokens, 0)
        (routed,) = self.engine.run([self.own], ckv_of(corpus="law", policy="route"))
        self.assertEqual((routed.outputs[0].finish_reason, list(routed.outputs[0].token_ids)), ("error", []))
        self.assertIn("its weights may have been replaced", routed.kv_transfer_params["ckv"]["error"])


class Ranks(Case):
    """Two ranks, each with half of the heads, and a cache on their host. A corpus that fails, fails on both. The
    scheduler gets one report."""

    ENGINE = {"tensor_parallel_size": 2}
    CORPORA = {"law": text(5, 700)}
    TOKEN_BYTES = 4 * 576 * 2  # of all layers

    def test_1_rows_for_both_ranks_are_fetched_to_their_host_once(self):
        """Holders send to the cache only, and only the rows it lacks. Ranks read from the cache."""
        law, before = self.CORPORA["law"], sent()
        self.engine.reset()
        (loaded,) = self.engine.run([law + self.own])
        self.right(loaded, law + self.own)
        self.assertGreater(loaded.num_cached_tokens, 0)
        self.right(self.engine.run([self.own], ckv_of(corpus="law", policy="cache"))[0], law, self.own)
        copied, once = of_cache("ckv_replicas_fetched_bytes_total"), len(law) * self.TOKEN_BYTES
        self.assertEqual(sent() - before, copied)
        self.assertLess(0, copied)
        self.assertLessEqual(copied, once)
        print("figures: " + json.dumps({"of_one": copied / once, "one_bytes": once}), flush=True)

    def test_2_without_the_cache_each_rank_queries_the_holders(self):
        law = self.CORPORA["law"]
        os.kill(ARGUMENTS.holders[-1], signal.SIGKILL)
        self.engine.reset()
        answers = self.engine.run([law + self.own] + [self.own] * 2,
                                  [None, ckv_of(corpus="law", policy="route"), ckv_of(corpus="law", policy="cache")])
        for answer in answers:
            self.right(answer, law, self.own)
        self.assertGreater(answers[0].num_cached_tokens, 0)

    def test_3_each_rank_routes_its_heads_and_loads_all_rows(self):
        law, other = self.CORPORA["law"], text(3, 40)
        self.engine.reset()
        (loaded,) = self.engine.run([law + self.own])
        self.right(loaded, law + self.own)
        self.assertGreater(loaded.num_cached_tokens, 0)
        self.tells_routers(law, chunk_tokens=64)
        engines = self.engine.engines()
        self.assertEqual([(one["name"], one["rank"], one["rank_count"]) for one in engines],
                         [("vllm", 0, 2), ("vllm", 1, 2)])
        self.assertIn(engines[0]["model"], self.engine.wait_for("law"), "the corpus' fingerprint")
        for policy in ("route", "cache"):
            routed, plain = self.engine.run([self.own, other], [ckv_of(corpus="law", policy=policy), None])
            self.right(routed, law, self.own)
            self.right(plain, other)
        self.fails_alone(other, lambda: self.engine.llm.collective_rpc(break_second_rank))
        self.right(self.engine.run([self.own], ckv_of(corpus="law", policy="route"))[0], law, self.own)
        self.fails_alone(other, lambda: [os.kill(pid, signal.SIGKILL) for pid in ARGUMENTS.holders[:-1]])

    def fails_alone(self, other, break_it):
        """Of two requests, only the routed one ends without a token, whichever rank failed."""
        break_it()
        routed, plain = self.engine.run([self.own, other], [ckv_of(corpus="law", policy="route"), None])
        self.assertEqual(routed.outputs[0].finish_reason, "error")
        self.assertEqual(list(routed.outputs[0].token_ids), [])
        self.right(plain, other)


def metric(address, name):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        return sum(float(line.split()[-1]) for line in page.read().decode().splitlines() if line.startswith(name))


def sent():
    """Bytes of rows that the holders have sent, to ranks and to the cache of the host."""
    return sum(metric(address, "ckv_holder_push_bytes_total") for address in ARGUMENTS.metrics[:3])


def of_cache(name):
    return metric(ARGUMENTS.metrics[3], name)


def break_second_rank(worker):
    """Runs in each rank. In the second one, makes one call of a layer fail."""
    from ckv_vllm import route

    wait = route.Call._wait

    def once(call):
        route.Call._wait = wait
        call.ticket = None
        call.error = RuntimeError("broken by the test")
        return wait(call)

    if worker.rank == 1:
        route.Call._wait = once


CASES = {"all": [Routes, Loads, Failures], "few-blocks": [FewBlocks, Replaced], "ranks": [Ranks]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--model", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--directory-pid", required=True, type=int)
    parser.add_argument("--holders", required=True, type=lambda pids: [int(pid) for pid in pids.split(",")])
    parser.add_argument("--metrics", required=True, type=lambda addresses: addresses.split(","))
    parser.add_argument("--cache", required=True)
    parser.parse_args(namespace=ARGUMENTS)
    if ARGUMENTS.case == "ranks":
        Ranks.EXTRA = {"requester": ARGUMENTS.cache, "chunk_tokens": 64, "replicas": 2}
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"  # by default it needs a NUMA node for each rank
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in CASES[ARGUMENTS.case])
    good = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    mean = sum(Case.errors) / max(1, len(Case.errors))
    exact = 0 < mean <= (FACTOR if len(Case.errors) >= MANY else FEW_FACTOR) * Case.local_error
    print(f"engine: {len(Case.errors)} answers err by {mean:.4f} against float32, vLLM's own prefills by "
          f"{Case.local_error:.4f}: {'as exact' if exact else 'LESS EXACT'}", flush=True)
    return 0 if good and exact else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)  # vLLM's threads outlive its engines
