"""A random walk over vLLM's own scheduler with ckv's connector: no model, no holder; rows are names.

    walk.py --model DIR [--steps N] [--seed N]

Requests arrive, are routed, loaded, published and refused. They are preempted, aborted, and fail; their look-ups and
loads are late. After each step, checks that rows attended, published or loaded are the right ones (walk_worker.py),
that offers are in range, and that no token of a failed step is returned. When a scheduler ends, all blocks must be free
and nothing remembered. Runs in the environment of venv.py.
"""

import argparse
import concurrent.futures
import dataclasses
import logging
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import FinishReason  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

from ckv_vllm import connector, frontend, hooks, lookups, prefix, request_params, shared  # noqa: E402
from walk_worker import BAD, BLOCK, CHUNK, RULE_CORPUS, Store, Worker, require  # noqa: E402

BLOCKS, BATCHED_TOKENS, REQUESTS_MAX, MODEL_LEN = 40, 128, 8, 320
LIFE_STEPS = 1000       # of one scheduler; after them all state must be as at its start
ALL_STEPS_MIN = 20000   # within this many steps each kind of event occurs
DRAIN_STEPS_MAX = 2000
CORPORA = ("law", "code")


@dataclasses.dataclass
class Asked:
    """The walk's record of a request. fails: the chance that a routed step fails; bad: it must be refused; salted:
    vLLM's hashes of its blocks include its corpora."""

    corpora: tuple = ()
    salted: bool = False
    publish: bool = False
    fails: float = 0.0
    bad: bool = False


class Time:
    """A clock that the walk advances, in seconds."""

    now = 0.0

    @classmethod
    def monotonic(cls):
        return cls.now


class Lookups(lookups.Lookups):
    """Look-ups that the walk answers, at once or later."""

    store = rng = None

    def begin(self, request_id, tokens, corpus):
        future = concurrent.futures.Future()
        self._asked[request_id] = Time.now, future
        future.tokens = list(map(int, tokens))
        if self.rng.random() < 0.5:
            self.answer(future)

    def answer(self, future):
        if future.set_running_or_notify_cancel():
            future.set_result(prefix.Prefix(*self.store.prefix(future.tokens)))

    def answer_some(self):
        for _, future in self._asked.values():
            if not future.done() and self.rng.random() < 0.3:
                self.answer(future)


class Walk:
    """One scheduler, from start to end."""

    def __init__(self, config, seed, store):
        self.rng, self.config, self.store = random.Random(seed), config, store
        spec = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
        caches = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        Lookups.store, Lookups.rng = store, self.rng
        self.scheduler = Scheduler(config, caches, StructuredOutputManager(config), block_size=BLOCK)
        self.side = self.scheduler.connector._scheduler
        self.worker = Worker(BLOCKS, self.rng, store, self.scheduler.kv_cache_manager)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.free = self.pool.get_num_free_blocks()
        self.last = None
        self.live, self.made, self.ended = set(), 0, dict.fromkeys(FinishReason, 0)
        self.texts = [[self.rng.randrange(50) for _ in range(MODEL_LEN)] for _ in range(3)]
        self.stopped = False
        self._count_preemptions()
        self._check_offers()

    def _count_preemptions(self):
        preempt = self.scheduler._preempt_request

        def counted(*args, **kwargs):
            self.worker.counts["preempted"] += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    def _check_offers(self):
        asked = self.scheduler.connector.get_num_new_matched_tokens

        def matched(request, computed):
            count, later = asked(request, computed)
            self.worker.counts["waited"] += count is None
            require(count is None or 0 <= count <= request.num_prompt_tokens - 1 - computed or count == 0,
                    request.request_id, "is offered", count)
            require(not (count and self.worker.wants[request.request_id].corpora), "a routed request is offered rows")
            return count, later

        self.scheduler.connector.get_num_new_matched_tokens = matched

    def add(self):
        rng, name = self.rng, f"r{self.made}"
        self.made += 1
        text, kind = rng.choice(self.texts), rng.choice(("plain", "plain", "routed", "routed", "publish", "fetch", "bad"))
        if self.last and rng.random() < 0.3:  # several arrive at once, and share blocks of a step
            text, kind = self.last
        self.last = text, kind
        own = text[:rng.randrange(1, 200)] + [rng.randrange(50) for _ in range(rng.choice((0, 1, 40)))]
        asked, extra, salt = Asked(), {}, None
        if kind in ("routed", "bad"):
            corpora = CORPORA[:rng.choice((1, 1, 2))]
            resolved = [shared.Resolved(one, 3, 96, one) for one in corpora]
            asked = Asked(corpora=corpora, fails=rng.choice((0, 0, 0.3)), bad=kind == "bad",
                          salted=kind == "routed")
            extra = {"kv_transfer_params": {"ckv": {"corpus": list(corpora), "policy": "route"}},
                     request_params.RESOLVED: [one.to_list() for one in resolved]}
            salt = frontend.salt_of(resolved, None) if asked.salted else None
        elif kind == "publish":
            asked, extra = Asked(publish=True), {"kv_transfer_params": {"ckv": {"publish": "law"}}}
        elif kind == "fetch":
            extra = {"kv_transfer_params": {"ckv": {"corpus": "law", "policy": "fetch"}}}
        if self.stopped:
            asked.bad = kind not in ("plain", "bad") or asked.bad
        params = SamplingParams(max_tokens=rng.randrange(1, 60), ignore_eos=True, extra_args=extra or None)
        self.worker.wants[name] = asked
        self.live.add(name)
        self.scheduler.add_request(Request(name, own, params, None, block_hasher=self.hasher, cache_salt=salt,
                                           arrival_time=float(self.made)))

    def step(self):
        Time.now += self.rng.choice((0.001, 0.01, 0.05, 3.0))
        self.side._lookups.answer_some()
        output = self.scheduler.schedule()
        step = output.kv_connector_metadata.step
        if self.stopped:
            require(not step.loads and not step.publishes and not step.routes, "messages of a connector that is off")
        sampled, failed, ended, spoiled = self.worker.step(output, step)
        ids = list(output.num_scheduled_tokens)
        loads = {one: why for one, why in ended.items() if why}
        meta = connector.CkvWorkerMetadata(failed, loads) if failed or loads else None
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={one: i for i, one in enumerate(ids)},
            sampled_token_ids=[sampled.get(one, []) for one in ids],
            kv_connector_output=KVConnectorOutput(finished_recving=set(ended) or None, kv_connector_worker_meta=meta))
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self._check_answer(one, spoiled)
        self.check_blocks()
        return len(ids)

    def _check_answer(self, one, spoiled):
        asked = self.worker.wants[one.request_id]
        if one.request_id in spoiled:
            require(not one.new_token_ids and one.finish_reason == FinishReason.ERROR, one.request_id,
                    "gave a token of a step that failed:", one)
        if one.finish_reason is None:
            return
        self.live.discard(one.request_id)
        self.ended[one.finish_reason] += 1
        told = (one.kv_transfer_params or {}).get("ckv")
        if one.finish_reason == FinishReason.ERROR:
            require(told and told.get("error"), one.request_id, "failed without a reason")
            require(asked.corpora or asked.bad or self.stopped or "shares" in told["error"], one.request_id, "failed alone")
        elif asked.corpora:
            require(told and told["policy"] == "route", one.request_id, "says nothing of its corpus")

    def check_blocks(self):
        """Checks that no wrong row can be found by its hash, and that no load writes to blocks of other requests."""
        if not self.stopped:
            for block in self.pool.blocks:
                require(block.block_hash is None or BAD not in self.worker.memory[block.block_id],
                        "block", block.block_id, "can be found, and has wrong rows")
        holders = {}
        for request_id in self.scheduler.requests:
            for block in self.scheduler.kv_cache_manager.get_block_ids(request_id)[0]:
                holders.setdefault(block, []).append(request_id)
        for block, those in holders.items():
            if len(those) > 1:
                self.worker.counts["shared"] += 1
                require(not set(those) & self.worker.loads.keys() or not self._writes(block, those),
                        "block", block, "is written by a load and had by", those)

    def _writes(self, block, those):
        return any(block in load.note.block_ids[load.note.token_begin // BLOCK:]
                   for load in (self.worker.loads.get(one) for one in those) if load)

    def act(self):
        """Makes a random event happen between two steps."""
        chance = self.rng.random()
        if chance < 0.30 and len(self.live) < 20:
            for _ in range(self.rng.choice((1, 1, 2))):
                self.add()
        elif chance < 0.34 and self.live:
            self.abort(self.rng.choice(sorted(self.live)))
        elif chance < 0.345:
            self.scheduler.reset_prefix_cache()
        elif chance < 0.35 and not self.worker.loads:
            loading = any(one.status == RequestStatus.WAITING_FOR_REMOTE_KVS for one in self.scheduler.requests.values())
            holds = bool(self.scheduler.kv_holding_waiting)
            if not loading and not holds:
                self.scheduler.reset_prefix_cache(reset_running_requests=True)
        elif chance < 0.3502 and not self.stopped:
            self.scheduler.reset_prefix_cache(reset_connector=True)
            self.stopped = True
            self.worker.counts["turned_off"] += 1

    def abort(self, name):
        self.live.discard(name)
        self.worker.counts["aborted"] += 1
        self.worker.counts["aborted_while_loading"] += name in self.worker.loads
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def run(self, steps):
        for _ in range(steps):
            self.act()
            self.step()
        for _ in range(DRAIN_STEPS_MAX):
            if not self.scheduler.has_requests() and not self.worker.loads:
                break
            self.step()
        require(not self.scheduler.requests and not self.live, "requests did not end:", list(self.scheduler.requests))
        self.scheduler.reset_prefix_cache()
        require(self.pool.get_num_free_blocks() == self.free, "of", self.free, "blocks", self.pool.get_num_free_blocks(),
                "are free")
        side = self.side
        require(not side._known and not side._loading and not side._loads and not side._lookups._asked,
                "is remembered:", side._known, side._loading, side._loads, side._lookups._asked)
        self.scheduler.shutdown()


def config_of(model):
    transfer = {"kv_connector": "CkvConnector", "kv_connector_module_path": "ckv_vllm.connector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"directory": "127.0.0.1:1", "min_tokens": 16, "revision": "walk", "publish": "rule",
                                              "rule_corpus": RULE_CORPUS, "rule_tokens": 64, "chunk_tokens": CHUNK}}
    config = EngineArgs(model=model, skip_tokenizer_init=True, max_model_len=MODEL_LEN, dtype="bfloat16", block_size=BLOCK,
                        max_num_batched_tokens=BATCHED_TOKENS, max_num_seqs=REQUESTS_MAX, enforce_eager=True,
                        kv_transfer_config=transfer, num_gpu_blocks_override=BLOCKS).create_engine_config()
    # The defaults for GPUs and CPUs with AMX, whatever this processor is.
    config.cache_config.enable_prefix_caching = True
    config.cache_config.num_gpu_blocks = BLOCKS
    config.scheduler_config.enable_chunked_prefill = True
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=LIFE_STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=int, default=0, help="the first one; to repeat one that failed")
    arguments = parser.parse_args()
    hooks.install()
    shared.check_directory = lambda settings: None
    lookups.Lookups, lookups.time = Lookups, Time
    logging.getLogger("ckv_vllm").setLevel(logging.CRITICAL)
    init_none_hash(sha256)
    config = config_of(arguments.model)
    counts, begun, ended, requests = {}, time.monotonic(), {}, 0
    for life in range(arguments.life, arguments.life + -(-arguments.steps // LIFE_STEPS)):
        walk = Walk(config, arguments.seed * 1000003 + life, Store())
        try:
            walk.run(min(LIFE_STEPS, arguments.steps))
        except BaseException:
            print(f"walk: to repeat it: --seed {arguments.seed} --life {life}", file=sys.stderr)
            raise
        requests += walk.made
        for total, more in ((counts, walk.worker.counts), (ended, walk.ended)):
            for name, count in more.items():
                total[name] = total.get(name, 0) + count
    print(f"walk: {arguments.steps} steps, {requests} requests in {time.monotonic() - begun:.0f} s; {counts}; "
          f"{ {str(name): count for name, count in ended.items() if count} }", flush=True)
    empty = [name for name, count in counts.items() if count == 0]
    if empty and arguments.steps >= ALL_STEPS_MIN:
        print(f"walk: nothing was {', '.join(empty)}: the walk proves nothing of it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
