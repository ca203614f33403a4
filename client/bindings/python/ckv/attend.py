"""Attention: contexts, own rows, segments, and tickets of calls in flight."""

from __future__ import annotations

import ctypes
import struct
from ctypes import addressof, byref, c_char, c_int, c_void_p
from typing import Any, Optional, Sequence, Union

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import (BF16, HOST, ROWS, address, choice, count, field_nanoseconds, ints, memory_of,
                      native_stream, plain, text, wait_in_slices)
from .corpus import Corpus, Part
from .errors import Cancelled, Error, InvalidArgument
from .partial import Answer, place_of

_CALL_BYTES = ctypes.sizeof(_structs.AttendCall)
_REPORT_BYTES = ctypes.sizeof(_structs.AttendReport)
# All fields of AttendCall before `after`. One pack_into costs as much as six assignments of fields.
_HEAD = struct.Struct("=QIIQIIQQQIIQIIIIQ")
assert _HEAD.size == _structs.AttendCall.after.offset
_UINT16 = np.dtype(np.uint16)


class Context(Handle):
    """The chunks that a sequence attends, resolved once for all its calls. From Requester.context.

    token_count  the number of rows of all its chunks at one layer, as selections count them

    Any threads may use it at once. Its parts and corpora may be closed. No attend or submit with it
    may be in progress when it is closed; tickets in flight continue.
    """

    __slots__ = ("token_count", "_corpus", "_segment")

    token_count: int

    def __init__(self, owner: Owner, cell: c_void_p, corpus: Corpus) -> None:
        """Only for Requester.context. `corpus` is any corpus of its geometry."""
        self._own(owner, cell)
        self.token_count = owner.library.context_token_count(self._handle)
        self._corpus = corpus  # for its numbers; it may be closed
        self._segment = _structs.Segment.made(context=self._handle)


class OwnRows:
    """The caller's own rows, for example a sequence's suffix. They are never sent to holders.

    They are attended on the calling thread while the holders compute, and merged last. Their RoPE
    bands are at positions relative to the same origin as those of the query rows.

    rows     (n, d_qk) in bf16 (uint16 or bfloat16), or (n, row_bytes) in uint8, at the call's
             layer. The values of a row are contiguous; rows may have any stride that does not
             overlap. In host memory, or on the GPU of a requester with that backend.
    visible  (query rows of the segment,) integers: query row i sees the first visible[i] rows.
             None: all rows
    selected  int32 (groups, n), or None: all rows. Query rows are in groups of selected_group_rows,
             and each group attends the rows in its list, counted from the first own row. -1 is skipped

    Rows in the blocks of an engine's paged cache are attended in place. Row i is row
    i % block rows of block blocks[i // block rows]:

    rows       the layer's cache, (blocks, block rows, values)
    blocks     (row_count / block rows, rounded up) integers: the blocks that contain the rows, in
               order; copied
    row_count  the number of rows

    `rows` is not copied, and neither is a contiguous `visible` of uint32. Both are kept alive. Do not
    change them until the calls that use them are done. Any threads may use the object at once.
    InvalidArgument  a wrong shape, dtype or stride. The row width, the length of `visible` and the
                     entries of `blocks` are checked by the call.
    Unimplemented    by the call: the kernels of the requester's backend do not read blocks
    """

    __slots__ = ("rows", "visible", "blocks", "selected", "_group_rows", "_struct", "_row_bytes", "_stream")

    def __init__(self, rows: Any, visible: Optional[Sequence[int]] = None, *,
                 blocks: Optional[Sequence[int]] = None, row_count: Optional[int] = None,
                 selected: Any = None, selected_group_rows: int = 1) -> None:
        rows = plain(rows, "own rows")
        at = memory_of(rows, "own rows", ROWS, device=True)
        values = 1 if blocks is None else 2
        if len(at.shape) != values + 1 or (at.shape[-1] > 1 and at.strides[-1] != at.item_bytes):
            raise InvalidArgument(f"own rows have shape {at.shape} and strides {at.strides} bytes: they "
                                  f"must be {'(rows, values)' if blocks is None else '(blocks, rows, values)'}, "
                                  f"values one after another")
        self.rows = rows
        self.visible = None if visible is None else ints(visible, np.uint32, "visible")
        self._row_bytes = at.shape[-1] * at.item_bytes
        self._stream = at.stream
        size, stride = at.shape[-2], at.strides[-2] if at.shape[-2] > 1 else self._row_bytes
        if size > 1 and stride < self._row_bytes:
            raise InvalidArgument(f"own rows overlap: {stride} bytes from one to the next")
        self._struct = _structs.OwnRows.made(
            memory=at.kind, rows=at.address, row_count=count(size, "own rows"),
            visible=address(self.visible), stride_bytes=count(stride, "own rows' stride"))
        self.selected = None if selected is None else ints(selected, np.int32, "own rows' selected", 2)
        self._group_rows = count(selected_group_rows, "selected_group_rows") or 1
        if self.selected is not None:
            self._struct.selected, self._struct.selected_count = address(self.selected), self.selected.shape[1]
            self._struct.selected_group_rows = self._group_rows
        self.blocks = None
        if blocks is not None:
            # A copy: the library checks it in the call and reads it later, and engines change theirs.
            self._page(at, ints(blocks, np.uint32, "blocks").copy(), row_count)
        elif row_count is not None:
            raise InvalidArgument("row_count is of rows in blocks; others have as many as `rows`")

    def _page(self, at: Any, blocks: np.ndarray, row_count: Optional[int]) -> None:
        """Takes the table of blocks. The library checks that each entry is a block of the cache."""
        size = self._struct.row_count
        n = count(row_count if row_count is not None else -1, "row_count")
        if blocks.ndim != 1 or blocks.size * size < n:
            raise InvalidArgument(f"{n} own rows are not in {blocks.size} blocks of {size}")
        stride = at.strides[0] if at.shape[0] > 1 else size * self._struct.stride_bytes
        if stride < size * self._struct.stride_bytes:
            raise InvalidArgument(f"blocks overlap: {stride} bytes from one to the next")
        self.blocks = blocks
        self._struct.row_count = n
        self._struct.blocks = address(blocks)
        self._struct.block_rows, self._struct.block_count = size, count(at.shape[0], "blocks")
        self._struct.block_stride_bytes = stride


class Segment:
    """Consecutive query rows of a call that attend the same rows.

    context     a Context. Or a Part or Corpus, which the call routes: then this is the only segment,
                has all query rows and no own rows, and the call cannot be submitted
    row_begin, row_count  the query rows. The segments of a call contain all its rows, in order. If it is
                the only segment, row_count may be 0: all rows of the call
    selected    int32 (groups, n), or None: every row is attended. Query rows are in groups of
                selected_group_rows, and each group attends the rows in its list. An index counts
                the rows of the context, chunk by chunk. -1 is skipped. A repeated index counts
                twice. Own rows have a selection of their own
    choice      instead of `selected`, a Choice of the context. Query rows are in groups of
                choice_group_rows, the heads of one token: group g attends the rows of token
                choice_token_begin + g
    own         OwnRows, at most 16, merged after the chunks, one after another

    Immutable; any threads may use it at once. It keeps its arguments alive. A contiguous `selected`
    of int32 is not copied: do not change it until the calls that use it are done.
    InvalidArgument  a wrong type, dtype or dimension. The call checks the rest.
    """

    __slots__ = ("context", "row_begin", "row_count", "selected", "own", "choice", "_group_rows", "_struct",
                 "_own_array", "_corpus")

    def __init__(self, context: Union[Context, Part, Corpus], row_begin: int = 0, row_count: int = 0,
                 selected: Any = None, selected_group_rows: int = 1,
                 own: Sequence[OwnRows] = (), choice: Any = None, choice_token_begin: int = 0,
                 choice_group_rows: int = 1) -> None:
        if isinstance(context, Corpus):
            context = Part(context)
        if not isinstance(context, (Context, Part)):
            raise InvalidArgument(f"a {type(context).__name__} cannot be attended: "
                                  f"it must be a ckv.Context, Part or Corpus")
        self.context = context
        self._corpus = context._corpus if isinstance(context, Context) else context.corpus
        self.row_begin, self.row_count = count(row_begin, "row_begin"), count(row_count, "row_count")
        self.selected = None if selected is None else ints(selected, np.int32, "selected", 2)
        self.own = tuple(own or ())
        self._group_rows = count(selected_group_rows, "selected_group_rows") or 1
        self._own_array = (_structs.OwnRows * len(self.own))(*[rows._struct for rows in self.own])
        struct = _structs.Segment.made(
            row_begin=self.row_begin, row_count=self.row_count,
            selected=address(self.selected), selected_group_rows=self._group_rows,
            selected_count=0 if self.selected is None else self.selected.shape[1],
            own=addressof(self._own_array) if self.own else 0, own_count=len(self.own))
        if isinstance(context, Context):
            struct.context = context._handle
        else:
            struct.part = addressof(context._struct)
        if self.selected is None:
            struct.selected_group_rows = 0
        self.choice = choice
        if choice is not None:
            struct.choice = choice._live()
            struct.choice_token_begin = count(choice_token_begin, "choice_token_begin")
            struct.choice_group_rows = count(choice_group_rows, "choice_group_rows")
        self._struct = struct

    def _check(self, query_rows: int) -> None:
        """Checks that arrays are as large as the library will read; it sees only their addresses."""
        self.context._live()
        if self.choice is not None:
            self.choice._live()
        rows = self.row_count or query_rows
        if self.selected is not None and self.selected.shape[0] * self._group_rows != rows:
            raise InvalidArgument(f"selected has {self.selected.shape[0]} groups of "
                                  f"{self._group_rows} query rows; the segment has {rows} rows")
        for own in self.own:
            if own._row_bytes != self._corpus.row_bytes:
                raise InvalidArgument(f"an own row has {own._row_bytes} bytes; "
                                      f"the corpus' rows have {self._corpus.row_bytes}")
            if own.visible is not None and own.visible.size != rows:
                raise InvalidArgument(f"visible has {own.visible.size} numbers; "
                                      f"the segment has {rows} query rows")
            if own.selected is not None and own.selected.shape[0] * own._group_rows != rows:
                raise InvalidArgument(f"selected of own rows has {own.selected.shape[0]} groups of "
                                      f"{own._group_rows} query rows; the segment has {rows} rows")


Where = Union[Context, Part, Corpus, Segment, Sequence[Segment]]


def _queries(q: Any, d_qk: int, streamed: bool = False) -> tuple[Any, int, int, int, int, Optional[int]]:
    """Returns (owner of the memory, address, rows, values from one row to the next, kind, stream).

    Copies q if its rows do not have one stride. On a GPU, or if the call has a stream (`streamed`),
    that is InvalidArgument instead.
    """
    # The usual case of an engine. Reading the address through numpy would take three times as long.
    if type(q) is np.ndarray and q.dtype is _UINT16 and q.ndim == 2 and q.shape[1] == d_qk:
        flags = q.flags
        if flags.c_contiguous and flags.writeable and q.size:
            return q, addressof(c_char.from_buffer(q)), q.shape[0], d_qk, HOST, None
    q = plain(q, "q")
    at = memory_of(q, "q", BF16, device=True)
    shape, strides = at.shape, at.strides
    if len(shape) not in (2, 3) or shape[-1] != d_qk:
        raise InvalidArgument(f"q has shape {shape}: it must be (rows, {d_qk}) or "
                              f"(tokens, heads, {d_qk})")
    stride = strides[-2]
    if len(shape) == 2:
        rows = shape[0]
        even = rows <= 1 or (stride >= 2 * d_qk and stride % 2 == 0)
    else:
        rows = shape[0] * shape[1]
        if shape[1] == 1:
            stride = strides[0]
        even = rows <= 1 or (stride >= 2 * d_qk and stride % 2 == 0 and
                             (shape[0] == 1 or strides[0] == shape[1] * stride))
    if not even or strides[-1] != 2 or stride > 2**32:
        if at.kind != HOST or streamed:  # a copy could be made before the stream's work has written q
            raise InvalidArgument(f"q is on a GPU or a stream writes it, and its rows do not follow one "
                                  f"after another: shape {shape}, strides {strides} bytes. Make it "
                                  f"contiguous first")
        q = np.ascontiguousarray(q) if isinstance(q, np.ndarray) else q.contiguous()
        return q, memory_of(q, "q", BF16).address, rows, d_qk, HOST, None
    return q, at.address, rows, stride // 2 if rows > 1 else d_qk, at.kind, at.stream


def _segments(where: Where) -> tuple[Any, int, int, Corpus, tuple[Segment, ...]]:
    """Returns (owner of the structs, their address and number, the first's corpus, the segments)."""
    if type(where) is Context:  # the usual case of an engine
        where._live()
        struct = where._segment
        return struct, addressof(struct), 1, where._corpus, ()
    if isinstance(where, (Part, Corpus, Segment, Context)):
        where = (where if isinstance(where, Segment) else Segment(where),)
    segments = tuple(where)
    if not segments or not all(isinstance(segment, Segment) for segment in segments):
        raise InvalidArgument("`where` must be a ckv.Context, Part, Corpus or Segment, or a list of "
                              "ckv.Segment")
    array = (_structs.Segment * len(segments))(*[segment._struct for segment in segments])
    return array, addressof(array), len(segments), segments[0]._corpus, segments


class Call:
    """The C structs of one call, and the objects whose memory it uses. See Requester.attend."""

    __slots__ = ("struct", "report", "answer", "keep")

    def __init__(self, owner: Owner, layer: int, q: Any, where: Where, out: Any, wire: str,
                 precision: Optional[str], timeout: Optional[float], allow_approximate: bool,
                 traceparent: Optional[str], stream: Any) -> None:
        array, segments_at, segment_count, corpus, segments = _segments(where)
        q, q_at, rows, q_stride, q_kind, q_stream = _queries(q, corpus.d_qk, stream is not None)
        for segment in segments:
            segment._check(rows)
        self.answer, (o, m, l), out_kind, out_streams = place_of(out, count(rows, "query rows"),
                                                                 corpus.d_v, device=True)
        call = self.struct = _structs.AttendCall()
        _HEAD.pack_into(call, 0, _CALL_BYTES, count(layer, "layer"), rows, q_at, q_stride, q_kind,
                        o, m, l, out_kind, choice(_structs.WIRES, wire, "wire"), segments_at,
                        segment_count, choice(_structs.PRECISIONS, precision, "precision"),
                        1 if allow_approximate else 0, 0, field_nanoseconds(timeout))
        if traceparent is not None:
            call.traceparent = text(traceparent, "traceparent")
        if stream is not None or q_kind or out_kind or segments:
            used = [q_stream, *out_streams]
            used += [own._stream for segment in segments for own in segment.own]
            call.after = owner.stream(native_stream(stream, used))
        report = self.report = _structs.AttendReport()
        report.struct_size = _REPORT_BYTES
        self.answer._report = report
        self.keep = (array, q, segments, stream)


class Ticket(Handle):
    """A call in flight, from Requester.submit. Only one thread at a time may use it.

    It has no thread of its own: poll and wait do the work that is left, on the calling thread. Until
    it is done or closed, it borrows q, own rows, selections and the answer's memory, and keeps them
    alive. Do not change them before that, and do not read the answer. Once it is done, the answer is
    complete, on a GPU, too: every stream may read it. Closing or dropping it cancels the call.
    """

    __slots__ = ("_call", "_done", "_error")

    def __init__(self, owner: Owner, cell: c_void_p, call: Call) -> None:
        """Only for Requester.submit."""
        self._call: Optional[Call] = call
        self._done = c_int()
        self._error: Optional[Error] = None
        self._own(owner, cell)

    def poll(self) -> bool:
        """Returns whether the call is done, with an answer or an error, which wait returns or raises.

        The first poll or wait attends the call's own rows. If a holder failed, poll may open another
        session, and wait for that.
        FailedPrecondition  the ticket was closed before the call was done
        """
        if not self._handle and (self._error is not None or self._done.value):
            return True
        self._owner.library.poll(self._live(), byref(self._done))
        return self._done.value != 0

    def wait(self, timeout: Optional[float] = None) -> Optional[Answer]:
        """Waits until the call is done, and returns its answer; None if `timeout` seconds pass first.

        The call's own timeout ends the wait, too. Ctrl-C takes effect within 0.2 s. Once the call is
        done, the ticket's handle is freed, and each wait returns the same answer or raises the same
        error: those of Requester.attend.
        Cancelled  the call was cancelled, or the ticket was closed before it was done
        """
        handle = self._handle
        if not handle:
            return self._ended()
        self._owner.live()
        library = self._owner.library
        status = wait_in_slices(library.wait, (handle,), timeout, self._done)
        if not self._done.value and not status:
            return None
        if status:
            try:
                library.fail(status)
            except Error as error:
                self._error = error
        Handle.close(self)
        return self._ended()

    def _ended(self) -> Optional[Answer]:
        if self._error is not None:
            raise self._error
        if self._call is None:
            raise Cancelled("the ticket is closed")
        return self._call.answer

    def cancel(self) -> None:
        """Cancels the call: it is done, with Cancelled, unless it was done before.

        After the return, nothing more is written to the answer's memory.
        """
        if self._handle:
            self._owner.library.cancel(self._live())

    def close(self) -> None:
        """Frees the ticket. Cancels the call if it is not done."""
        if self._handle:
            Handle.close(self)
            self._call = None


def submit(owner: Owner, call: Call) -> Ticket:
    """Posts a call. See Requester.submit."""
    # As Owner.make, inlined: an engine calls this for each layer.
    library, cell = owner.library, c_void_p()
    children, key = owner.children, id(cell)
    children[key] = [cell, library.ticket_free, (call,)]
    status = library.submit(owner.live(), addressof(call.struct), addressof(call.report), byref(cell))
    if status:
        del children[key]
        library.fail(status)
    return Ticket(owner, cell, call)


def open_context(owner: Owner, parts: Any, policy: str, expect_steps: int, expect_agents: int,
                 timeout: Optional[float]) -> Context:
    """See Requester.context."""
    if isinstance(parts, (Part, Corpus)):
        parts = (parts,)
    all_parts = [Part(part) if isinstance(part, Corpus) else part for part in parts]
    if not all_parts or not all(isinstance(part, Part) for part in all_parts):
        raise InvalidArgument("parts must be some ckv.Part or ckv.Corpus, at least one")
    array = (_structs.Part * len(all_parts))(*[part._live() for part in all_parts])
    spec = _structs.ContextSpec.made(
        parts=addressof(array), part_count=len(all_parts),
        policy=choice(_structs.POLICIES, policy, "policy"),
        expect_steps=count(expect_steps, "expect_steps"),
        expect_agents=count(expect_agents, "expect_agents"), timeout_ns=field_nanoseconds(timeout))
    library = owner.library
    cell = owner.make(library.context_close, (), library.context_open, byref(spec))
    return Context(owner, cell, all_parts[0].corpus)
