"""The requester: the entry point of the package. It has the sessions with holders, and all calls."""

from __future__ import annotations

from ctypes import addressof, byref
from typing import Any, Iterable, Optional, Sequence, Union

import numpy as np

from . import _inputs, _structs
from . import advice as _advice
from . import attend as _attend
from . import choose as _choose
from . import fetch as _fetch
from . import load as _load
from . import prepared as _prepared
from ._handles import Owner
from ._memory import address, count, field_nanoseconds, nanoseconds, text
from .attend import Context, Ticket, Where
from .choose import Choice
from .corpus import Corpus, Found, Model, Part
from .errors import FailedPrecondition
from .fetch import FetchReport, FetchTicket
from .load import Load
from .partial import Answer
from .prepared import PreparedCall
from .put import Put


class Requester:
    """Resolves corpora, and attends, fetches and publishes their rows. From ckv.open.

    Any threads may use it at once; other Python threads run while one waits in a call. Python's
    signal handlers, including the one for Ctrl-C, run once the call has returned; a waiting ticket
    runs them every 0.2 s.

    Timeouts are seconds; None sets no limit. Every call may raise InvalidArgument,
    ResourceExhausted (out of memory), Internal, and FailedPrecondition if the requester is closed or
    the process is a child after fork. Its other errors are listed with it.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def backend(self) -> str:
        """One line for people: the backend that computes in this process, and why it was chosen."""
        reason: bytes = self._owner.library.backend_reason(self._owner.live())
        return reason.decode("utf-8", "replace")

    def close(self) -> None:
        """Closes lanes and sessions. No call may be in progress. Does nothing the second time.

        Corpora and contexts may be closed later; any other use of them is then an error.
        FailedPrecondition  tickets, fetches or puts are open; the requester stays open. `with` raises
                            this only if its block raised nothing.
        """
        self._owner.close()

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        try:
            self.close()
        except FailedPrecondition:
            if kind is None:  # otherwise the block's own error, which left a ticket open, is raised
                raise

    def resolve(self, name: str, *, timeout: Optional[float] = 10.0) -> Corpus:
        """Looks up a corpus by name. Returns an immutable snapshot of the directory's entry.

        NotFound  there is no such corpus, or it belongs to another tenant
        Unavailable, DeadlineExceeded  the directory does not answer, or not in time
        """
        library = self._owner.library
        return Corpus(self._owner, self._owner.make(
            library.corpus_free, (), library.resolve, text(name, "name") or b"", nanoseconds(timeout)))

    def find(self, tokens: Any, *, model_of: Optional[Corpus] = None,
             timeout: Optional[float] = 10.0,
             extra_keys: Optional[Iterable[Any]] = None) -> Found:
        """Finds the chunks that match a prompt, in all corpora that the tenant may read.

        tokens      (n,) integers from 0 to 2^31 - 1: the whole prompt, at most 2^20 tokens
        model_of    a corpus of the wanted model; by default chunks may be of any model, but all of
                    the same one
        extra_keys  the prompt's pictures, sounds and adapters, as in Put.chunk. `begin` counts from
                    the prompt's first token. A chunk matches only if it was put with exactly the
                    keys that the prompt has at the chunk's tokens. So a prompt without keys matches
                    no chunk of a picture
        Chunks without a parent match anywhere; those of a chain match after their parent. The match
        with the most tokens is returned. Chunks of fewer than 16 tokens are never found.
        NotFound         no chunk was found, or one of them no longer has a holder: find again
        InvalidArgument  also: too many tokens, an extra key that does not fit, or matching chunks of
                         several models
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
        return Found(corpus, begins, offsets, report.matched_token_count, report.truncated != 0)

    def context(self, parts: Union[Part, Corpus, Sequence[Union[Part, Corpus]]], *,
                policy: str = "auto", expect_steps: int = 0, expect_agents: int = 0,
                timeout: Optional[float] = 10.0) -> Context:
        """Opens a context: the chunks that a sequence attends, resolved once for all its calls.

        Opens the sessions that its first call needs, so it may wait for holders.

        parts          a Part or Corpus, or a list of 1 to 16 of them, of one geometry. Each has its own
                       merge tree; answers merge them in this order
        policy         "route": every query is routed to the holders. "cache": all rows are prefetched
                       while the context is opened, and attended here. "auto": ckv decides for each
                       chunk range, and prefetches in the background what saves time. The choice does
                       not change what an answer means
        expect_steps   decode steps that will attend the context; 0 if unknown. Changes no answer
        expect_agents  sequences of this requester that will attend the same chunks; 0 if unknown
        InvalidArgument    also: different geometries, a duplicate chunk, or an ordinal or offset
                           beyond its limit
        ResourceExhausted  with policy "cache", the rows do not fit; or a holder is overloaded
        NotFound, Unavailable, DeadlineExceeded, FailedPrecondition  as attend
        """
        return _attend.open_context(self._owner, parts, policy, expect_steps, expect_agents, timeout)

    def attend(self, layer: int, q: Any, where: Where, *, out: Any = None, wire: str = "bf16",
               precision: Optional[str] = None, timeout: Optional[float] = 10.0,
               allow_approximate: bool = False, traceparent: Optional[str] = None,
               stream: Any = None) -> Answer:
        """Attends one layer, for one or many sequences, and returns the answer.

        There is no causal mask: a query row sees every row, unless a selection or `visible` limits it.

        q      bf16 (rows, d_qk) or (tokens, heads, d_qk), 1 to 65536 rows: uint16 or bfloat16 in
               numpy, bfloat16 in torch, or an object with __cuda_array_interface__. First d_qk -
               d_rope values, absorbed into the latent space; then the RoPE band, rotated to the
               query's position. Not multiplied by the softmax scale. Copied only if its rows do not
               have one stride; on a GPU or with `stream`, that is an error
        where  a Context, Part, Corpus or Segment, or a list of Segments that contain all rows of q
        out    (o, m, l) or an Answer to write to: contiguous float32 of rows x d_v, rows and rows
               values, all in host memory or all on the GPU. By default new host memory. Unchanged after
               an error, except Internal, which leaves it undefined. The fastest choice is an Answer
               of an earlier call without `out`
        wire   the type of partials on the wire, "bf16" or "f32". Only with "f32", and only within one
               kernel target, are an answer's bits independent of where chunks are stored
        precision          "exact" is f32. "wire" errs less than what a bf16 partial loses in any case.
                           "fast" has weights in bf16, like GPU kernels. By default "exact" for f32, and
                           "wire" for bf16
        timeout            within it, the call reopens failed sessions, tries replicas, and waits as
                           long as overloaded holders request. If no holder of a chunk answers, it
                           waits for one until shortly before the timeout. If None, for at most 10 s
        allow_approximate  a holder whose exact rows are on disk may answer from fp8 copies. The
                           answer's report shows if any did
        traceparent        of W3C Trace Context; names the call in logs and errors
        stream             q, own rows and `out` are used only after the work on this stream: an int (a
                           cudaStream_t; 0 is the default stream), or an object with cuda_stream
                           (torch) or ptr (cupy). Keep the native stream until the requester is closed.
                           By default the stream that the arrays name; if they name none, they are ready

        Once the call has returned, the answer is complete, and every stream may read it. Memory on a GPU
        requires ckv.open(..., backend="cuda").
        InvalidArgument     also: a wrong dtype, shape or device; an index or layer beyond its limit;
                            segments that do not contain all rows, or are of different geometries
        Unimplemented       a stream is given, and the requester has no GPU backend
        NotFound            a holder no longer has a chunk: resolve the corpus again
        Unavailable         a holder and its replicas could not be reached in time
        ResourceExhausted   a holder is overloaded; retry_after has its hint
        DeadlineExceeded    a holder did not answer in time, or too many calls were in progress here
        FailedPrecondition  geometry or wire version differ from a holder's; or a handle is closed
        DataLoss            answers arrive damaged, also from replicas
        Internal            also: a device failed
        """
        call = _attend.Call(self._owner, layer, q, where, out, wire, precision, timeout,
                            allow_approximate, traceparent, stream)
        library = self._owner.library
        status = library.attend(self._owner.live(), addressof(call.struct), addressof(call.report))
        if status:
            library.fail(status)
        return call.answer

    def prepare(self, q: Any, where: Where, *, out: Any = None, wire: str = "bf16",
                precision: Optional[str] = None, timeout: Optional[float] = 10.0,
                allow_approximate: bool = False, traceparent: Optional[str] = None,
                stream: Any = None) -> PreparedCall:
        """Returns a call that can be repeated for each layer and step, for less than attend costs.

        Arguments are as in attend, and are checked now. `where` has no Part or Corpus. q must not need a
        copy. q, own rows, selections and `out` are read and written by every repetition: change their
        values in place. The timeout is that of each repetition.
        InvalidArgument    as attend; also, `where` has a Part or Corpus, or q's rows do not have one stride
        Unimplemented      as attend
        """
        call = _attend.Call(self._owner, 0, q, where, out, wire, precision, timeout, allow_approximate,
                            traceparent, stream)
        return _prepared.prepare(self._owner, call, q, where)

    def submit(self, layer: int, q: Any, where: Where, *, out: Any = None, wire: str = "bf16",
               precision: Optional[str] = None, timeout: Optional[float] = 10.0,
               allow_approximate: bool = False, traceparent: Optional[str] = None,
               stream: Any = None) -> Ticket:
        """Posts the queries of a call, and returns a ticket before the answer is there.

        Arguments are as in attend. q, own rows, selections and `out` stay borrowed until the ticket is
        done or closed; see Ticket. Contexts may be closed. Waits for a holder if it must open a session.
        Work that is put on `stream` later may delay the answer, and must not wait for the ticket.
        ResourceExhausted  call_count_max calls are in progress
        InvalidArgument    as attend; also, `where` has a Part or Corpus
        All other errors are reported by the ticket, including a selection index beyond the context.
        """
        call = _attend.Call(self._owner, layer, q, where, out, wire, precision, timeout,
                            allow_approximate, traceparent, stream)
        return _attend.submit(self._owner, call)

    def select_rows(self, context: Context, layer: int, q: Any, weights: Any, k: int, *,
                    own_scores: Any = None, timeout: Optional[float] = 10.0,
                    traceparent: Optional[str] = None) -> np.ndarray:
        """Selects, for each token, the k rows of a context with the best index scores (DeepSeek-V3.2).

        Holders score the keys where they are. Returns int32 (tokens, k): ascending, counted as `selected`
        of Segment counts rows; -1 follows if there are fewer. Own row i counts as context.token_count + i.
        Of equal scores, the lower row is selected.

        q           (tokens, index_heads, index_dim), rotated to the tokens' positions: bf16 (uint16 or
                    bfloat16), or e4m3 (uint8 or float8_e4m3fn) without scales. Contiguous, in host memory
        weights     float32 (tokens, index_heads); multiply them by the scales of e4m3 queries
        k           rows of each token, 1 to 16384
        own_scores  float32 (tokens, own rows): the scores of the caller's own rows, which compete with the
                    context's; -inf for rows that a token does not see. By default there are none
        traceparent as in attend
        FailedPrecondition  the context's model has no index keys
        InvalidArgument     also: more than 1024 tokens, or more than 2^31 - 1 rows in all
        NotFound, Unavailable, ResourceExhausted, DeadlineExceeded  as attend
        """
        return _choose.select_rows(self._owner, _choose.Selecting(
            context, layer, q, weights, k, own_scores, timeout, traceparent))

    def choose_rows(self, context: Context, layer: int, q: Any, weights: Any, k: int, *,
                    own_scores: Any = None, timeout: Optional[float] = 10.0,
                    traceparent: Optional[str] = None) -> Choice:
        """Selects as select_rows, for `choice` of Segment. The calls then need no list of the rows.

        This saves a round trip, and 8 bytes for each row. Choice.own_rows has the chosen own rows.
        """
        return _choose.choose_rows(self._owner, _choose.Selecting(
            context, layer, q, weights, k, own_scores, timeout, traceparent))

    def fetch(self, corpus: Corpus, out: Any, *, chunks: Optional[tuple[int, int]] = None,
              layers: Optional[tuple[int, int]] = None, position: Optional[int] = None,
              columns: Optional[tuple[int, int]] = None, timeout: Optional[float] = 10.0,
              traceparent: Optional[str] = None, stream: Any = None,
              index_keys: bool = False) -> FetchReport:
        """Fetches rows into `out`, and returns once they are complete.

        Compares rows with their checksums, unless they arrive through memory shared with the holder.

        out       an array or tensor (layers, tokens, values) of uint16, bfloat16 or uint8, in host memory
                  or on the GPU of a requester with that backend. Tokens are numbered across the
                  chunks. The values of a row are contiguous; the other two strides are even, and may
                  be anything that does not overlap. Or a BlockPlace: rows are written to an engine's
                  blocks. After an error, its contents are undefined. Nothing is written to it after
                  the return
        chunks    (begin, end), ordinals in the corpus; by default all
        layers    (begin, end); by default all
        position  the position of the first token, at most 2^40: RoPE bands are rotated to it. By
                  default rows stay at their canonical positions
        columns   (begin, size) of a slice of each row, in bytes, both multiples of 4; by default the
                  whole row. With `position`, it has all of the RoPE band or none of it. Not with a
                  BlockPlace
        traceparent  as in attend
        stream    as in attend: `out` is written after the work that is on the stream now
        index_keys  True: the layers' index keys instead of their rows, at their canonical positions.
                  `position` and `columns` are not given
        DataLoss         rows do not match their checksum
        InvalidArgument  also: a range, slice or position beyond its limit; rows that overlap
        Internal         also: a device failed
        NotFound, Unavailable, ResourceExhausted, DeadlineExceeded, FailedPrecondition  as attend
        """
        call = _fetch.call_of(self._owner, corpus, out, chunks, layers, position, columns, timeout,
                              None, traceparent, stream, index_keys)
        return _fetch.fetch(self._owner, call)

    def begin_fetch(self, corpus: Corpus, out: Any, *, chunks: Optional[tuple[int, int]] = None,
                    layers: Optional[tuple[int, int]] = None, position: Optional[int] = None,
                    columns: Optional[tuple[int, int]] = None, timeout: Optional[float] = 10.0,
                    traceparent: Optional[str] = None,
                    early_return: Optional[float] = None, stream: Any = None,
                    index_keys: bool = False) -> FetchTicket:
        """Begins a fetch, and returns a ticket immediately. Layers arrive in order.

        early_return  seconds that chunks may wait until their first row arrives. Chunks without a
                      received row by then are not fetched, and neither are chunks whose holder requests
                      a retry later than that. FetchTicket.not_fetched lists them. By default there is no
                      limit but the timeout
        The other arguments are as in fetch. `out` stays borrowed until the ticket is closed. Until then,
        read only the layers that are complete, and write nothing to it.
        InvalidArgument  as fetch. All other errors are reported by the ticket.
        """
        call = _fetch.call_of(self._owner, corpus, out, chunks, layers, position, columns, timeout,
                              early_return, traceparent, stream, index_keys)
        return FetchTicket(self._owner, call, out)

    def put(self, corpus: str, *, parent: Any = None, create: Union[Corpus, Model, None] = None,
            replicas: int = 0, bytes_max: int = 0, timeout: Optional[float] = 10.0,
            ttl: Optional[float] = None, quota_bytes: int = 0, kept_versions: int = 0) -> Put:
        """Begins to add chunks to a corpus. Reads its current state from the directory.

        Sends nothing to holders before Put.finish.

        corpus     its name. It is the tenant's own, or shared if the requester has no tenant
        parent     the id (32 bytes, or uint8 (32,)) of the chunk of the corpus that the first chunk of
                   a chain follows. If None, that first chunk has no parent
        create     the model, as a Model or a Corpus, of a corpus that is created if it is missing. An
                   existing corpus must have this model
        replicas   copies of each chunk; by default those of the corpus' last chunk, or 1
        bytes_max  the limit for rows that wait in the put; by default 1 GiB
        timeout    the limit for this call; Put.finish has its own
        ttl        the corpus is dropped so many seconds after its chunks last changed; in steps of
                   1 ms, at most 100 years
        quota_bytes    the limit for the corpus' rows, one copy of each chunk
        kept_versions  the number of versions that stay when others replace them, as corpora
                       NAME@VERSION; at most 16. A put replaces nothing
        Put.finish sets the last three. By default, and with 0, the corpus keeps its present limit; a
        new one has none. `ckvctl corpus set` removes a limit.
        NotFound            the tenant itself has no such corpus, and `create` is None
        FailedPrecondition  the corpus has another model than `create`, or no chunk `parent`
        InvalidArgument     also: ttl or kept_versions is too large
        Unavailable, DeadlineExceeded  as resolve
        """
        return Put(self._owner, corpus, parent, create, replicas, bytes_max, timeout, ttl,
                   quota_bytes, kept_versions)

    def estimate(self, corpus: Corpus, *, chunks: Optional[Sequence[int]] = None, query_rows: int = 0,
                 steps: int = 0, agents: int = 0, select: int = 0, wire: str = "bf16",
                 cache_free_tokens: Optional[int] = None, spliced: bool = False) -> dict[str, Any]:
        """Estimates what route, fetch and local (recompute) cost, for chunks with the same holders.

        Uses only constants that were measured before: sends nothing and does not wait, so routers may
        call it often. If a constant is missing, nothing is chosen; explain measures all of them.
        Returns a dict with an entry for each group of chunks; ckv_advice.h lists its members. Times
        are microseconds over all steps, agents and layers.

        chunks      ordinals in the corpus, each at most once; by default all
        query_rows  tokens x heads of one request; by default 1
        steps       decode steps; by default 1
        agents      agents that share the chunks here; by default 1
        select      rows that a query attends; by default all
        wire        the type of partials on the wire, "bf16" or "f32"
        cache_free_tokens  ignored; see explain
        spliced     the engine would keep fetched rows in its own cache at other positions than the
                    chunks' own, so a fetch rotates each of them
        InvalidArgument  also: a chunk that does not exist or is listed twice; query_rows above 65536
        """
        return _advice.advise(self._owner, self._owner.library.estimate, corpus, chunks, query_rows, steps,
                              agents, select, wire, cache_free_tokens, spliced, 10.0)

    def explain(self, corpus: Corpus, *, chunks: Optional[Sequence[int]] = None, query_rows: int = 0,
                steps: int = 0, agents: int = 0, select: int = 0, wire: str = "bf16",
                cache_free_tokens: Optional[int] = None, spliced: bool = False,
                timeout: Optional[float] = 10.0) -> dict[str, Any]:
        """Returns which of route, fetch and local (recompute) costs least, and why.

        Queries the directory and the holders, and measures unknown constants. Takes milliseconds, and
        longer the first time. Only reports. Returns a dict, whose members ckv_advice.h lists.

        cache_free_tokens  tokens that still fit the engine's cache; by default the chunks fit. 0 means
                           that none fit
        The other arguments are as in estimate.
        Unavailable  no replica of a chunk answers, or its bandwidth cannot be measured
        ResourceExhausted, DeadlineExceeded, NotFound, FailedPrecondition  as attend
        """
        return _advice.advise(self._owner, self._owner.library.explain, corpus, chunks, query_rows, steps,
                              agents, select, wire, cache_free_tokens, spliced, timeout)

    def report_prefill(self, model: Union[Model, Corpus], tokens: int, seconds: float) -> None:
        """Takes the time in which the engine prefilled `tokens` tokens of a prompt, over all layers.

        The median of the last 31 reports of at least 64 tokens is the cost of "local" in advice, and in
        contexts of policy auto. It applies from the third report on, to the model's revision. Do not
        report a prefill that attended routed rows. Sends nothing and does not wait.
        model            a Model, or a Corpus of it
        InvalidArgument  also: no tokens, or a time that is not above 0 and at most an hour
        """
        _advice.report_prefill(self._owner, model, tokens, seconds)

    def report_load(self, address: str, load: Load, chunk_ids: Optional[Sequence[bytes]] = None,
                    host: str = "") -> None:
        """Sets this engine's load for rankings, under the requester's name. Call it after each step.

        Does not wait: a thread of the library sends changes within 100 ms, and renews the lease while
        the engine is idle.
        address    host:port at which routers reach the engine; the same in every report
        chunk_ids  the chunks that it has, 32 bytes each, the most important first; by default as before.
                   Until they are given once, those in the requester's local row cache
        host       its host, as the directory's network oracle names it; by default that of `address`
        InvalidArgument  a malformed or another address; a number that is negative or not finite
        """
        _load.report(self._owner, address, load, chunk_ids, host)

    def rank(self, corpus: str = "", *, tokens: float = 0, cache_bytes: float = 0, reserve_bytes: float = 0,
             chunks: Sequence[tuple[bytes, int]] = (), prefix_only: bool = False, from_hosts: Sequence[str] = (),
             in_flight: Sequence[float] = (), tolerance: bool = False,
             timeout: Optional[float] = 1.0) -> dict[str, Any]:
        """Ranks the engines that report their load, for a request over a corpus or over chunks.

        Returns a dict: "requesters" with each term, ordered by name, and "best", an index or None.
        client/rank/ranking_json.h lists its members.
        tokens, cache_bytes  of the whole prompt; by default computed from the corpus
        reserve_bytes  that stay free on an engine
        chunks       the prompt's chunks in order, each (id, tokens)
        prefix_only  counts only chunks before the first that an engine lacks
        from_hosts   hosts that have the prompt's rows, at most 4; by default those of the holders
        in_flight    the caller's own transfers by tier, the nearest first
        tolerance    also computes "tolerated_error", which takes longer
        NotFound     there is no such corpus
        """
        return _load.ranked(self._owner, corpus, tokens, cache_bytes, reserve_bytes, chunks, prefix_only,
                            from_hosts, in_flight, tolerance, timeout)
