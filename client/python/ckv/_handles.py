"""Who frees the handles of the library, and when.

Each object that has a handle keeps its requester's Owner alive. So a requester that is dropped is
closed once nothing of it is left, and at the end of the process all is freed in the right order.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Optional

from . import _library, errors

# A list: a handle's cell, how to free it, and what it borrows until an object owns it; then None.
Child = list[Any]


class Owner:
    """The handle of a requester, and how to free each handle that came from it."""

    __slots__ = ("library", "children", "_streams", "_requester", "_finalizer", "__weakref__")

    def __init__(self, library: _library.Library, handle: int) -> None:
        self.library = library
        self.children: dict[int, Child] = {}
        self._streams: dict[int, c_void_p] = {}  # by the native stream
        self._requester = [handle]  # 0 once it is closed, at the end of the process too
        self._finalizer = weakref.finalize(self, _end, library, self._requester, self.children)

    def live(self) -> int:
        """The requester's handle. FailedPrecondition: it is closed, or this is another process."""
        if _library.forked:
            raise errors.FailedPrecondition("a requester cannot be used in a child after fork")
        handle = self._requester[0]
        if not handle:
            raise errors.FailedPrecondition("the requester is closed")
        return handle

    def make(self, free: Callable[[int], Any], borrowed: tuple[Any, ...], function: Any,
             *arguments: Any, after: tuple[Any, ...] = ()) -> c_void_p:
        """Calls a function that makes a handle, and returns the cell that has it.

        The cell is known before the call. A signal handler may raise when the call returns: the
        handle is freed all the same, and what it borrows is kept until then.
        """
        cell = c_void_p()
        self.children[id(cell)] = [cell, free, borrowed]
        status = function(self.live(), *arguments, byref(cell), *after)
        if status:
            del self.children[id(cell)]
            self.library.fail(status)
        return cell

    def stream(self, native: Optional[int]) -> int:
        """The handle of a native stream of the device, made once; 0 for None.

        It is freed once the requester is closed: until then tickets come after it.
        """
        if native is None:
            return 0
        cell = self._streams.get(native)
        if cell is None:
            made = self.make(self.library.stream_free, (), self.library.stream_open, native)
            self.children[id(made)][2] = None  # this object's
            cell = self._streams.setdefault(native, made)
            if cell is not made:  # another thread was first
                self.release(made)
        assert cell.value is not None
        return cell.value

    def release(self, cell: c_void_p) -> None:
        """Frees a handle unless that is done. Any thread; one of several frees."""
        child = self.children.pop(id(cell), None)
        if child is not None and not _library.forked:
            child[1](cell.value)

    def close(self) -> None:
        """Closes the requester. FailedPrecondition: tickets, fetches or puts are open."""
        if not self._requester[0] or _library.forked:
            return
        for cell, _, borrowed in list(self.children.values()):
            if borrowed is not None:  # nobody's: a signal came between the call and its object
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
    """An object with a handle: a context manager that frees it, at the latest when it is dropped."""

    __slots__ = ("_owner", "_handle", "_cell", "__weakref__")
    _owner: Owner
    _handle: int
    _cell: c_void_p

    def _own(self, owner: Owner, cell: c_void_p) -> None:
        """Takes what Owner.make made. The object itself keeps what the handle borrows."""
        assert cell.value is not None
        self._owner, self._handle, self._cell = owner, cell.value, cell
        owner.children[id(cell)][2] = None

    def _live(self) -> int:
        self._owner.live()
        if not self._handle:
            raise errors.FailedPrecondition(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        """Frees it. Does nothing the second time. No other thread may be in a call of it."""
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
