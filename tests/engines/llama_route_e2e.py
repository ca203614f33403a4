#!/usr/bin/env python3
"""Goal: stock llama.cpp with libggml-ckv.so attends corpora of real holders as if it had their rows.

Method: a random model with MLA (llama_host.cc) reads the GPL in libllama, under the backend. Its
states are loaded onto holders. A driver (llama_driver.cc) restores references to them, decodes, and
is compared with the decoding that has all rows. Holders are killed meanwhile. Bits are compared
wherever the arithmetic is the same, and logits with a bound elsewhere.

The engine comes from npm (engines.py). If it cannot be had, all of this is SKIPPED: exit code 77.
"""

import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import engines  # noqa: E402
import llama_e2e as base  # noqa: E402

PREFIX, SUFFIX, CHUNK, OTHER = 1500, 12, 256, 700
TIMEOUT_S = 120
# Logits err by this if the same rows are summed in another order: two layers, each to 5e-7 of its
# values (attention/mla_partial.h), and weights that make some ten times that of it.
SAME = 2e-5
ARGUMENTS = None


class Fleet(ctl_fleet.Fleet):
    """Holders of these fabrics, which keep their chunks over a restart."""

    def __init__(self, folder, holders, fabrics):
        self.fabrics = fabrics
        folder.mkdir()
        super().__init__(folder, holders, durable=True)

    def start_holder(self, index):
        self.holder = getattr(self, "holder", {})
        self.start(f"h{index}", "--role=holder", f"--directory={self.directory}",
                   "--store-capacity=64MiB", f"--store-path={self.store(index)}",
                   f"--fabrics={self.fabrics}")
        self.holder[index] = self.processes[-1]

    def kill_holder(self, index):
        self.holder[index].kill()
        self.holder[index].wait()
        self.processes.remove(self.holder.pop(index))

    def ctl(self, *arguments):
        run = subprocess.run([ctl_fleet.PROGRAMS.ckvctl, f"--requester={self.requester}",
                              f"--directory={self.directory}", *map(str, arguments), "-o", "json"],
                             capture_output=True, text=True, timeout=TIMEOUT_S)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def load(self, name, state, *arguments):
        self.ctl("corpus", "load", name, state, "--geometry", state.parent / "geometry.json",
                 "--chunk-tokens", CHUNK, *arguments)

    def attach(self, corpus, *arguments, streams=1):
        path = self.folder / f"{corpus}-{streams}{'-'.join(map(str, arguments))}.ggsq"
        if not path.exists():
            self.ctl("attach", "--corpus", corpus, "--out", path, "--streams", streams, *arguments)
        return path


class Engine:
    """A process with libllama, which does one thing at a time."""

    def __init__(self, test, fleet=None, backend=True, settings=None, **options):
        self.test = test
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("CKV_", "GGML_"))}
        if backend:
            environment["GGML_BACKEND_PATH"] = str(ARGUMENTS.backend)
            environment.update(sanitizer())
        if fleet is not None:
            environment["CKV_DIRECTORY"] = fleet.directory
        environment.update(settings or {})
        self.log = test.folder / "engine.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [test.driver, test.engine.libraries, test.model,
                 *(f"{key}={value}" for key, value in options.items())],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True)
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the engine ended:\n{self.log.read_text()}"
        return answer.strip()

    def done(self, *words):
        answer = self.ask(*words)
        assert answer.startswith("ok"), f"{words}: {answer}\n{self.log.read_text()}"
        return answer[3:]

    def try_decode(self, tokens):
        """(code, logits) of one batch of (sequence, position, token)."""
        out = self.test.folder / "batch.logits"
        answer = self.ask("decode", out, *(f"{s}:{p}:{t}" for s, p, t in tokens)).split()
        assert answer[0] == "rc", answer
        code = int(answer[1])
        values = base.floats(out) if code == 0 else []
        count = base.VOCABULARY
        return code, [values[i:i + count] for i in range(0, len(values), count)]

    def decode(self, tokens):
        code, logits = self.try_decode(tokens)
        assert code == 0, f"rc {code}\n{self.log.read_text()}"
        return logits

    def one(self, sequence, position, token):
        return self.decode([(sequence, position, token)])[0]

    def prefill(self, sequence, tokens, position=0):
        for begin in range(0, len(tokens), 512):
            part = tokens[begin:begin + 512]
            logits = self.decode([(sequence, position + begin + i, token)
                                  for i, token in enumerate(part)])
        return logits

    def suffix(self, sequence, position):
        """The logits of the suffix, in one batch."""
        return self.decode([(sequence, position + i, token)
                            for i, token in enumerate(self.test.suffix)])

    def counter(self, name):
        return int(self.done("counter", name))


def sanitizer():
    """What a program needs that loads a backend with AddressSanitizer."""
    needed = subprocess.run(["readelf", "-d", ARGUMENTS.backend], capture_output=True, text=True,
                            check=True).stdout
    preloads = []
    for name in re.findall(r"\[(lib[au]san\.so\.\d+)\]", needed):
        found = subprocess.run([ARGUMENTS.cxx, f"-print-file-name={name}"], capture_output=True,
                               text=True, check=True).stdout.strip()
        preloads.append(found)
    if not preloads:
        return {}
    # The engine's own leaks are not ours to test.
    return {"LD_PRELOAD": ":".join(preloads), "ASAN_OPTIONS": "detect_leaks=0"}


def distance(a, b):
    return max(abs(x - y) for one, other in zip(a, b) for x, y in zip(one, other))


def greedy(logits):
    return max(range(len(logits)), key=logits.__getitem__)


class LlamaRoute(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder, cls.engine = ARGUMENTS.work, ARGUMENTS.engine
        host, cls.driver = cls.folder / "llama_host", cls.folder / "llama_driver"
        cls.engine.includes.append(HERE.parent.parent)
        cls.engine.compile(ARGUMENTS.cxx, HERE / "llama_host.cc", host)
        cls.engine.compile(ARGUMENTS.cxx, HERE / "llama_driver.cc", cls.driver)
        cls.model = cls.folder / "tiny.gguf"
        subprocess.run([host, "model", cls.model], check=True, timeout=TIMEOUT_S)
        text = [byte + 3 for byte in base.TEXT.read_bytes()]
        cls.prefix, cls.suffix = text[:PREFIX], text[PREFIX:PREFIX + SUFFIX]
        cls.other = text[9000:9000 + OTHER]
        (cls.folder / "geometry.json").write_text(json.dumps(base.GEOMETRY))
        for name, ids in (("docs", cls.prefix), ("other", cls.other)):
            path = cls.folder / name
            path.write_bytes(struct.pack(f"<{len(ids)}i", *ids))
            subprocess.run([host, "run", cls.engine.libraries, cls.model, f"tokens={path}",
                            f"save={path}.ggsq"], check=True, timeout=TIMEOUT_S,
                           stderr=subprocess.DEVNULL,
                           env={**os.environ, "GGML_BACKEND_PATH": str(ARGUMENTS.backend),
                                **sanitizer()})
        with Engine(cls) as engine:
            engine.prefill(0, cls.prefix)
            cls.local = engine.suffix(0, PREFIX)
            assert engine.counter("ops_routed") == 0 < engine.counter("ops")
        cls.fleets = []
        try:
            cls.fleet = cls.start_fleet("shm,tcp")
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def start_fleet(cls, fabrics):
        fleet = Fleet(cls.folder / fabrics.replace(",", "-"), 3, fabrics)
        cls.fleets.append(fleet)
        fleet.load("docs", cls.folder / "docs.ggsq")
        fleet.load("other", cls.folder / "other.ggsq")
        return fleet

    @classmethod
    def tearDownClass(cls):
        for fleet in cls.fleets:
            fleet.stop()

    def routed(self, fleet, settings=None):
        """The logits of the suffix behind a reference, in one batch."""
        with Engine(self, fleet, settings=settings) as engine:
            self.assertEqual(engine.done("restore", 0, fleet.attach("docs")), str(PREFIX))
            logits = engine.suffix(0, PREFIX)
            self.assertGreater(engine.counter("rows_routed"), 0)
            return logits

    def test_routed_is_as_local(self):
        logits = self.routed(self.fleet)
        with Engine(self, backend=False) as engine:
            engine.prefill(0, self.prefix)
            stock = engine.suffix(0, PREFIX)
        with Engine(self) as engine:
            without = engine.suffix(0, PREFIX)
        error = distance(logits, self.local)
        print(f"routed {error:.2g}, the stock kernel {distance(stock, self.local):.2g}, "
              f"no prefix {distance(without, self.local):.2g}")
        self.assertLessEqual(error, SAME)
        self.assertLessEqual(distance(stock, self.local), 100 * SAME)
        self.assertGreater(distance(without, self.local), 1)


def main():
    parser = ctl_fleet.argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--backend", required=True, type=pathlib.Path, help="libggml-ckv.so")
    parser.add_argument("--cxx", default="c++", help="compiler of the program that embeds the engine")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder, emptied first")
    global ARGUMENTS
    ARGUMENTS, rest = parser.parse_known_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = ARGUMENTS.ckvd, ARGUMENTS.ckvctl
    ARGUMENTS.work = ARGUMENTS.work.absolute()
    shutil.rmtree(ARGUMENTS.work, ignore_errors=True)
    ARGUMENTS.work.mkdir(parents=True)
    try:
        ARGUMENTS.engine = engines.Engine(ARGUMENTS.work)
    except engines.Unavailable as error:
        print(f"SKIPPED: no stock llama.cpp: {error}")
        return base.SKIPPED
    try:
        return 0 if unittest.main(argv=[sys.argv[0], *rest], exit=False).result.wasSuccessful() else 1
    finally:
        shutil.rmtree(ARGUMENTS.work / "node_modules", ignore_errors=True)  # 227 MB


if __name__ == "__main__":
    sys.exit(main())
