#!/usr/bin/python3
"""Goal: the plug-ins for vLLM and SGLang get from real holders what their contract tests get from a stand-in.

Method: a directory, two holders and a corpus of several chunks. The base classes are stand-ins, as no engine is here;
ckv is the real package. ckv_vllm's merged attention is compared with float32 attention over the corpus and the own
rows; loaded blocks and pages are compared with the corpus' rows to the bit. Then the holders end, and nothing is
answered. It proves nothing about vLLM, SGLang or a GPU.

    python3 tests/client/python/plugins_e2e.py --ckvd ... --ckvctl ... --library libckv.so.1
"""

import argparse
import hashlib
import logging
import os
import pathlib
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
from ckv_vllm import attend, loads, prefix, tensors  # noqa: E402
from ctl_fleet import D_QK, D_ROPE, D_V, LAYERS, PROGRAMS, SCALE, THETA, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS, PAGE, HEADS = 100, 20, 16, 3  # chunks of fewer than 16 tokens are not found
MODEL = "test/ctl"
POSITIONS = {"docs": 0, "later": 50}  # where the first token of each corpus stands
TIMEOUT = 30.0
# Answers travel in bf16, whose half ulp below 2 is 2^-8.
TOLERANCE = 2.0**-7
NAMES = [f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS)]


def require(holds, what):
    if not holds:
        sys.exit(f"plugins_e2e: {what}")


def fails(call, what):
    """Requires that a call raises an error of ckv, and so returns nothing."""
    try:
        call()
    except ckv.Error as error:
        return error
    sys.exit(f"plugins_e2e: {what}: an answer without a holder")


def bf16_of(bits):
    return torch.from_numpy(np.asarray(bits, np.uint16).view(np.int16)).view(torch.bfloat16)


def turned(rows, delta):
    """Rows [n, D_QK] in float32 whose bands are turned by `delta` positions, pairs (2i, 2i + 1)."""
    angles = delta * THETA ** (-2.0 * torch.arange(D_ROPE // 2, dtype=torch.float64) / D_ROPE)
    pairs = torch.view_as_complex(rows[:, D_QK - D_ROPE:].double().reshape(len(rows), -1, 2).contiguous())
    band = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).reshape(len(rows), D_ROPE)
    return torch.cat([rows[:, :D_QK - D_ROPE], band.float()], dim=1)


def attention(q, rows):
    """(o [heads, D_V], lse [heads]) of queries [heads, D_QK] over rows, all float32."""
    logits = q @ rows.T * SCALE
    return torch.softmax(logits, dim=1) @ rows[:, :D_V], torch.logsumexp(logits, dim=1)


class Base:
    """As MLAAttentionImpl: token i attends the own rows of its sequence, attn_metadata[i], in a cache of slots."""

    layout, form = tensors.TOKENS_HEADS, "natural"

    def __init__(self):
        self.scale = SCALE

    def forward_mha(self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale):
        raise AssertionError("unused")

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        done = [attention(one.float(), kv_c_and_k_pe_cache[slots].float()) for one, slots in zip(q, attn_metadata)]
        o, lse = torch.stack([one[0] for one in done]), torch.stack([one[1] for one in done])
        if self.form == "base2":
            lse = lse / np.log(2)
        if self.layout == tensors.SEQUENCES_HEADS_STEPS:
            lse = lse.reshape(-1, 1, HEADS).transpose(1, 2).contiguous()
        return o, lse


class Attention:
    """Two sequences of one token each, with 5 and 9 own rows, in one step."""

    def __init__(self, requester, name, corpus_rows):
        generator = torch.Generator().manual_seed(7)
        self.q = torch.randn(2, HEADS, D_QK, generator=generator).to(torch.bfloat16)
        self.cache = torch.randn(16, D_QK, generator=generator).to(torch.bfloat16)
        self.slots = [torch.tensor([3, 9, 1, 4, 15]), torch.tensor([0, 2, 5, 6, 7, 8, 10, 11, 12])]
        self.rows, self.position = corpus_rows, POSITIONS[name]
        self.source = attend.EverySequence(requester, name, timeout=TIMEOUT)

    def step(self, base, layer):
        impl = attend.impl_over(base, lambda: self.source, layout=base.layout, form=base.form)()
        return impl.forward_mqa(self.q, self.cache, self.slots, types.SimpleNamespace(layer_name=NAMES[layer]))

    def check(self):
        worst = 0.0
        for fields in ({}, {"form": "base2"}, {"layout": tensors.SEQUENCES_HEADS_STEPS, "form": "flashmla"}):
            base = type("Variant", (Base,), fields)
            for layer in range(LAYERS):
                o, lse = self.step(base, layer)
                lse = tensors.rows_of_lse(lse, base.layout, 2, HEADS) * (np.log(2) if base.form == "base2" else 1)
                worst = max(worst, self.distance(layer, o, lse))
        require(worst < TOLERANCE, f"forward_mqa is off by {worst}")
        print(f"forward_mqa: off by {worst:.2g} at most, {TOLERANCE:.2g} allowed")

    def distance(self, layer, o, lse):
        corpus = turned(self.rows[layer].float(), -TOKENS - self.position)  # it stands directly before position 0
        worst = 0.0
        for token in range(2):
            own = self.cache[self.slots[token]].float()
            want_o, want_lse = attention(self.q[token].float(), torch.cat([corpus, own]))
            worst = max(worst, float((o[token] - want_o).abs().max()), float((lse[token] - want_lse).abs().max()))
            for missing in (own, torch.cat([self.rows[layer].float(), own])):  # no corpus, or it stands elsewhere
                gap = float((attention(self.q[token].float(), missing)[0] - want_o).abs().max())
                require(gap > 4 * TOLERANCE, f"the check could not see a mistake: {gap}")
        return worst


def check_empty_own(requester, corpus):
    """A kernel that saw no own rows: NaN with FlashMLA's mark. The answer is the corpus' alone."""
    q = bf16_of(np.full((HEADS, D_QK), 0x3f00, np.uint16))
    answer = requester.attend(0, q, corpus, timeout=TIMEOUT)
    o, lse = attend.merge_local(torch.full((1, HEADS, D_V), float("nan")), torch.full((1, HEADS), float("inf")),
                                np.array([0]), answer, "flashmla")
    require(np.allclose(o.reshape(HEADS, D_V).numpy(), answer.o, atol=1e-6), "an empty own part changes o")
    want = ckv.lse_from_partial(answer.m, answer.l)
    require(np.allclose(lse.reshape(-1).numpy(), want, atol=1e-5), "an empty own part changes the log-sum-exp")


class ConnectorBase:
    """As KVConnectorBase_V1."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        self.metadata = None

    def _get_connector_metadata(self):
        return self.metadata


class Loading:
    """A prompt that begins with the corpus, and a paged cache of 12 blocks."""

    BLOCKS = [5, 3, 6, 1, 0, 9, 8]

    def __init__(self, directory, token_ids, names):
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(
                kv_connector_extra_config={"directory": directory, "timeout": TIMEOUT}),
            cache_config=types.SimpleNamespace(block_size=PAGE))
        self.one = loads.connector_over(ConnectorBase, lambda given: types.SimpleNamespace(loads=given))(config, 0)
        self.request = types.SimpleNamespace(request_id="r", prompt_token_ids=token_ids + [1, 2, 3])
        self.caches = {name: torch.zeros(12, PAGE, D_QK, dtype=torch.bfloat16) for name in names}
        self.one.register_kv_caches(self.caches)

    def schedule(self, computed):
        count, later = self.one.get_num_new_matched_tokens(self.request, computed)
        require(not later and count == TOKENS // PAGE * PAGE - computed, f"{count} tokens are offered")
        blocks = types.SimpleNamespace(get_block_ids=lambda: (self.BLOCKS,))
        self.one.update_state_after_alloc(self.request, blocks, count)
        self.one.metadata = self.one.build_connector_meta(None)

    def load(self):
        self.one.start_load_kv(None)
        for name in self.caches:
            self.one.wait_for_layer_load(name)
        self.one.wait_for_save()

    def check(self, computed, rows):
        self.schedule(computed)
        self.load()
        for name, cache in self.caches.items():
            want = torch.zeros(12, PAGE, D_QK, dtype=torch.bfloat16)
            for i in range(computed // PAGE, TOKENS // PAGE):
                want[self.BLOCKS[i]] = rows[NAMES.index(name)][i * PAGE:(i + 1) * PAGE]
            same = torch.equal(cache.view(torch.int16), want.view(torch.int16))
            require(same, f"{name}: blocks differ from the corpus, {computed} tokens computed")


def check_connector(directory, token_ids, rows):
    """All layers, a prompt of which a block is computed already, and the last layer alone, as a pipeline's stage."""
    for computed, names in ((0, NAMES), (PAGE, NAMES), (0, NAMES[-1:])):
        loading = Loading(directory, token_ids, names)
        loading.check(computed, rows)
        loading.one.shutdown()
    print("CkvConnector: blocks have the bits of the corpus")
    other = Loading(directory, [1000 + i for i in range(TOKENS)], NAMES)  # no such token is in the corpus
    require(other.one.get_num_new_matched_tokens(other.request, 0) == (0, False), "an unknown prompt is found")
    other.one.shutdown()


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
    require(prefix.prefix_found(found) == prefix.Prefix(2, 32), f"the prefix is {prefix.prefix_found(found)}")


def check_without_holders(fleet, attention_step, loading, pages):
    """Both holders end. vLLM's step raises, and SGLang's page is a miss: its memory stays as it was."""
    loading.schedule(0)
    for process in fleet.processes[1:3]:  # the directory was started first, then the holders
        process.kill()
        process.wait()
    print(f"forward_mqa raises {fails(lambda: attention_step.step(Base, 1), 'forward_mqa')!r}")
    print(f"CkvConnector raises {fails(loading.load, 'CkvConnector')!r}")
    require(not any(cache.any() for cache in loading.caches.values()), "blocks were written without holders")
    loading.one.shutdown()
    logging.disable(logging.WARNING)
    target = pages.targets()[0]
    require(pages.one.get(pages.keys[0], target) is None and not target.any(), "a page without holders")


def check_all(folder, fleet, given):
    rows = bf16_of(given["docs"].layers)
    # Without rows kept here, every call asks the holders.
    with ckv.open(fleet.directory, near_bytes=0) as requester:
        later = Attention(requester, "later", bf16_of(given["later"].layers))
        later.check()
        later.source.context.close()
        attention_step = Attention(requester, "docs", rows)
        attention_step.check()
        check_empty_own(requester, attention_step.source.corpus)
        check_connector(fleet.directory, given["docs"].token_ids, rows)
        pages = Pages(folder, fleet.directory, given["docs"].token_ids)
        pages.check(rows)
        check_parentless(requester)
        loading = Loading(fleet.directory, given["docs"].token_ids, NAMES)
        check_without_holders(fleet, attention_step, loading, pages)
        pages.one.requester.close()
        attention_step.source.context.close()


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
