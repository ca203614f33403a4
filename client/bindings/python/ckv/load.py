"""Reports an engine's load to the directory, and ranks the engines that do.

A directory keeps loads in memory, under leases. An engine is in rankings from its first report until its
requester is closed, or its process has ended for one lease. ckv.rank has the formula of a cost.
"""

from __future__ import annotations

import ctypes
import json
from ctypes import byref
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from . import _structs
from ._handles import Owner
from ._memory import address, count, field_nanoseconds, text
from .errors import InvalidArgument


class Load(NamedTuple):
    """The load of an engine, whose iteration takes iteration_base_us + iteration_request_us * batch.

    free_bytes     memory that is free for a KV cache
    queued, batch  requests that wait, and that are decoded now
    batch_max      the most that it decodes at once
    """

    free_bytes: float
    queued: float = 0
    batch: float = 0
    batch_max: float = 0
    iteration_base_us: float = 0
    iteration_request_us: float = 0


def joined(ids: Iterable[Any]) -> Any:
    """Returns chunk ids, bytes or rows of Corpus.chunks, as one array. InvalidArgument: one is not 32 bytes."""
    taken = list(ids)
    for one in taken:
        if len(one) != _structs.CHUNK_ID_BYTES:
            raise InvalidArgument(f"a chunk id has {len(one)} bytes: it must have {_structs.CHUNK_ID_BYTES}")
    # NULL would mean that there is no list, so an empty list has an address, too.
    return ctypes.create_string_buffer(b"".join(taken) or b"\0")


def report(owner: Owner, at: str, load: Load, chunk_ids: Optional[Sequence[bytes]], host: str) -> None:
    """See Requester.report_load."""
    call = _structs.Load.made(address=text(at, "address"), host=text(host, "host"),
                              **{name: float(value) for name, value in load._asdict().items()})
    if chunk_ids is not None:
        ids = joined(chunk_ids)
        call.chunk_ids, call.chunk_count = ctypes.addressof(ids), len(chunk_ids)
    status = owner.library.report_load(owner.live(), byref(call))
    if status:
        owner.library.fail(status)


def ranked(owner: Owner, corpus: str, tokens: float, cache_bytes: float, reserve_bytes: float,
           chunks: Sequence[tuple[bytes, int]], prefix_only: bool, from_hosts: Sequence[str],
           in_flight: Sequence[float], tolerance: bool, timeout: Optional[float]) -> dict[str, Any]:
    """See Requester.rank."""
    flights = np.ascontiguousarray(in_flight, np.float64)
    sizes = np.asarray([count(size, "chunks") for _, size in chunks], np.uint32)
    ids = joined(one for one, _ in chunks)
    call = _structs.RankQuery.made(
        corpus=text(corpus, "corpus"), tokens=float(tokens), cache_bytes=float(cache_bytes),
        reserve_bytes=float(reserve_bytes), prefix_only=int(prefix_only),
        from_hosts=text(",".join(from_hosts), "from_hosts"), in_flight=address(flights) if flights.size else 0,
        tier_count=flights.size, with_tolerance=int(tolerance), timeout_ns=field_nanoseconds(timeout))
    if len(chunks):
        call.chunk_ids, call.chunk_tokens, call.chunk_count = ctypes.addressof(ids), address(sizes), len(chunks)
    cell = owner.make(owner.library.text_free, (), owner.library.rank_requesters, byref(call))
    try:
        return json.loads(ctypes.string_at(cell.value))
    finally:
        owner.release(cell)
