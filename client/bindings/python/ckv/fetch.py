"""Rows: chunks fetched into the caller's memory or an engine's blocks, at once or layer by layer."""

from __future__ import annotations

from ctypes import addressof, byref, c_int, c_uint32, c_void_p
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import (ROWS, UINT64_MAX, address, count, field_nanoseconds, ints, memory_of,
                      native_stream, pair, plain, text, wait_in_slices)
from .corpus import Corpus
from .errors import InvalidArgument


class FetchReport(NamedTuple):
    """The work of a fetch. elapsed_ns is in nanoseconds."""

    row_count: int  # rows of all layers
    bytes: int
    elapsed_ns: int
    chunk_count: int  # chunks fetched
    not_fetched_count: int  # chunks not fetched, because of early_return


def _report(raw: Any) -> FetchReport:
    return FetchReport(*[getattr(raw, name) for name in FetchReport._fields])


class BlockPlace:
    """Blocks of an engine's paged cache, as the destination of a fetch's rows.

    layers  the caches of the fetch's layers, in order, each (blocks, block rows, values) of uint16,
            bfloat16 or uint8. All have one shape, dtype, strides and kind of memory. The rows of a
            block are contiguous. In host memory, or on the GPU of a requester with that backend
    table   (n,) integers: the blocks of a sequence, in order. Row r of the table is row
            r % block rows of block table[r // block rows]
    begin   the row of the table for the fetch's first token
    tokens  (begin, end): the tokens of the fetch that are written; by default all

    It keeps the caches alive. A fetch writes nothing else in the blocks, and nothing after it has
    returned or FetchTicket.cancel has returned. Nothing else may write to them during the fetch.
    Any number of fetches may use it.
    InvalidArgument  caches that differ, overlap, or have another shape, dtype or layout. The fetch
                     checks the row width, the number of layers, and the entries of `table`.
    """

    __slots__ = ("layers", "kind", "streams", "_addresses", "_table", "_struct")

    def __init__(self, layers: Sequence[Any], table: Any, *, begin: int = 0,
                 tokens: Optional[tuple[int, int]] = None) -> None:
        self.layers = [plain(layer, "a layer's cache") for layer in layers]
        if not self.layers:
            raise InvalidArgument("a place in blocks has no layers")
        at = [memory_of(layer, "a layer's cache", ROWS, writable=True, device=True) for layer in self.layers]
        first = at[0]
        if any((one.shape, one.strides, one.dtype, one.kind) != (first.shape, first.strides, first.dtype,
                                                                 first.kind) for one in at):
            raise InvalidArgument("the layers' caches differ in shape, strides, dtype or memory")
        if len(first.shape) != 3 or 0 in first.shape:
            raise InvalidArgument(f"a layer's cache has shape {first.shape}: it must be "
                                  f"(blocks, block rows, values)")
        row_bytes = first.shape[2] * first.item_bytes
        dense = first.shape[2] == 1 or first.strides[2] == first.item_bytes
        if not dense or (first.shape[1] > 1 and first.strides[1] != row_bytes):
            raise InvalidArgument("rows of a block must be contiguous")
        self.kind, self.streams = first.kind, [one.stream for one in at]
        self._addresses = (c_void_p * len(at))(*[one.address for one in at])
        self._table = ints(table, np.uint32, "table")
        token_begin, token_end = pair(tokens, "tokens")
        if tokens is not None and not token_begin < token_end:
            raise InvalidArgument(f"tokens are [{token_begin}, {token_end}): none would be written")
        stride = first.strides[0] if first.shape[0] > 1 else first.shape[1] * row_bytes
        if stride < first.shape[1] * row_bytes:
            raise InvalidArgument(f"blocks overlap: {stride} bytes from one to the next")
        self._struct = _structs.BlockPlace.made(
            layers=addressof(self._addresses), table=address(self._table),
            table_count=count(self._table.size, "table"), block_count=count(first.shape[0], "blocks"),
            block_rows=count(first.shape[1], "block rows"), block_stride_bytes=stride,
            table_begin=count(begin, "begin", UINT64_MAX), token_begin=token_begin, token_end=token_end)

    def _check(self, layer_count: int, row_bytes: int) -> None:
        """Checks what the library cannot see: the number of caches, and their row width."""
        cache = memory_of(self.layers[0], "a layer's cache", ROWS, device=True)
        if len(self.layers) != layer_count:
            raise InvalidArgument(f"{len(self.layers)} caches for {layer_count} layers")
        if cache.shape[2] * cache.item_bytes != row_bytes:
            raise InvalidArgument(f"rows of the cache have {cache.shape[2] * cache.item_bytes} bytes, "
                                  f"of the corpus {row_bytes}")


def _into_array(out: Any, corpus: Corpus, tokens: int, layer_count: int, width: int) -> tuple[Any, Any, dict[str, int]]:
    """Returns (owner of the memory, its Memory, fields of the call). Checks its shape."""
    out = plain(out, "out")
    at = memory_of(out, "out", ROWS, writable=True, device=True)
    want = (layer_count, tokens, width // at.item_bytes)
    if at.shape != want or width % at.item_bytes:
        raise InvalidArgument(f"out has shape {at.shape} of {at.dtype}: it must be {want}, "
                              f"(layers, tokens, values), {width} bytes a row")
    if at.strides[2] != at.item_bytes and want[2] > 1:
        raise InvalidArgument("out's values of a row must be contiguous")
    if min(at.strides[:2]) < 0:
        raise InvalidArgument("out has a negative stride")
    # The stride of a dimension of length 1 has no meaning.
    token_stride = at.strides[1] if tokens > 1 else width
    layer_stride = at.strides[0] if layer_count > 1 else tokens * token_stride
    return out, at, {"rows": at.address, "layer_stride": layer_stride, "token_stride": token_stride,
                     "rows_bytes": (layer_count - 1) * layer_stride + (tokens - 1) * token_stride + width}


def call_of(owner: Owner, corpus: Corpus, out: Any, chunks: Any, layers: Any,
            position: Optional[int], columns: Any, timeout: Optional[float],
            early_return: Optional[float], traceparent: Optional[str], stream: Any,
            index_keys: bool = False) -> Any:
    """Checks `out` and returns the C struct of a fetch. The struct keeps `out` alive."""
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
    if index_keys and not corpus.index_key_bytes:
        raise InvalidArgument(f"{corpus!r} has no index keys")
    row_bytes = corpus.index_key_bytes if index_keys else corpus.row_bytes
    width = column_bytes or row_bytes
    if isinstance(out, BlockPlace):
        if columns:
            raise InvalidArgument("columns do not go to blocks, which take whole rows")
        out._check(layer_end - layer_begin, row_bytes)
        keep, kind, streams, fields = out, out.kind, out.streams, {"place": addressof(out._struct)}
    else:
        keep, at, fields = _into_array(out, corpus, tokens, layer_end - layer_begin, width)
        kind, streams = at.kind, [at.stream]
    call = _structs.FetchCall.made(
        corpus=corpus._live(), chunk_begin=chunk_begin, chunk_end=chunk_end,
        layer_begin=layer_begin, layer_end=layer_end, column_begin=column_begin,
        column_bytes=column_bytes, timeout_ns=field_nanoseconds(timeout),
        traceparent=text(traceparent, "traceparent"), index_keys=int(bool(index_keys)), **fields)
    call.keep = keep, stream  # plain may have made a view
    call.rows_memory, call.after = kind, owner.stream(native_stream(stream, streams))
    if early_return is not None:
        call.early_return_ns = field_nanoseconds(early_return, "early_return")
    if position is not None:
        call.rotate, call.position = 1, count(position, "position", UINT64_MAX)
    return call


def fetch(owner: Owner, call: Any) -> FetchReport:
    """Fetches. See Requester.fetch."""
    report = _structs.FetchReport.made()
    status = owner.library.fetch(owner.live(), byref(call), byref(report))
    if status:
        owner.library.fail(status)
    return _report(report)


class FetchTicket(Handle):
    """A fetch in progress, on a thread of the library. From Requester.begin_fetch.

    Layers arrive in order, so an engine may begin with the first while others are in flight. Within
    a layer, chunks arrive in order. Any threads may use it at once. It keeps `out` alive until it is
    closed. Close it before its requester.
    """

    __slots__ = ("_out", "_chunk_count")

    def __init__(self, owner: Owner, call: Any, out: Any) -> None:
        """Only for Requester.begin_fetch."""
        library = owner.library
        cell = owner.make(library.fetch_ticket_free, (call, out), library.fetch_begin, byref(call))
        self._out = out, call
        self._chunk_count = call.chunk_end - call.chunk_begin
        self._own(owner, cell)

    def wait_layer(self, layer: int, timeout: Optional[float] = None) -> bool:
        """Waits until the layer and all layers before it are complete. Returns whether they are.

        timeout  seconds; when they have passed, returns False
        Rows of a complete layer stay valid, even if the fetch fails later, and every stream of a GPU
        may read them. The rows of chunks that are not fetched (not_fetched) are undefined. If the
        fetch ended without the layer, raises the fetch's error, as Requester.fetch.
        InvalidArgument  the layer is not one of the call's
        Cancelled        the fetch was cancelled
        """
        done = c_int()
        library = self._owner.library
        status = wait_in_slices(library.fetch_wait_layer, (self._live(), count(layer, "layer")), timeout,
                                done)
        if status:
            library.fail(status)
        return done.value != 0

    def wait(self, timeout: Optional[float] = None) -> Optional[FetchReport]:
        """Waits for the whole fetch, and returns its report; None if `timeout` seconds pass first.

        Raises what Requester.fetch raises, and Cancelled if the fetch was cancelled.
        """
        done, report = c_int(), _structs.FetchReport.made()
        library = self._owner.library
        status = wait_in_slices(library.fetch_wait, (self._live(),), timeout, done, byref(report))
        if status:
            library.fail(status)
        return _report(report) if done.value else None

    def not_fetched(self) -> np.ndarray:
        """Returns the chunks not fetched because of early_return: uint32 (n,), ascending corpus ordinals.

        They are the last chunks of the call.
        FailedPrecondition  the first layer is not complete yet, so they are not determined
        """
        chunks, number = np.zeros(self._chunk_count, np.uint32), c_uint32()
        library = self._owner.library
        status = library.fetch_not_fetched(self._live(), address(chunks), chunks.size, byref(number))
        if status:
            library.fail(status)
        return chunks[:number.value]

    def cancel(self) -> None:
        """Cancels the fetch and returns immediately. Complete layers stay valid.

        After the return, a BlockPlace is not written to, so its blocks may be reused. Other memory may
        be written to until close().
        """
        if self._handle:
            self._owner.library.fetch_cancel(self._live())

    def close(self) -> None:
        """Cancels, waits for the thread, and frees the ticket. No other thread may be in a call on it.

        The thread ends when the next rows arrive, or at the call's timeout if none do.
        """
        Handle.close(self)
        self._out = None
