#!/usr/bin/python3
"""Calls of the Python package without a counterpart in c_client.c, each with its check.

    calls_check.py DIRECTORY CORPUS HOLDER_PID...
"""

import os
import pathlib
import signal
import socket
import sys
import threading
import time

import numpy as np

import ckv
from py_client import ROWS, bf16, refused, require

TIMEOUT = 30.0


def answers_equal(one, other):
    return all(np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))
               for a, b in zip(one, other))


def check_rank():
    """The source's worked example, and a number that is not valid."""
    near = ckv.Candidate(0.5 * 32768, 1e15, 0, 4, 16, 10000, 500, 6.25e9, congestion=0.2, in_flight=1)
    far = near._replace(matched_tokens=0.9 * 32768, bandwidth_bytes_per_s=3.125e9, in_flight=0)
    ranking = ckv.rank(32768, 10e9, [near, far])
    require(ranking.best == 1 and abs(ranking.costs[0].transfer_us - 2e6) < 1, "a ranking")
    require(ranking.costs[1].has_room and 0.3 < ranking.tolerated_error < 1, "its costs")
    require(ckv.rank(10, 1e9, [near._replace(matched_tokens=0, free_bytes=0)]).best is None, "none has room")
    refused(ckv.InvalidArgument, ckv.rank, 10, 1e9, [near._replace(queued=-1)])
    refused(ckv.InvalidArgument, ckv.rank, 10, 1e9, [])


def check_paged(requester, corpus, q):
    """Own rows in the blocks of an engine's cache: as arrays and tensors, and in blocks with gaps."""
    rows, table = bf16(37 * corpus.d_qk, 5).reshape(37, -1), [5, 0, 3]
    visible = [27 + i * 10 // len(q) for i in range(len(q))]
    # An engine's cache has an axis of heads. The memory after a block does not belong to the next block.
    wide = np.full((7, 1, 20, corpus.d_qk), 0xffff, np.uint16)
    for i, row in enumerate(rows):
        wide[table[i // 16], 0, i % 16] = row
    with requester.context(corpus, policy="route") as context:
        def attend(own):
            return requester.attend(0, q, [ckv.Segment(context, own=[own])], wire="f32")
        want = attend(ckv.OwnRows(rows, visible))
        cache = wide[:, 0, :16]
        for blocks in (table, np.array(table, np.int32)):
            got = attend(ckv.OwnRows(cache, visible, blocks=blocks, row_count=37))
            require(answers_equal(got, want), "own rows in blocks")
        require(not answers_equal(attend(ckv.OwnRows(cache, visible, blocks=[5, 3, 0], row_count=37)), want),
                "other blocks are other rows")


def check_prepared(requester, corpus, q):
    """A prepared call answers as attend does, for each layer and with other queries, and refuses what may not be repeated."""
    with requester.context(corpus, policy="route") as context:
        rows = q.copy()
        own = ckv.OwnRows(bf16(3 * corpus.d_qk, 6).reshape(3, -1))
        for where in (context, ckv.Segment(context), [ckv.Segment(context, own=[own])]):
            call = requester.prepare(rows, where, wire="f32")
            for step in range(2):
                rows[:] = q if step == 0 else q[::-1]
                for layer in range(corpus.layers):
                    want = requester.attend(layer, rows.copy(), where, wire="f32")
                    require(answers_equal(call.attend(layer), want), "a prepared call")
                    ticket = call.submit(layer)
                    refused(ckv.FailedPrecondition, call.attend, layer)
                    require(ticket.wait(TIMEOUT) is call.answer and answers_equal(call.answer, want), "its ticket")
                    require(call.answer.report.routed_pairs == want.report.routed_pairs, "its report")
        out = requester.attend(0, rows, context)
        require(requester.prepare(rows, context, out=out).attend(0).o is out.o, "the memory of the answer")
        for layer in (-1, 2**32, corpus.layers, 1.5, None):
            refused(ckv.InvalidArgument, call.attend, layer)
        require(answers_equal(call.attend(0), requester.attend(0, rows, where, wire="f32")), "after a refused layer")
        refused(ckv.InvalidArgument, requester.prepare, rows, corpus)
        refused(ckv.InvalidArgument, requester.prepare, rows, ckv.Segment(ckv.Part(corpus)))
        wide = np.zeros((2, len(q) + 1, corpus.d_qk), np.uint16)
        require("copied" in str(refused(ckv.InvalidArgument, requester.prepare, wide[:, 1:], context)), "q with gaps")
    refused(ckv.FailedPrecondition, call.attend, 0)


def check_blocks(requester, corpus):
    """Fetches rows into the blocks of an engine's cache, also by a ticket. Refuses places that do not fit."""
    tokens, table = corpus.token_count, np.arange(64, dtype=np.int32)[::-3]
    want = np.empty((corpus.layers, tokens, corpus.d_qk), np.uint16)
    requester.fetch(corpus, want)
    for begin in (0, 7):
        wide = np.full((corpus.layers, 64, 1, 18, corpus.d_qk), 7, np.uint16)
        caches = [layer[:, 0, :16] for layer in wide]
        requester.fetch(corpus, ckv.BlockPlace(caches, table, begin=begin))
        with requester.begin_fetch(corpus, ckv.BlockPlace(caches[1:2], table, begin=begin, tokens=(2, 5)),
                                   layers=(1, 2)) as ticket:
            require(ticket.wait(TIMEOUT).row_count == tokens, "the report")
        for layer in range(corpus.layers):
            for token in range(tokens):
                block, row = table[(begin + token) // 16], (begin + token) % 16
                require(np.array_equal(wide[layer, block, 0, row], want[layer, token]), "a row in its block")
                wide[layer, block, 0, row] = 7
        require((wide == 7).all(), "nothing else is written")
    bad = ckv.InvalidArgument
    refused(bad, requester.fetch, corpus, ckv.BlockPlace(caches[1:], table))
    refused(bad, requester.fetch, corpus, ckv.BlockPlace(caches, table[:1]))
    refused(bad, requester.fetch, corpus, ckv.BlockPlace([cache[:60] for cache in caches], table))
    refused(bad, requester.fetch, corpus, ckv.BlockPlace(caches, table), columns=(0, 8))
    refused(bad, ckv.BlockPlace, [], table)
    refused(bad, ckv.BlockPlace, [*caches[1:], caches[0][:, :8]], table)
    refused(bad, ckv.BlockPlace, [cache[:, ::2] for cache in caches], table)
    refused(bad, ckv.BlockPlace, caches, table, tokens=(5, 5))
    row = np.zeros((1, 16, corpus.d_qk), np.uint16)
    same = np.lib.stride_tricks.as_strided(row, (64, *row.shape[1:]), (0, *row.strides[1:]))
    require("overlap" in str(refused(bad, ckv.BlockPlace, [same] * corpus.layers, table)), "blocks in one place")


def check_threads(requester, corpus, q, holders):
    """Another Python thread runs while this one waits in a call. Otherwise the call could not end.

    Both holders are stopped. The other thread runs once this one releases the GIL, and resumes them.
    """
    entered, ran = threading.Event(), []
    context = requester.context(corpus, policy="route")
    requester.attend(0, q, context)  # opens the sessions

    def let_go_on():
        entered.wait(TIMEOUT)
        for _ in range(1000):  # this thread runs meanwhile, and holds no lock that the waiting thread needs
            ran.append(time.monotonic_ns())
        for pid in holders:
            os.kill(pid, signal.SIGCONT)

    other = threading.Thread(target=let_go_on)
    interval = sys.getswitchinterval()
    other.start()
    try:
        for pid in holders:
            os.kill(pid, signal.SIGSTOP)
            wait_stopped(pid)
        # From here to the call this thread keeps the GIL. So the other thread runs when the call releases it.
        sys.setswitchinterval(1000)
        begun = time.monotonic_ns()
        entered.set()
        answer = requester.attend(0, q, context, timeout=10.0)
        ended = time.monotonic_ns()
    finally:
        sys.setswitchinterval(interval)
        entered.set()
        for pid in holders:
            os.kill(pid, signal.SIGCONT)
        other.join()
        context.close()
    require(len(ran) == 1000 and begun <= ran[0] and ran[-1] <= ended, "the other thread ran meanwhile")
    require(answer.o.shape == (ROWS, corpus.d_v), "the answer")


def wait_stopped(pid):
    """Waits until all threads of a process have stopped. It need not be a child of this one."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        states = {stat.read_text().rpartition(")")[2].split()[0]
                  for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")}
        if states == {"T"}:
            return
    sys.exit(f"process {pid} does not stop")


def check_put(requester, corpus):
    """Puts a corpus and extends it. The chunks are then resolved, fetched with the same bits, and found."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 1000, 80, dtype=np.int32)
    rows = bf16(corpus.layers * 80 * corpus.d_qk, 21).reshape(corpus.layers, 80, corpus.d_qk)

    def put(begin, end, **options):
        with requester.put("made", **options) as put:
            refused(ckv.FailedPrecondition, put.rows, 0, rows[0, begin:end])
            put.chunk(tokens[begin:end])
            refused(ckv.FailedPrecondition, put.chunk, tokens[begin:end])
            half = (begin + end) // 2
            refused(ckv.InvalidArgument, put.rows, 0, rows[0, begin:end].reshape(-1, corpus.d_qk // 2))
            for layer in reversed(range(corpus.layers)):
                put.rows(layer, rows[layer, begin:half])
                put.rows(layer, rows[layer, half:end].view(np.uint8),
                         offset_bytes=(half - begin) * corpus.row_bytes)
            report = put.finish(TIMEOUT)
            refused(ckv.FailedPrecondition, put.finish)
            return report, put.ids()

    refused(ckv.NotFound, requester.put, "made")
    refused(ckv.InvalidArgument, requester.put, "made", create=corpus, kept_versions=17)
    refused(ckv.InvalidArgument, requester.put, "made", create=corpus, ttl=1e10)
    refused(ckv.ResourceExhausted, put, 0, 48, create=corpus, quota_bytes=1)
    report, ids = put(0, 48, create=corpus, ttl=3600.0, quota_bytes=1 << 30, kept_versions=1)
    require((report.chunk_begin, report.added_count) == (0, 1) and
            report.bytes_sent == corpus.layers * 48 * corpus.row_bytes, f"{report}")
    made = requester.resolve("made")
    require(made.version == report.version, f"version {made.version} after {report}")
    require(np.array_equal(made.chunks()[0], ids), f"the ids: {made.chunks()[0]}, {ids}")
    report, more = put(48, 80, parent=ids[0])
    require((report.chunk_begin, report.added_count, report.kept) == (1, 1, True), f"{report}")
    report, _ = put(48, 80, parent=bytes(ids[0]))
    require((report.added_count, report.kept) == (0, True), f"again: {report}")

    made = requester.resolve("made")
    require(made.chunk_count == 2 and made.token_count == 80 and made.model == corpus.model, f"{made}")
    require(np.array_equal(made.chunks(1)[0], more) and made.chunks()[2].tolist() == [0, 48], "chunks")
    fetched = np.zeros_like(rows)
    requester.fetch(made, fetched)
    require(np.array_equal(fetched, rows), "the rows that were put")

    prompt = np.concatenate([[7, 8, 9], tokens[:48], tokens[48:], [1, 2]])
    found = requester.find(prompt, model_of=corpus)
    require(found.matched_token_count == 80 and found.token_begins.tolist() == [3, 51], f"{found}")
    require(found.offsets.tolist() == [3, 3] and found.corpus.name == "" and not found.truncated, f"{found}")
    q = bf16(ROWS * corpus.d_qk, 5).reshape(ROWS, -1)
    require(answers_equal(requester.attend(1, q, found.part(), wire="f32"),
                          requester.attend(1, q, ckv.Part(made, offset=3), wire="f32")), "what was found")
    refused(ckv.NotFound, requester.find, [5] * 40)

    model = ckv.Model("test/py", "2", layers=1, d_qk=40, d_v=32, d_rope=8, softmax_scale=0.5)
    with requester.put("own-model", create=model) as own:
        own.chunk(range(16), standalone=True)
        own.rows(0, rows[0, :16])
        own.finish()
    require(requester.resolve("own-model").softmax_scale == 0.5, "the model")
    refused(ckv.FailedPrecondition, requester.put, "made", create=model)


def check_torch(requester, corpus, q):
    """Tensors are read and written in place."""
    if "torch" in sys.modules:
        sys.exit("torch was imported by ckv")
    import torch
    want = np.empty((corpus.layers, corpus.token_count, corpus.d_qk), np.uint16)
    requester.fetch(corpus, want)
    room = torch.zeros(corpus.token_count, corpus.layers, corpus.d_qk + 8, dtype=torch.bfloat16)
    at = room.data_ptr()
    requester.fetch(corpus, room[:, :, :corpus.d_qk].transpose(0, 1))
    bits = room.view(torch.int16).numpy().view(np.uint16)
    require(room.data_ptr() == at and np.array_equal(bits[:, :, :corpus.d_qk].transpose(1, 0, 2), want) and
            not bits[:, :, corpus.d_qk:].any(), "rows in a tensor's memory")

    wide = torch.zeros(ROWS, corpus.d_qk + 24, dtype=torch.bfloat16)
    view = wide[:, 8:8 + corpus.d_qk]
    view.view(torch.int16).numpy()[:] = q.view(np.int16)
    from ckv import attend
    _, address, rows, stride, *_ = attend._queries(view, corpus.d_qk)
    require((address, rows, stride) == (view.data_ptr(), ROWS, corpus.d_qk + 24), "q where it lies")
    out = (torch.empty(ROWS, corpus.d_v), torch.empty(ROWS), torch.empty(ROWS))
    reference = requester.attend(0, q, corpus, wire="f32")
    require(answers_equal(requester.attend(0, view, corpus, out=out, wire="f32"), reference), "of a tensor")
    require(answers_equal(requester.attend(0, view.reshape(2, -1, corpus.d_qk), corpus, wire="f32"),
                          reference), "of a tensor of three dimensions")
    refused(ckv.InvalidArgument, requester.attend, 0, view.float(), corpus)
    error = refused(ckv.InvalidArgument, requester.attend, 0,
                    torch.empty(ROWS, corpus.d_qk, dtype=torch.bfloat16, device="meta"), corpus)
    require("copy it to host memory" in str(error), f"the error: {error}")

    used = requester.attend(0, q, ckv.Part(corpus, [0]))
    again = requester.attend(0, q, corpus, out=used, wire="f32")
    require(again.o is used.o and answers_equal(again, reference), "an answer's memory, used again")
    used.o = np.empty((ROWS, corpus.d_v + 1), np.float32)
    refused(ckv.InvalidArgument, requester.attend, 0, q, corpus, out=used)

    # Merges two halves of the corpus, one of them converted as another engine's answer.
    halves = [requester.attend(0, q, ckv.Part(corpus, chunks), wire="f32")
              for chunks in ([0, 1], range(2, corpus.chunk_count))]
    m, l = ckv.partial_from_lse(ckv.lse_from_partial(halves[1].m, halves[1].l, "flashmla"), "flashmla")
    merged = ckv.merge([halves[0], (torch.from_numpy(halves[1].o), m, l)])
    require(np.allclose(merged.o, reference.o, atol=1e-5), "a merge")


def check_other_arrays(requester, corpus, q):
    """Objects that only export __array_interface__ or DLPack are also used in place."""
    class Interface:
        def __init__(self, array):
            self.__array_interface__ = array.__array_interface__
            self.array = array

    class DlPack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    context = requester.context(corpus)
    want = requester.attend(0, q, context, wire="f32")
    for kind in (Interface, DlPack):
        require(answers_equal(requester.attend(0, kind(q), context, wire="f32"), want), kind.__name__)
    rows = np.zeros((corpus.layers, corpus.token_count, corpus.d_qk), np.uint16)
    requester.fetch(corpus, Interface(rows))
    require(rows.any(), "rows lie in the array itself")
    context.close()


def check_refusals(requester, corpus, q):
    bad = ckv.InvalidArgument
    for wrong in (q.astype(np.float32), q[:, 1:], q[None, None], q.astype(">u2"), [[1]], q.tolist()):
        require(isinstance(refused(bad, requester.attend, 0, wrong, corpus), ValueError), "a ValueError")
    refused(bad, requester.attend, -1, q, corpus)
    refused(bad, requester.attend, 2**32, q, corpus)
    refused(bad, requester.attend, 0, q, "corpus")
    refused(bad, requester.attend, 0, q, [])
    refused(bad, requester.attend, 0, q, corpus, wire="fp8")
    refused(bad, requester.attend, 0, q, corpus, timeout=-1)
    short = np.empty((ROWS, corpus.d_v - 1), np.float32), np.empty(ROWS, np.float32), np.empty(ROWS, np.float32)
    refused(bad, requester.attend, 0, q, corpus, out=short)
    locked = np.empty((corpus.layers, corpus.token_count, corpus.d_qk), np.uint16)
    locked.flags.writeable = False
    require("read-only" in str(refused(bad, requester.fetch, corpus, locked)), "read-only")
    with requester.context(corpus) as context:
        segment = ckv.Segment(context, selected=[[0]], selected_group_rows=2)
        refused(bad, requester.attend, 0, q, [segment])
        own = ckv.OwnRows(np.zeros((2, corpus.d_qk - 2), np.uint16))
        refused(bad, requester.attend, 0, q, [ckv.Segment(context, own=[own])])
        refused(ckv.InvalidArgument, ckv.OwnRows, np.broadcast_to(q[0], (3, corpus.d_qk)))
        own = ckv.OwnRows(np.zeros((2, corpus.d_qk), np.uint16), visible=[1])
        refused(bad, requester.attend, 0, q, [ckv.Segment(context, own=[own])])
        cache = np.zeros((4, 16, corpus.d_qk), np.uint16)
        refused(bad, ckv.OwnRows, cache)
        refused(bad, ckv.OwnRows, cache[0], row_count=3)
        refused(bad, ckv.OwnRows, cache, blocks=[1])
        refused(bad, ckv.OwnRows, cache, blocks=[1], row_count=17)
        refused(bad, ckv.OwnRows, cache[:, :, :-1], blocks=[-1], row_count=3)
        refused(bad, ckv.OwnRows, np.broadcast_to(cache[0], cache.shape), blocks=[1], row_count=3)
        own = ckv.OwnRows(cache, blocks=[3, 4], row_count=17)
        require("block 4 of a cache of 4" in
                str(refused(bad, requester.attend, 0, q, [ckv.Segment(context, own=[own])])), "a block beyond")
        segment = ckv.Segment(context)
    refused(ckv.FailedPrecondition, requester.attend, 0, q, context)
    refused(ckv.FailedPrecondition, requester.attend, 0, q, [segment])
    for kind, base in ((ckv.DeadlineExceeded, TimeoutError), (ckv.NotFound, LookupError),
                       (ckv.PermissionDenied, PermissionError), (ckv.Unimplemented, NotImplementedError),
                       (ckv.Unavailable, ConnectionError), (ckv.InvalidArgument, ValueError)):
        require(issubclass(kind, base) and issubclass(kind, ckv.Error), f"{kind} is a {base}")
    error = refused(ckv.DeadlineExceeded, requester.attend, 0, q, corpus, timeout=0)
    require(isinstance(error, TimeoutError) and error.code == 4 and error.retry_after is None, "0 s")
    try:
        ckv.open("127.0.0.1:1", library="/no/such/libckv.so.1")
    except ckv.FailedPrecondition as error:
        require("/no/such/" in str(error), f"{error}")
    # After fork, a child may neither call the library nor free its handles.
    child = os.fork()
    if child == 0:
        try:
            requester.resolve("x")
        except ckv.FailedPrecondition:
            os._exit(0)
        os._exit(1)
    require(os.waitpid(child, 0)[1] == 0, "a child after fork")


def check_advice(requester, corpus):
    explained = requester.explain(corpus, query_rows=16, steps=3, timeout=TIMEOUT)
    require(explained["tokens"] == corpus.token_count and explained["choice"], f"{explained}")
    groups = requester.estimate(corpus, chunks=[0, 1], query_rows=16)["groups"]
    require(sum(group["chunk_count"] for group in groups) == 2, f"{groups}")

    def cost(way, **options):
        (found,) = [one for one in requester.explain(corpus, query_rows=16, timeout=TIMEOUT, **options)["costs"]
                    if one["primitive"] == way]
        return found

    require(not cost("local")["offered"] and cost("fetch")["terms_us"]["splice"] == 0, "neither is known")
    for _ in range(3):
        requester.report_prefill(corpus, 1000, 0.5)
    prefill = cost("local")["terms_us"]["prefill"]
    require(abs(prefill - 500 * corpus.token_count) < 1e-3 * prefill, f"500 us a token: {prefill}")
    require(cost("fetch", spliced=True)["terms_us"]["splice"] > 0, "rows at other positions are rotated")
    for tokens, seconds in ((0, 1), (1, 0), (1, 4000), (1, None)):
        try:
            requester.report_prefill(corpus, tokens, seconds)
        except ckv.InvalidArgument:
            continue
        require(False, f"{tokens} tokens in {seconds} s are no prefill")


def check_dropped(directory, corpus_name, q):
    """Dropped objects free themselves, in any order. So do tickets that are left when the process ends."""
    requester = ckv.open(directory)
    context = requester.context(requester.resolve(corpus_name))
    ticket = requester.submit(0, q, context)
    owner = requester._owner
    del requester
    require(ticket.wait(TIMEOUT) is not None, "a ticket outlives the requester's name")
    del context, ticket
    require(not owner.children, f"handles that are left: {owner.children}")
    end = owner._finalizer
    del owner
    require(not end.alive, "the requester is closed")
    global left, late
    left = ckv.open(directory)
    left = left.submit(0, q, left.context(left.resolve(corpus_name)))
    late = Late(ckv.open(directory))


class Late:
    """Uses a requester that the end of the process has closed: the names of a module are removed last."""

    def __init__(self, requester):
        self.requester, self.refusal, self.exit = requester, ckv.FailedPrecondition, os._exit

    def __del__(self):
        self.requester.close()
        try:
            self.requester.resolve("docs", timeout=0.0)
        except self.refusal:
            return
        self.exit(3)


def check_signals(directory, corpus_name, q):
    """A signal handler that raises when the library returns leaks no handle. One close is enough."""
    requester = ckv.open(directory)
    context = requester.context(requester.resolve(corpus_name))
    library = requester._owner.library
    submit = library.submit

    def interrupted(*arguments):
        submit(*arguments)
        raise KeyboardInterrupt

    library.submit = interrupted
    try:
        requester.submit(0, q, context)
        sys.exit("nothing was raised")
    except KeyboardInterrupt:
        pass
    finally:
        library.submit = submit
    orphans = [borrowed for *_, borrowed in requester._owner.children.values() if borrowed is not None]
    require(len(orphans) == 1, f"the ticket that nobody has: {orphans}")
    requester.close()
    context.close()


def check_open(directory):
    with ckv.open(directory, check=TIMEOUT) as requester:
        require(requester is not None, "a directory that answers")
    with socket.socket() as held:  # bound, but not listening
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        try:
            ckv.open(nobody, check=0.5)
        except (ckv.Unavailable, ckv.DeadlineExceeded):
            pass
        else:
            require(False, "an address where nobody listens")
        ckv.open(nobody).close()  # without `check`, sends no query


def main():
    directory, name, *pids = sys.argv[1:]
    check_open(directory)
    check_rank()
    with ckv.open(directory, fabrics="shm,tcp") as requester:
        corpus = requester.resolve(name)
        q = bf16(ROWS * corpus.d_qk, 17).reshape(ROWS, corpus.d_qk)
        for check, arguments in ((check_threads, (requester, corpus, q, [int(pid) for pid in pids])),
                                 (check_prepared, (requester, corpus, q)), (check_paged, (requester, corpus, q)),
                                 (check_blocks, (requester, corpus)),
                                 (check_put, (requester, corpus)), (check_torch, (requester, corpus, q)),
                                 (check_other_arrays, (requester, corpus, q)),
                                 (check_refusals, (requester, corpus, q)),
                                 (check_advice, (requester, corpus)), (check_signals, (directory, name, q)),
                                 (check_dropped, (directory, name, q))):
            check(*arguments)
            print(f"{check.__name__}: ok")


if __name__ == "__main__":
    main()
