#!/usr/bin/python3
"""Makes the calls of tests/client/bindings/c/c_client.c with the Python package, and writes the same file.

    py_client.py DIRECTORY CORPUS FILE
"""

import sys

import numpy as np

import ckv

# As in tests/client/bindings/c/scenario.h.
HEADS, ROWS, SELECTED, OWN_TOKENS, SHIFT = 4, 8, 5, 6, 37
TIMEOUT = 30.0
MASK = 2**32 - 1


def next_random(state):
    state = (state * 1664525 + 1013904223) & MASK
    return state, state >> 8


def bf16(count, seed):
    state, values = (seed * 2654435761 + 1) & MASK, np.empty(count, np.uint16)
    for i in range(count):
        state, random = next_random(state)
        values[i] = (random & 1) << 15 | (124 + (random >> 1) % 4) << 7 | ((random >> 4) & 0x7f)
    return values


def selection(token_count, seed):
    state, lists = seed, np.full(ROWS // HEADS * SELECTED, -1, np.int32)
    for i in range(lists.size):
        if i % 4 != 3:
            state, random = next_random(state)
            lists[i] = random % token_count
    return lists.reshape(-1, SELECTED)


def require(holds, what):
    if not holds:
        sys.exit(f"py_client: {what}")


def refused(kind, call, *arguments, **options):
    """Requires that a call fails with exactly this class; returns the error."""
    try:
        call(*arguments, **options)
    except ckv.Error as error:
        require(type(error) is kind, f"{kind.__name__} expected: {error!r}")
        return error
    sys.exit(f"py_client: {call} succeeds, {kind.__name__} expected")


class Program:
    def __init__(self, requester, corpus, out):
        self.requester, self.corpus, self.out = requester, corpus, out

    def write(self, array):
        self.out.write(np.ascontiguousarray(array).tobytes())

    def queries(self, layer):
        return bf16(ROWS * self.corpus.d_qk, layer + 1).reshape(ROWS, self.corpus.d_qk)

    def answered(self, answer):
        for array in answer:
            require(array.dtype == np.float32, "the dtype of an answer")
            self.write(array)

    def attend(self, layer, where, wire="f32", **options):
        return self.requester.attend(layer, self.queries(layer), where, wire=wire, timeout=TIMEOUT, **options)


def describe(p, name):
    error = refused(ckv.NotFound, p.requester.resolve, "no-such-corpus", timeout=TIMEOUT)
    require("no-such-corpus" in str(error) and error.code == 5, f"the error: {error}")
    corpus = p.corpus
    require(corpus.name == name and corpus.row_dtype == "bf16", "the facts")
    p.out.write(corpus.model.encode())
    styles, dtypes = ("none", "interleaved", "half_split"), (None, "bf16", "f32", "fp8_ds_mla")
    p.write(np.array([corpus.version, corpus.token_count, corpus.chunk_count, corpus.layers, corpus.d_qk,
                      corpus.d_v, corpus.d_rope, corpus.row_bytes, styles.index(corpus.rope_style),
                      dtypes.index(corpus.row_dtype), int(1e6 * corpus.softmax_scale)], np.uint64))
    ids, token_counts, positions = corpus.chunks()
    require((ids.dtype, token_counts.dtype, positions.dtype) == (np.uint8, np.uint32, np.uint64), "dtypes")
    for array in (ids, token_counts, positions):
        p.write(array)
    refused(ckv.InvalidArgument, corpus.chunks, 1, corpus.chunk_count + 1)


def attend_parts(p):
    corpus = p.corpus
    for layer in range(corpus.layers):
        answer = p.attend(layer, corpus)
        report = answer.report
        require(report.routed_pairs == ROWS * corpus.token_count and report.same_bits_anywhere is True and
                report.holder_count >= 1 and report.precision == "exact", f"the report: {report}")
        p.answered(answer)
    p.answered(p.attend(1, ckv.Part(corpus, [2, 0], [-5, SHIFT]), wire="bf16"))
    chosen = ckv.Segment(ckv.Part(corpus, offset=SHIFT), selected=selection(corpus.token_count, 7),
                         selected_group_rows=HEADS)
    p.answered(p.attend(0, [chosen]))


def attend_contexts(p, policy):
    """Two sequences: one with a suffix of its own and one with a selection."""
    corpus = p.corpus
    own = ckv.OwnRows(bf16(OWN_TOKENS * corpus.d_qk, 99).reshape(OWN_TOKENS, -1),
                      visible=[OWN_TOKENS - 1 + i // HEADS for i in range(ROWS // 2)])
    part = ckv.Part(corpus, offset=SHIFT)
    with p.requester.context([part], policy=policy, expect_steps=4, timeout=TIMEOUT) as context:
        require(context.token_count == corpus.token_count, "the context's tokens")
        segments = [ckv.Segment(context, 0, ROWS // 2, own=[own]),
                    ckv.Segment(context, ROWS // 2, ROWS // 2, selection(corpus.token_count, 11)[:1], HEADS)]
        for layer in range(corpus.layers):
            p.answered(p.attend(layer, segments))
            # By a ticket, into the caller's memory. q has a stride and three dimensions.
            wide = np.zeros((ROWS // HEADS, HEADS, corpus.d_qk + 3), np.uint16)
            wide[:, :, :corpus.d_qk] = p.queries(layer).reshape(ROWS // HEADS, HEADS, -1)
            out = (np.full((ROWS, corpus.d_v), np.nan, np.float32), np.empty(ROWS, np.float32),
                   np.empty(ROWS, np.float32))
            with p.requester.submit(layer, wide[:, :, :corpus.d_qk], segments, out=out, wire="f32",
                                    timeout=TIMEOUT) as ticket:
                refused(ckv.FailedPrecondition, p.requester.close)
                answer = ticket.wait(TIMEOUT)
                require(answer.o is out[0] and ticket.poll() and ticket.wait(0) is answer, "the answer")
                require(answer.report.own_pairs > 0, "the ticket's report")
            p.answered(answer)
        ticket = p.requester.submit(0, p.queries(0), segments, wire="f32", timeout=TIMEOUT)
        while not ticket.poll():
            pass
        p.answered(ticket.wait())
        ticket = p.requester.submit(0, p.queries(0), segments, wire="f32", timeout=TIMEOUT)
        ticket.cancel()
        refused(ckv.Cancelled, ticket.wait, 0)
        require(ticket.poll(), "a cancelled ticket is done")


def fetch(p):
    corpus, requester = p.corpus, p.requester
    layers, tokens, width = corpus.layers, corpus.token_count, corpus.row_bytes
    rows = np.empty((layers, tokens, corpus.d_qk), np.uint16)
    report = requester.fetch(corpus, rows, timeout=TIMEOUT)
    require(report[:2] == (layers * tokens, layers * tokens * width) and
            report[3:] == (corpus.chunk_count, 0), f"the report: {report}")
    p.write(rows)

    count = int(corpus.chunks(1, 3)[1].sum())
    some = np.empty((1, count, width), np.uint8)
    requester.fetch(corpus, some, chunks=(1, 3), layers=(1, 2), position=1000, timeout=TIMEOUT)
    p.write(some)

    # [token][layer], with gaps that must not be written.
    blocks = np.full((tokens, layers, corpus.d_qk + 3), 0x5a5a, np.uint16)
    view = blocks.transpose(1, 0, 2)[:, :, :corpus.d_qk]
    requester.fetch(corpus, view, position=SHIFT, timeout=TIMEOUT)
    p.write(view)
    require((blocks[:, :, corpus.d_qk:] == 0x5a5a).all(), "the gaps")

    piece = np.empty((layers, tokens, 8), np.uint16)
    requester.fetch(corpus, piece, columns=(8, 16))
    p.write(piece)

    refused(ckv.InvalidArgument, requester.fetch, corpus, rows[:, 1:])
    overlap = np.lib.stride_tricks.as_strided(rows, strides=(rows.strides[0], 14, 2))
    refused(ckv.InvalidArgument, requester.fetch, corpus, overlap)
    raw = np.empty(rows.nbytes + 2, np.uint8)
    odd = raw[1 - address(raw) % 2:][:rows.nbytes].reshape(layers, tokens, width)
    refused(ckv.InvalidArgument, requester.fetch, corpus, odd)


def address(array):
    return array.__array_interface__["data"][0]


def fetch_by_ticket(p):
    corpus, requester = p.corpus, p.requester
    layers, tokens = corpus.layers, corpus.token_count
    rows = np.empty((layers, tokens, corpus.d_qk), np.uint16)
    with requester.begin_fetch(corpus, rows, timeout=TIMEOUT, early_return=TIMEOUT) as ticket:
        refused(ckv.FailedPrecondition, requester.close)
        for layer in range(layers):
            require(ticket.wait_layer(layer, TIMEOUT), "a layer")
            p.write(rows[layer])
        refused(ckv.InvalidArgument, ticket.wait_layer, layers, 0)
        report = ticket.wait(TIMEOUT)
        require(report.row_count == layers * tokens and ticket.not_fetched().size == 0, f"{report}")
    # The time for chunks to begin ends at once, so the early return reports all as not fetched.
    with requester.begin_fetch(corpus, rows, timeout=TIMEOUT, early_return=1e-9) as ticket:
        report = ticket.wait(TIMEOUT)
        require(report.row_count == 0 and report.not_fetched_count == corpus.chunk_count, f"{report}")
        require(ticket.not_fetched().tolist() == list(range(corpus.chunk_count)), "the list")
    with requester.begin_fetch(corpus, rows, timeout=1e-9) as ticket:
        refused(ckv.DeadlineExceeded, ticket.wait_layer, 0, TIMEOUT)
        refused(ckv.FailedPrecondition, ticket.not_fetched)
    with requester.begin_fetch(corpus, rows, timeout=TIMEOUT) as ticket:
        ticket.cancel()
        try:
            ticket.wait(TIMEOUT)
        except ckv.Cancelled:
            pass


def refuse(p):
    """Makes the mistakes of the C program; the codes are the same."""
    corpus = p.corpus
    refused(ckv.InvalidArgument, p.attend, corpus.layers, corpus)
    narrow = p.queries(0)[:, 1:]
    refused(ckv.InvalidArgument, p.requester.attend, 0, narrow, corpus)
    refused(ckv.InvalidArgument, p.attend, 0, ckv.Part(corpus, [0, corpus.chunk_count]))
    refused(ckv.InvalidArgument, ckv.Part, corpus, [])
    refused(ckv.DeadlineExceeded, p.requester.attend, 0, p.queries(0), corpus, timeout=1e-9)
    refused(ckv.InvalidArgument, p.requester.submit, 0, p.queries(0), corpus)


def main():
    directory, name, file = sys.argv[1:]
    with open(file, "wb") as out, ckv.open(directory, name="py_client", fabrics="tcp,shm",
                                           local_cache_bytes=64 << 20, call_threads=2) as requester:
        p = Program(requester, requester.resolve(name, timeout=TIMEOUT), out)
        describe(p, name)
        attend_parts(p)
        attend_contexts(p, "route")
        attend_contexts(p, "cache")
        fetch(p)
        fetch_by_ticket(p)
        refuse(p)
        if "torch" in sys.modules:
            sys.exit("py_client: torch was imported")


if __name__ == "__main__":
    main()
