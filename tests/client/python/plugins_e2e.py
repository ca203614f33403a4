#!/usr/bin/python3
"""Goal: the plug-in for SGLang gets from real holders what its contract test gets from a stand-in.

Method: a directory, two holders and a corpus of several chunks. The base classes are stand-ins, as no engine is here;
ckv is the real package. Pages are compared with the corpus' rows to the bit. Then the holders end, and nothing is
answered. It proves nothing about SGLang or a GPU. The plug-in for vLLM runs in vLLM: tests/engines/vllm.

    python3 tests/client/python/plugins_e2e.py --ckvd ... --ckvctl ... --library libckv.so.1
"""

import argparse
import hashlib
import logging
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e"), str(ROOT / "tests/support")]
import skip  # noqa: E402

skip.needs("numpy", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

import ckv  # noqa: E402
from ckv_sglang import storage  # noqa: E402
from ckv_vllm import prefix, settings, shared  # noqa: E402
from ctl_fleet import D_QK, D_ROPE, D_V, LAYERS, PROGRAMS, SCALE, THETA, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS, PAGE, HEADS = 100, 20, 16, 3  # chunks of fewer than 16 tokens are not found
MODEL = "test/ctl"
POSITIONS = {"docs": 0, "later": 50}  # where the first token of each corpus stands
TIMEOUT = 30.0


def require(holds, what):
    if not holds:
        sys.exit(f"plugins_e2e: {what}")


def bf16_of(bits):
    return torch.from_numpy(np.asarray(bits, np.uint16).view(np.int16)).view(torch.bfloat16)


def hash_of(tokens, prior):
    digest = hashlib.sha256(bytes.fromhex(prior) if prior else b"")
    for token in tokens:
        digest.update(token.to_bytes(4, "little"))
    return digest.hexdigest()


class StorageBase:
    """As HiCacheStorage."""

    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host


class Pages:
    """SGLang's storage, and the keys of the corpus' pages."""

    def __init__(self, folder, directory, token_ids):
        path = folder / "tokens.i32"
        np.asarray(token_ids, "<i4").tofile(path)
        extra = {"directory": directory, "page_size": PAGE, "token_files": [str(path)], "timeout": TIMEOUT}
        config = types.SimpleNamespace(is_mla_model=True, model_name=MODEL, extra_config=extra)
        self.one = storage.storage_over(StorageBase, hash_of)(config, {})
        self.keys, prior = [], None
        for i in range(TOKENS // PAGE):
            prior = hash_of(token_ids[i * PAGE:(i + 1) * PAGE], prior)
            self.keys.append(prior)

    def targets(self):
        return [torch.zeros(LAYERS * PAGE * D_QK, dtype=torch.bfloat16) for _ in self.keys]

    def check(self, rows):
        require(self.one.batch_exists(self.keys) == len(self.keys), "pages are unknown")
        for layout in ("layer_first", "page_first"):
            self.one.register_mem_pool_host(types.SimpleNamespace(layout=layout))
            one_by_one = [self.one.get(key, target) for key, target in zip(self.keys, self.targets())]
            for got in (self.one.batch_get(self.keys, self.targets()), one_by_one):
                for i, page in enumerate(got):
                    want = rows[:, i * PAGE:(i + 1) * PAGE]
                    want = (want.transpose(0, 1) if layout == "page_first" else want).reshape(-1)
                    same = page is not None and torch.equal(page.view(torch.int16), want.view(torch.int16))
                    require(same, f"page {i} differs from the corpus, {layout}")
        require(self.one.get("00" * 32, self.targets()[0]) is None, "an unknown key is found")
        print("HiCache: pages have the bits of the corpus")


def put(requester, name, tokens, position):
    """Publishes a chunk without a parent, whose first token stands at `position`."""
    model = ckv.Model(MODEL, "1", LAYERS, D_QK, D_V, D_ROPE, SCALE)
    with requester.put(name, create=model, timeout=TIMEOUT) as one:
        one.chunk(tokens, position=position)
        for layer in range(LAYERS):
            one.rows(layer, np.full((len(tokens), D_QK), 0x3f80, np.uint16))
        one.finish(TIMEOUT)


def check_parentless(requester):
    """What the READMEs tell of: a chunk without a parent counts as the continuation of those before it.

    Only if its publisher placed it there. One placed elsewhere ends the prefix.
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
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        try:
            shared.check_directory(settings.read({"directory": nobody, "deadline": 0.5}))
        except (ckv.Unavailable, ckv.DeadlineExceeded):
            return
    require(False, "an address where nobody listens is taken for a directory")


def check_without_holders(fleet, pages):
    """Both holders end. A page is a miss: its memory stays as it was."""
    for process in fleet.processes[1:3]:  # the directory was started first, then the holders
        process.kill()
        process.wait()
    logging.disable(logging.WARNING)
    target = pages.targets()[0]
    require(pages.one.get(pages.keys[0], target) is None and not target.any(), "a page without holders")


def check_all(folder, fleet, given):
    rows = bf16_of(given["docs"].layers)
    pages = Pages(folder, fleet.directory, given["docs"].token_ids)
    pages.check(rows)
    with ckv.open(fleet.directory) as requester:
        check_parentless(requester)
    check_directory(fleet.directory)
    check_without_holders(fleet, pages)
    pages.one.requester.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", required=True)
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
            check_all(folder, fleet, given)
        finally:
            fleet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
