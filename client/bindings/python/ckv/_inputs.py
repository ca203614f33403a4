"""Converts the inputs that identify a chunk's rows for the C ABI: token ids, and extra keys."""

from __future__ import annotations

from ctypes import c_char_p, c_void_p, cast, sizeof
from typing import Any, Iterable, Optional

import numpy as np

from . import _structs
from ._memory import count, signed
from .errors import InvalidArgument

TOKEN_ID_MAX = 2**31 - 1
EXTRA_KEYS_MAX = 1024


def token_ids(values: Any, what: str) -> np.ndarray:
    """Returns token ids as a contiguous int32 array (n,). Copies unless they are that already.

    values  (n,) integers of any type, each from 0 to 2^31 - 1: a list, an array, a CPU tensor
    what    the argument's name, for error texts
    InvalidArgument  another shape or type, or a number out of range
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:  # TypeError: a tensor on a device
        raise InvalidArgument(f"{what}: {error}") from error
    if array.ndim != 1:
        raise InvalidArgument(f"{what} has {array.ndim} dimensions: it must have 1")
    if array.size and array.dtype.kind not in "iu":
        # A list of mixed types: report the first element that is no integer.
        for index, value in enumerate(np.asarray(values, object)):
            if isinstance(value, (bool, np.bool_)) or not hasattr(type(value), "__index__"):
                raise _no_token_id(what, index, value)
            if not 0 <= int(value) <= TOKEN_ID_MAX:
                raise _no_token_id(what, index, value)
        raise InvalidArgument(f"{what} has dtype {array.dtype}: it must be of integers")
    if array.size and not (0 <= int(array.min()) and int(array.max()) <= TOKEN_ID_MAX):
        index = int(np.flatnonzero((array < 0) | (array > TOKEN_ID_MAX))[0])
        raise _no_token_id(what, index, array[index])
    return np.ascontiguousarray(array, np.int32)


def _no_token_id(what: str, index: int, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{what}[{index}] is {value}, no token id: those are whole numbers from "
                           "0 to 2^31 - 1")


def extra_keys(keys: Optional[Iterable[Any]]) -> tuple[Any, int, list[Any]]:
    """Returns extra keys as (array of the library's structs, its length, objects to keep alive).

    keys  each (begin, token_count, digest), or only a digest, which affects every token of the
          sequence; see Put.chunk. Digests are copied: keep the third value as long as the array.
    InvalidArgument  more than 1024 keys, or one that is malformed. The library checks digest lengths.
    """
    taken = list(keys or ())
    if len(taken) > EXTRA_KEYS_MAX:
        raise InvalidArgument(f"{len(taken)} extra keys, limit {EXTRA_KEYS_MAX}")
    array, alive = (_structs.ExtraKey * len(taken))(), []
    for index, (struct, key) in enumerate(zip(array, taken)):
        what = f"extra_keys[{index}]"
        if isinstance(key, (bytes, bytearray, memoryview)):
            key = (0, 0, key)
        try:
            begin, token_count, digest = key
        except (TypeError, ValueError):
            raise InvalidArgument(f"{what} is {key!r}: it must be (begin, token_count, digest), or "
                                  "a digest") from None
        if not isinstance(digest, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"{what} has the digest {digest!r}: it must be bytes")
        digest = bytes(digest)
        alive.append(digest)
        struct.struct_size = sizeof(_structs.ExtraKey)
        struct.begin = signed(begin, f"{what}: begin")
        struct.token_count = count(token_count, f"{what}: token_count")
        struct.digest = cast(c_char_p(digest), c_void_p).value
        struct.digest_bytes = len(digest)
    return array, len(taken), alive
