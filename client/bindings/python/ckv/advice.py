"""The costs of route, fetch and local (recompute), and the engine's prefills, which are the cost of local."""

from __future__ import annotations

import ctypes
import json
from ctypes import byref
from typing import Any, Optional, Union

import numpy as np

from . import _structs
from ._handles import Owner
from ._memory import UINT64_MAX, address, choice, count, field_nanoseconds, ints, nanoseconds
from .corpus import Corpus, Model, facts_of
from .errors import InvalidArgument


def advise(owner: Owner, function: Any, corpus: Corpus, chunks: Any, query_rows: int, steps: int, agents: int,
           select: int, wire: str, free_tokens: Optional[int], spliced: bool,
           timeout: Optional[float]) -> dict[str, Any]:
    """See Requester.estimate and Requester.explain, whose function of the library this calls."""
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
        wire=choice(_structs.WIRES, wire, "wire"), timeout_ns=field_nanoseconds(timeout),
        spliced=int(bool(spliced)))
    if free_tokens is not None:
        call.cache_free_tokens = count(free_tokens, "cache_free_tokens", UINT64_MAX) or _structs.CACHE_FULL
    cell = owner.make(owner.library.text_free, (), function, byref(call))
    try:
        return json.loads(ctypes.string_at(cell.value))
    finally:
        owner.release(cell)


def report_prefill(owner: Owner, model: Union[Model, Corpus], tokens: int, seconds: float) -> None:
    """See Requester.report_prefill."""
    took = nanoseconds(seconds, "seconds")
    status = owner.library.report_prefill(owner.live(), byref(facts_of(model)),
                                          count(tokens, "tokens", UINT64_MAX), took)
    if status:
        owner.library.fail(status)
