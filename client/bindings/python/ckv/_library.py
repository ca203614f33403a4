"""Finds libckv.so.1, loads it once per process, and declares its functions.

Every function is called without the GIL (ctypes.CDLL), so other Python threads run while one waits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NoReturn

from . import _structs, errors

FILE = "libckv.so.1"
VARIABLE = "CKV_LIBRARY"

_P = c_void_p  # a handle, a struct by byref, or memory
# Name in C without its ckv_: (type of the result, types of the arguments).
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "api_version": (None, [_P, _P]),
    "last_error": (c_char_p, [_P]),
    "last_retry_after_ns": (c_uint64, [_P]),
    "open_version": (c_int32, [c_uint32, c_uint32, _P, _P]),
    "close": (c_int32, [_P]),
    "resolve": (c_int32, [_P, c_char_p, c_uint64, _P]),
    "corpus_free": (None, [_P]),
    "corpus_describe": (c_int32, [_P, _P]),
    "corpus_chunks": (c_int32, [_P, c_uint32, c_uint32, _P, _P, _P]),
    "context_open": (c_int32, [_P, _P, _P]),
    "context_close": (None, [_P]),
    "context_token_count": (c_uint64, [_P]),
    "attend": (c_int32, [_P, _P, _P]),
    "submit": (c_int32, [_P, _P, _P, _P]),
    "poll": (c_int32, [_P, _P]),
    "wait": (c_int32, [_P, c_uint64, _P]),
    "cancel": (None, [_P]),
    "ticket_free": (None, [_P]),
    "fetch": (c_int32, [_P, _P, _P]),
    "fetch_begin": (c_int32, [_P, _P, _P]),
    "fetch_wait_layer": (c_int32, [_P, c_uint32, c_uint64, _P]),
    "fetch_wait": (c_int32, [_P, c_uint64, _P, _P]),
    "fetch_not_fetched": (c_int32, [_P, _P, c_uint32, _P]),
    "fetch_cancel": (None, [_P]),
    "fetch_ticket_free": (None, [_P]),
    "stream_open": (c_int32, [_P, _P, _P]),
    "stream_free": (None, [_P]),
    "backend_reason": (c_char_p, [_P]),
    "merge": (c_int32, [_P, c_uint32, c_uint32, c_uint32, _P, _P, _P]),
    "lse_from_partial": (c_int32, [c_uint32, c_uint32, _P, _P, _P]),
    "partial_from_lse": (c_int32, [c_uint32, c_uint32, _P, _P, _P]),
    "estimate": (c_int32, [_P, _P, _P]),
    "explain": (c_int32, [_P, _P, _P]),
    "report_prefill": (c_int32, [_P, _P, c_uint64, c_uint64]),
    "text_free": (None, [_P]),
    "rank": (c_int32, [_P, _P, c_uint32, _P, _P, _P]),
    "report_load": (c_int32, [_P, _P]),
    "rank_requesters": (c_int32, [_P, _P, _P]),
    "find": (c_int32, [_P, _P, _P, _P]),
    "found_spans": (c_int32, [_P, c_uint32, c_uint32, _P, _P]),
    "put_begin": (c_int32, [_P, _P, _P]),
    "put_row_bytes": (c_uint32, [_P]),
    "put_index_key_bytes": (c_uint32, [_P]),
    "put_add_chunk": (c_int32, [_P, _P]),
    "put_add_rows": (c_int32, [_P, c_uint32, c_uint64, _P, c_uint64]),
    "put_add_index_keys": (c_int32, [_P, c_uint32, c_uint64, _P, c_uint64]),
    "put_finish": (c_int32, [_P, c_uint64, _P]),
    "put_ids": (c_uint32, [_P, _P, c_uint32]),
    "put_free": (None, [_P]),
    "select_rows": (c_int32, [_P, _P, _P, _P]),
    "choose_rows": (c_int32, [_P, _P, _P, _P]),
    "choice_own_rows": (c_uint32, [_P, c_uint32, _P]),
    "choice_free": (None, [_P]),
}


class Library:
    """The functions of libckv.so.1, as attributes without their ckv_.

    path     the file, or the name by which the system's loader found it
    version  (major, minor) of its ABI
    """

    path: str

    def __init__(self, path: str) -> None:
        """Loads the library.

        OSError       it cannot be loaded
        LibraryError  it has another major version, or lacks a function
        """
        dll = ctypes.CDLL(path)
        self.path = path
        for name, signature in SIGNATURES.items():
            try:
                setattr(self, name, _declared(dll, name, *signature))
            except AttributeError:
                raise errors.LibraryError(f"{path} has no ckv_{name}: not a libckv.so, or too old")
        major, minor = c_uint32(), c_uint32()
        self.api_version(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        if major.value != _structs.API_MAJOR:
            raise errors.LibraryError(f"{path} has version {major.value}.{minor.value} of the ABI; "
                                      f"this package needs {_structs.API_MAJOR}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)  # attributes are set in __init__; this declares them to type checkers

    def fail(self, status: int) -> NoReturn:
        """Raises the error of the calling thread's last call, which returned `status`."""
        text = self.last_error(None).decode("utf-8", "replace")
        retry_ns = self.last_retry_after_ns(None)
        kind = errors.BY_CODE.get(status, errors.Unknown)
        raise kind(text, retry_after=retry_ns / 1e9 if retry_ns else None)


def _declared(dll: ctypes.CDLL, name: str, result: Any, arguments: list[Any]) -> Any:
    function = getattr(dll, "ckv_" + name)
    function.restype, function.argtypes = result, arguments
    return function


_lock = threading.Lock()
_loaded: Library | None = None
# No function may be called in a child after fork, not even to free a handle of the parent.
forked = False


def _after_fork() -> None:
    global forked
    forked = forked or _loaded is not None


os.register_at_fork(after_in_child=_after_fork)


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """Returns the library of the process. The first call loads it. Any threads may call it.

    path  the file; by default the one that the environment's CKV_LIBRARY names, or the libckv.so.1 that
          the system's loader finds
    LibraryError        none can be loaded; the text lists the files that were tried
    FailedPrecondition  the process has loaded another one, or is a child after fork of a process
                        that had loaded it
    """
    global _loaded
    if forked:
        raise errors.FailedPrecondition("libckv.so cannot be used in a child after fork: "
                                        "open ckv there first, or start children by spawn")
    with _lock:
        if _loaded is None:
            _loaded = _load_first(_candidates(path))
        elif path is not None and not _same(os.fspath(path), _loaded.path):
            raise errors.FailedPrecondition(f"library {os.fspath(path)}: the process has "
                                            f"{_loaded.path} already, and can have one only")
        return _loaded


def _same(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _candidates(path: str | os.PathLike[str] | None) -> list[tuple[str, str]]:
    """Returns the libraries to try, as (path, source of the path). A named library is the only one."""
    if path is not None:
        return [(os.fspath(path), "library=")]
    named = os.environ.get(VARIABLE)
    if named:
        return [(named, VARIABLE)]
    return [(FILE, "the system's loader")]


def _load_first(candidates: list[tuple[str, str]]) -> Library:
    tried = []
    for path, source in candidates:
        try:
            return Library(path)
        except (OSError, errors.LibraryError) as error:
            tried.append(f"  {path} ({source}): {error}")
    raise errors.LibraryError(
        "no libckv.so.1 could be loaded. Tried:\n" + "\n".join(tried) +
        f"\nThe Debian package libckv1 installs it. Or set {VARIABLE} to the file.")
