"""The requester: sessions with holders, and all calls."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import addressof, byref, c_void_p
from typing import Any, Iterable, Optional, Sequence, Union

import numpy as np

from . import _inputs, _library, _structs
from . import attend as _attend
from . import fetch as _fetch
from ._handles import Owner
from ._memory import (UINT64_MAX, address, choice, count, field_nanoseconds, ints, nanoseconds, text)
from .attend import Context, Ticket, Where
from .corpus import Corpus, Found, Model, Part
from .errors import Error, FailedPrecondition, InvalidArgument, NotFound
from .fetch import FetchReport, FetchTicket
from .partial import Answer
from .put import Put


def open(directory: str, *, tenant: str = "", name: str = "", fabrics: str = "",
         verbs_device: str = "", kernel_target: str = "", near_bytes: Optional[int] = None,
         call_count_max: int = 0, call_threads: int = 0, connect_timeout: float = 0.0,
         backend: str = "", library: Union[str, os.PathLike[str], None] = None,
         check: Optional[float] = None, announce: Optional[str] = None, announce_rank: int = 0,
         announce_rank_count: int = 0, requester: str = "") -> Requester:
    """Makes a requester. Does not wait for the network, unless by `check`; one a process is enough.

    directory        host:port of the directory
    tenant           whose corpora are read beside the shared ones. A name, not a credential.
    name             this requester's name in the logs of holders; by default "ckv-PID"
    fabrics          "shm,tcp,verbs" or some of them, in the order to prefer; by default "shm,tcp"
    verbs_device     the RDMA device of verbs; by default the only one
    kernel_target    the kernel target of the fleet, "AVX3" say; by default the fastest here
    near_bytes       room for rows that contexts pull here: by default 1 GiB, none with 0
    call_count_max   calls in progress at once, at most 4096; by default 16
    call_threads     threads that attend near and own rows of one call; by default 1
    connect_timeout  seconds that a new session may take; by default 3
    backend          what computes here: "cpu", the default; "cuda", a GPU, by libckv_cuda.so beside
                     libckv.so or in ckv/ below it; or "auto", the GPU if it can be used and no
                     kernel_target is named. Requester.backend tells which
    library          the file of libckv.so.1; by default that of CKV_LIBRARY, or the system's
    check            seconds that the directory may take to answer a look-up now; by default it is
                     not asked, and the first call tells whether it is there
    announce         shows this program in `ckvctl status` while the requester is open: the model
                     that it serves, as a fingerprint or any text of at most 256 bytes, or ""; by
                     default it is not shown
    announce_rank    its rank among the processes of one engine, from 0
    announce_rank_count  the number of those processes; by default none is shown
    requester        host:port of a ckvd of the roles holder and requester on this host: rows that are
                     fetched or pulled are copied there once, for all requesters that name it; by
                     default each fetches for itself

    Installs no signal handlers. A child after fork cannot use ckv: start it by spawn.
    LibraryError        no libckv.so.1 can be loaded
    InvalidArgument     no directory, an unknown fabric, kernel target or backend, a count beyond
                        its limit
    FailedPrecondition  another requester uses another kernel target; or a child after fork; or
                        backend "cuda" finds no device, or its library is of another build
    NotFound            backend "cuda", and there is no library; or no such device of verbs
    Unimplemented       verbs is asked for, and this library has none
    Unavailable, DeadlineExceeded  `check`, and the directory does not answer, or not in time
    """
    functions = _library.load(library)
    if near_bytes is None:
        near = 0
    else:
        near = count(near_bytes, "near_bytes", UINT64_MAX) or _structs.NEAR_NONE
    options = _structs.OpenOptions.made(
        directory=text(directory, "directory"), tenant=text(tenant, "tenant"),
        name=text(name, "name"), fabrics=text(fabrics, "fabrics"),
        verbs_device=text(verbs_device, "verbs_device"),
        kernel_target=text(kernel_target, "kernel_target"), near_bytes=near,
        call_count_max=count(call_count_max, "call_count_max"),
        call_threads=count(call_threads, "call_threads"),
        connect_timeout_ns=nanoseconds(connect_timeout, "connect_timeout"),
        backend=text(backend, "backend"),
        announce=None if announce is None else text(announce, "announce") or b"",
        announce_rank=count(announce_rank, "announce_rank"),
        announce_rank_count=count(announce_rank_count, "announce_rank_count"),
        requester=text(requester, "requester"))
    handle = c_void_p()
    status = functions.open_version(_structs.API_MAJOR, _structs.API_MINOR, byref(options),
                                    byref(handle))
    if status:
        functions.fail(status)
    assert handle.value is not None
    requester = Requester(Owner(functions, handle.value))
    if check is not None:
        try:
            requester.resolve("ckv.check", timeout=check)
        except NotFound:
            pass  # an answer
        except Error:
            requester.close()
            raise
    return requester


class Requester:
    """Resolves corpora, and attends, fetches and publishes their rows. Made by ckv.open.

    Any threads may use it at once; other Python threads run while one waits in a call. A signal
    handler of Python, and so Ctrl-C, runs once the call has returned; a ticket's wait looks for it
    every 0.2 s. Timeouts are seconds; None
    waits without end. Every call may raise InvalidArgument, ResourceExhausted (no memory) and
    Internal; FailedPrecondition if the requester is closed.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def backend(self) -> str:
        """One line: what computes here, and why. FailedPrecondition: the requester is closed."""
        told: bytes = self._owner.library.backend_told(self._owner.live())
        return told.decode("utf-8", "replace")

    def close(self) -> None:
        """Closes lanes and sessions. No call may be in progress. Does nothing the second time.

        FailedPrecondition  tickets, fetches or puts are open; nothing was done
        """
        self._owner.close()

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        try:
            self.close()
        except FailedPrecondition:
            if kind is None:  # another error left a ticket open: that one is to be seen
                raise

    def resolve(self, name: str, *, timeout: Optional[float] = 10.0) -> Corpus:
        """Looks a corpus up by its name.

        NotFound          there is no such corpus, or it is another tenant's
        Unavailable, DeadlineExceeded  the directory does not answer, or not in time
        """
        library = self._owner.library
        return Corpus(self._owner, self._owner.make(
            library.corpus_free, (), library.resolve, text(name, "name") or b"", nanoseconds(timeout)))

    def find(self, tokens: Any, *, model_of: Optional[Corpus] = None,
             timeout: Optional[float] = 10.0,
             extra_keys: Optional[Iterable[Any]] = None) -> Found:
        """Finds the chunks that a prompt has, of all corpora that the tenant may read.

        tokens      (n,) integers from 0 to 2^31 - 1: the whole prompt, at most 2^20
        model_of    a corpus of the model that is meant; by default any, but all of the same
        extra_keys  of the prompt's pictures, sounds and adapters, as Put.chunk takes them. `begin`
                    counts from the prompt's first token. A chunk is found only where it was put
                    with the same keys, so a prompt without any finds no chunk of a picture
        NotFound         no chunk was found, or nobody holds one of them any more. Chunks of fewer
                         than 16 tokens are never found
        InvalidArgument  also: too many tokens, or chunks of several models are found
        Unimplemented    the directory is of an earlier build
        Unavailable, DeadlineExceeded  as resolve
        """
        prompt = _inputs.token_ids(tokens, "tokens")
        keys, key_count, _alive = _inputs.extra_keys(extra_keys)
        call = _structs.FindCall.made(
            tokens=address(prompt), token_count=count(prompt.size, "tokens"),
            model_of=0 if model_of is None else model_of._live(),
            timeout_ns=field_nanoseconds(timeout), extra_key_count=key_count,
            extra_keys=addressof(keys) if key_count else 0)
        report = _structs.FindReport.made()
        library = self._owner.library
        corpus = Corpus(self._owner, self._owner.make(
            library.corpus_free, (), library.find, byref(call), after=(byref(report),)))
        begins = np.zeros(corpus.chunk_count, np.uint32)
        offsets = np.zeros(corpus.chunk_count, np.int64)
        status = library.found_spans(corpus._handle, 0, corpus.chunk_count, address(begins),
                                     address(offsets))
        if status:
            library.fail(status)
        return Found(corpus, begins, offsets, report.covered_token_count, report.truncated != 0)

    def context(self, parts: Union[Part, Corpus, Sequence[Union[Part, Corpus]]], *,
                policy: str = "auto", expect_steps: int = 0, expect_agents: int = 0,
                timeout: Optional[float] = 10.0) -> Context:
        """Opens a context: what a sequence attends. It may wait for holders.

        parts          at most 16, of one geometry; answers merge one tree for each, in this order
        policy         "route": queries go to the holders; "near": all rows are pulled in here;
                       "auto": ckv decides for each run of chunks. It changes no answer's meaning.
        expect_steps, expect_agents  decode steps, and sequences here, that will attend the chunks
        InvalidArgument    also: different geometries, a chunk twice, an ordinal beyond its limit
        ResourceExhausted  policy near, and the rows do not fit; or a holder is overloaded
        NotFound, Unavailable, DeadlineExceeded, FailedPrecondition  as attend
        """
        return _attend.open_context(self._owner, parts, policy, expect_steps, expect_agents, timeout)

    def attend(self, layer: int, q: Any, where: Where, *, out: Any = None, wire: str = "bf16",
               grade: Optional[str] = None, timeout: Optional[float] = 10.0,
               allow_approximate: bool = False, traceparent: Optional[str] = None,
               stream: Any = None) -> Answer:
        """Attends one layer, and returns with the answer. Every query row sees every row.

        q      bf16 (rows, d_qk) or (tokens, heads, d_qk): a uint16 or bfloat16 numpy array, a
               bfloat16 tensor of torch, or what has __cuda_array_interface__; 1 to 65536 rows. First
               the values absorbed into the latent space, then the RoPE band, rotated to the query's
               position; without the softmax scale. Not copied if its rows have one stride.
        where  a Context, Part, Corpus, or a list of Segment
        out    (o, m, l) or an Answer, contiguous float32, with rows x d_v, rows and rows values, all
               in host memory or all on the GPU; by default new host memory. Unchanged after an error
               but Internal. The Answer of an earlier call costs the least time.
        wire   the type of partials on the wire. Only with "f32" do answers have the same bits
               wherever chunks lie, and only of one kernel target.
        grade  "exact", "wire" or "fast"; by default exact for f32 and wire for bf16
        allow_approximate  a holder whose exact rows are on disk may answer from fp8 copies
        traceparent        W3C Trace Context's; names the call in logs and errors
        stream  q, own rows and out may be touched once the work that is on this stream is done: an
                int (a cudaStream_t; 0 is the default stream), or an object with cuda_stream (torch)
                or ptr (cupy). The native stream must live until the requester is closed. By default
                the stream that the arrays name, else they are ready. What ckv returns is whole for
                every stream.

        Memory on a GPU needs ckv.open(..., backend="cuda").
        InvalidArgument    also: a wrong dtype, shape or device; an index or layer beyond its limit
        Unimplemented      there is a stream, and no backend of a GPU
        NotFound           a holder no longer has a chunk: resolve the corpus again
        Unavailable        a holder and its replicas cannot be reached
        ResourceExhausted  a holder is overloaded; retry_after has its hint
        DeadlineExceeded   a holder did not answer in time, or too many calls were in progress
        FailedPrecondition geometry or wire version differ from a holder's; or a handle is closed
        """
        call = _attend.Call(self._owner, layer, q, where, out, wire, grade, timeout,
                            allow_approximate, traceparent, stream)
        library = self._owner.library
        status = library.attend(self._owner.live(), addressof(call.struct), addressof(call.report))
        if status:
            library.fail(status)
        return call.answer

    def submit(self, layer: int, q: Any, where: Where, *, out: Any = None, wire: str = "bf16",
               grade: Optional[str] = None, timeout: Optional[float] = 10.0,
               allow_approximate: bool = False, traceparent: Optional[str] = None,
               stream: Any = None) -> Ticket:
        """Posts the queries of a call as attend, and returns before the answer is there.

        To open a session that is not up, it waits for the holder.
        ResourceExhausted  call_count_max calls are in progress
        InvalidArgument    as attend; also, `where` has a Part or Corpus
        All other errors are the ticket's.
        """
        call = _attend.Call(self._owner, layer, q, where, out, wire, grade, timeout,
                            allow_approximate, traceparent, stream)
        return _attend.submit(self._owner, call)

    def fetch(self, corpus: Corpus, out: Any, *, chunks: Optional[tuple[int, int]] = None,
              layers: Optional[tuple[int, int]] = None, position: Optional[int] = None,
              columns: Optional[tuple[int, int]] = None, timeout: Optional[float] = 10.0,
              traceparent: Optional[str] = None, stream: Any = None) -> FetchReport:
        """Fetches rows into `out`, and returns once all are there. Rows meet their checksums.

        out      a BlockPlace: rows go to an engine's blocks. Or
                 (layers, tokens, values) of uint16, bfloat16 or uint8, an array or a tensor, in host
                 memory or on the GPU of a requester with that backend.
                 Values of a row lie one after another; both strides are even and free otherwise.
                 Tokens are counted over the chunks. After an error it means nothing.
        chunks, layers  (begin, end); by default all
        position  where the first token shall stand: bands are rotated. By default rows stay at
                  their canonical positions.
        columns   (begin, size) of a slice of each row, in bytes, multiples of 4
        stream    as in attend: rows are written after the work that is there now
        DataLoss         rows do not match their checksum
        InvalidArgument  also: a range, slice or position beyond its limit; rows that overlap
        NotFound, Unavailable, ResourceExhausted, DeadlineExceeded, FailedPrecondition  as attend
        """
        call = _fetch.call_of(self._owner, corpus, out, chunks, layers, position, columns, timeout,
                              None, traceparent, stream)
        return _fetch.fetch(self._owner, call)

    def begin_fetch(self, corpus: Corpus, out: Any, *, chunks: Optional[tuple[int, int]] = None,
                    layers: Optional[tuple[int, int]] = None, position: Optional[int] = None,
                    columns: Optional[tuple[int, int]] = None, timeout: Optional[float] = 10.0,
                    traceparent: Optional[str] = None,
                    hand_back: Optional[float] = None, stream: Any = None) -> FetchTicket:
        """Begins a fetch as fetch, and returns at once. Layers come in order.

        hand_back  seconds that chunks may wait for their turn. Those of which no row has come by
                   then are not fetched: see FetchTicket.not_fetched. By default never.
        `out` must not be freed, or used beyond the layers that are there, until the ticket is closed.
        """
        call = _fetch.call_of(self._owner, corpus, out, chunks, layers, position, columns, timeout,
                              hand_back, traceparent, stream)
        return FetchTicket(self._owner, call, out)

    def put(self, corpus: str, *, parent: Any = None, create: Union[Corpus, Model, None] = None,
            replicas: int = 0, bytes_max: int = 0, timeout: Optional[float] = 10.0) -> Put:
        """Begins to publish rows. Reads from the directory what the corpus is now.

        corpus     its name; it is the tenant's own
        parent     the id (32 bytes) of the chunk that the first chunk of a chain follows; None: the
                   first has no parent
        create     the model of a corpus that is made if there is none
        replicas   copies of each chunk; by default as many as the last chunk has, or 1
        bytes_max  rows that may wait in the put; by default 1 GiB
        NotFound            the tenant has no such corpus itself, and there is no `create`
        FailedPrecondition  the corpus has another model than `create`, or no chunk `parent`
        Unavailable, DeadlineExceeded  as resolve
        """
        return Put(self._owner, corpus, parent, create, replicas, bytes_max, timeout)

    def quote(self, corpus: Corpus, *, chunks: Optional[Sequence[int]] = None, query_rows: int = 0,
              steps: int = 0, agents: int = 0, select: int = 0, wire: str = "bf16",
              cache_room_tokens: Optional[int] = None) -> dict[str, Any]:
        """Tells the cost of each way for each group of chunks with the same holders, by what is known.

        Asks nobody and waits for nothing. ckv_advice.h lists the members; times are microseconds.
        chunks      ordinals; by default all
        query_rows  tokens x heads of one request; steps: decode steps; agents: that share the
                    chunks here; by default 1 each
        select      rows that a query attends; by default all
        """
        return self._advice(self._owner.library.quote, corpus, chunks, query_rows, steps, agents,
                            select, wire, cache_room_tokens, 10.0)

    def explain(self, corpus: Corpus, *, chunks: Optional[Sequence[int]] = None, query_rows: int = 0,
                steps: int = 0, agents: int = 0, select: int = 0, wire: str = "bf16",
                cache_room_tokens: Optional[int] = None,
                timeout: Optional[float] = 10.0) -> dict[str, Any]:
        """Tells which of route, fetch and local costs least, and why. Asks holders, and measures.

        cache_room_tokens  tokens that still fit the engine's cache; by default the chunks fit
        Unavailable  no replica of a chunk answers, or its bandwidth cannot be told
        """
        return self._advice(self._owner.library.explain, corpus, chunks, query_rows, steps, agents,
                            select, wire, cache_room_tokens, timeout)

    def _advice(self, function: Any, corpus: Corpus, chunks: Any, query_rows: int, steps: int,
                agents: int, select: int, wire: str, room: Optional[int],
                timeout: Optional[float]) -> dict[str, Any]:
        if not isinstance(corpus, Corpus):
            raise InvalidArgument(f"advice is on a ckv.Corpus, not on a {type(corpus).__name__}")
        ordinals = None if chunks is None else ints(chunks, np.uint32, "chunks")
        if ordinals is not None and not ordinals.size:
            raise InvalidArgument("chunks is empty")
        call = _structs.AdviceCall.made(
            corpus=corpus._live(), chunks=address(ordinals),
            chunk_count=0 if ordinals is None else ordinals.size,
            query_rows=count(query_rows, "query_rows"), steps=count(steps, "steps"),
            agents=count(agents, "agents"), select=count(select, "select"),
            wire=choice(_structs.WIRES, wire, "wire"), timeout_ns=field_nanoseconds(timeout))
        if room is not None:
            call.cache_room_tokens = count(room, "cache_room_tokens", UINT64_MAX) or _structs.NO_ROOM
        cell = self._owner.make(self._owner.library.text_free, (), function, byref(call))
        try:
            return json.loads(ctypes.string_at(cell.value))
        finally:
            self._owner.release(cell)
