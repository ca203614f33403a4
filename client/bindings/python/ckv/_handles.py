"""Frees the handles of the library, once each and in the right order.

Each object with a handle keeps its requester's Owner alive. So a dropped requester is closed once
the last object made from it is gone. At the end of the process, its other handles are freed first.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Optional

from . import _library, errors

# A list: a handle's cell, the function that frees it, and the memory that it borrows. Once an object
# owns the handle, that object keeps the memory, and the third element is None.
Child = list[Any]


class Owner:
    """The handle of a requester, and all handles made from it with the function that frees each.

    Any threads may use it at once. Only close() requires that no call is in progress.
    """

    __slots__ = ("library", "children", "_streams", "_requester", "_finalizer", "__weakref__")

    def __init__(self, library: _library.Library, handle: int) -> None:
        self.library = library
        self.children: dict[int, Child] = {}
        self._streams: dict[int, c_void_p] = {}  # native stream to its handle
        self._requester = [handle]  # 0 once closed, by close() or at the end of the process
        self._finalizer = weakref.finalize(self, _end, library, self._requester, self.children)

    def live(self) -> int:
        """Returns the requester's handle.

        FailedPrecondition  it is closed, or this process is a child after fork
        """
        if _library.forked:
            raise errors.FailedPrecondition("a requester cannot be used in a child after fork")
        handle = self._requester[0]
        if not handle:
            raise errors.FailedPrecondition("the requester is closed")
        return handle

    def make(self, free: Callable[[int], Any], borrowed: tuple[Any, ...], function: Any,
             *arguments: Any, after: tuple[Any, ...] = ()) -> c_void_p:
        """Calls a library function that makes a handle. Returns the cell that contains the handle.

        free       frees the handle
        borrowed   objects whose memory the handle uses; kept alive until an object owns the handle
        arguments  of `function`, after the requester and before the cell
        after      arguments after the cell

        The cell is registered before the call. So if a signal handler raises just when the call
        returns, the handle is still freed, and `borrowed` is kept until then. Raises the call's error.
        """
        cell = c_void_p()
        self.children[id(cell)] = [cell, free, borrowed]
        status = function(self.live(), *arguments, byref(cell), *after)
        if status:
            del self.children[id(cell)]
            self.library.fail(status)
        return cell

    def stream(self, native: Optional[int]) -> int:
        """Returns the handle of a native stream of the device, made on first use; 0 for None.

        It is freed once the requester is closed: until then, tickets may wait for work on it.
        """
        if native is None:
            return 0
        cell = self._streams.get(native)
        if cell is None:
            made = self.make(self.library.stream_free, (), self.library.stream_open, native)
            self.children[id(made)][2] = None  # owned by this object
            cell = self._streams.setdefault(native, made)
            if cell is not made:  # another thread was first
                self.release(made)
        assert cell.value is not None
        return cell.value

    def release(self, cell: c_void_p) -> None:
        """Frees a handle, unless that is done. Any threads may call it; only one of them frees."""
        child = self.children.pop(id(cell), None)
        if child is not None and not _library.forked:
            child[1](cell.value)

    def close(self) -> None:
        """Closes the requester. Does nothing if it is closed, or in a child after fork.

        FailedPrecondition  tickets, fetches or puts are open; the requester stays open
        """
        if not self._requester[0] or _library.forked:
            return
        for cell, _, borrowed in list(self.children.values()):
            if borrowed is not None:  # no owner: a signal interrupted between the call and its object
                self.release(cell)
        status = self.library.close(self._requester[0])
        if status:
            self.library.fail(status)
        self._requester[0] = 0
        self._finalizer.detach()
        for cell in list(self._streams.values()):
            self.release(cell)


def _end(library: _library.Library, requester: list[int], children: dict[int, Child]) -> None:
    if _library.forked:
        return
    while children:
        _, (cell, free, _) = children.popitem()
        free(cell.value)
    handle, requester[0] = requester[0], 0
    library.close(handle)


class Handle:
    """Base of objects with a handle. `with` or close() frees it, and at the latest the destructor."""

    __slots__ = ("_owner", "_handle", "_cell", "__weakref__")
    _owner: Owner
    _handle: int
    _cell: c_void_p

    def _own(self, owner: Owner, cell: c_void_p) -> None:
        """Takes over a handle from Owner.make. This object now keeps what the handle borrows."""
        assert cell.value is not None
        self._owner, self._handle, self._cell = owner, cell.value, cell
        owner.children[id(cell)][2] = None

    def _live(self) -> int:
        self._owner.live()
        if not self._handle:
            raise errors.FailedPrecondition(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        """Frees the handle. Does nothing the second time. No other thread may be in a call on it."""
        handle, self._handle = self._handle, 0
        if handle:
            self._owner.release(self._cell)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()
