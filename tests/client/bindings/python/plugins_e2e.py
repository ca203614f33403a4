#!/usr/bin/python3
"""Goal: the plug-ins' parts that do not depend on an engine find, load and put rows correctly, over real holders.

Method: a directory, two holders and two corpora of several chunks. Pages equal the corpus' rows to the bit. Then the
holders end, and every page is a miss. No engine runs here: tests/engines tests both plug-ins in their engines.

    python3 tests/client/bindings/python/plugins_e2e.py --ckvd ... --ckvctl ... --library libckv.so.1 --stand-ins FOLDER
"""

import argparse
import hashlib
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "client/bindings/python"), str(ROOT / "tests/e2e"), str(ROOT / "tests/support")]
import skip  # noqa: E402

skip.needs("numpy", "torch")
import numpy as np  # noqa: E402

import ckv  # noqa: E402
from ckv_sglang import identity, settings as sglang_settings, store  # noqa: E402
from ckv_vllm import prefix, settings, shared  # noqa: E402
from ctl_fleet import D_QK, D_ROPE, D_V, LAYERS, PROGRAMS, SCALE, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS, PAGE = 100, 20, 16  # chunks of fewer than 16 tokens are not found
MODEL = "test/ctl"
POSITIONS = {"docs": 0, "later": 50}  # the position of the first token of each corpus
TIMEOUT = 30.0


def require(holds, what):
    if not holds:
        sys.exit(f"plugins_e2e: {what}")


def hash_of(tokens, prior, page_size):
    """Keys computed as in SGLang: each is a hash over all tokens up to the page's end."""
    keys = []
    for begin in range(0, len(tokens), page_size):
        digest = hashlib.sha256(bytes.fromhex(keys[-1]) if keys else b"")
        for token in tokens[begin:begin + page_size]:
            digest.update(token.to_bytes(4, "little"))
        keys.append(digest.hexdigest())
    return keys


class Pages:
    """The plug-in's storage for SGLang, without SGLang, and the keys of the corpus' pages."""

    def __init__(self, folder, directory, token_ids):
        path = folder / "tokens.i32"
        np.asarray(token_ids, "<i4").tofile(path)
        given = sglang_settings.Settings(directory, MODEL, revision="1", publish="pages", token_files=(str(path),))
        self.one = store.Store(given, is_writer=True)
        self.one.open_pages(identity.Shape(PAGE, LAYERS, D_QK, D_V, D_ROPE, False), hash_of)
        self.keys = hash_of(token_ids[:TOKENS // PAGE * PAGE], None, PAGE)

    def get(self, keys):
        """{index of a key: its rows}."""
        got = {}
        there = self.one.get(keys, lambda i, rows: got.update({i: rows.copy()}))
        require(sorted(got) == [i for i, is_there in enumerate(there) if is_there], "a page came and did not")
        return got

    def check(self, rows):
        """Checks pages of 16 tokens in chunks of 20: fetched together, singly, and by an unknown key."""
        require(self.one.prefix(self.keys) == len(self.keys), "pages are unknown")
        together, singly = self.get(self.keys), [self.get([key]) for key in self.keys]
        for i in range(len(self.keys)):
            for page in (together.get(i), singly[i].get(0)):
                same = page is not None and np.array_equal(page, rows[:, i * PAGE:(i + 1) * PAGE])
                require(same, f"page {i} differs from the corpus")
        require(not self.get(["00" * 32]), "an unknown key is found")
        print("HiCache: pages have the bits of the corpus")

    def check_set(self, rows):
        """Pages that are set are found by their keys. Those of the corpus already exist."""
        keys = [*self.keys[:2], "11" * 32, "22" * 32]
        other = np.ascontiguousarray(rows[::-1])

        def rows_of(i):
            return other[:, i * PAGE:(i + 1) * PAGE]

        require(self.one.prefix(keys) == 2, "pages are there that nobody has set")
        require(self.one.set(keys, rows_of) and self.one.prefix(keys) == 4, "pages were not set")
        got = self.get(keys)
        for i in range(4):
            require(np.array_equal(got[i], rows_of(i) if i > 1 else rows[:, i * PAGE:(i + 1) * PAGE]), f"page {i} of 4")
        print("HiCache: pages that were set have their bits")


def put(requester, name, tokens, position):
    """Publishes a chunk without a parent, whose first token is at `position`."""
    model = ckv.Model(MODEL, "1", LAYERS, D_QK, D_V, D_ROPE, SCALE)
    with requester.put(name, create=model, timeout=TIMEOUT) as one:
        one.chunk(tokens, position=position)
        for layer in range(LAYERS):
            one.rows(layer, np.full((len(tokens), D_QK), 0x3f80, np.uint16))
        one.finish(TIMEOUT)


def check_parentless(requester):
    """As the READMEs state, a chunk without a parent continues the chunks before it if its publisher placed it there.

    A chunk placed elsewhere ends the prefix.
    """
    first, second, third = (list(range(begin, begin + 16)) for begin in (2000, 3000, 4000))
    put(requester, "first", first, 0)
    put(requester, "second", second, len(first))
    put(requester, "third", third, 5)
    found = requester.find(first + second + third, timeout=TIMEOUT)
    require(found.token_begins.tolist() == [0, 16, 32] and found.offsets.tolist() == [0, 0, 27], f"{found}")
    have = prefix.prefix_of(found)
    require((have.token_count, len(have.ids)) == (32, 64), f"the prefix is {have}")


def check_directory(directory):
    """An engine with the plug-in for vLLM does not start without a directory."""
    shared.check_directory(settings.read({"directory": directory}))
    with socket.socket() as held:  # bound, but not listening
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        try:
            shared.check_directory(settings.read({"directory": nobody, "deadline": 0.5}))
        except (ckv.Unavailable, ckv.DeadlineExceeded):
            return
    require(False, "an address where nobody listens is taken for a directory")


def check_without_holders(fleet, pages):
    """Ends both holders. A page is then a miss, and nothing is raised."""
    for process in fleet.processes[1:3]:  # the directory was started first, then the holders
        process.kill()
        process.wait()
    logging.disable(logging.WARNING)
    require(not pages.get(pages.keys), "a page without holders")
    require(not pages.one.set(["33" * 32], lambda _: np.zeros((LAYERS, PAGE, D_QK), np.uint16)), "set without holders")


def check_gpu(folder, fleet, token_ids, arguments):
    """Runs in a process of its own, because a stand-in of ckv's GPU library is next to its libckv.so."""
    (folder / "ckv").mkdir()
    library = shutil.copy(arguments.library, folder / "libckv.so.1")
    gpu = shutil.copy(arguments.stand_ins / "reaches_host/libckv_cuda.so", folder / "ckv")
    paths = os.pathsep.join(str(ROOT / path) for path in ("client/bindings/python", "tests/client/bindings/python"))
    done = subprocess.run([sys.executable, ROOT / "tests/client/bindings/python/vllm_gpu_check.py", fleet.directory, "docs", gpu],
                          input=" ".join(map(str, token_ids)), text=True, timeout=120, check=False,
                          env={**os.environ, "CKV_LIBRARY": str(library), "PYTHONPATH": paths})
    require(done.returncode == 0, "tensors of a GPU are not as those of the processor")


def check_all(folder, fleet, given, arguments):
    rows = np.asarray(given["docs"].layers, np.uint16)
    pages = Pages(folder, fleet.directory, given["docs"].token_ids)
    pages.check(rows)
    pages.check_set(rows)
    with ckv.open(fleet.directory) as requester:
        check_parentless(requester)
    check_directory(fleet.directory)
    check_gpu(folder, fleet, given["docs"].token_ids, arguments)
    check_without_holders(fleet, pages)
    pages.one.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--stand-ins", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    os.environ["CKV_LIBRARY"] = arguments.library
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        given = {name: Rows(seed=5 + i, tokens=TOKENS, position=at) for i, (name, at) in enumerate(POSITIONS.items())}
        fleet = Fleet(folder, holders=2)
        try:
            for corpus, rows in given.items():
                rows.write(folder / f"{corpus}.safetensors")
                subprocess.run([PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "load", corpus,
                                folder / f"{corpus}.safetensors", "--chunk-tokens", str(CHUNK_TOKENS)], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
            check_all(folder, fleet, given, arguments)
        finally:
            fleet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
