"""Runs stock vLLM with one connector, on commands of peers.py. Uses the environment that peers.py makes.

    peer_engine.py --model DIR --transfer JSON

JSON is the engine's kv_transfer_config. Each line of stdin is a JSON object, {"do": "load", "prefill" or "check", "own":
[seed, count], "asked": kv_transfer_params}. Answers each with a line of JSON, and the start too. Ends with stdin.
"""

import argparse
import contextlib
import json
import os
import sys
import time

import engine  # first: it sets vLLM's environment
from prompts import text

CORPUS_TOKENS = 4096
CORPUS_SEED = 5
OTHER_SEED, OTHER_TOKENS = 6, 256  # another corpus, whose answers must differ: a short one is enough
RESETS_MAX = 100


def hide_llvmlite():
    """LMCache imports numba, whose llvmlite has attributes that vLLM 0.32.0 cannot look through (_rebind_kernels)."""
    import vllm.triton_utils.dispatcher as dispatcher

    original = dispatcher._rebind_kernels

    def rebind(overrides):
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite")}
        try:
            return original(overrides)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = rebind


def apart(answer, due):
    """The largest difference of a chosen token's logprob, until rounding parts the two answers."""
    worst = 0.0
    for token, other, top, other_top in zip(answer.token_ids, due.token_ids, answer.logprobs, due.logprobs):
        worst = max(worst, abs(top[token].logprob - (other_top[token].logprob if token in other_top else -100.0)))
        if token != other:
            break
    return worst


class Peer:
    def __init__(self, model, transfer):
        from vllm import LLM

        if transfer["kv_connector"].startswith("LMCache"):
            hide_llvmlite()
        self.llm = LLM(model=model, skip_tokenizer_init=True, max_model_len=CORPUS_TOKENS + 512, dtype="bfloat16",
                       enforce_eager=True, seed=1, kv_transfer_config=transfer, disable_log_stats=False)
        self._computed = 0
        self._count_computed(self.llm.llm_engine.engine_core.engine_core.scheduler)

    def _count_computed(self, scheduler):
        """Counts the tokens that steps compute. An answer's num_cached_tokens does not count what NIXL transfers."""
        original = scheduler.schedule

        def schedule(*args, **kwargs):
            step = original(*args, **kwargs)
            self._computed += step.total_num_scheduled_tokens
            return step

        scheduler.schedule = schedule

    def _reset(self):
        """Empties vLLM's own cache. Blocks that are being stored leave it with a later step."""
        for _ in range(RESETS_MAX):
            if self.llm.reset_prefix_cache() is not False:
                return
            time.sleep(0.1)
            self.llm.llm_engine.step()
        raise RuntimeError("vLLM's own cache was not reset")

    def run(self, prompt, params, salt=None):
        """Runs one request. Returns (answer, tokens of the prompt that were computed, seconds)."""
        salted = {"cache_salt": salt} if salt else {}
        self._computed = 0
        begun = time.perf_counter()
        (answer,) = self.llm.generate([{"prompt_token_ids": prompt, **salted}], params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        return answer, self._computed - (len(answer.outputs[0].token_ids) - 1), seconds

    def load(self, own, asked):
        """Computes a first token, with nothing in vLLM's own cache."""
        self._reset()
        return self.prefill(own, asked)

    def prefill(self, own, asked):
        """Computes a first token, and measures the time to it."""
        from figures import params

        prompt = text(CORPUS_SEED, CORPUS_TOKENS) + text(*own)
        answer, computed, seconds = self.run(prompt, params(1, asked and {"kv_transfer_params": asked}))
        return {"seconds": seconds, "computed": computed, "transfer": answer.kv_transfer_params}

    def check(self, own, asked):
        """Compares an answer over loaded rows with those that this engine computes over the corpus and over another."""
        self._reset()
        due, other = (self._recomputed(text(*corpus) + text(*own))
                      for corpus in ((CORPUS_SEED, CORPUS_TOKENS), (OTHER_SEED, OTHER_TOKENS)))
        self._reset()
        loaded, computed, _ = self.run(text(CORPUS_SEED, CORPUS_TOKENS) + text(*own),
                                       engine.Engine.params(asked and {"kv_transfer_params": asked}, engine.STEPS))
        return {"computed": computed, "apart": apart(loaded.outputs[0], due), "other_apart": apart(loaded.outputs[0], other)}

    def _recomputed(self, prompt):
        answer, computed, _ = self.run(prompt, engine.Engine.params(None, engine.STEPS), salt="computed")
        assert computed == len(prompt), "a salted prompt was found"
        return answer.outputs[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--transfer", required=True, type=json.loads)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of vLLM and connectors is written to the log
    peer = Peer(arguments.model, arguments.transfer)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        said = {"load": peer.load, "prefill": peer.prefill, "check": peer.check}[told["do"]](told["own"], told["asked"])
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)  # vLLM's threads outlive its engines
