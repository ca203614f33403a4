"""Errors: one class for each status of the C ABI (client/bindings/c/ckv.h). The numbers are gRPC's codes.

Some classes are also subclasses of Python's own errors: InvalidArgument is a ValueError, NotFound a
LookupError, DeadlineExceeded a TimeoutError, Unavailable a ConnectionError.
"""

from __future__ import annotations


class Error(Exception):
    """A call failed. The class determines what to do next, and the text describes the error.

    code         the number of the status, as in gRPC; 2 (UNKNOWN) for a number without a class
    retry_after  seconds after which an overloaded holder requests a retry; None if it gave no time
    """

    code: int = 2
    retry_after: float | None

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)  # one argument only: OSError would take the first of two as its errno
        self.retry_after = retry_after


class Cancelled(Error):
    """The caller cancelled the call."""

    code = 1


class Unknown(Error):
    """A status without a meaning of its own."""

    code = 2


class InvalidArgument(Error, ValueError):
    """The call is wrong: a dtype, shape or device, or a number beyond its limit. Nothing was sent."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """A holder or the directory did not answer within the call's timeout. A replica may."""

    code = 4


class NotFound(Error, LookupError):
    """A corpus or chunk does not exist, or belongs to another tenant: resolve again."""

    code = 5


class AlreadyExists(Error):
    """It exists already."""

    code = 6


class PermissionDenied(Error, PermissionError):
    """The caller may not do this."""

    code = 7


class ResourceExhausted(Error):
    """A holder is overloaded or full: retry after `retry_after`. Or memory or call slots ran out here."""

    code = 8


class FailedPrecondition(Error):
    """Geometry or version differ, or a handle is closed or in use: do not retry."""

    code = 9


class Aborted(Error):
    """Others changed the same object repeatedly: make the call again."""

    code = 10


class OutOfRange(Error):
    """A number is beyond what exists."""

    code = 11


class Unimplemented(Error, NotImplementedError):
    """The library, its backend, the directory or a holder does not support this; some are too old."""

    code = 12


class Internal(Error):
    """A bug in ckv, or a device that failed."""

    code = 13


class Unavailable(Error, ConnectionError):
    """A holder and all its replicas, or the directory, cannot be reached."""

    code = 14


class DataLoss(Error):
    """Rows do not match their checksum."""

    code = 15


class Unauthenticated(Error):
    """The caller is not authenticated."""

    code = 16


class LibraryError(ImportError):
    """No usable libckv.so.1 could be loaded. The text lists the files tried, and why each failed."""


BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        Cancelled, Unknown, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists,
        PermissionDenied, ResourceExhausted, FailedPrecondition, Aborted, OutOfRange,
        Unimplemented, Internal, Unavailable, DataLoss, Unauthenticated)
}
