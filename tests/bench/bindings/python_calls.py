#!/usr/bin/python3
"""Python's side of tests/bench/bindings_figures.py, over client/bindings/python and libckv.so (CKV_LIBRARY).

    /usr/bin/python3 tests/bench/bindings/python_calls.py submit|put|extend|layers DIRECTORY CORPUS

A line on stdin is a number: of calls for submit, fetches for layers, and otherwise one that no chunk had before. The answer
is a line of JSON. Times are nanoseconds. put and extend make the corpus if it is not there.
"""

import json
import statistics
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
import numpy  # noqa: E402

import ckv  # noqa: E402

HEADS, LAYERS, D_QK, D_V, D_ROPE = 16, 27, 576, 512, 64
CHUNK_TOKENS = 2048  # 64 MB
SMALL_TOKENS, CHUNKS = 4, 1000
MODEL = ckv.Model(model="deepseek-ai/DeepSeek-V2-Lite", revision="bench", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=D_ROPE,
                  row_dtype="bf16", rope_style="interleaved", rope_theta=10000.0, softmax_scale=0.1)
LONG_S = 120.0


def timed(work):
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin


def submit(requester, name):
    """Medians of submit and wait, over a corpus of one small chunk; into the same memory each time, as an engine would."""
    with requester.put(name, create=MODEL) as target:
        write(target, numpy.arange(SMALL_TOKENS, dtype=numpy.int32), numpy.ones((LAYERS, SMALL_TOKENS, D_QK), numpy.uint16))
        target.finish()
    q = numpy.zeros((HEADS, D_QK), numpy.uint16)
    with requester.context([ckv.Part(requester.resolve(name))], policy="route") as context:
        out = requester.attend(0, q, context)

        def call():
            with requester.submit(0, q, context, out=out) as ticket:
                ticket.wait()
        while True:
            calls = yield
            yield {"median_ns": statistics.median(timed(call) for _ in range(calls))}


def write(put, token_ids, rows):
    put.chunk(token_ids, standalone=True)
    for layer in range(LAYERS):
        put.rows(layer, rows[layer])


def put(requester, name):
    """One chunk of 64 MB for each number."""
    rows = numpy.ones((LAYERS, CHUNK_TOKENS, D_QK), numpy.uint16)

    def one(number):
        with requester.put(name, create=MODEL) as target:
            write(target, numpy.full(CHUNK_TOKENS, number, numpy.int32), rows)
            return target.finish(LONG_S)
    while True:
        number = yield
        begin = time.perf_counter_ns()
        report = one(number)
        yield {"ns": time.perf_counter_ns() - begin, "bytes": report.bytes_sent}


def extend(requester, name):
    """A corpus of 1,000 chunks gets one more for each number."""
    rows = numpy.ones((LAYERS, SMALL_TOKENS, D_QK), numpy.uint16)
    with requester.put(name, create=MODEL) as target:
        for number in range(CHUNKS):
            write(target, numpy.full(SMALL_TOKENS, number + (1 << 20), numpy.int32), rows)
        target.finish(LONG_S)
    while True:
        number = yield
        before = requester.resolve(name).chunks()[0]
        begin = time.perf_counter_ns()
        with requester.put(name) as target:
            write(target, numpy.full(SMALL_TOKENS, number, numpy.int32), rows)
            report = target.finish()
        ns = time.perf_counter_ns() - begin
        after = requester.resolve(name).chunks()[0]
        same = len(after) == len(before) + 1 and bool((after[:-1] == before).all())
        yield {"ns": ns, "others_touched": int(not same or report.added_count != 1 or report.bytes_sent != rows.nbytes),
               "chunks": len(before)}


def layers(requester, name):
    """How long until the first layer of a corpus is there, and until all are."""
    corpus = requester.resolve(name)
    out = numpy.zeros((corpus.layers, corpus.token_count, corpus.d_qk), numpy.uint16)

    def one():
        begin = time.perf_counter_ns()
        with requester.begin_fetch(corpus, out, timeout=LONG_S) as ticket:
            if not ticket.wait_layer(0, LONG_S):
                raise RuntimeError("no layer in time")
            first = time.perf_counter_ns() - begin
            ticket.wait(LONG_S)
            return first, time.perf_counter_ns() - begin
    one()  # the pages of `out`, and the sessions
    while True:
        rounds = yield
        firsts, wholes = zip(*(one() for _ in range(rounds)))
        yield {"first_ns": statistics.median(firsts), "whole_ns": statistics.median(wholes), "bytes": out.nbytes}


def main():
    work, directory, name = sys.argv[1:]
    with ckv.open(directory, fabrics="shm", local_cache_bytes=0) as requester:
        steps = {"submit": submit, "put": put, "extend": extend, "layers": layers}[work](requester, name)
        next(steps)
        for line in sys.stdin:
            print(json.dumps(steps.send(int(line))), flush=True)
            next(steps)


if __name__ == "__main__":
    main()
