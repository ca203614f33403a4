"""Rows: chunks fetched into the caller's memory, at once or layer by layer."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint32
from typing import Any, NamedTuple, Optional

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import (ROWS, UINT64_MAX, address, count, field_nanoseconds, memory_of,
                      native_stream, pair, plain, text, wait_in_slices)
from .corpus import Corpus
from .errors import InvalidArgument


class FetchReport(NamedTuple):
    """The work of a fetch."""

    row_count: int  # rows of all layers
    bytes: int
    elapsed_ns: int
    chunk_count: int  # chunks fetched
    not_fetched_count: int  # chunks handed back


def _report(raw: Any) -> FetchReport:
    return FetchReport(*[getattr(raw, name) for name in FetchReport._fields])


def call_of(owner: Owner, corpus: Corpus, out: Any, chunks: Any, layers: Any,
            position: Optional[int], columns: Any, timeout: Optional[float],
            hand_back: Optional[float], traceparent: Optional[str], stream: Any) -> Any:
    """The struct of a fetch into `out`, whose shape is checked."""
    if not isinstance(corpus, Corpus):
        raise InvalidArgument(f"a fetch is of a ckv.Corpus, not of a {type(corpus).__name__}")
    chunk_begin, chunk_end = pair(chunks, "chunks") if chunks else (0, corpus.chunk_count)
    layer_begin, layer_end = pair(layers, "layers") if layers else (0, corpus.layers)
    column_begin, column_bytes = pair(columns, "columns")
    if not layer_begin < layer_end <= corpus.layers:
        raise InvalidArgument(f"layers are [{layer_begin}, {layer_end}) of {corpus.layers}")
    if not chunk_begin < chunk_end <= corpus.chunk_count:
        raise InvalidArgument(f"chunks are [{chunk_begin}, {chunk_end}) of {corpus.chunk_count}")
    tokens = corpus.token_count
    if (chunk_begin, chunk_end) != (0, corpus.chunk_count):
        tokens = int(corpus.chunks(chunk_begin, chunk_end)[1].sum())
    width = column_bytes or corpus.row_bytes
    out = plain(out, "out")
    at = memory_of(out, "out", ROWS, writable=True, device=True)
    want = (layer_end - layer_begin, tokens, width // at.item_bytes)
    if at.shape != want or width % at.item_bytes:
        raise InvalidArgument(f"out has shape {at.shape} of {at.dtype}: it must be {want}, "
                              f"(layers, tokens, values), {width} bytes a row")
    if at.strides[2] != at.item_bytes and want[2] > 1:
        raise InvalidArgument("out's values of a row must lie one after another")
    if min(at.strides[:2]) < 0:
        raise InvalidArgument("out has a negative stride")
    # A dimension of one row has a stride that says nothing.
    token_stride = at.strides[1] if tokens > 1 else width
    layer_stride = at.strides[0] if want[0] > 1 else tokens * token_stride
    call = _structs.FetchCall.made(
        corpus=corpus._live(), chunk_begin=chunk_begin, chunk_end=chunk_end,
        layer_begin=layer_begin, layer_end=layer_end, rows=at.address,
        rows_bytes=(want[0] - 1) * layer_stride + (tokens - 1) * token_stride + width,
        layer_stride=layer_stride, token_stride=token_stride, column_begin=column_begin,
        column_bytes=column_bytes, timeout_ns=field_nanoseconds(timeout),
        traceparent=text(traceparent, "traceparent"))
    call.keep = out, stream  # what plain made of it
    call.rows_memory, call.after = at.kind, owner.stream(native_stream(stream, [at.stream]))
    if hand_back is not None:
        call.hand_back_ns = field_nanoseconds(hand_back, "hand_back")
    if position is not None:
        call.rotate, call.position = 1, count(position, "position", UINT64_MAX)
    return call


def fetch(owner: Owner, call: Any) -> FetchReport:
    """See Requester.fetch."""
    report = _structs.FetchReport.made()
    status = owner.library.fetch(owner.live(), byref(call), byref(report))
    if status:
        owner.library.fail(status)
    return _report(report)


class FetchTicket(Handle):
    """A fetch under way, of Requester.begin_fetch, on a thread of the library's own.

    Layers come in order. Any threads may use it at once. It keeps `out` alive until it is closed.
    """

    __slots__ = ("_out", "_chunk_count")

    def __init__(self, owner: Owner, call: Any, out: Any) -> None:
        """Made by Requester.begin_fetch alone."""
        library = owner.library
        cell = owner.make(library.fetch_ticket_free, (call, out), library.fetch_begin, byref(call))
        self._out = out, call
        self._chunk_count = call.chunk_end - call.chunk_begin
        self._own(owner, cell)

    def wait_layer(self, layer: int, timeout: Optional[float] = None) -> bool:
        """Waits until the layer is there, and all before it. False after `timeout` seconds.

        Rows of a layer that is there stay valid, and every stream of a GPU may read them. Raises how
        the fetch ended if it ended without the layer, as Requester.fetch. InvalidArgument: the layer
        is not one of the call's.
        """
        done = c_int()
        library = self._owner.library
        status = wait_in_slices(library.fetch_wait_layer, (self._live(), count(layer, "layer")), timeout,
                                done)
        if status:
            library.fail(status)
        return done.value != 0

    def wait(self, timeout: Optional[float] = None) -> Optional[FetchReport]:
        """Waits for the whole fetch. None after `timeout` seconds. Raises as Requester.fetch does."""
        done, report = c_int(), _structs.FetchReport.made()
        library = self._owner.library
        status = wait_in_slices(library.fetch_wait, (self._live(),), timeout, done, byref(report))
        if status:
            library.fail(status)
        return _report(report) if done.value else None

    def not_fetched(self) -> np.ndarray:
        """The chunks that were handed back: uint32 (n,), ordinals in the corpus, rising.

        They are the last chunks of the call. FailedPrecondition: the first layer is not there yet.
        """
        chunks, number = np.zeros(self._chunk_count, np.uint32), c_uint32()
        library = self._owner.library
        status = library.fetch_not_fetched(self._live(), address(chunks), chunks.size, byref(number))
        if status:
            library.fail(status)
        return chunks[:number.value]

    def cancel(self) -> None:
        """Gives the fetch up and returns at once. `out` may be written to until close()."""
        if self._handle:
            self._owner.library.fetch_cancel(self._live())

    def close(self) -> None:
        """Cancels, waits for the thread, and frees the ticket. No other thread may be in a call.

        The thread ends with the next rows that come, or at the call's timeout if none do.
        """
        Handle.close(self)
        self._out = None
