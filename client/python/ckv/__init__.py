"""ckv: attention over compressed KV cache that lives on other machines.

    import ckv
    with ckv.open("127.0.0.1:7400") as requester:
        corpus = requester.resolve("gpl")
        with requester.context(corpus) as context:
            answer = requester.attend(3, q, context)  # o (rows, d_v), m and l (rows,), float32

It calls libckv.so.1 (the Debian package libckv1) by ctypes, and needs numpy. Tensors of torch
are taken where they lie, and torch is not imported. Memory is the host's. With
ckv.open(..., backend="cuda") queries, own rows, answers and fetched rows may be on that GPU, too.

A query row is one head of one token, in the order token x heads + head. A cKV row is one token at
one layer: d_qk values, of which the first d_v are also its value. bf16 values are uint16 in numpy.
"""

from .attend import Context, OwnRows, Segment, Ticket
from .corpus import Corpus, Found, Model, Part
from .errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                     FailedPrecondition, Internal, InvalidArgument, LibraryError, NotFound,
                     OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                     Unimplemented, Unknown)
from .fetch import BlockPlace, FetchReport, FetchTicket
from .partial import Answer, AttendReport, lse_from_partial, merge, partial_from_lse
from .put import Put, PutReport
from .requester import Requester, open  # noqa: A004

__version__ = "0.1.0"  # that of the CMake project; layout_test.py compares them

__all__ = [
    "Aborted", "AlreadyExists", "Answer", "AttendReport", "BlockPlace", "Cancelled", "Context",
    "Corpus", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition", "FetchReport", "FetchTicket",
    "Found", "Internal", "InvalidArgument", "LibraryError", "Model", "NotFound", "OutOfRange",
    "OwnRows", "Part", "PermissionDenied", "Put", "PutReport", "Requester", "ResourceExhausted",
    "Segment", "Ticket", "Unauthenticated", "Unavailable", "Unimplemented", "Unknown",
    "lse_from_partial", "merge", "open", "partial_from_lse",
]
