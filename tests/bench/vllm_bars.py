"""The bars of the set "vllm": the plug-in in stock vLLM from PyPI (vllm_figures.py), on models of 4 layers and of 27.

Its fetch is compared with LMCache's and NIXL's (vllm_peers.py).
"""

import math

import vllm_figures
import vllm_peers
from bar import NOT_HERE, Bar, Failed, NotHere
from vllm_figures import LAYERS

NAME, PEERS = "vllm_figures", "vllm_peers"
SCRIPTS = {NAME: vllm_figures.figures, PEERS: vllm_peers.figures}


def figure(case, name):
    def value(run):
        if NOT_HERE in run:
            raise NotHere(run[NOT_HERE])
        return run[case].get(name, math.nan)  # a case that failed meets no bar
    return value


def vllm(measure, case, name, unit, base=None, base_unit=None, **limit):
    return Bar(measure, NAME, figure(case, name), unit, base=figure(case, base) if base else None, base_unit=base_unit, **limit)


def of_model(layers):
    where = f"{layers} layers"
    exact, first, decode, publish = (f"{case}/{layers}" for case in ("exact", "first-token", "decode", "publish"))
    return [
        *(vllm(f"{policy} against float32, {where}", exact, f"{policy}_of_own", "x vLLM's own error", base="own_error",
               base_unit="of a logprob", at_most=1.10) for policy in ("route", "fetch", "auto")),
        vllm(f"the same over the wrong corpus, which must show, {where}", exact, "wrong_of_own", "x vLLM's own error", at_least=3),
        vllm(f"first token behind 4,096 tokens, route, {where}", first, "route_of_recompute", "x a prefill of all", base="route_ms",
             base_unit="ms", at_most=0.015),
        vllm(f"the same, fetch, {where}", first, "fetch_of_recompute", "x a prefill of all", base="fetch_ms", base_unit="ms",
             at_most=0.05),
        vllm(f"the same, rows that vLLM has already, {where}", first, "hit_of_recompute", "x a prefill of all", base="hit_ms",
             base_unit="ms"),
        vllm(f"a step of 8 requests over 8,192 tokens, route, {where}", decode, "route_of_own", "x vLLM's own cache", base="own_ms",
             base_unit="ms", at_most=1.25),
        vllm(f"the same, auto after its prefetch, {where}", decode, "auto_of_own", "x vLLM's own cache", base="own_ms", base_unit="ms",
             at_most=1.05),
        vllm(f"steps beside prompts that are published, {where}", publish, "ratio", "x prompts that are not", base="step_ms",
             base_unit="ms", at_most=1.05),
        vllm(f"published bits that are the cache's, {where}", publish, "same_bits", "of all", at_least=1),
        vllm(f"what the plug-in takes of a step with no corpus in use, {where}", f"cost/{layers}", "percent", "%", base="step_us",
             base_unit="us", at_most=1),
        vllm(f"vLLM's blocks for 16 requests over a corpus of 32,768 tokens, {where}", f"blocks/{layers}", "of_own",
             "x their own tokens'", base="own_tokens_blocks", base_unit="blocks", at_most=1),
    ]


def beside(peer, own_tokens, name):
    """A figure of ckv's fetch compared with a peer. Either may have failed."""
    def value(run):
        if NOT_HERE in run:
            raise NotHere(run[NOT_HERE])
        for one in ("ckv", peer):
            if one in run["failed"]:
                raise Failed(f"{one}: {run['failed'][one]}")
        return run[f"first-token/{own_tokens}"][name]
    return value


def beside_peers(own_tokens, computed, by_nixl):
    """The first token behind a corpus that another process computed. Each row states how much each system computes."""
    what = f"first token behind 4,096 + {own_tokens} tokens, ckv's fetch (computes {computed})"
    return [
        *(Bar(f"{what} against {whose}", PEERS, beside(peer, own_tokens, f"of_{peer}"), unit,
              base=beside(peer, own_tokens, f"{peer}_ms"), base_unit="ms", at_most=at_most)
          for peer, whose, unit, at_most in (
              ("LMCache", f"LMCache's hit in a second process (computes {computed})", "x LMCache's hit", 0.5),
              ("NIXL", f"NIXL's decode side (computes {by_nixl})", "x NIXL's decode side", 1.0))),
        Bar(f"{what}: answers that were no hit", PEERS, beside("ckv", own_tokens, "misses"), "answers",
            base=beside("ckv", own_tokens, "answers"), base_unit="answers"),
    ]


BARS = [
    vllm("SGLang's engine loads what another one prefilled, and answers as that one", "sglang", "exit", "as exit code", at_most=0),
    vllm(f"the tests in vLLM {vllm_figures.OTHER_VERSION}", "other", "exit", "as exit code", at_most=0),
    vllm("the quick start with two engines behind a server, all answers right", "engines", "exit", "as exit code", at_most=0),
    vllm("what holders send to two ranks of a host, for rows that both load and then have cached", "ranks", "of_one", "x one copy",
         base="one_bytes", base_unit="bytes", at_most=1),
    vllm("random walk over vLLM's scheduler, all invariants", "walk", "steps", "steps", at_least=vllm_figures.WALK_STEPS),
    vllm("random mixes of requests of 0 to 4 corpora: wrong answers", "mixes/4", "wrong", "answers", base="answers",
         base_unit="answers", at_most=0),
    vllm("the same: blocks that did not come back", "mixes/4", "leaked_blocks", "blocks", at_most=0),
    vllm("the same, against float32", "mixes/4", "of_own", "x those without a corpus", base="own_error", base_unit="of a logprob",
         at_most=1.10),
    vllm("50 kills (KILL, STOP, TERM) of holders and the directory, two copies, 8 requests decode: failed", "kills", "failed", "answers",
         base="answers", base_unit="answers", at_most=0),
    vllm("the same: wrong", "kills", "wrong", "answers", at_most=0),
    vllm("the same: blocks that did not come back", "kills", "leaked_blocks", "blocks", at_most=0),
    vllm("the same: the longest batch of 24 tokens each", "kills", "longest_s", "s"),
    *(bar for layers in LAYERS for bar in of_model(layers)),
    *beside_peers(own_tokens=64, computed=64, by_nixl=1),
    *beside_peers(own_tokens=1, computed=1, by_nixl=1),
]
