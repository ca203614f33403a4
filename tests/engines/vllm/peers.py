#!/usr/bin/python3
"""The time to a first token after a corpus in stock vLLM: ckv's fetch, LMCache's hit and NIXL's decode side.

    peers.py BUILD_DIR      prints one line of JSON

Each has its own engine, which never computed the corpus: another process did. All have the same model, prompts, dtype
and threads, and take turns, so other work on the machine slows them equally. Each engine's answer over loaded rows is
compared with its own computed one, and the number of tokens it computed with the expected one. LMCache and NIXL are
downloaded from PyPI (peers_requirements.txt). deploy/bench.sh vllm runs this.
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import stock  # noqa: E402
import ctl_fleet  # noqa: E402
import ports  # noqa: E402
import venv  # noqa: E402
import venvs  # noqa: E402
from prompts import ROUNDING  # noqa: E402

REQUIREMENTS = HERE / "peers_requirements.txt"
FREE_BYTES_MIN = 2 << 30
LAYERS = 4
OWN_TOKENS = (64, 1)   # of a request after the corpus
ROUNDS = 21            # and one more before them, which warms up
MISSES_MAX = 5         # per peer: a busy machine makes ckv's look-ups late
ANSWER_S = 300
NAMES = ("LMCache", "NIXL")


class Failed(Exception):
    """A peer did not start, or did not do what is measured. The text is the reason."""


def last_lines(log):
    """The end of a log in one line, which has the error."""
    return " ".join(log.read_text(errors="replace").split())[-300:]


def end(server):
    """Ends a process with all its children. First lets it clean up itself."""
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


class Engine:
    """One process of peer_engine.py. It computes only on a command."""

    def __init__(self, bench, name, transfer, **environment):
        self.name, self.log = name, bench.folder / f"{name}.log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [bench.python, HERE / "peer_engine.py", "--model", bench.model, "--transfer", json.dumps(transfer)],
                env={**bench.environment, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, do, own, asked=None):
        print(json.dumps({"do": do, "own": own, "asked": asked}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self):
        timer = threading.Timer(ANSWER_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        raise Failed(f"{self.name} ended, or took more than {ANSWER_S} s: {last_lines(self.log)}")


class Ckv:
    """The corpus is on three holders. Another process prefilled and published it."""

    name, computed = "ckv", {64: 64, 1: 1}

    def __init__(self, bench):
        fleet = bench.stack.enter_context(stock.fleet(capacity="1GiB"))
        transfer = {"kv_connector": "CkvConnector", "kv_connector_module_path": "ckv_vllm.connector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"directory": fleet.directory, "deadline": 30, "min_tokens": 64}}
        with Engine(bench, "ckv-first", transfer, VLLM_PLUGINS="ckv") as first:
            first.ask("prefill", (0, 0), {"ckv": {"publish": "law"}})
            shown = [ctl_fleet.PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "show", "law"]
            bench.until(lambda: subprocess.run(shown, capture_output=True).returncode == 0, "ckv has not published the corpus")
        self.engine = bench.stack.enter_context(Engine(bench, "ckv", transfer, VLLM_PLUGINS="ckv"))

    def ask(self, do, own):
        return self.engine.ask(do, own, {"ckv": {"corpus": "law", "policy": "fetch"}})


class LMCache:
    """The corpus is in an `lmcache server`. Another process prefilled and stored it."""

    name, computed = "LMCache", {64: 64, 1: 1}

    def __init__(self, bench):
        port, log = ports.free_port(), bench.folder / "lmcache-server.log"
        # Its default mode, lmcache_driven, leaves an engine on CPUs waiting forever. Without shared memory rows are pickled.
        memory = f"lmcache_l1_pool_{os.getpid()}"
        command = [bench.python, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", str(port), "--l1-size-gb", "1",
                   "--eviction-policy", "LRU", "--http-port", str(ports.free_port()), "--prometheus-port", str(ports.free_port()),
                   "--supported-transfer-mode", "auto", "--shm-name", memory, "--no-l1-use-lazy"]
        with log.open("wb") as out:
            server = subprocess.Popen(command, env=bench.environment, stdout=out, stderr=out, start_new_session=True)
        bench.stack.callback(lambda: pathlib.Path("/dev/shm", memory).unlink(missing_ok=True))
        bench.stack.callback(end, server)
        transfer = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}}
        with Engine(bench, "lmcache-first", transfer) as first:
            first.ask("prefill", (0, 0))
            bench.until(lambda: first.ask("load", (1, 1))["computed"] == 1, "LMCache has not stored the corpus")
        self.engine = bench.stack.enter_context(Engine(bench, "lmcache", transfer))

    def ask(self, do, own):
        return self.engine.ask(do, own)


class Nixl:
    """Another process prefills each whole prompt. This one reads its blocks, and computes only the last token."""

    name, computed = "NIXL", {64: 1, 1: 1}

    def __init__(self, bench):
        self.pair = [bench.stack.enter_context(Engine(
            bench, f"nixl-{role}", {"kv_connector": "NixlConnector", "kv_role": f"kv_{role}",
                                    "kv_connector_extra_config": {"kv_lease_duration": 600}},
            VLLM_NIXL_SIDE_CHANNEL_HOST="127.0.0.1", VLLM_NIXL_SIDE_CHANNEL_PORT=str(ports.free_port())))
            for role in ("producer", "consumer")]
        self._signal(signal.SIGSTOP)

    def ask(self, do, own):
        # NIXL's threads poll without a pause: out of turn, they would take cores from the others.
        self._signal(signal.SIGCONT)
        try:
            producer, consumer = self.pair
            asked = producer.ask("prefill", own, {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                                               "remote_block_ids": None, "remote_host": None, "remote_port": None})["transfer"]
            return consumer.ask(do, own, asked)
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number):
        for engine in self.pair:
            engine.process.send_signal(number)


class Bench:
    """State that the engines share, and that ends with them."""

    def __init__(self, one, python, folder, stack):
        self.python, self.folder, self.stack, self.model = python, folder, stack, one.model(LAYERS)
        self.environment = {**one.environment, **venvs.kept_bytecode(python), "PYTHONHASHSEED": "0", "VLLM_PLUGINS": "",
                            "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "WARNING"}

    @staticmethod
    def until(holds, otherwise, seconds=60):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise Failed(otherwise)
            time.sleep(0.2)

    def started(self, kind):
        """Starts a peer, and checks that its answer matches its own computed one. Raises Failed."""
        peer = kind(self)
        said = peer.ask("check", (49, OWN_TOKENS[0]))
        print(f"peers: {peer.name}: {said}", file=sys.stderr, flush=True)
        if said["computed"] != peer.computed[OWN_TOKENS[0]]:
            raise Failed(f"{said['computed']} tokens were computed: it was no hit")
        if said["apart"] > ROUNDING:
            raise Failed(f"its answer is {said['apart']:.2f} of a logprob from what it computes itself")
        if said["other_apart"] <= ROUNDING:
            raise Failed("its answer is the same over another corpus: the comparison shows nothing")
        return peer


def first_tokens(peers, own_tokens, failed):
    """Figures of peers that take turns. One that fails is moved from `peers` to `failed`, with the reason.

    A miss computes the whole prompt. The time of ckv's misses counts; those of the others are left out.
    """
    took, misses = {name: [] for name in peers}, dict.fromkeys(peers, 0)
    for turn in range(1 + ROUNDS):
        order = sorted(peers)
        first = turn % max(1, len(order))
        for name in order[first:] + order[:first]:
            try:
                said = peers[name].ask("load", (50 + turn, own_tokens))
                hit = said["computed"] == peers[name].computed[own_tokens]
                misses[name] += not hit
                if misses[name] > MISSES_MAX:
                    raise Failed(f"{misses[name]} of {turn + 1} answers were no hit")
            except (Failed, OSError) as error:
                failed[name] = f"{error}"
                del peers[name]
                continue
            if turn and (hit or name == Ckv.name):
                took[name].append(said["seconds"] * 1e3)
    print(f"peers: {own_tokens} own tokens: {took}, misses {misses}", file=sys.stderr, flush=True)
    times = {name: statistics.median(took[name]) for name in peers}
    return {**{f"{name}_ms": value for name, value in times.items()}, "misses": misses.get(Ckv.name), "answers": 1 + ROUNDS,
            **{f"of_{name}": times[Ckv.name] / times[name] for name in NAMES if name in times and Ckv.name in times}}


def measured(one, python, folder, failed):
    """{case: {figure: value}}, and `failed`: {peer: reason}. Peers already in `failed` are not started."""
    peers = {}
    with contextlib.ExitStack() as stack:
        bench = Bench(one, python, folder, stack)
        for kind in (Ckv, LMCache, Nixl):
            if kind.name in failed:
                continue
            try:
                peers[kind.name] = bench.started(kind)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                failed[kind.name] = f"{error}"
        found = {f"first-token/{own_tokens}": first_tokens(peers, own_tokens, failed) for own_tokens in OWN_TOKENS}
    for name, why in failed.items():
        print(f"peers: {name} failed: {why}", file=sys.stderr, flush=True)
    return {**found, "failed": failed}


def figures(build):
    """The figures that bars.py reads. Raises venv.Unavailable if vLLM is unavailable."""
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
    with tempfile.TemporaryDirectory(prefix="ckv-peers-") as name:
        one, failed = stock.Stock(pathlib.Path(name), (build / "client/bindings/c/libckv.so.1").resolve()), {}
        try:
            python = venvs.python("vllm-peers", REQUIREMENTS, FREE_BYTES_MIN, base=one.python)
        except venv.Unavailable as error:
            python, failed = one.python, {peer: f"cannot be installed: {error}" for peer in NAMES}
        return measured(one, python, pathlib.Path(name), failed)


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1]).resolve())))
