"""ckv: attention over compressed KV cache that is stored on other machines.

    import ckv
    with ckv.open("127.0.0.1:7400") as requester:
        corpus = requester.resolve("gpl")
        with requester.context(corpus) as context:
            answer = requester.attend(3, q, context)  # o (rows, d_v), m and l (rows,), float32

The package calls libckv.so.1 (the Debian package libckv1) through ctypes, and needs numpy.

WORDS. A query row is one head of one token, in the order token x heads + head. A cKV row is one
token at one layer: d_qk values, of which the first d_v are also its value. A chunk is an immutable
sequence of tokens with the rows of all layers. A corpus is a named, ordered list of chunks. A
partial is the result of attention over some rows: o, m and l (partial.py).

ARRAYS. q, rows and `out` are numpy arrays, torch tensors, or objects with __array_interface__ or
__dlpack__. They are used in place, without a copy, unless their description reads otherwise. numpy
imports DLPack read-only, so `out` cannot use it. torch is never imported. bf16 values are uint16 in
numpy, and bfloat16 in torch. Memory is host memory. With ckv.open(..., backend="cuda"), queries,
own rows, answers and fetched rows may also be on that GPU, as torch tensors or objects with
__cuda_array_interface__.

HANDLES. A Requester, Corpus, Context, Choice, Ticket, FetchTicket or Put is closed by `with` or close(),
and at the latest when it is dropped. Close tickets, fetch tickets and puts before their requester.

THREADS. Other Python threads run while one waits in a call. Any threads may use a Requester,
Corpus, Context, Part, Segment or FetchTicket at once. Only one thread at a time may use a Ticket, a
PreparedCall or a Put. A child after fork cannot use ckv if its parent loaded the library: start it by spawn.

ERRORS are subclasses of ckv.Error, one for each of gRPC's codes (errors.py). An argument of a wrong
Python type may also raise TypeError, ValueError or AttributeError.

TIMEOUTS are seconds from the start of the call; None sets no limit. Times in reports are nanoseconds.
"""

from .attend import Context, OwnRows, Segment, Ticket
from .choose import Choice
from .corpus import Corpus, Found, Model, Part
from .errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                     FailedPrecondition, Internal, InvalidArgument, LibraryError, NotFound,
                     OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable,
                     Unimplemented, Unknown)
from .fetch import BlockPlace, FetchReport, FetchTicket
from .load import Load
from .opening import open  # noqa: A004
from .partial import Answer, AttendReport, lse_from_partial, merge, partial_from_lse
from .prepared import PreparedCall
from .put import Put, PutReport
from .rank import Candidate, Cost, Ranking, rank
from .requester import Requester

__version__ = "0.1.0"  # the version of the CMake project; layout_test.py compares them

__all__ = [
    "Aborted", "AlreadyExists", "Answer", "AttendReport", "BlockPlace", "Cancelled", "Candidate", "Choice", "Context",
    "Corpus", "Cost", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition", "FetchReport", "FetchTicket",
    "Found", "Internal", "InvalidArgument", "LibraryError", "Load", "Model", "NotFound", "OutOfRange",
    "OwnRows", "Part", "PermissionDenied", "PreparedCall", "Put", "PutReport", "Ranking", "Requester",
    "ResourceExhausted", "Segment", "Ticket", "Unauthenticated", "Unavailable", "Unimplemented", "Unknown",
    "lse_from_partial", "merge", "open", "partial_from_lse", "rank",
]
