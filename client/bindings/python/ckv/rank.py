"""Ranks the instances that could decode a request.

Source: arXiv:2606.03910 (NetKV), Algorithm 1. The cost of a candidate, until its first token:

  missing   = cache_bytes * (1 - matched_tokens / tokens)
  transfer  = missing / (bandwidth * (1 - congestion) / (1 + in_flight)) + latency
  queue     = max(0, queued - (batch_max - batch)) * t(batch)
  decode    = t(batch + 1)        t(b) = iteration_base + iteration_request * b

Needs no requester and does no I/O. Any thread may call it. The first call of the process loads the
library, and may raise LibraryError.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional, Sequence

from . import _library, _structs


class Candidate(NamedTuple):
    """An instance that could decode the request.

    matched_tokens         tokens of the prompt whose rows are there
    free_bytes             of its memory
    queued, batch          requests that wait, and that are decoded now
    batch_max              the most that it decodes at once
    iteration_base_us, iteration_request_us  the time of an iteration: base + request * batch
    bandwidth_bytes_per_s  of the path from where the rows are; 0 if unknown: a transfer then costs its latency
    latency_us             of the path, one way
    congestion             [0, 1): the share of it that the traffic of others takes
    in_flight              own transfers on that tier; more than 16 count as 16
    """

    matched_tokens: float
    free_bytes: float
    queued: float
    batch: float
    batch_max: float
    iteration_base_us: float
    iteration_request_us: float
    bandwidth_bytes_per_s: float
    latency_us: float = 0
    congestion: float = 0
    in_flight: float = 0


class Cost(NamedTuple):
    """The cost of a candidate. Times are microseconds."""

    missing_bytes: float
    bandwidth_bytes_per_s: float  # left for this transfer
    transfer_us: float
    queue_us: float
    decode_us: float
    total_us: float
    has_room: bool  # if not, it has too few free bytes, and is not chosen


class Ranking(NamedTuple):
    """costs in the order of the candidates; best is an index, or None if none has room.

    tolerated_error  how far all congestions may be off before another candidate is the cheapest. 0 for a
                     tie, infinity if no error changes the choice
    """

    costs: list[Cost]
    best: Optional[int]
    tolerated_error: float


def rank(tokens: float, cache_bytes: float, candidates: Sequence[Candidate], reserve_bytes: float = 0) -> Ranking:
    """Ranks candidates for a request. Ties go to the lower index.

    tokens         of the whole prompt, above 0
    cache_bytes    the KV cache of all its tokens
    candidates     1 to 65536
    reserve_bytes  that stay free on an instance, for activations and one more step
    InvalidArgument  no candidates, or a number is negative or not finite, or a congestion is 1 or more
    """
    library = _library.load()
    count = len(candidates)
    request = _structs.RankRequest(ctypes.sizeof(_structs.RankRequest), tokens, cache_bytes, reserve_bytes)
    structs = (_structs.RankCandidate * count)()
    costs = (_structs.RankCost * count)()
    for struct, cost, candidate in zip(structs, costs, candidates):
        struct.struct_size, cost.struct_size = _CANDIDATE_SIZE, _COST_SIZE
        for name, value in zip(Candidate._fields, candidate):
            setattr(struct, name, value)
    best, tolerated = ctypes.c_uint32(), ctypes.c_double()
    status = library.rank(ctypes.addressof(request), ctypes.addressof(structs), count, ctypes.addressof(costs),
                          ctypes.addressof(best), ctypes.addressof(tolerated))
    if status:
        library.fail(status)
    made = [Cost(*(getattr(cost, name) for name in Cost._fields[:-1]), cost.has_room != 0) for cost in costs]
    return Ranking(made, None if best.value == _structs.RANK_NONE else best.value, tolerated.value)


_CANDIDATE_SIZE = ctypes.sizeof(_structs.RankCandidate)
_COST_SIZE = ctypes.sizeof(_structs.RankCost)
