"""A stand-in for the package ckv: its arithmetic and errors in numpy, and a requester in memory.

Tests of the plug-ins use it for the parts of the API that they call. It has the semantics of
client/c/ckv_partial.h and ckv_attend.h for the calls made here, and nothing more.
"""

import types

import numpy as np
import torch


class Error(Exception):
    pass


class NotFound(Error):
    pass


class DeadlineExceeded(Error):
    pass


class Unavailable(Error):
    pass


def answer(o, m, l):
    return types.SimpleNamespace(o=np.asarray(o, np.float32), m=np.asarray(m, np.float32),
                                 l=np.asarray(l, np.float32))


def partial(q, rows, d_v, scale):
    """(o, m, l) of queries [n, d_qk] over rows [tokens, d_qk], both float32."""
    logits = (torch.as_tensor(q) @ torch.as_tensor(rows).T) * scale
    m = logits.max(dim=1).values
    weights = torch.exp(logits - m[:, None])
    l = weights.sum(dim=1)
    return answer((weights @ torch.as_tensor(rows)[:, :d_v] / l[:, None]).numpy(), m.numpy(), l.numpy())


def merge(parts):
    o = np.stack([np.asarray(p[0], np.float64) for p in parts])
    m = np.stack([np.asarray(p[1], np.float64) for p in parts])
    l = np.stack([np.asarray(p[2], np.float64) for p in parts])
    top = m.max(axis=0)
    w = np.where(l > 0, l * np.exp(np.where(np.isfinite(m), m - np.where(np.isfinite(top), top, 0), -np.inf)), 0)
    total = w.sum(axis=0)
    share = w / np.where(total > 0, total, 1)
    return answer((share[..., None] * np.where(np.isfinite(o), o, 0)).sum(axis=0), top, total)


def lse_from_partial(m, l, form="natural"):
    with np.errstate(divide="ignore"):
        lse = np.asarray(m, np.float64) + np.log(np.asarray(l, np.float64))
    if form == "base2":
        lse = lse / np.log(2)
    return np.where(np.asarray(l) == 0, np.inf if form == "flashmla" else -np.inf, lse).astype(np.float32)


def partial_from_lse(lse, form="natural"):
    lse = np.asarray(lse, np.float64) * (np.log(2) if form == "base2" else 1)
    empty = np.isinf(lse)
    return np.where(empty, -np.inf, lse).astype(np.float32), np.where(empty, 0, 1).astype(np.float32)


class Part:
    def __init__(self, corpus, chunks=None, offsets=None, offset=0):
        self.corpus, self.chunks, self.offsets, self.offset = corpus, chunks, offsets, offset


class Segment:
    def __init__(self, context, row_begin, row_count):
        self.context, self.row_begin, self.row_count = context, row_begin, row_count


def from_bits(bits):
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16).float()


class Corpus:
    """Rows bits uint16 [layers, tokens, d_qk], in chunks of `counts` tokens."""

    model, d_rope = "test/model", 8

    def __init__(self, rows, counts, d_v, scale):
        self.rows, self.counts, self.d_v, self.softmax_scale = rows, list(counts), d_v, scale
        self.layers, self.token_count, self.d_qk = rows.shape
        self.row_bytes, self.chunk_count = 2 * self.d_qk, len(self.counts)

    def chunks(self, begin, end):
        positions = np.concatenate([[0], np.cumsum(self.counts)])[:-1]
        return (np.zeros((end - begin, 32), np.uint8), np.asarray(self.counts[begin:end], np.uint32),
                positions[begin:end].astype(np.uint64))


class Ticket:
    def __init__(self, result):
        self.result, self.closed = result, False

    def wait(self, timeout=None):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def wait_layer(self, layer, timeout=None):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def close(self):
        self.closed = True


class Requester:
    """Has one corpus under every name. `fail` is raised by waits; `found` is what find tells."""

    def __init__(self, corpus, found=None):
        self.corpus, self.found, self.fail = corpus, found, None
        self.tickets, self.fetched, self.parts = [], [], []
        self.keys = []  # of each find

    def resolve(self, name, timeout=None):
        return self.corpus

    def context(self, parts, timeout=None):
        self.parts = parts
        return types.SimpleNamespace(corpus=parts[0].corpus)

    def submit(self, layer, q, where, timeout=None):
        assert q.dtype == np.uint16 and q.flags["C_CONTIGUOUS"]
        done = []
        for segment in where:
            corpus = segment.context.corpus
            rows = q[segment.row_begin:segment.row_begin + segment.row_count]
            done.append(partial(from_bits(rows), from_bits(corpus.rows[layer]), corpus.d_v,
                                corpus.softmax_scale))
        assert sum(segment.row_count for segment in where) == len(q)
        whole = answer(*(np.concatenate([getattr(p, name) for p in done]) for name in "oml"))
        self.tickets.append(Ticket(self.fail or whole))
        return self.tickets[-1]

    def find(self, tokens, model_of=None, timeout=None, extra_keys=None):
        self.keys.append(list(extra_keys or ()))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def _rows(self, corpus, out, chunks, layers):
        at = np.concatenate([[0], np.cumsum(corpus.counts)])
        out[...] = corpus.rows[layers[0]:layers[1], at[chunks[0]]:at[chunks[1]]]
        self.fetched.append(chunks)

    def fetch(self, corpus, out, chunks=None, layers=None, timeout=None):
        if self.fail:
            raise self.fail
        self._rows(corpus, out, chunks, layers or (0, corpus.layers))

    def begin_fetch(self, corpus, out, chunks=None, layers=None, timeout=None):
        self._rows(corpus, out, chunks, layers)
        self.tickets.append(Ticket(self.fail or True))
        return self.tickets[-1]

    def close(self):
        pass


def found_of(corpus, offsets=None, begins=None):
    begins = np.concatenate([[0], np.cumsum(corpus.counts)])[:-1] if begins is None else begins
    offsets = [0] * len(begins) if offsets is None else offsets
    return types.SimpleNamespace(corpus=corpus, token_begins=np.asarray(begins, np.uint32),
                                 offsets=np.asarray(offsets, np.int64), truncated=False)


def open(directory, *, tenant="", name=""):
    raise Unavailable(directory)
