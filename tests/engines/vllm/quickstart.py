#!/usr/bin/python3
"""Runs eight agents over one corpus, with two servers of stock vLLM and three holders, by HTTP.

The first server prefills the corpus and publishes it. Then eight agents query the second one, which has never seen it.
It prefills the corpus (recompute), loads its rows into vLLM's cache (fetch), sends queries to the holders (route), or
lets ckv decide (auto). At last they query the example router over both servers. A table reports the time to the first
token, the time per token, bytes to and from holders, and blocks of vLLM's cache. Each answer is compared with that over
loaded rows. A difference beyond rounding is a failure; a time is not.

    quickstart.py --ckvd ... --ckvctl ... --library libckv.so.1 [--tokens 8192]

The model is random: answers can be compared, but their text has no meaning. vLLM is downloaded from PyPI (venv.py). If
it is unavailable, this is SKIPPED: exit code 77.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import stock  # noqa: E402
import ctl_fleet  # noqa: E402
import ports  # noqa: E402
import skip  # noqa: E402
import venv  # noqa: E402
from prompts import ROUNDING, text  # noqa: E402
from quickstart_table import mib, table  # noqa: E402

AGENTS, OWN_TOKENS, COUNT, LAYERS = 8, 48, 16, 4
TOKEN_BYTES = LAYERS * 576 * 2  # of one token's rows
ARRIVES_S = 0.2  # between two agents at the router
ROOT = pathlib.Path(__file__).resolve().parents[3]
READY_S, ANSWER_S = 300, 900
HEAD = ("eight agents", "first token", "a token", "holders' bytes", "vLLM's blocks", "logprobs differ")
# For a whole layer of eight prefills over the corpus, on a slow or shared processor.
DEADLINE_S_MIN, TOKENS_A_SECOND = 8, 256


class Door:
    """An HTTP server of the OpenAI API: an engine's, or the router's."""

    def __init__(self, port):
        self.port, self.engines = port, []  # as the answers' headers name them

    def post(self, prompt, count, **more):
        """(the connection, its response)"""
        body = {"model": "small", "prompt": prompt, "max_tokens": count, "min_tokens": count, "temperature": 0,
                "ignore_eos": True, "logprobs": 5, "return_tokens_as_token_ids": True, **more}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, prompt, count, **more):
        """[(token, logprob, {token: logprob})], seconds to the first, seconds of all."""
        begun, answer, first = time.monotonic(), [], None
        connection, response = self.post(prompt, count, stream=True, **more)
        self.engines.append(response.getheader("x-ckv-engine"))
        if response.status != 200:
            sys.exit(f"vLLM answers {response.status}: {response.read().decode()[:500]}")
        for line in response:
            said = line.decode().removeprefix("data: ").strip()
            if not said or said == "[DONE]":
                continue
            event = json.loads(said)
            if "error" in event:
                sys.exit(f"vLLM ends a stream: {event['error']}")
            first = first or time.monotonic() - begun
            told = event["choices"][0]["logprobs"]
            if told:
                answer += zip(told["tokens"], told["token_logprobs"], told["top_logprobs"])
        connection.close()
        if len(answer) != count:
            sys.exit(f"{len(answer)} of {count} tokens came")
        return answer, first, time.monotonic() - begun


class Server(Door):
    """One `vllm serve`, on its own core. Several engines behind it share that core."""

    def __init__(self, one, model, directory, core, log, deadline, engines=1):
        super().__init__(ports.free_port())
        self.log, self.peak, self._watching = log, 0.0, False
        transfer = {"kv_connector": "CkvConnector", "kv_role": "kv_both", "kv_connector_module_path": "ckv_vllm.connector",
                    "kv_connector_extra_config": {"directory": directory, "fabrics": "tcp", "deadline": deadline,
                                                  "engine_address": f"127.0.0.1:{self.port}"}}
        environment = {**one.environment, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "|".join([str(core)] * engines), "VLLM_LOGGING_LEVEL": "WARNING"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [one.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "small",
                 "--skip-tokenizer-init", "--max-model-len", "16384", "--dtype", "bfloat16", "--enforce-eager", "--host", "127.0.0.1",
                 "--port", str(self.port), "--data-parallel-size", str(engines), "--kv-transfer-config", json.dumps(transfer)],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def wait(self):
        for _ in range(READY_S * 5):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            time.sleep(0.2)
        sys.exit(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as said:
            return said.read().decode()

    def blocks_used(self):
        text = self.metrics()
        blocks = int(re.search(r'num_gpu_blocks="(\d+)"', text).group(1))
        return float(re.search(r"^vllm:kv_cache_usage_perc\{[^}]*\} (\S+)", text, re.M).group(1)) * blocks

    @contextlib.contextmanager
    def watched(self):
        """Records in `peak` the most KV blocks in use during the with-block."""
        self.peak, self._watching = 0.0, True

        def watch():
            while self._watching:
                self.peak = max(self.peak, self.blocks_used())
                time.sleep(0.1)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            self._watching = False
            thread.join()

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ctl(fleet, *arguments):
    return subprocess.run([ctl_fleet.PROGRAMS.ckvctl, "--directory", fleet.directory, *arguments], capture_output=True,
                          text=True, check=False)


def bytes_moved(fleet):
    """Bytes to and from the holders."""
    status = json.loads(ctl(fleet, "status", "-o", "json").stdout)
    return sum(one["bytes_out"] + one["bytes_in"] for one in status["holders"])


def differ(name, answers, due):
    """The largest logprob difference until the texts differ. Exits if they differ by more than rounding."""
    worst = 0.0
    for number, (got, wanted) in enumerate(zip(answers, due)):
        for i, ((token, logprob, top), (other, other_logprob, other_top)) in enumerate(zip(got, wanted)):
            off = abs(logprob - (other_logprob if token == other else other_top.get(token, -100.0)))
            worst = max(worst, off)
            if off > ROUNDING:
                sys.exit(f"{name}: token {i} of agent {number} is {token} at {logprob:.3f}, and {other} at {other_logprob:.3f} is due")
            if token != other:
                break
    return worst


def await_ranked_chunks(fleet, server, tokens):
    """Waits until the ranking has it that the server has the corpus. Not if the server has no prefix cache."""
    # vLLM turns it off for MLA on processors without AMX.
    if 'enable_prefix_caching="False"' in server.metrics():
        return
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        ranked = json.loads(ctl(fleet, "rank", "law", "-o", "json").stdout)["requesters"]
        cached = [one["matched_tokens"] for one in ranked if one["name"].startswith(f"vllm-127.0.0.1-{server.port}")]
        if max(cached, default=0) == tokens:
            return
        time.sleep(0.1)  # a load is reported within 0.1 s
    sys.exit(f"a ranking has {cached} of the corpus's {tokens} tokens at the server that fetched them")


def tells_why(fleet, server, own, named):
    """Ends the holders. Then a routed request ends with an error that names the reason; others are answered."""
    print("== the holders end", flush=True)
    for process in fleet.processes[1:]:
        process.kill()
        process.wait()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        plain = pool.submit(server.ask, own, COUNT)
        once, stream = (pool.submit(lambda more: server.post(own, COUNT, **named, **more)[1], more) for more in ({}, {"stream": True}))
        status, said, streamed = once.result().status, once.result().read().decode(), stream.result().read().decode()
    plain.result()
    if status != 503 or any("ckv: Unavailable: holder" not in text for text in (said, streamed)):
        sys.exit(f"a request whose holders are gone is answered with {status}: {said[:300]}; {streamed[-300:]}")
    if "logprobs" in streamed:
        sys.exit(f"a token of a step that failed goes out: {streamed[:300]}")


@contextlib.contextmanager
def router(one, directory, token_bytes):
    """Yields the door of deploy/example_router.py."""
    process = subprocess.Popen(
        [one.python, ROOT / "deploy/example_router.py", "--directory", directory, "--listen", "127.0.0.1:0", "--token-bytes",
         str(token_bytes)], env=one.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        if not said.startswith("listening on "):
            sys.exit("deploy/example_router.py did not start")
        yield Door(int(said.rpartition(":")[2]))
    finally:
        process.terminate()
        process.wait(30)


def by_router(one, fleet, servers, owns, named, due):
    """The agents send to the router. Once the first server has ended, they send again, and the second one answers.

    Returns {engine: number of answers}, and the largest difference.
    """
    worst = 0.0
    with router(one, fleet.directory, TOKEN_BYTES) as door, concurrent.futures.ThreadPoolExecutor(AGENTS) as pool:
        def later(agent):
            time.sleep(agent * ARRIVES_S)  # a load is reported within 0.1 s
            return door.ask(owns[agent], COUNT, **named)[0]

        for ended in (None, servers[0]):
            if ended is not None:
                ended.stop()
            asked = len(door.engines)
            worst = max(worst, differ("route, by the router", list(pool.map(later, range(AGENTS))), due))
            left = {f"vllm-127.0.0.1-{server.port}" for server in servers if server is not ended}
            if any(name.rpartition("-")[0] not in left and name not in left for name in map(str, door.engines[asked:])):
                sys.exit(f"the router chose {door.engines[asked:]} of {sorted(left)}")
    return collections.Counter(door.engines), worst


def ingest(fleet, server, corpus):
    """Returns the seconds of an ingest. A second one must prefill nothing."""
    path = fleet.folder / "law.jsonl"
    path.write_text(json.dumps(corpus) + "\n")
    command = ["corpus", "ingest", "law", path, "--engine", f"http://127.0.0.1:{server.port}", "-o", "json"]
    begun = time.monotonic()
    done = ctl(fleet, *command)
    took = time.monotonic() - begun
    if done.returncode != 0:
        sys.exit(f"the corpus was not published: {done.stderr}\n{server.log.read_text(errors='replace')[-3000:]}")
    again = json.loads(ctl(fleet, *command).stdout)
    if json.loads(done.stdout)["prefilled_token_count"] != len(corpus) or again["prefilled_token_count"] != 0:
        sys.exit(f"of {len(corpus)} tokens, first {done.stdout} and then {again}")
    return took


def run(one, fleet, servers, tokens):
    first, second = servers
    corpus, owns = text(1, tokens), [text(100 + i, OWN_TOKENS) for i in range(AGENTS)]
    print(f"== ckvctl corpus ingest: the first server prefills {tokens} tokens, and publishes them", flush=True)
    prefill = ingest(fleet, first, corpus)
    named = {policy: {"kv_transfer_params": {"ckv": {"corpus": "law", "policy": policy}}} for policy in ("fetch", "route", "auto")}
    second.ask(text(2, 64), 2)
    rows, due = [], None

    def ask_all(name, prompts, more, count):
        nonlocal due
        before = bytes_moved(fleet)
        with second.watched(), concurrent.futures.ThreadPoolExecutor(AGENTS) as pool:
            done = list(pool.map(lambda prompt: second.ask(prompt, COUNT, **more), prompts[:count]))
        answers = [answer for answer, _, _ in done]
        due = due or answers
        worst = differ(name, answers, due)
        rows.append((name, f"{statistics.median(begin for _, begin, _ in done):.2f} s",
                     f"{1e3 * statistics.median((end - begin) / (COUNT - 1) for _, begin, end in done):.0f} ms",
                     mib(bytes_moved(fleet) - before), f"{second.peak:.0f}", f"{worst:.3f}" if len(rows) else "-"))

    print(f"== {AGENTS} agents ask the second server, {OWN_TOKENS} tokens of their own each, for {COUNT} tokens", flush=True)
    whole = [corpus + own for own in owns]
    ask_all("fetch", whole, named["fetch"], AGENTS)
    await_ranked_chunks(fleet, second, tokens)
    for policy in ("route", "auto"):
        ask_all(policy, owns, named[policy], AGENTS)
    ask_all("auto, again", owns, named["auto"], AGENTS)
    # A salted prompt shares no block, and is not looked up.
    ask_all("recompute, one agent", whole, {"cache_salt": "alone"}, 1)
    other = second.ask(owns[0], COUNT)[0]
    if all(token == wanted and abs(a - b) < ROUNDING for (token, a, _), (wanted, b, _) in zip(other, due[0])):
        sys.exit("an agent without the corpus answers as one with it: nothing was compared")
    by_xargs, _, _ = second.ask(owns[0], COUNT, vllm_xargs={"ckv": '{"corpus": "law", "policy": "route"}'})
    differ("route, by vllm_xargs", [by_xargs], due[:1])
    print("== the agents ask deploy/example_router.py over both servers", flush=True)
    chosen, worst = by_router(one, fleet, servers, owns, named["route"], due)
    tells_why(fleet, second, owns[0], named["route"])
    table(HEAD, rows)
    print(f"The router chose {', '.join(f'{name} {count} times' for name, count in sorted(chosen.items()))}, the second server alone "
          f"once the first had ended; logprobs differ by {worst:.3f}.")
    print("Answers are compared with those of fetch, token by token until rounding parts them. An agent without the corpus "
          f"answers otherwise.\nThe corpus was prefilled once, in {prefill:.1f} s. {AGENTS} agents that each do it take "
          f"{AGENTS * prefill:.0f} s.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--ckvd", "--ckvctl", "--library"):
        parser.add_argument(name, required=True)
    parser.add_argument("--tokens", type=int, default=8192, help="of the corpus")
    parser.add_argument("--engines", type=int, default=1, help="behind the second server: data parallelism")
    arguments = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    if not stock.has_headers():
        return skip.lacks(stock.NO_HEADERS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is stopped
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        folder = pathlib.Path(name)
        print("== vLLM from PyPI: 5 GB, once", flush=True)
        try:
            one = stock.Stock(folder, pathlib.Path(arguments.library).resolve())
        except venv.Unavailable as error:
            return skip.cannot(f"no stock vLLM: {error}", venv.PIP)
        model = one.model(LAYERS)
        with stock.fleet() as fleet:
            print("== a directory, three holders, and two servers of vLLM", flush=True)
            servers = []
            try:
                deadline = max(DEADLINE_S_MIN, arguments.tokens // TOKENS_A_SECOND)
                servers = [Server(one, model, fleet.directory, core, folder / f"vllm-{core}.log", deadline,
                                  arguments.engines if core else 1) for core in (0, 1)]
                for server in servers:
                    server.wait()
                run(one, fleet, servers, arguments.tokens)
            finally:
                for server in servers:
                    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
