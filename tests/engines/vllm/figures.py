"""Measures stock vLLM with the plug-in, over a running fleet. Uses the environment of venv.py.

    figures.py CASE --model DIR --directory HOST:PORT --ckvctl PROGRAM --holders PID,...

Prints one line of JSON. tests/bench/vllm_figures.py calls it. A time is the median of repetitions. The time it is
compared with is measured in the same engine, alternately.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time

import numpy as np

import engine  # first: it sets vLLM's environment
from engine import ckv_of
from prompts import ROUNDING, text

OWN_TOKENS = 64        # own tokens of a request
CORPUS_TOKENS = 4096
LONG_TOKENS = 8192
HUGE_TOKENS = 32768
BATCH = 8
EXACT_PROMPTS = 12
MIXES = 100


def params(count, asked=None):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count, detokenize=False, ignore_eos=True, extra_args=asked)


def seconds_of(one, prompts, asked=None, steps=1):
    """How long all of these prompts take together. With one step: until the first token of each."""
    begun = time.perf_counter()
    one.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts],
                     [params(steps, asked)] * len(prompts), use_tqdm=False)
    return time.perf_counter() - begun


def step_seconds(one, prompts, asked, steps):
    """The times of steps that decode all of `prompts` at once."""
    core = one.llm.llm_engine
    for i, prompt in enumerate(prompts):
        core.add_request(f"s{time.perf_counter_ns()}-{i}", {"prompt_token_ids": prompt}, params(steps, asked))
    took = []
    scheduler = one.core.scheduler
    while core.has_unfinished_requests():
        all_decode = len(scheduler.running) == len(prompts) and all(r.num_output_tokens > 0 for r in scheduler.running)
        begun = time.perf_counter()
        core.step()
        if all_decode and len(scheduler.running) == len(prompts):
            took.append(time.perf_counter() - begun)
    return took


def first_token():
    """The time from a prompt to its first token: computed, routed, and loaded."""
    one, law = engine.Engine(max_model_len=CORPUS_TOKENS + 512), text(5, CORPUS_TOKENS)
    one.publish("law", law)
    one.reset()
    owns = [text(50 + i, OWN_TOKENS) for i in range(6)]
    times = {"route": [], "fetch": [], "hit": [], "recompute": []}
    for i, own in enumerate(owns):  # the first one warms up each way
        times["route"].append(seconds_of(one, [own], ckv_of(corpus="law", policy="route")))
        one.reset()
        times["fetch"].append(seconds_of(one, [law + own], ckv_of(corpus="law", policy="fetch")))
        times["hit"].append(seconds_of(one, [law + text(150 + i, OWN_TOKENS)], ckv_of(corpus="law", policy="fetch")))
        one.reset()
        if i < 3:
            times["recompute"].append(seconds_of(one, [text(90 + i, CORPUS_TOKENS) + own]))
            one.reset()
    median = {name: statistics.median(some[1:]) for name, some in times.items()}
    return {**{f"{name}_ms": 1e3 * value for name, value in median.items()},
            "route_of_recompute": median["route"] / median["recompute"],
            "fetch_of_recompute": median["fetch"] / median["recompute"],
            "hit_of_recompute": median["hit"] / median["recompute"]}


def decode():
    """The time of a step of 8 requests over a corpus of 8,192 tokens: own rows, routed, and auto."""
    one, law = engine.Engine(max_model_len=LONG_TOKENS + 512, extra={"deadline": 300}), text(5, LONG_TOKENS)
    put_random("law", law, one)
    owns = [text(50 + i, OWN_TOKENS) for i in range(BATCH)]
    ways = {"own": ([law + own for own in owns], ckv_of(corpus="law", policy="fetch")),
            "route": (owns, ckv_of(corpus="law", policy="route")), "auto": (owns, ckv_of(corpus="law", policy="auto"))}
    took = {name: [] for name in ways}
    for turn in range(4):
        for name, (prompts, asked) in ways.items():
            some = step_seconds(one, prompts, asked, 24)
            took[name] += some[4:] if turn else []  # the first turn warms up; auto prefetches in it
    median = {name: statistics.median(some) for name, some in took.items()}
    return {**{f"{name}_ms": 1e3 * value for name, value in median.items()},
            "route_of_own": median["route"] / median["own"], "auto_of_own": median["auto"] / median["own"]}


def put_random(name, tokens, one):
    """Puts a corpus of random rows: the measurement does not depend on their values."""
    import ckv
    from ckv_vllm import identity

    config = one.llm.llm_engine.vllm_config
    fingerprint = identity.fingerprint_of(config, "")
    model = identity.model_of(str(config.model_config.model), config.model_config.hf_text_config, fingerprint)
    rows = np.random.default_rng(1).standard_normal((512, model.d_qk), np.float32)
    bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
    with ckv.open(engine.ARGUMENTS.directory) as requester, requester.put(name, create=model) as put:
        for begin in range(0, len(tokens), 512):
            put.chunk(np.asarray(tokens[begin:begin + 512], np.int32))
            for layer in range(model.layers):
                put.rows(layer, bits)
        put.finish(60.0)


def blocks():
    """The peak of blocks of vLLM's cache that 16 requests over a corpus of 32,768 tokens take."""
    one = engine.Engine(extra={"deadline": 300})
    put_random("huge", text(7, HUGE_TOKENS), one)
    core, size, least = one.llm.llm_engine, one.llm.llm_engine.vllm_config.cache_config.block_size, one.free_blocks()
    before, steps, count = least, 8, 16
    for i in range(count):
        core.add_request(f"b{i}", {"prompt_token_ids": text(300 + i, OWN_TOKENS)},
                         params(steps, ckv_of(corpus="huge", policy="route")))
    while core.has_unfinished_requests():
        core.step()
        least = min(least, one.free_blocks())
    own = count * -(-(OWN_TOKENS + steps) // size)
    return {"blocks": before - least, "own_tokens_blocks": own, "corpus_blocks": HUGE_TOKENS // size,
            "of_own": (before - least) / own}


def publish():
    """The steps of 8 requests that decode while prompts of 256 tokens arrive: alternately published and not."""
    one = engine.Engine(max_model_len=1024)
    core = one.llm.llm_engine
    took = {True: [], False: []}
    for turn in range(13):
        for published in ((True, False) if turn % 2 else (False, True)):
            for i in range(BATCH):
                core.add_request(f"d{turn}{published}{i}", {"prompt_token_ids": text(i, 64)}, params(33))
            begun, steps = time.perf_counter(), 0
            while core.has_unfinished_requests():
                if steps % 8 == 4:
                    asked = ckv_of(publish=f"log{turn}") if published else None
                    core.add_request(f"p{turn}{published}{steps}",
                                     {"prompt_token_ids": text(10000 + 100 * turn + steps + 50 * published, 256)}, params(1, asked))
                core.step()
                steps += 1
            if turn:
                took[published].append((time.perf_counter() - begun) / steps)
            one.reset()
    ratios = [with_ / without for with_, without in zip(took[True], took[False])]
    time.sleep(2)  # waits until all queued rows are put
    return {"step_ms": 1e3 * statistics.median(took[False]), "ratio": statistics.median(ratios), **published_bits(one)}


def published_bits(one):
    """Whether a published corpus has the bits of vLLM's blocks."""
    import ckv
    from ckv_vllm import places

    copies, original = [], places.Host.rows
    places.Host.rows = lambda *args: copies.append(original(*args)) or copies[-1]
    one.publish("bits", text(78, 300))
    places.Host.rows = original
    copied = copies[0].wait()
    with ckv.open(engine.ARGUMENTS.directory) as requester:
        rows = np.zeros_like(copied)
        requester.fetch(requester.resolve("bits"), rows)
    return {"same_bits": float(np.array_equal(rows, copied))}


def cost():
    """The plug-in's share of a step of 8 requests that decode without ckv."""
    from ckv_vllm import connector as connectors
    from ckv_vllm import failures, route

    spent, inside = [0], [0]

    def timed(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            if inside[0]:
                return original(*args, **kwargs)
            inside[0] = 1
            begun = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter_ns() - begun
                inside[0] = 0

        setattr(owner, name, call)

    one = engine.Engine(extra={"deadline": 300})
    prompts = [text(i, 64) for i in range(BATCH)]
    step_seconds(one, prompts, None, 16)
    for name in ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
                 "update_connector_output", "request_finished", "bind_connector_metadata", "clear_connector_metadata",
                 "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_finished",
                 "build_connector_worker_meta", "take_events"):
        timed(connectors.CkvConnector, name)
    timed(route, "step_of")
    timed(failures, "take")
    spent[0] = 0
    took = step_seconds(one, prompts, None, 200)
    # Counts the timed steps, and the first and last ones around them, which take more.
    return {"step_us": 1e6 * statistics.median(took), "plugin_us": spent[0] / 1e3 / (len(took) + 2),
            "percent": 100 * spent[0] / 1e3 / (len(took) + 2) / (1e6 * statistics.median(took))}


def exact():
    """How far answers are from float32, next to vLLM's own to the same prompts, and over the wrong corpus."""
    one, law, code = engine.Engine(max_model_len=2048), text(5, 700), text(6, 700)
    one.publish("law", law)
    one.publish("code", code)
    one.reset()
    owns = [text(50 + i, 30 + 5 * i) for i in range(EXACT_PROMPTS)]
    ways = {"own": ([law + own for own in owns], None), "fetch": ([law + own for own in owns], ckv_of(corpus="law", policy="fetch")),
            "route": (owns, ckv_of(corpus="law", policy="route")), "auto": (owns, ckv_of(corpus="law", policy="auto")),
            "wrong": (owns, ckv_of(corpus="code", policy="route"))}
    means = {}
    for name, (prompts, asked) in ways.items():
        errors = []
        for prompt, own in zip(prompts, owns):
            one.reset()
            salt = "computed" if name == "own" else None  # a salted prompt is not looked up
            (answer,) = one.run([prompt], asked, salt=salt)
            errors.append(one.reference.error(law + own, answer))
        means[name] = statistics.mean(errors)
    return {**{f"{name}_error": value for name, value in means.items()},
            **{f"{name}_of_own": means[name] / means["own"] for name in ("route", "fetch", "auto", "wrong")}}


def mixes():
    """Random mixes of 1 to 16 requests of 0 to 4 corpora. Each answer is as close to float32 as when run alone."""
    rng = random.Random(9)
    one = engine.Engine(max_model_len=1024)
    corpora = {f"c{i}": text(900 + i, 100 + 60 * i) for i in range(4)}
    for name, tokens in corpora.items():
        one.publish(name, tokens)
    one.reset()
    before, wrong, answered, alone, errors = one.free_blocks(), 0, 0, [], []
    for mix in range(MIXES):
        prompts, asked, all_before = [], [], []
        for _ in range(rng.randrange(1, 17)):
            names = rng.sample(sorted(corpora), rng.choice((0, 1, 1, 2, 4)))
            prompts.append(text(rng.randrange(10 ** 6), rng.randrange(1, 60)))
            asked.append(ckv_of(corpus=names, policy=rng.choice(("route", "auto", "cache"))) if names else None)
            all_before.append([corpora[name] for name in names])
        answers = one.run(prompts, asked, [rng.randrange(1, 6) for _ in prompts])
        for prompt, more, answer in zip(prompts, all_before, answers):
            tokens = [token for part in more for token in part] + prompt
            error = one.reference.error(tokens, answer, [len(part) for part in more])
            (errors if more else alone).append(error)
            answered += 1
            wrong += error > engine.WRONG_MIN
    return {"mixes": MIXES, "answers": answered, "wrong": wrong, "leaked_blocks": before - one.free_blocks(),
            "error": statistics.mean(errors), "own_error": statistics.mean(alone),
            "of_own": statistics.mean(errors) / statistics.mean(alone)}


def parted(answer, due):
    """Whether an answer differs from `due` by more than rounding, up to the token where rounding separates them."""
    for token, other, top, other_top in zip(answer.token_ids, due.token_ids, answer.logprobs, due.logprobs):
        if abs(top[token].logprob - (other_top[token].logprob if token in other_top else -100.0)) > ROUNDING:
            return True
        if token != other:
            return False
    return False


def kills():
    """Eight requests decode over a corpus again and again, until this program gets SIGTERM."""
    one, told = engine.Engine(extra={"replicas": 2, "deadline": 20}), []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    one.publish("law", text(5, 700))
    owns, asked = [text(50 + i, 32) for i in range(BATCH)], ckv_of(corpus="law", policy="route")
    due = one.run(owns, asked, 24)
    free, answers, failed, wrong, longest = one.free_blocks(), 0, 0, 0, 0.0
    print("figures: serves", flush=True)
    while not told:
        begun = time.monotonic()
        for answer, wanted in zip(one.run(owns, asked, 24), due):
            answers += 1
            if answer.outputs[0].finish_reason != "length":
                failed += 1
                print("failed:", (answer.kv_transfer_params or {}).get("ckv"), file=sys.stderr, flush=True)
            else:
                wrong += parted(answer.outputs[0], wanted.outputs[0])
        longest = max(longest, time.monotonic() - begun)
    return {"answers": answers, "failed": failed, "wrong": wrong, "longest_s": longest, "leaked_blocks": free - one.free_blocks()}


CASES = {"kills": kills, "first-token": first_token, "decode": decode, "blocks": blocks, "publish": publish, "cost": cost, "exact": exact,
         "mixes": mixes}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=CASES)
    for name in ("--model", "--directory", "--directory-pid", "--ckvctl", "--holders"):
        parser.add_argument(name, required=True)
    for name in ("--metrics", "--cache"):
        parser.add_argument(name, default="")
    parser.parse_args(namespace=engine.ARGUMENTS)
    print("figures: " + json.dumps(CASES[engine.ARGUMENTS.case]()), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # vLLM's threads outlive its engines
