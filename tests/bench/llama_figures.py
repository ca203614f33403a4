"""Stock llama.cpp with ckv behind it, on a random model of a real size: 27 layers, 16 heads, 8,192 tokens.

    python3 tests/bench/llama_figures.py BUILD_DIR

The engine is installed from npm (tests/engines/engines.py). Three variants do the same work in one run: its own kernel,
libggml-ckv.so over the engine's cells, and libggml-ckv.so over three holders on this host (shm). Measured are:
  * one layer's attention alone, by llama_attention.cc: rounds of all three take turns, and the median is taken;
  * whole models, by llama_driver.cc: one sequence behind 2,048 tokens, eight behind 8,192;
  * the memory of all processes (their proportional set sizes) above the same processes without a corpus.
The tests of stock llama.cpp also run once, so that no speed is reported for an engine with wrong answers.
"""

import array
import contextlib
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import types

ENGINES = pathlib.Path(__file__).resolve().parent.parent / "engines"
sys.path.insert(0, str(ENGINES))
sys.path.insert(0, str(ENGINES.parent / "e2e"))
import ctl_fleet  # noqa: E402
import engines  # noqa: E402
import llama_e2e as base  # noqa: E402
import route_fixture  # noqa: E402

CASES = ("llama_e2e", "llama_route_e2e")
LAYERS, HEADS, AGENTS, GREEDY, WHOLE, SHORT = 27, 16, 8, 64, 8192, 2048
CHUNK = 512  # so that even 2,048 tokens are spread over all three holders
ROOM = 128  # for the tokens of an agent behind the corpus; a multiple of 32, to which llama.cpp rounds
HOLDERS, CAPACITY = 3, "512MiB"  # enough for 255 MB of rows, even if the directory places all on one holder
TURNS, CALLS, STEPS = 7, 60, 24
ROUTE = {"CKV_GGML_POLICY": "route"}


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), text=True, **{"stderr": subprocess.PIPE, **more})
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit code {done.returncode}: {(done.stderr or '')[-2000:]}")
    return done


def cases(build, work):
    """Runs the tests of stock llama.cpp; returns (number of tests, number of failures)."""
    count = failed = 0
    for name in CASES:
        command = [sys.executable, ENGINES / f"{name}.py", "--ckvd", build / "bin/ckvd", "--ckvctl", build / "bin/ckvctl",
                   "--cxx", "c++", "--work", work / name]
        if name == "llama_route_e2e":
            command += ["--backend", library(build)]
        said = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        ran = re.search(r"Ran (\d+) tests?", said.stderr)
        if ran is None or int(ran.group(1)) == 0:
            raise RuntimeError(f"{name} ran no test: {said.stdout[-500:]}{said.stderr[-500:]}")
        count += int(ran.group(1))
        bad = sum(int(number) for number in re.findall(r"(?:failures|errors|skipped)=(\d+)", said.stderr))
        failed += max(bad, int(said.returncode != 0))
        if bad or said.returncode:
            print(said.stderr[-3000:], file=sys.stderr)
    return count, failed


def library(build):
    return build / "client/bindings/ggml/module/libggml-ckv.so"


class Bench:
    """The engine's programs, its model, and its text as a corpus on three holders."""

    def __init__(self, build, folder, layers, heads):
        self.folder, self.build, self.layers, self.fleet = folder, build, layers, None
        folder.mkdir()
        ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
        route_fixture.PROGRAMS.backend, route_fixture.PROGRAMS.cxx = library(build), "c++"
        self.engine = engines.Engine(folder)
        self.programs = {}
        for name in ("llama_host", "llama_attention"):
            self.programs[name] = folder / name
            self.engine.compile("c++", ENGINES / f"{name}.cc", folder / name)
        self.driver = folder / "llama_driver"
        self.engine.includes.append(ENGINES.parent.parent)
        self.engine.compile("c++", ENGINES / "llama_driver.cc", self.driver)
        self.model = folder / "model.gguf"
        run(self.programs["llama_host"], "model", self.model, layers, heads)
        text = base.TEXT.read_bytes()
        self.ids = [byte + 3 for byte in text[:WHOLE]]
        self.suffixes = [[byte + 3 for byte in text[97 * i:97 * i + 5 + i]] for i in range(AGENTS)]

    def backend(self, **settings):
        fleet = {"CKV_DIRECTORY": self.fleet.directory} if self.fleet else {}
        return {"GGML_BACKEND_PATH": str(library(self.build)), "CKV_GGML_KERNEL_TARGET": route_fixture.kernel_target(),
                **fleet, **settings}

    def prefill(self):
        """The state of the whole text. The engine prefills it with ckv's kernel: the stock kernel takes an hour."""
        (self.folder / "text").write_bytes(struct.pack(f"<{WHOLE}i", *self.ids))
        state = self.folder / "whole.ggsq"
        run(self.programs["llama_host"], "run", self.engine.libraries, self.model, f"tokens={self.folder / 'text'}",
            f"save={state}", f"context={WHOLE}", "threads=2", env={**os.environ, **self.backend()})
        return state

    @contextlib.contextmanager
    def with_fleet(self):
        """Yields the memory of the three holders in bytes, before the corpora are loaded."""
        state = self.prefill()
        self.fleet = route_fixture.Fleet(self.folder / "fleet", HOLDERS, "shm,tcp", CAPACITY)
        try:
            empty = self.holders_pss()
            self.load(state)
            yield empty
        finally:
            self.fleet.stop()

    def holders_pss(self):
        return pss([process.pid for process in self.fleet.holder.values()])

    def load(self, state):
        (self.folder / "geometry.json").write_text(json.dumps({**base.GEOMETRY, "layers": self.layers}))
        self.fleet.load("whole", state, chunk=CHUNK)
        self.fleet.load("short", state, "--max-tokens", SHORT, chunk=CHUNK)

    def rows(self, corpus, streams):
        """A state with all rows of a corpus."""
        path = self.folder / f"{corpus}-rows-{streams}.ggsq"
        self.fleet.ctl("fetch", "--corpus", corpus, "--out", path, "--position", 0, "--streams", streams)
        return path

    def attached(self, corpus, streams=1):
        return self.fleet.attach(corpus, "--position", 0, streams=streams)

    def layer(self, backends, cells, tokens, settings, *state):
        """{backend: microseconds of one layer's attention, on one thread}"""
        said = run(self.programs["llama_attention"], self.engine.libraries, backends, 1, CALLS, cells, tokens, HEADS, *state,
                   env={**os.environ, **self.backend(**settings)}, stdout=subprocess.PIPE).stdout
        return {line.split()[0]: int(line.split()[1]) for line in said.splitlines()}

    @contextlib.contextmanager
    def process(self, ckv=True, settings=None, **options):
        test = types.SimpleNamespace(folder=self.folder, driver=self.driver, engine=self.engine, model=self.model)
        with route_fixture.Engine(test, self.fleet, backend=ckv, settings=settings, **options) as engine:
            yield engine


def pss(pids):
    """The memory of these processes in bytes. A page that they share counts once."""
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M).group(1))
               for pid in pids) * 1024


def step(engine, folder, tokens):
    """(logits of each token, microseconds) of one batch."""
    out = folder / "batch.logits"
    said = engine.ask("decode", out, *(f"{s}:{p}:{t}" for s, p, t in tokens)).split()
    if said[:2] != ["rc", "0"]:
        raise RuntimeError(f"the engine: {said}\n{engine.log.read_text()}")
    values = array.array("f")
    values.frombytes(out.read_bytes())
    return [values[i:i + base.VOCABULARY] for i in range(0, len(values), base.VOCABULARY)], int(said[2])


def best(logits):
    return max(range(len(logits)), key=logits.__getitem__)


def decode(bench, engine, suffixes, position, count, tokens=None):
    """Each sequence reads its suffix and continues with `count` tokens, all sequences in one batch. The tokens are the
    most likely ones, or those in `tokens`. Returns ([[logits]] before each token, microseconds of a step)."""
    said, us, last = [[] for _ in suffixes], [], []
    for sequence, suffix in enumerate(suffixes):
        logits, _ = step(engine, bench.folder, [(sequence, position + i, t) for i, t in enumerate(suffix)])
        last.append(logits[-1])
    for i in range(count):
        for sequence, logits in enumerate(last):
            said[sequence].append(logits)
        last, took = step(engine, bench.folder,
                          [(sequence, position + len(suffixes[sequence]) + i,
                            tokens[sequence][i] if tokens else best(logits)) for sequence, logits in enumerate(last)])
        us.append(took)
    return said, statistics.median(us)


def attention(bench):
    """Figures of one layer's attention: the median time of each kind, and the median of the ratios within a turn."""
    short, whole = bench.attached("short"), bench.attached("whole")
    there = route_fixture.kernel_targets()
    targets = {0: there[0], **({1: "AMX"} if "AMX" in there else {})}  # on vector units, and on matrix units
    kinds = {
        **{f"own/{number}": lambda target=target: bench.layer("CPU,CKV", SHORT, 1, {"CKV_GGML_KERNEL_TARGET": target})
           for number, target in targets.items()},
        **{name: lambda state=state, cells=cells: {"own": bench.layer("CKV", cells, AGENTS, {})["CKV"],
                                                   "routed": bench.layer("CKV", ROOM, AGENTS, ROUTE, state)["CKV"]}
           for name, state, cells in (("short", short, SHORT), ("whole", whole, WHOLE))},
    }
    turns = {name: [] for name in kinds}
    for _ in range(TURNS):
        for name, measure in kinds.items():
            turns[name].append(measure())
    said = {f"own/{number}": {"stock_us": statistics.median(t["CPU"] for t in turns[f"own/{number}"]),
                              "ratio": statistics.median(t["CPU"] / t["CKV"] for t in turns[f"own/{number}"])}
            for number in targets}
    for name in ("short", "whole"):
        said[name] = {"own_us": statistics.median(t["own"] for t in turns[name]),
                      "ratio": statistics.median(t["routed"] / t["own"] for t in turns[name])}
    return said


def one_sequence(bench):
    """{kind: tokens a second} of a whole model behind 2,048 tokens, one thread."""
    rows, rate = bench.rows("short", 1), {}
    for kind, ckv in (("stock", False), ("own", True)):
        with bench.process(ckv=ckv, context=SHORT + ROOM) as engine:
            engine.done("restore", 0, rows)
            _, us = decode(bench, engine, bench.suffixes[:1], SHORT, STEPS)
            rate[kind] = 1e6 / us
    return rate


def eight(bench, state, context, settings, tokens=None):
    """(logits of each agent, tokens per second, bytes) of eight sequences behind 8,192 tokens, decoded in one batch."""
    with bench.process(settings=settings, sequences=1, context=32) as engine:
        idle = pss([engine.process.pid])
    with bench.process(settings=settings, sequences=AGENTS, context=context) as engine:
        for sequence in range(AGENTS):
            engine.done("restore", sequence, state)
        logits, us = decode(bench, engine, bench.suffixes, WHOLE, GREEDY, tokens)
        return logits, AGENTS * 1e6 / us, pss([engine.process.pid]) - idle


def differ(own, other):
    """(number of equal tokens, the largest difference of a logit, the margins of the tokens that differ)"""
    equal, worst, margins = 0, 0.0, []
    for a, b in ((a, b) for mine, theirs in zip(own, other) for a, b in zip(mine, theirs)):
        worst = max(worst, max(abs(x - y) for x, y in zip(a, b)))
        equal += best(a) == best(b)
        if best(a) != best(b):
            margins.append(a[best(a)] - a[best(b)])
    return equal, worst, margins


def noise_of(bench, rows, own, tokens):
    """The largest difference that another kernel target makes, of the first whose sums are rounded at other points."""
    for target in route_fixture.kernel_targets():
        if target != route_fixture.kernel_target():
            other, _, _ = eight(bench, rows, WHOLE + ROOM, {"CKV_GGML_KERNEL_TARGET": target}, tokens)
            if noise := differ(own, other)[1]:
                return noise
    raise RuntimeError("every kernel target of this machine computes the same bits, so there is nothing to compare with")


def agents(bench, empty):
    """Compares eight sequences that have all rows with eight that have a reference and the first ones' tokens."""
    rows = bench.rows("whole", AGENTS)
    own, own_rate, own_bytes = eight(bench, rows, WHOLE + ROOM, {})
    tokens = [[best(logits) for logits in mine] for mine in own]
    noise = noise_of(bench, rows, own, tokens)
    routed, rate, engine_bytes = eight(bench, bench.attached("whole", AGENTS), ROOM, ROUTE, tokens)
    equal, worst, margins = differ(own, routed)
    return {"equal": equal, "worst": worst, "worst_of_noise": worst / noise, "noise": noise,
            "own_rate": own_rate, "rate_ratio": rate / own_rate, "own_MiB": own_bytes / 2**20,
            # The noise may shift each of the two logits.
            "beyond_noise": sum(margin > 2 * noise for margin in margins),
            "memory_ratio": (engine_bytes + bench.holders_pss() - empty) / own_bytes}


def figures(build):
    """{part: {figure: value}}"""
    build = build.absolute()
    with tempfile.TemporaryDirectory() as name:
        try:
            tiny = Bench(build, pathlib.Path(name) / "tiny", 2, 4)
            bench = Bench(build, pathlib.Path(name) / "real", LAYERS, HEADS)
        except engines.Unavailable as error:
            sys.exit(f"llama_figures: no stock llama.cpp, and without it this set says nothing: {error}")
        with tiny.with_fleet() as empty:
            said = {"tiny": agents(tiny, empty)}
        with bench.with_fleet() as empty:
            said.update((f"attention/{key}", value) for key, value in attention(bench).items())
            if "attention/own/1" not in said:
                said["not_here/attention/own/1"] = "no AMX"
            rate = one_sequence(bench)
            said["model"] = {"rate": rate["own"], "ratio": rate["own"] / rate["stock"], "stock_rate": rate["stock"]}
            said["agents"] = agents(bench, empty)
        count, failed = cases(build, pathlib.Path(name))
        said["cases"] = {"count": count, "failed": failed}
    return said


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
