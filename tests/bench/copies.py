"""A holder with 4 GiB is drained under load, and one is lost: seconds until all copies are there, and what callers notice.

    python3 tests/bench/copies.py BUILD_DIR

Real processes on loopback, rows of DeepSeek-V2-Lite's shape. h0 and h1 have a copy of each chunk. h2 starts empty, and h0 is
drained into it. Then h3 starts empty, and h1 is killed, so that h3 must copy from h2. Callers over gRPC and C attend a
small corpus every few milliseconds, which takes half of two processors, and compare bits. Without a pause they would take
all, and a copy could only have what it takes from them. Only one holder copies at a time, so the set rate says how long it
takes.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("tests/bench", "tests/e2e", "tests/support")]
from bar import NOT_HERE  # noqa: E402
from directories_e2e import poll  # noqa: E402
from priority import usual_priority  # noqa: E402

GIB = 1 << 30
D_QK, D_V, D_ROPE, LAYERS = 576, 512, 64, 27
CHUNK_TOKENS = 1024
BYTES = 4 * GIB  # of the large corpus
RATE = 64 << 20  # repair.bytes_per_second
LOSS_AFTER_S = 2
FREE_BYTES = 5 * BYTES  # on disk: the file, then three stores
CALM_S = 20.0
DONE_S_MAX = 600
TIMEOUT_S = 4.0
CALL_EVERY_MS = 3  # of each of two callers


def rows(count):
    """`count` finite bf16 values of either sign, between 2^-7 and 1."""
    high = bytes(0x3C + (byte & 3) if byte & 4 else 0xBC + (byte & 3) for byte in range(256))
    raw = bytearray(os.urandom(2 * count))
    raw[1::2] = bytes(raw[1::2]).translate(high)
    return bytes(raw)


def write_corpus(path, tokens, first_id):
    """A safetensors file. Tokens differ, and blocks of rows repeat, which takes a tenth of the time."""
    layer_bytes = 2 * D_QK * tokens
    header = {"__metadata__": {"model": "test/copies", "revision": "1", "d_v": str(D_V), "d_rope": str(D_ROPE),
                               "rope_style": "interleaved", "rope_theta": "10000", "softmax_scale": "0.1147",
                               "base_position": "0"},
              "token_ids": {"dtype": "I32", "shape": [tokens], "data_offsets": [0, 4 * tokens]}}
    at = 4 * tokens
    for layer in range(LAYERS):
        header[f"layers.{layer}.ckv"] = {"dtype": "BF16", "shape": [tokens, D_QK], "data_offsets": [at, at + layer_bytes]}
        at += layer_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = rows(D_QK * CHUNK_TOKENS)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.write(struct.pack(f"<{tokens}i", *((first_id + i) % 100_000 for i in range(tokens))))
        for layer in range(LAYERS):
            turned = block[2 * layer:] + block[:2 * layer]
            for _ in range(tokens // CHUNK_TOKENS):
                out.write(turned)


class CopyBench:
    def __init__(self, shared, folder):
        self.shared, self.folder = shared, folder
        self.fleet = fleet = shared.Fleet.__new__(shared.Fleet)
        fleet.folder, fleet.processes, fleet.durable = folder, [], True
        fleet.directory = fleet.start("directory", "--role=directory", f"--directory-path={folder}/directory",
                                      f"--repair-loss-after={LOSS_AFTER_S}s", "--repair-fill-new-holders=off")
        try:
            self.start_holder(0)
            self.start_holder(1)
            fleet.requester = fleet.start("requester", "--role=requester", f"--directory={fleet.directory}")
        except BaseException:
            fleet.stop()
            raise

    def start_holder(self, number):
        self.fleet.start(f"h{number}", "--role=holder", f"--directory={self.fleet.directory}", "--store-capacity=1GiB",
                         f"--store-path={self.fleet.store(number)}", f"--repair-bytes-per-second={RATE}")

    def ctl(self, *arguments):
        done = self.shared.run_ctl(self.fleet, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"ckvctl {arguments}: {done.stderr}")
        return done.stdout

    def load(self, name, tokens, first_id):
        path = self.folder / f"{name}.safetensors"
        write_corpus(path, tokens, first_id)
        self.ctl("corpus", "load", name, path, "--chunk-tokens", CHUNK_TOKENS, "--replicas", 2)
        path.unlink()

    def start_callers(self):
        callers, timeout_ms = [], round(1000 * TIMEOUT_S)
        os.environ["CKV_CALL_EVERY_MS"] = str(CALL_EVERY_MS)  # they inherit it
        for command in ((self.shared.PROGRAMS.attend_caller, self.fleet.requester, "base", D_QK, timeout_ms),
                        (self.shared.PROGRAMS.c_caller, self.fleet.directory, "base", timeout_ms)):
            callers.append(self.shared.Caller(*command))
        del os.environ["CKV_CALL_EVERY_MS"]
        for caller in callers:
            caller.await_answer()
        return callers

    def under_load(self, action):
        """Runs the action beside callers: (seconds, what they report)."""
        callers = self.start_callers()
        try:
            begin = time.monotonic()
            action()
            return time.monotonic() - begin, [caller.end() for caller in callers]
        finally:
            for caller in callers:
                caller.kill()

    def kill(self, name):
        process = next(one for one in self.fleet.processes if f"--name={name}" in one.args)
        process.kill()
        process.wait()
        self.fleet.processes.remove(process)

    def remove(self, number):
        """Ends a holder that may go, and gives its disk back."""
        self.kill(f"h{number}")
        shutil.rmtree(self.fleet.store(number))

    def lacks(self):
        health = self.shared.run_ctl(self.fleet, "health").stdout
        return "chunks-under-replicated" in health or "chunks-lost" in health

    def await_whole(self):
        """Until the directory has noticed the loss, and no chunk lacks a copy any more."""
        if not (poll(self.lacks, DONE_S_MAX) and poll(lambda: not self.lacks(), DONE_S_MAX)):
            raise RuntimeError(self.shared.run_ctl(self.fleet, "health").stdout)


def p99(said):
    return max(one["ms"][1] for one in said)


def measure(bench):
    tokens = BYTES // (2 * D_QK * LAYERS) // CHUNK_TOKENS * CHUNK_TOKENS
    bench.load("base", 2 * CHUNK_TOKENS, 0)
    bench.load("large", tokens, 50_000)
    by_rate_s = (tokens + 2 * CHUNK_TOKENS) * 2 * D_QK * LAYERS / RATE
    _, calm = bench.under_load(lambda: time.sleep(CALM_S))  # how long they call
    bench.start_holder(2)
    drain_s, drained = bench.under_load(lambda: bench.ctl("holder", "drain", "h0", "--timeout", f"{DONE_S_MAX}s"))
    bench.remove(0)
    bench.start_holder(3)

    def lose():
        bench.kill("h1")
        bench.await_whole()
    repair_s, repaired = bench.under_load(lose)
    bench.ctl("corpus", "verify", "base")
    found = {"calm_ms": p99(calm), "by_rate_s": by_rate_s}
    for name, took, said in (("drain", drain_s, drained), ("repair", repair_s, repaired)):
        for one in said:
            if one["failed"]:
                print(f"copies: {name}: {one['first_error']}", file=sys.stderr)
        found[name] = {"s": took, "of_rate": took / by_rate_s, "p99_ms": p99(said), "p99_ratio": p99(said) / p99(calm),
                       **{count: sum(one[count] for one in said) for count in ("queries", "failed", "changed")}}
    return found


@usual_priority()
def figures(build):
    """{"calm_ms", "by_rate_s", and for "drain" and "repair": {"s", "of_rate", "p99_ms", "p99_ratio", "queries", ...}}"""
    import rolling_restart_e2e as shared

    for program in ("ckvd", "ckvctl", "attend_caller", "c_caller"):
        setattr(shared.PROGRAMS, program, build.resolve() / "bin" / program)
    with tempfile.TemporaryDirectory(prefix="ckv-copies-", dir=os.environ.get("CKV_BENCH_FOLDER")) as name:
        if shutil.disk_usage(name).free < FREE_BYTES:
            return {NOT_HERE: f"less than {FREE_BYTES // GIB} GiB free in {name}; CKV_BENCH_FOLDER names another folder"}
        bench = CopyBench(shared, pathlib.Path(name))
        try:
            return measure(bench)
        finally:
            bench.fleet.stop()


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
