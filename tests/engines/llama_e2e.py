#!/usr/bin/python3
"""Goal: a prefill of stock llama.cpp continues in stock llama.cpp as if it had never left.

Method: a random model with MLA, written here, prefills the GPL in libllama. The sequence state is
loaded onto three holders and fetched, at its own position or rotated to another one. libllama and
the stock application node-llama-cpp restore it into fresh contexts, and decode. The same position
gives the same bits. At another one the error has a bound (test_another_place).

The engine is downloaded from npm (engines.py). If it is unavailable, this is SKIPPED: exit code 77.
"""

import array
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import engines  # noqa: E402

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
PREFIX, SUFFIX, GREEDY, CHUNK = 1500, 12, 24, 256
ELSEWHERE = 700
LAYERS, D_QK, D_V, VOCABULARY = 2, 576, 512, 512
Q8_0, F16 = 8, 1
TIMEOUT_S = 120
GEOMETRY = {"model": "test/tiny-mla", "revision": "1", "layers": LAYERS, "d_qk": D_QK, "d_v": D_V,
            "d_rope": 64, "dtype": "bf16", "rope_style": "interleaved", "rope_theta": 10000,
            "softmax_scale": 128 ** -0.5 * (0.0707 * math.log(40) + 1) ** 2,
            "yarn": {"factor": 40, "original_max_position": 4096, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 0.707, "mscale_all_dim": 0.707}}
ARGUMENTS = None


class State:
    """A sequence state, parsed without ckv's code."""

    def __init__(self, path):
        raw = path.read_bytes()
        magic, version, count = struct.unpack_from("<III", raw)
        assert (magic, version) == (0x67677371, 3)
        self.token_ids = list(struct.unpack_from(f"<{count}i", raw, 12))
        at = 12 + 4 * count
        at, cells = at + 4, 0
        while cells == 0:  # empty streams before the sequence's own
            (cells,) = struct.unpack_from("<I", raw, at)
            at += 4
        self.positions_at, at = at, at + 12 * cells
        self.positions = [struct.unpack_from("<i", raw, self.positions_at + 12 * i)[0]
                          for i in range(cells)]
        _, layers = struct.unpack_from("<II", raw, at)
        at += 8
        self.rows = []
        for _ in range(layers):
            _, row_bytes = struct.unpack_from("<iQ", raw, at)
            values = array.array("H", raw[at + 12:at + 12 + cells * row_bytes])
            self.rows.append([values[i * D_QK:(i + 1) * D_QK] for i in range(cells)])
            at += 12 + cells * row_bytes


def floats(path):
    values = array.array("f")
    values.frombytes(path.read_bytes())
    return values


def distance(a, b):
    """The largest difference between logits of the suffix."""
    count = SUFFIX * VOCABULARY
    return max(abs(x - y) for x, y in zip(a[:count], b[:count]))


class LlamaE2e(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = ARGUMENTS.work
        cls.engine = ARGUMENTS.engine
        cls.host_program = cls.folder / "llama_host"
        cls.engine.compile(ARGUMENTS.cxx, HERE / "llama_host.cc", cls.host_program)
        cls.model = cls.folder / "tiny.gguf"
        subprocess.run([cls.host_program, "model", cls.model], check=True, timeout=TIMEOUT_S)
        cls.tokens = [byte + 3 for byte in TEXT.read_bytes()[:PREFIX + SUFFIX]]
        for name, ids in (("prefix", cls.tokens[:PREFIX]), ("suffix", cls.tokens[PREFIX:])):
            (cls.folder / name).write_bytes(struct.pack(f"<{len(ids)}i", *ids))
        (cls.folder / "geometry.json").write_text(json.dumps(GEOMETRY))
        cls.fleet = ctl_fleet.Fleet(cls.folder, holders=3)
        try:
            # The engine's logits of all tokens in one context, at two positions.
            cls.here, cls.here_tokens = cls.prefill("here", save=cls.folder / "here.ggsq")
            cls.there, _ = cls.prefill("there", position=ELSEWHERE,
                                       save=cls.folder / "there.ggsq")
            cls.load("docs", cls.folder / "here.ggsq")
            cls.load("late", cls.folder / "there.ggsq")
        except BaseException:
            cls.fleet.stop()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.fleet.stop()

    @classmethod
    def host(cls, **options):
        """Runs llama_host: returns its output and its exit code."""
        run = subprocess.run([cls.host_program, "run", cls.engine.libraries, cls.model,
                              *(f"{key}={value}" for key, value in options.items())],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             timeout=TIMEOUT_S)
        return run.returncode, [int(line) for line in run.stdout.split()], run.stderr

    @classmethod
    def decode(cls, name, **options):
        """The logits of the suffix and of greedy tokens, and these tokens."""
        path = cls.folder / f"{name}.logits"
        code, tokens, errors = cls.host(suffix=cls.folder / "suffix", greedy=GREEDY, logits=path,
                                        **options)
        assert code == 0, errors
        return floats(path), tokens

    @classmethod
    def prefill(cls, name, **options):
        return cls.decode(name, tokens=cls.folder / "prefix", **options)

    @classmethod
    def run_ctl(cls, *arguments):
        return subprocess.run([ctl_fleet.PROGRAMS.ckvctl, f"--requester={cls.fleet.requester}",
                               f"--directory={cls.fleet.directory}", *map(str, arguments)],
                              capture_output=True, text=True, timeout=TIMEOUT_S)

    @classmethod
    def ctl(cls, *arguments):
        done = cls.run_ctl(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @classmethod
    def load(cls, name, path, *arguments):
        return cls.ctl("corpus", "load", name, path, "--geometry", cls.folder / "geometry.json",
                       "--chunk-tokens", CHUNK, *arguments)

    @classmethod
    def fetch(cls, corpus, name, *arguments):
        path = cls.folder / name
        cls.ctl("fetch", "--corpus", corpus, "--out", path, *arguments)
        return path

    def test_the_same_place_gives_the_same_bits(self):
        shown = self.ctl("corpus", "show", "docs")
        self.assertEqual(len(shown["chunks"]), -(-PREFIX // CHUNK))
        self.assertEqual({h for c in shown["chunks"] for h in c["holders"]}, {"h0", "h1", "h2"})
        fetched = self.fetch("docs", "fetched.ggsq")
        self.assertEqual(fetched.read_bytes(), (self.folder / "here.ggsq").read_bytes())
        logits, tokens = self.decode("fetched", state=fetched)
        self.assertEqual(logits, self.here)
        self.assertEqual(tokens, self.here_tokens)

    def test_a_cache_of_several_streams(self):
        fetched = self.fetch("docs", "three.ggsq", "--streams", 3)
        logits, _ = self.decode("three", state=fetched, streams=3, sequence=2)
        self.assertEqual(logits, self.here)
        code, _, errors = self.host(state=fetched, streams=2)
        self.assertEqual(code, 3)
        self.assertIn("n_stream mismatch", errors)

    def test_another_place(self):
        """Rows: a bf16 has 8 significant bits, so rounding a pair of the band moves it by at most
        u = 2^-8 of its norm. A spliced row was rounded twice, and the engine's own once: 3 u. An
        angle in f32 at a position below 2,300 is off by at most 4.5e-4, and there are two.

        Logits: to first order they move with the rows. The engine's own move by `own` when the same
        text is at another position: one rounding at each, two in all. If errors add up the same way,
        three roundings move them by at most 3/2 own; the factor 2 leaves room for the second order.
        """
        fetched = self.fetch("docs", "moved.ggsq", "--position", ELSEWHERE)
        moved, local = State(fetched), State(self.folder / "there.ggsq")
        self.assertEqual(moved.token_ids, self.tokens[:PREFIX])
        self.assertEqual(moved.positions, list(range(ELSEWHERE, ELSEWHERE + PREFIX)))
        bound = 3.02 * 2.0 ** -8 + 2 * 4.5e-4
        worst = 0.0
        for got, due in zip(moved.rows[0], local.rows[0]):  # deeper layers see other hidden states
            self.assertEqual(got[:D_V], due[:D_V])
            a, b = ([ctl_fleet.from_bf16(bits) for bits in row[D_V:]] for row in (got, due))
            for i in range(0, len(a), 2):
                norm = (b[i] ** 2 + b[i + 1] ** 2) ** 0.5
                off = ((a[i] - b[i]) ** 2 + (a[i + 1] - b[i + 1]) ** 2) ** 0.5
                worst = max(worst, off / max(norm, 1e-9))
        self.assertLessEqual(worst, bound)

        logits, _ = self.decode("moved", state=fetched, position=ELSEWHERE)
        own = distance(self.here, self.there)
        error = distance(logits, self.there)
        print(f"rows: {worst:.5f} of {bound:.5f}; logits: {error:.4f}, own {own:.4f}")
        self.assertLessEqual(error, 2 * own)
        # Rows that are not rotated, at the same positions, are far off.
        raw = bytearray((self.folder / "here.ggsq").read_bytes())
        for i in range(PREFIX):
            struct.pack_into("<i", raw, local.positions_at + 12 * i, ELSEWHERE + i)
        unturned = self.folder / "unturned.ggsq"
        unturned.write_bytes(raw)
        wrong, _ = self.decode("unturned", state=unturned, position=ELSEWHERE)
        print(f"not turned: {distance(wrong, self.there):.4f}")
        self.assertGreater(distance(wrong, self.there), 8 * own)

    def test_a_stock_application_continues(self):
        """It restores a prefill of libllama, and one of another position that was rotated to the start.
        Its own saved state is loaded and fetched, and libllama continues from it."""
        here = self.fetch("docs", "app.ggsq", "--streams", 3)
        turned = self.fetch("late", "app-turned.ggsq", "--position", 0, "--streams", 3)
        saved = self.folder / "app-saved.ggsq"
        suffix = self.tokens[PREFIX:]
        prompt = [token for token in reversed(self.tokens[:400])]
        rest = {"suffix": suffix, "greedy": GREEDY}
        asked = self.folder / "asked.json"
        asked.write_text(json.dumps(
            {"model": str(self.model), "sequences": 3,
             "runs": [{"restore": str(here), **rest}, {"restore": str(turned), **rest},
                      {"tokens": prompt, "save": str(saved), **rest}]}))
        program = self.engine.folder / "llama_app.mjs"  # next to node_modules, so that it finds them
        shutil.copy(HERE / "llama_app.mjs", program)
        run = subprocess.run([self.engine.node, program, asked], capture_output=True, text=True,
                             timeout=TIMEOUT_S)
        self.assertEqual(run.returncode, 0, run.stderr)
        first, second, third = json.loads(run.stdout)["answers"]
        self.assertEqual(first, {"position": PREFIX, "tokens": self.here_tokens})

        logits, tokens = self.decode("turned", state=self.fetch("late", "turned.ggsq",
                                                                "--position", 0))
        self.assertLessEqual(distance(logits, self.here), 2 * distance(self.here, self.there))
        self.assertEqual(second, {"position": PREFIX, "tokens": tokens})

        self.load("app", saved)
        fetched = self.fetch("app", "app-fetched.ggsq", "--streams", 3)
        was, now = State(saved), State(fetched)
        self.assertTrue(was.token_ids == now.token_ids == prompt and was.rows == now.rows)
        _, tokens = self.decode("app", state=fetched, streams=3)
        self.assertEqual(third, {"position": len(prompt), "tokens": tokens})

    def test_a_reference_is_nan_without_a_backend(self):
        path = self.folder / "attached.ggsq"
        self.ctl("attach", "--corpus", "docs", "--out", path)
        self.assertLess(path.stat().st_size, 4 * PREFIX + 2 * LAYERS * D_QK + 100)
        logits, _ = self.decode("attached", state=path)
        self.assertTrue(all(math.isnan(value) for value in logits))

    def test_keys_of_other_types(self):
        f16 = self.folder / "f16.ggsq"
        code, _, errors = self.host(tokens=self.folder / "suffix", save=f16, keys=F16)
        self.assertEqual(code, 0, errors)
        self.load("halves", f16)
        fetched = State(self.fetch("halves", "halves.ggsq"))
        for got, saved in zip(fetched.rows[1], State(f16).rows[1]):
            halves = struct.unpack(f"<{D_QK}e", saved.tobytes())
            self.assertEqual(list(got), [ctl_fleet.bf16(value) for value in halves])
        q8 = self.folder / "q8.ggsq"
        code, _, errors = self.host(tokens=self.folder / "suffix", save=q8, keys=Q8_0)
        self.assertEqual(code, 0, errors)
        refused = self.run_ctl("corpus", "load", "quantised", q8, "--geometry",
                               self.folder / "geometry.json")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("keys of q8_0 at layer 0, must be bf16 or f16", refused.stderr)


def run_with_engine(arguments, rest):
    """Runs the tests of the program with `arguments.engine` in the folder `arguments.work`; returns the exit code."""
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    arguments.work = arguments.work.absolute()
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    try:
        arguments.engine = engines.Engine(arguments.work)
    except engines.Unavailable as error:
        return skip.cannot(f"no stock llama.cpp: {error}", skip.NPM)
    try:
        return 0 if unittest.main(argv=[sys.argv[0], *rest], exit=False).result.wasSuccessful() else 1
    finally:
        shutil.rmtree(arguments.work / "node_modules", ignore_errors=True)  # 227 MB


def main():
    parser = ctl_fleet.argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--cxx", default="c++", help="compiler of the program that embeds the engine")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder, emptied first")
    global ARGUMENTS
    ARGUMENTS, rest = parser.parse_known_args()
    return run_with_engine(ARGUMENTS, rest)


if __name__ == "__main__":
    sys.exit(main())
