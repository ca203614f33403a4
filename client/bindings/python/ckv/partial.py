"""Partials: merging them, and converting the log-sum-exps of other engines.

A partial is the result of attention over some rows, for each query row:
  o   (rows, d_v)  sum_j p_j v_j / l
  m   (rows,)      max_j logit_j, with the softmax scale, natural log
  l   (rows,)      sum_j exp(logit_j - m)
A row that attended nothing has o = 0, m = -inf, l = 0. Merging partials over disjoint rows gives the
answer over all of them.

The functions need no requester. They compute on the calling thread, take host memory only (numpy
arrays and CPU tensors), and may be called by any thread. The first call of the process loads the
library, and may raise LibraryError.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from . import _library, _structs
from ._memory import BF16, HOST, address, choice, dense, size_of
from .errors import InvalidArgument


class AttendReport(NamedTuple):
    """The work of a call. Times are nanoseconds. A pair is a query row and a row that it attended."""

    bytes_sent: int
    bytes_received: int
    compute_ns_max: int  # kernel time of the slowest holder
    elapsed_ns: int
    routed_pairs: int  # at holders
    cached_pairs: int  # with locally cached rows
    own_pairs: int  # with the caller's own rows
    prefetched_bytes: int  # bytes cached locally for the call's contexts since their last report
    holder_count: int
    precision: str  # the precision that was used: "exact", "wire" or "fast"
    approximate: bool  # some rows were fp8 copies
    targets_differ: bool  # different kernel targets computed the partials
    same_bits_anywhere: bool  # any placement, replica or batch of this target gives the same bits
    kernel_target: int  # its number (proto/kernel_target.h): 40 is AMX; 0 if targets differ
    lost_ns: int  # the part of elapsed_ns before the last attempt: failed ones, and waits for holders
    failed_attempt_count: int


class Answer:
    """A partial: o float32 (rows, d_v), m and l float32 (rows,). Unpacks as (o, m, l), too.

    o, m, l  the arrays or tensors given as `out`; by default numpy arrays that the answer owns
    report   the work of the call, as an AttendReport; None for a merged partial
    """

    __slots__ = ("o", "m", "l", "_report", "_place")

    def __init__(self, o: Any, m: Any, l: Any, report: Any = None) -> None:
        self.o, self.m, self.l, self._report = o, m, l, report
        self._place: Any = None  # the result of place_of for these arrays

    def __repr__(self) -> str:
        return f"ckv.Answer(o of shape {tuple(getattr(self.o, 'shape', ()))})"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.o, self.m, self.l))

    @property
    def report(self) -> Optional[AttendReport]:
        raw = self._report
        if raw is None:
            return None
        values = {name: getattr(raw, name) for name in AttendReport._fields}
        for name in ("approximate", "targets_differ", "same_bits_anywhere"):
            values[name] = values[name] != 0
        values["precision"] = _structs.PRECISION_NAMES.get(raw.precision, str(raw.precision))
        return AttendReport(**values)


_Place = tuple[Answer, tuple[int, int, int], int, tuple[Optional[int], ...]]


def place_of(out: Any, rows: int, d_v: int, device: bool = False) -> _Place:
    """Returns (answer, addresses of o, m and l, their memory kind, the streams that they name).

    The answer's memory is `out`, or new host memory if that is None. InvalidArgument: `out` does not
    fit `rows` and `d_v`.
    """
    if out is None:
        block = np.empty(rows * (d_v + 2), np.float32)
        at, o_end = address(block), rows * d_v
        out = (block[:o_end].reshape(rows, d_v), block[o_end:o_end + rows], block[o_end + rows:])
        place = out, (rows, d_v), (at, at + 4 * o_end, at + 4 * (o_end + rows)), HOST, ()
    else:
        place = out._place if type(out) is Answer else None
        if (place is None or place[1] != (rows, d_v) or out.o is not place[0][0] or
                out.m is not place[0][1] or out.l is not place[0][2]):
            place = _checked_place(tuple(out), rows, d_v, device)
    answer = Answer(*place[0])
    answer._place = place
    return answer, place[2], place[3], place[4]


def _checked_place(out: tuple[Any, ...], rows: int, d_v: int, device: bool) -> Any:
    o, m, l = out
    places = []
    for array, what, size in ((o, "out's o", rows * d_v), (m, "out's m", rows), (l, "out's l", rows)):
        memory = dense(array, what, ("float32",), writable=True, device=device)
        if size_of(memory) != size:
            raise InvalidArgument(f"{what} has shape {memory.shape}: it must have {size} values, "
                                  f"of {rows} query rows")
        places.append(memory)
    kind = places[0].kind
    if places[1].kind != kind or places[2].kind != kind:
        raise InvalidArgument("out's o, m and l are not all on the GPU or all in host memory")
    # No shape, so that it is checked again: a tensor may get other memory and stay the same object.
    return (out, None, tuple([at.address for at in places]), kind,
            tuple([at.stream for at in places]))


def merge(parts: Sequence[Any], out: Any = None) -> Answer:
    """Merges partials of the same query rows over disjoint rows, in the order given.

      m = max_s m_s     w_s = l_s exp(m_s - m)     l = sum_s w_s     o = sum_s (w_s / l) o_s

    parts  1 to 2^20, each an Answer or (o, m, l): o float32 or bf16 (rows, d_v), m and l float32
           (rows,), contiguous numpy arrays or CPU tensors. d_v is 1 to 1024.
    out    (o, m, l) or an Answer to write to, contiguous float32 that overlaps no part; by default
           new memory
    Returns an Answer. A part with l = 0 or an m that is not finite is skipped in that row. If only
    one part is left in a row, the result has its bits. Sums are f32, so equal orders give equal bits.
    InvalidArgument  no parts, shapes or dtypes that do not fit, or an overlap
    """
    library = _library.load()
    if not len(parts):
        raise InvalidArgument("there are no partials to merge")
    structs = (_structs.Partial * len(parts))()
    shape: Optional[tuple[int, int]] = None
    keep = []
    for struct, part in zip(structs, parts):
        o, m, l = part
        o_at, m_at, l_at = (dense(o, "o", ("float32",) + BF16), dense(m, "m", ("float32",)),
                            dense(l, "l", ("float32",)))
        rows = size_of(m_at)
        if rows == 0 or size_of(l_at) != rows or size_of(o_at) % rows:
            raise InvalidArgument(f"o {o_at.shape}, m {m_at.shape} and l {l_at.shape} "
                                  f"are not of the same rows")
        if shape not in (None, (rows, size_of(o_at) // rows)):
            raise InvalidArgument(f"o {o_at.shape} is not of the shape before it, {shape}")
        shape = rows, size_of(o_at) // rows
        struct.struct_size = _SIZE
        struct.o, struct.m, struct.l = o_at.address, m_at.address, l_at.address
        struct.dtype = _structs.DTYPES["f32" if o_at.dtype == "float32" else "bf16"]
        keep.append((o, m, l))
    assert shape is not None
    answer, (o_to, m_to, l_to), _, _ = place_of(out, *shape)
    status = library.merge(structs, len(parts), shape[0], shape[1], o_to, m_to, l_to)
    if status:
        library.fail(status)
    return answer


_SIZE = _structs.ctypes.sizeof(_structs.Partial)


def lse_from_partial(m: Any, l: Any, form: str = "natural") -> np.ndarray:
    """Returns the log-sum-exp of partials, m + ln l: a new float32 array of m's shape.

    m, l  contiguous float32 of equal size
    form  the base of the log, and the value for an empty row (one that attended nothing):
          "natural" (-inf), "base2" (-inf), "flashmla" (natural, +inf) or "flashinfer" (base 2, -50000).
          "flashmla" is the form of its decoding. Its sparse prefill returns "base2".
    InvalidArgument  m or l is NaN, or l is negative, in some row; or an unknown form
    """
    number = choice(_structs.LSE_FORMS, form, "form")
    library = _library.load()
    m_at, l_at = dense(m, "m", ("float32",)), dense(l, "l", ("float32",))
    if size_of(m_at) != size_of(l_at):
        raise InvalidArgument(f"m {m_at.shape} and l {l_at.shape} are not of the same rows")
    lse = np.empty(m_at.shape, np.float32)
    status = library.lse_from_partial(number, lse.size, m_at.address, l_at.address, address(lse))
    if status:
        library.fail(status)
    return lse


def partial_from_lse(lse: Any, form: str = "natural") -> tuple[np.ndarray, np.ndarray]:
    """Returns (m, l) for an engine whose o is divided by its softmax sum: float32, of lse's shape.

    m is the lse as a natural log, and l is 1. Together with the engine's o they are a partial for merge.
    lse   contiguous float32
    form  as in lse_from_partial. -inf and +inf are read as an empty row in every form, and so is
          everything up to -49000 in "flashinfer". There, m is -inf and l is 0.
    InvalidArgument  lse is NaN in some row; or an unknown form
    """
    number = choice(_structs.LSE_FORMS, form, "form")
    library = _library.load()
    lse_at = dense(lse, "lse", ("float32",))
    m, l = np.empty(lse_at.shape, np.float32), np.empty(lse_at.shape, np.float32)
    status = library.partial_from_lse(number, m.size, lse_at.address, address(m), address(l))
    if status:
        library.fail(status)
    return m, l
