#!/usr/bin/python3
"""Goal: stock llama.cpp with libggml-ckv.so attends corpora of real holders as if it had their rows.

Method: a random model with MLA (llama_host.cc) prefills the GPL in libllama, under the backend. Its
states are loaded onto holders. A driver (llama_driver.cc) restores references to them and decodes.
The result is compared with a decoding that has all rows. Holders are killed meanwhile. Bits are
compared where the arithmetic is the same, and logits with a bound elsewhere.

The engine is downloaded from npm (engines.py). If it is unavailable, this is SKIPPED: exit code 77.
"""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import textwrap
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import llama_e2e as base  # noqa: E402
import route_fixture  # noqa: E402
from route_fixture import Engine, Fleet, sanitizer  # noqa: E402

PREFIX, SUFFIX, OTHER = 1500, 12, 700
TIMEOUT_S = 120
# Logits err by this if the same rows are summed in another order: two layers, each to 5e-7 of its
# values (attention/mla_partial.h), and weights that make some ten times that of it.
SAME = 2e-5
# A token's own row is rounded to bf16 in the cache. The sums above, or another batch of the engine's
# own products, make some of its values round the other way. If all do, logits move by .027 in this
# model, as test_another_place shows.
ROUNDED = 0.01
ARGUMENTS = None


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
        cls.prefix, cls.suffix_tokens = text[:PREFIX], text[PREFIX:PREFIX + SUFFIX]
        cls.other = text[9000:9000 + OTHER]
        (cls.folder / "geometry.json").write_text(json.dumps(base.GEOMETRY))
        for name, ids in (("docs", cls.prefix), ("other", cls.other)):
            path = cls.folder / name
            path.write_bytes(struct.pack(f"<{len(ids)}i", *ids))
            subprocess.run([host, "run", cls.engine.libraries, cls.model, f"tokens={path}",
                            f"save={path}.ggsq"], check=True, timeout=TIMEOUT_S,
                           stderr=subprocess.DEVNULL,
                           env={**os.environ, "GGML_BACKEND_PATH": str(ARGUMENTS.backend),
                                "CKV_GGML_KERNEL_TARGET": route_fixture.kernel_target(),
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

    def assert_same(self, logits, due, bound=SAME):
        self.assertLessEqual(distance(logits, due), bound)
        self.assertEqual([greedy(row) for row in logits], [greedy(row) for row in due])

    def test_routed_is_as_local(self):
        logits = self.routed(self.fleet)
        with Engine(self, backend=False) as engine:
            engine.prefill(0, self.prefix)
            stock = engine.suffix(0, PREFIX)
        with Engine(self) as engine:
            without = engine.suffix(0, PREFIX)
        print(f"routed {distance(logits, self.local):.2g}, "
              f"the stock kernel {distance(stock, self.local):.2g}, "
              f"no prefix {distance(without, self.local):.2g}")
        self.assert_same(logits, self.local)
        self.assertLessEqual(distance(stock, self.local), 100 * SAME)
        self.assertGreater(distance(without, self.local), 1)

    def test_token_by_token(self):
        def run(engine):
            logits = [engine.one(0, PREFIX + i, token) for i, token in enumerate(self.suffix_tokens)]
            tokens = []
            for i in range(12):
                tokens.append(greedy(logits[-1]))
                logits.append(engine.one(0, PREFIX + SUFFIX + i, tokens[-1]))
            return logits, tokens
        with Engine(self) as engine:
            engine.prefill(0, self.prefix)
            due, tokens_due = run(engine)
        with Engine(self, self.fleet) as engine:
            engine.done("restore", 0, self.fleet.attach("docs"))
            logits, tokens = run(engine)
            self.assertGreater(engine.counter("received_bytes"), 0)
        self.assertEqual(tokens, tokens_due)
        self.assert_same(logits, due, ROUNDED)

    def test_another_place(self):
        """The chunks are at another position; their rows are those of the first one, rotated."""
        with Engine(self) as engine:
            engine.prefill(0, self.prefix, position=700)
            due = engine.suffix(0, 700 + PREFIX)
        with Engine(self, self.fleet) as engine:
            engine.done("restore", 0, self.fleet.attach("docs", "--position", 700))
            moved = engine.suffix(0, 700 + PREFIX)
        own = distance(self.local, due)
        print(f"elsewhere {distance(moved, due):.2g}, the engine's own {own:.2g}")
        self.assertLessEqual(distance(moved, due), 2 * own)  # as test_another_place of llama_e2e

    def test_shm_and_tcp_and_cache_give_the_same_bits(self):
        routed = self.routed(self.fleet)
        tcp = self.start_fleet("tcp")
        self.assertEqual(self.routed(tcp), routed)
        self.assertEqual(self.routed(self.fleet, {"CKV_GGML_POLICY": "route",
                                                  "CKV_GGML_FABRICS": "tcp"}), routed)
        with Engine(self, tcp, settings={"CKV_GGML_POLICY": "cache"}) as engine:
            engine.done("restore", 0, tcp.attach("docs"))
            self.assertEqual(engine.suffix(0, PREFIX), routed)
            self.assertGreater(engine.counter("prefetched_bytes"), 0)
            before = engine.counter("sent_bytes")
            for index in range(3):
                tcp.kill_holder(index)
            again = engine.one(0, PREFIX + SUFFIX, self.suffix_tokens[0])
            self.assertEqual(engine.counter("sent_bytes"), before)
        self.assertEqual(len(again), base.VOCABULARY)

    def test_no_bit_changes_when_hot_chunks_become_near(self):
        """They are prefetched if measured times predict a gain: mostly within 20 tokens."""
        tokens, logits = [], []
        with Engine(self, self.fleet, settings={"CKV_GGML_FABRICS": "tcp"}) as engine:
            engine.done("restore", 0, self.fleet.attach("docs"))
            sent = -1
            while engine.counter("sent_bytes") > sent and len(tokens) < 400:
                sent = engine.counter("sent_bytes")
                tokens.append(self.other[len(tokens) % OTHER])
                logits.append(engine.one(0, PREFIX + len(tokens) - 1, tokens[-1]))
            cached = engine.counter("prefetched_bytes")
            print(f"{cached} bytes were prefetched in {len(tokens)} tokens")
        with Engine(self, self.fleet, settings={"CKV_GGML_POLICY": "route"}) as engine:
            engine.done("restore", 0, self.fleet.attach("docs"))
            for i, (token, due) in enumerate(zip(tokens, logits)):
                self.assertEqual(engine.one(0, PREFIX + i, token), due)
            self.assertEqual(engine.counter("prefetched_bytes"), 0)
        if cached == 0:
            self.skipTest(skip.say("nothing were prefetched: by the times of this run it did not pay",
                                   "the same test on an idle machine"))

    def alone(self, corpus, count, tokens):
        """The logits of these tokens, one by one, in an engine that has no other sequence."""
        with Engine(self, self.fleet) as engine:
            engine.done("restore", 0, self.fleet.attach(corpus))
            return [engine.one(0, count + i, token) for i, token in enumerate(tokens)]

    def test_two_corpora_and_none_in_one_batch(self):
        docs = self.alone("docs", PREFIX, self.suffix_tokens[:4])
        other = self.alone("other", OTHER, self.suffix_tokens[4:8])
        with Engine(self) as engine:
            none = [engine.one(0, i, token) for i, token in enumerate(self.suffix_tokens[8:])]
        for unified in (0, 1):
            with Engine(self, self.fleet, sequences=3, unified=unified, threads=2) as engine:
                streams = 1 if unified else 3
                for sequence, corpus in ((2, "docs"), (0, "other")):
                    engine.done("restore", sequence, self.fleet.attach(corpus, streams=streams))
                for i in range(4):
                    logits = engine.decode([(0, OTHER + i, self.suffix_tokens[4 + i]),
                                            (1, i, self.suffix_tokens[8 + i]),
                                            (2, PREFIX + i, self.suffix_tokens[i])])
                    self.assert_same(logits, [other[i], none[i], docs[i]], ROUNDED)

    def test_forks(self):
        ends = [self.suffix_tokens[4:8], self.suffix_tokens[8:12], self.other[:4]]
        due = [self.alone("docs", PREFIX, self.suffix_tokens[:4] + end)[4:] for end in ends]
        for unified in (0, 1):
            with Engine(self, self.fleet, sequences=3, unified=unified) as engine:
                engine.done("restore", 1, self.fleet.attach("docs", streams=1 if unified else 3))
                for i in range(4):
                    engine.one(1, PREFIX + i, self.suffix_tokens[i])
                for sequence in (0, 2):
                    engine.done("copy", 1, sequence)
                for i in range(4):
                    logits = engine.decode([(sequence, PREFIX + 4 + i, ends[sequence][i])
                                            for sequence in range(3)])
                    self.assert_same(logits, [due[sequence][i] for sequence in range(3)],
                                     ROUNDED)

    def test_two_references_in_one_sequence(self):
        """They give the logits of the fetched rows of both."""
        fetched = self.folder / "other-behind.ggsq"
        self.fleet.ctl("fetch", "--corpus", "other", "--out", fetched, "--position", PREFIX)
        with Engine(self, self.fleet, sequences=2, unified=1) as engine:
            # A state replaces a sequence, so the second one is restored into another sequence and copied.
            engine.done("restore", 0, self.fleet.attach("docs"))
            engine.done("restore", 1, self.fleet.attach("other", "--position", PREFIX))
            engine.done("copy", 1, 0)
            both = engine.suffix(0, PREFIX + OTHER)
            engine.done("restore", 0, self.fleet.attach("docs"))
            engine.done("restore", 1, fetched)
            engine.done("copy", 1, 0)
            due = engine.suffix(0, PREFIX + OTHER)
        self.assertLessEqual(distance(both, due), 0.05)  # the fetch rounds rotated rows once more
        self.assertGreater(distance(both, self.local), 0.5)

    def test_a_stock_application(self):
        """Three sequences of node-llama-cpp, decoded together, two of them over the same corpus."""
        greedy_count, settings = 16, {"sequences": 3, "together": True}
        runs = [{"restore": str(self.fleet.attach(corpus, streams=3)), "suffix": suffix,
                 "greedy": greedy_count}
                for corpus, suffix in (("docs", self.suffix_tokens), ("other", self.suffix_tokens[:5]),
                                       ("docs", self.suffix_tokens[6:]))]
        asked = self.folder / "asked.json"
        asked.write_text(json.dumps({"model": str(self.model), "runs": runs, **settings}))
        program = self.engine.folder / "llama_app.mjs"  # next to node_modules, so that it finds them
        shutil.copy(HERE / "llama_app.mjs", program)
        run = subprocess.run(
            [self.engine.node, program, asked], capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "GGML_BACKEND_PATH": str(ARGUMENTS.backend),
                 "CKV_GGML_KERNEL_TARGET": route_fixture.kernel_target(),
                 # A host name: node has its own resolver, with the symbols of gRPC's.
                 "CKV_DIRECTORY": self.fleet.directory.replace("127.0.0.1", "localhost"),
                 **sanitizer()})
        self.assertEqual(run.returncode, 0, run.stderr)
        for asked_run, answer in zip(runs, json.loads(run.stdout)["answers"]):
            corpus, count = ("other", OTHER) if "other" in asked_run["restore"] else ("docs", PREFIX)
            self.assertEqual(answer["position"], count)
            suffix = list(asked_run["suffix"])
            with Engine(self, self.fleet) as engine:
                engine.done("restore", 0, self.fleet.attach(corpus))
                logits = engine.decode([(0, count + i, t) for i, t in enumerate(suffix)])
                tokens = [greedy(logits[-1])]
                while len(tokens) < greedy_count:
                    position = count + len(suffix) + len(tokens) - 1
                    tokens.append(greedy(engine.one(0, position, tokens[-1])))
            self.assertEqual(answer["tokens"], tokens)

    def test_runs_next_to_other_copies_of_its_libraries(self):
        """Debian's Python has its own gRPC, and perhaps torch."""
        program = textwrap.dedent("""
            import ctypes, importlib, sys
            beside = []
            for name in ("grpc", "torch"):
                try:
                    beside.append(importlib.import_module(name).__name__)
                except ImportError:
                    pass
            for path in sys.argv[1:4]:
                ggml = ctypes.CDLL(path)
            ggml.ggml_backend_load.restype = ctypes.c_void_p
            registration = ggml.ggml_backend_load(sys.argv[4].encode())
            assert registration, "not loaded"
            get = ctypes.CDLL(sys.argv[2]).ggml_backend_reg_get_proc_address
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
            check = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)(
                get(registration, b"ckv_check"))
            text = ctypes.create_string_buffer(4096)
            check(text, len(text))
            print(*beside)
            print(text.value.decode())
            if "grpc" in beside:
                import grpc
                channel = grpc.insecure_channel(sys.argv[5])
                grpc.channel_ready_future(channel).result(timeout=30)
                channel.close()
                print("both speak")
            """)
        shared = [next(self.engine.libraries.glob(name))
                  for name in ("libggml-base.so", "libggml-base.so", "libggml.v*.so")]
        run = subprocess.run([sys.executable, "-c", program, *shared, ARGUMENTS.backend,
                              self.fleet.directory], capture_output=True, text=True,
                             timeout=TIMEOUT_S, env={**os.environ, **sanitizer(),
                                                     "CKV_DIRECTORY": self.fleet.directory})
        self.assertEqual(run.returncode, 0, run.stderr)
        print("beside", run.stdout.splitlines()[0])
        self.assertIn("fleet: 4 members", run.stdout)
        if "grpc" in run.stdout.splitlines()[0]:
            self.assertIn("both speak", run.stdout)

    def test_it_shows_one_symbol(self):
        shown = subprocess.run(["nm", "-D", "--defined-only", ARGUMENTS.backend],
                               capture_output=True, text=True, check=True).stdout.split("\n")
        functions = {line.split()[-1].split("@")[0] for line in shown if " A " not in line and line}
        self.assertEqual(functions, {"ggml_backend_init"})

    def decode_with_fault(self, corpus, fault, mend=None):
        """The logits of the suffix, token by token. `fault` is called before the fifth token. With
        `mend`, that token fails, and is decoded again after `mend`."""
        with Engine(self, self.fleet, settings={"CKV_GGML_POLICY": "route"}) as engine:
            engine.done("restore", 0, self.fleet.attach(corpus))
            logits = []
            for i, token in enumerate(self.suffix_tokens):
                if i == 4 and fault is not None:
                    fault()
                if i == 4 and mend is not None:
                    for _ in range(2):
                        code, _ = engine.try_decode([(0, PREFIX + i, token)])
                        self.assertEqual(code, -3)
                        self.assertEqual(engine.done("last", 0), str(PREFIX + i - 1))
                    self.assertRegex(engine.log.read_text(), "the attention of layer 0 fails: .*h1")
                    mend()
                logits.append(engine.one(0, PREFIX + i, token))
            return logits

    def test_a_holder_is_killed_and_returns(self):
        due = self.decode_with_fault("docs", None)
        got = self.decode_with_fault("docs", lambda: self.fleet.kill_holder(1),
                                     lambda: self.fleet.start_holder(1))
        self.assertEqual(got, due)

    def test_a_holder_is_killed_and_a_replica_answers(self):
        self.fleet.load("twice", self.folder / "docs.ggsq", "--replicas", 2)
        due = self.decode_with_fault("twice", None)
        got = self.decode_with_fault("twice", lambda: self.fleet.kill_holder(1))
        self.fleet.start_holder(1)
        self.assertEqual(got, due)

    def test_attached_by_function(self):
        with Engine(self, self.fleet, sequences=3) as engine:
            self.assertEqual(engine.done("attach", 2, "docs", -1), str(PREFIX))
            self.assert_same(engine.suffix(2, PREFIX), self.local)
            self.assertEqual(engine.ask("attach", 1, "nothing", -1), "failed")
        self.assertIn("attach: ", (self.folder / "engine.log").read_text())

    def test_one_corpus_for_all_sequences(self):
        """Sequences begin at position 0, and attend the corpus before it."""
        due = self.alone("docs", PREFIX, self.suffix_tokens)
        settings = {"CKV_GGML_CORPUS": "docs"}
        with Engine(self, self.fleet, settings=settings) as engine:
            code, text = engine.done("check").split(" ", 1)
            self.assertEqual(code, "1")
            self.assertIn("|attention: none so far; decode a token", text)
            before = [engine.one(0, i, token) for i, token in enumerate(self.suffix_tokens)]
            self.assertEqual(engine.done("check").split(" ")[0], "0")
        # Rotated by another distance: the angles have errors, and the queries are rounded.
        self.assertLessEqual(distance(before, due), 0.1)
        self.assertEqual([greedy(row) for row in before], [greedy(row) for row in due])
        settings["CKV_GGML_POSITION"] = "0"
        with Engine(self, self.fleet, settings=settings) as engine:
            self.assert_same(engine.suffix(0, PREFIX), self.local)

    def test_the_callback_for_layers_on_a_gpu(self):
        """It runs on this CPU, on the stock kernel's answers. It gives the backend's bits."""
        routed = self.routed(self.fleet)
        with Engine(self, backend=False) as engine:
            stock = engine.suffix(0, 0)
        with Engine(self, self.fleet, sequences=2, eval=1) as engine:
            self.assertEqual(engine.suffix(1, 0), stock)  # tokens without a corpus
            self.assertEqual(engine.counter("ops"), 0)
            engine.done("restore", 0, self.fleet.attach("docs", streams=2))
            self.fleet.kill_holder(2)
            tokens = [(0, PREFIX + i, token) for i, token in enumerate(self.suffix_tokens)]
            for _ in range(2):
                self.assertEqual(engine.try_decode(tokens)[0], -3)
                self.assertEqual(engine.done("last", 0), str(PREFIX - 1))
            self.fleet.start_holder(2)
            self.assertEqual(engine.decode(tokens), routed)
            self.assertGreater(engine.counter("ops_routed"), 0)
            self.assertEqual(engine.done("check").split(" ")[0], "0")

    def check(self, **options):
        with Engine(self, self.fleet, **options) as engine:
            engine.try_decode([(0, 0, 5)])
            code, text = engine.done("check").split(" ", 1)
            return code, text

    def test_check_reports_faults(self):
        code, text = self.check()
        self.assertEqual((code, text.split("|")[0]), ("0", f"settings: ok, directory "
                                                           f"{self.fleet.directory}"))
        self.assertIn("|attention: taken, 2 times so far|", text)
        code, text = self.check(keys=base.F16)
        self.assertEqual(code, "1")
        self.assertIn("keys of f16: -ctk bf16 -ctv bf16", text)
        code, text = self.check(flash=0, keys=base.F16)
        self.assertEqual(code, "1")
        self.assertIn("no flash attention: -fa on", text)
        code, text = self.check(settings={"CKV_DIRECTORY": "127.0.0.1:1"})
        self.assertEqual(code, "1")
        self.assertIn("127.0.0.1:1: ListMembers", text)
        code, text = self.check(settings={"CKV_GGML_CORPUS": "nothing"})
        self.assertEqual(code, "1")
        code, text = self.check(settings={"CKV_GGML_KERNEL_TARGET": "AVX9"})
        self.assertEqual(code, "1")
        self.assertIn("settings: CKV_GGML_KERNEL_TARGET: ", text)
        code, text = self.check(settings={"CKV_GGML_FABRICS": "verbs",
                                          "CKV_GGML_VERBS_DEVICE": "none0"})
        self.assertEqual(code, "1")
        self.assertIn("settings: CKV_GGML_FABRICS: verbs: ", text)
        code, text = self.check(settings={"CKV_GGML_POLICY": "x"})
        self.assertEqual((code, text), ("1", "settings: CKV_GGML_POLICY is 'x', must be auto, "
                                             "route or cache|"))

    def test_nothing_is_left_out_in_silence(self):
        """A corpus for all sequences has no reference cell, so no NaN would show that it is missing."""
        for options, reason in (({"keys": base.F16}, "keys of f16"),
                                ({"flash": 0, "keys": base.F16}, "no flash attention")):
            with Engine(self, self.fleet, settings={"CKV_GGML_CORPUS": "docs"},
                        **options) as engine:
                self.assertEqual(engine.try_decode([(0, 0, 5)])[0], -3)
                self.assertRegex(engine.log.read_text(), f"layer 0 fails: .*{reason}")
            with Engine(self, self.fleet, **options) as engine:
                engine.one(0, 0, 5)  # without a corpus, the engine computes it

    def test_every_context_needs_a_session_if_one_has(self):
        with Engine(self, self.fleet, eval=1) as engine:
            self.assertEqual(engine.ask("context"), "failed")
            self.assertIn("this context has no session", engine.log.read_text())
        with Engine(self, self.fleet) as engine:
            self.assertEqual(engine.ask("session"), "failed")
            self.assertIn("a context without a session", engine.log.read_text())

    def test_a_wrong_setting_fails_every_attention(self):
        with Engine(self, self.fleet, settings={"CKV_GGML_POLICI": "cache"}) as engine:
            self.assertEqual(engine.try_decode([(0, 0, 5)])[0], -3)
        self.assertIn("did you mean CKV_GGML_POLICY?", (self.folder / "engine.log").read_text())

    def test_a_damaged_reference_is_an_error(self):
        raw = bytearray(self.fleet.attach("docs").read_bytes())
        raw[-5] ^= 0x80
        path = self.folder / "damaged.ggsq"
        path.write_bytes(raw)
        with Engine(self, self.fleet) as engine:
            engine.done("restore", 0, path)
            self.assertEqual(engine.try_decode([(0, PREFIX, 5)])[0], -3)
            self.assertEqual(engine.done("last", 0), str(PREFIX - 1))
            # That sequence is unusable; a restored one is not.
            engine.done("restore", 0, self.fleet.attach("docs"))
            self.assert_same(engine.suffix(0, PREFIX), self.local)
        self.assertIn("layer 1 fails: cell 0 of stream 0: reference: its checksum is wrong",
                      (self.folder / "engine.log").read_text())


def main():
    parser = ctl_fleet.argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--backend", required=True, type=pathlib.Path, help="libggml-ckv.so")
    parser.add_argument("--cxx", default="c++", help="compiler of the program that embeds the engine")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder, emptied first")
    global ARGUMENTS
    ARGUMENTS, rest = parser.parse_known_args()
    route_fixture.PROGRAMS.backend = ARGUMENTS.backend.absolute()
    route_fixture.PROGRAMS.cxx = ARGUMENTS.cxx
    return base.run_with_engine(ARGUMENTS, rest)


if __name__ == "__main__":
    sys.exit(main())
