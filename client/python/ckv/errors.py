"""Errors: one class for each status of the C ABI (client/c/ckv.h), which are gRPC's codes."""

from __future__ import annotations


class Error(Exception):
    """A call failed. The class tells what to do next, and the text tells what went wrong.

    code         the number of the status, as in gRPC; 2 (UNKNOWN) for a number without a class
    retry_after  seconds after which an overloaded holder asks the caller to come back, or None
    """

    code: int = 2
    retry_after: float | None

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)  # one argument: OSError makes an errno of two
        self.retry_after = retry_after


class Cancelled(Error):
    """The caller gave the call up."""

    code = 1


class Unknown(Error):
    """A status without a meaning of its own."""

    code = 2


class InvalidArgument(Error, ValueError):
    """The call is wrong: a dtype, a shape, a device, or a number beyond its limit. Nothing was sent."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """A holder or the directory did not answer within the call's timeout. A replica may."""

    code = 4


class NotFound(Error, LookupError):
    """A corpus or a chunk is not there, or is another tenant's: resolve again."""

    code = 5


class AlreadyExists(Error):
    """It is there already."""

    code = 6


class PermissionDenied(Error, PermissionError):
    """The caller may not do this."""

    code = 7


class ResourceExhausted(Error):
    """Overloaded or full. Come back after `retry_after`."""

    code = 8


class FailedPrecondition(Error):
    """Geometry or version differ, or a handle is closed or in use. A retry cannot help."""

    code = 9


class Aborted(Error):
    """Others changed the same thing again and again: make the call again."""

    code = 10


class OutOfRange(Error):
    """A number is beyond what is there."""

    code = 11


class Unimplemented(Error, NotImplementedError):
    """The library, the directory or a holder is of an earlier build that cannot do this."""

    code = 12


class Internal(Error):
    """A bug of ckv, or a device that failed."""

    code = 13


class Unavailable(Error, ConnectionError):
    """A holder and all its replicas, or the directory, cannot be reached."""

    code = 14


class DataLoss(Error):
    """Rows do not match their checksum."""

    code = 15


class Unauthenticated(Error):
    """The caller is not known."""

    code = 16


class LibraryError(ImportError):
    """No libckv.so.1 could be loaded, or it has another version. The text lists all that was tried."""


BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        Cancelled, Unknown, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists,
        PermissionDenied, ResourceExhausted, FailedPrecondition, Aborted, OutOfRange,
        Unimplemented, Internal, Unavailable, DataLoss, Unauthenticated)
}
