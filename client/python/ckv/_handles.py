"""Who frees the handles of the library, and when.

Each object that has a handle keeps its requester's Owner alive. So a requester that is dropped is
closed once nothing of it is left, and at the end of the process all is freed in the right order.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

from . import _library, errors


class Owner:
    """The handle of a requester, and how to free each handle that came from it."""

    __slots__ = ("library", "handle", "children", "_finalizer", "__weakref__")

    def __init__(self, library: _library.Library, handle: int) -> None:
        self.library = library
        self.handle = handle
        self.children: dict[int, Callable[[int], Any]] = {}
        self._finalizer = weakref.finalize(self, _end, library, handle, self.children)

    def live(self) -> int:
        """The requester's handle. FailedPrecondition: it is closed, or this is another process."""
        if _library.forked:
            raise errors.FailedPrecondition("a requester cannot be used in a child after fork")
        if not self.handle:
            raise errors.FailedPrecondition("the requester is closed")
        return self.handle

    def release(self, handle: int) -> None:
        """Frees a handle unless that is done. Any thread; one of several frees."""
        free = self.children.pop(handle, None)
        if free is not None and not _library.forked:
            free(handle)

    def close(self) -> None:
        """Closes the requester. FailedPrecondition: tickets, fetches or puts are open."""
        if not self.handle or _library.forked:
            return
        status = self.library.close(self.handle)
        if status:
            self.library.fail(status)
        self.handle = 0
        self._finalizer.detach()


def _end(library: _library.Library, handle: int, children: dict[int, Callable[[int], Any]]) -> None:
    if _library.forked:
        return
    while children:
        child, free = children.popitem()
        free(child)
    library.close(handle)


class Handle:
    """An object with a handle: a context manager that frees it, at the latest when it is dropped."""

    __slots__ = ("_owner", "_handle", "__weakref__")
    _owner: Owner
    _handle: int

    def _own(self, owner: Owner, handle: int, free: Callable[[int], Any]) -> None:
        self._owner, self._handle = owner, handle
        owner.children[handle] = free

    def _live(self) -> int:
        self._owner.live()
        if not self._handle:
            raise errors.FailedPrecondition(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        """Frees it. Does nothing the second time. No other thread may be in a call of it."""
        handle, self._handle = self._handle, 0
        if handle:
            self._owner.release(handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()
