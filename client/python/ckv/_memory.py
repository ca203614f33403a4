"""Arrays of numpy, tensors of torch and arrays on a GPU as addresses; numbers and texts as C takes them.

torch is never imported: a tensor is what has data_ptr(), stride(), element_size() and device. Memory
of a GPU is a tensor's whose is_cuda is set, or what __cuda_array_interface__ tells of.
"""

from __future__ import annotations

import operator
from ctypes import byref
from typing import Any, Iterable, NamedTuple, Optional

import numpy as np

from .errors import InvalidArgument

# numpy's names; one of another byte order has no place here. ml_dtypes' bfloat16 is a V2.
_NUMPY_DTYPES = {"<u2": "uint16", "|u1": "uint8", "<f4": "float32", "<V2": "bfloat16",
                 "<i4": "int32", "<u4": "uint32"}
BF16 = ("uint16", "bfloat16")
ROWS = ("uint16", "bfloat16", "uint8")
# The longest wait in one call of the library: Python looks for Ctrl-C between two calls.
_SLICE_NS = 200_000_000
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
HOST, DEVICE = 0, 2  # CKV_MEMORY_HOST and CKV_MEMORY_DEVICE


class Memory(NamedTuple):
    """Where an array lies. Strides are bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: str
    kind: int = HOST
    stream: Optional[int] = None  # the native stream that its owner says it comes after


def _on_gpu(interface: dict[str, Any], what: str, writable: bool) -> Memory:
    """Memory by the CUDA Array Interface."""
    if interface.get("mask") is not None:
        raise InvalidArgument(f"{what} has a mask: it must have none")
    at, read_only = interface["data"]
    if writable and read_only:
        raise InvalidArgument(f"{what} is read-only")
    typestr, shape = interface["typestr"], tuple(interface["shape"])
    item_bytes = int(typestr[2:])
    strides = interface.get("strides")
    if strides is None:
        strides, follows = [], item_bytes
        for extent in reversed(shape):
            strides.insert(0, follows)
            follows *= extent
    return Memory(at, shape, tuple(strides), item_bytes, _NUMPY_DTYPES.get(typestr, typestr), DEVICE,
                  interface.get("stream"))


def _of_tensor(tensor: Any, what: str, device: bool) -> Memory:
    """Memory of a tensor of torch."""
    place = tensor.device.type
    on_gpu = place != "cpu"
    if on_gpu and not (device and getattr(tensor, "is_cuda", False)):
        raise InvalidArgument(f"{what} is on device {place}: copy it to host memory first, "
                              f"by .cpu() or into a pinned tensor")
    size = tensor.element_size()
    return Memory(tensor.data_ptr(), tuple(tensor.shape),
                  tuple([stride * size for stride in tensor.stride()]), size,
                  str(tensor.dtype).rpartition(".")[2], DEVICE if on_gpu else HOST)


def memory_of(array: Any, what: str, dtypes: tuple[str, ...], writable: bool = False,
              device: bool = False) -> Memory:
    """Where an array or a tensor lies, in host memory, or with `device` on a GPU, too.

    InvalidArgument  it is neither, is on a device, has another dtype, or cannot be written to
    """
    if isinstance(array, np.ndarray):
        kind = array.dtype
        dtype = _NUMPY_DTYPES.get(kind.str)
        address, read_only = array.__array_interface__["data"]
        if writable and read_only:
            raise InvalidArgument(f"{what} is read-only")
        memory = Memory(address, array.shape, array.strides, kind.itemsize, dtype or str(kind))
    elif hasattr(array, "data_ptr"):
        memory = _of_tensor(array, what, device)
    elif hasattr(array, "__cuda_array_interface__"):
        memory = _on_gpu(array.__cuda_array_interface__, what, writable)
        if not device:
            raise InvalidArgument(f"{what} is in memory of a GPU: copy it to host memory first")
    else:
        raise InvalidArgument(f"{what} is a {type(array).__name__}: "
                              f"it must be a numpy array or a torch tensor")
    if memory.dtype not in dtypes:
        raise InvalidArgument(f"{what} has dtype {memory.dtype}: it must be {' or '.join(dtypes)}")
    return memory


def plain(array: Any, what: str) -> Any:
    """The array itself if it is numpy's, a tensor or a GPU's; else numpy's view of it, to be kept."""
    if isinstance(array, np.ndarray) or hasattr(array, "data_ptr"):
        return array
    if hasattr(array, "__cuda_array_interface__"):
        return array
    try:
        if hasattr(array, "__array_interface__"):
            return np.asarray(array)
        return np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
    except (BufferError, RuntimeError, TypeError) as error:  # of a device, or of no type of numpy's
        raise InvalidArgument(f"{what}: {error}") from error


def is_dense(memory: Memory) -> bool:
    """Whether the elements lie one after another, in C's order."""
    follows = memory.item_bytes
    for extent, stride in zip(reversed(memory.shape), reversed(memory.strides)):
        if extent > 1 and stride != follows:
            return False
        follows *= extent
    return True


def dense(array: Any, what: str, dtypes: tuple[str, ...], writable: bool = False,
          device: bool = False) -> Memory:
    """As memory_of. InvalidArgument also: the elements do not lie one after another."""
    memory = memory_of(array, what, dtypes, writable, device)
    if not is_dense(memory):
        raise InvalidArgument(f"{what} is not contiguous: shape {memory.shape}, "
                              f"strides {memory.strides} bytes")
    return memory


def size_of(memory: Memory) -> int:
    """How many elements there are."""
    count = 1
    for extent in memory.shape:
        count *= extent
    return count


def ints(values: Any, dtype: Any, what: str, dimensions: int = 1) -> np.ndarray:
    """Integers as a dense array of `dtype`: the array itself if it is one, else a checked copy."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:  # a tensor of a device is a TypeError
        raise InvalidArgument(f"{what}: {error}") from error
    if array.ndim != dimensions:
        raise InvalidArgument(f"{what} has {array.ndim} dimensions: it must have {dimensions}")
    if array.dtype != dtype:
        limits = np.iinfo(dtype)
        if array.size and array.dtype.kind not in "iu":
            raise InvalidArgument(f"{what} has dtype {array.dtype}: it must be of integers")
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise InvalidArgument(f"{what} has a number beyond {np.dtype(dtype).name}")
        array = array.astype(dtype)
    return np.ascontiguousarray(array)


def address(array: Optional[np.ndarray]) -> int:
    return 0 if array is None else array.__array_interface__["data"][0]


def count(value: Any, what: str, maximum: int = UINT32_MAX) -> int:
    """A number that fits its field; ctypes would cut it down in silence."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is {value!r}: it must be an integer") from None
    if not 0 <= number <= maximum:
        raise InvalidArgument(f"{what} is {number}: it must be 0 to {maximum}")
    return number


def signed(value: Any, what: str) -> int:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"{what} is {number}: it does not fit 64 bits")
    return number


def native_stream(stream: Any, used: Iterable[Optional[int]]) -> Optional[int]:
    """The native stream that a call comes after, or None.

    stream  the caller's: an int, or an object that has cuda_stream (torch) or ptr (cupy)
    used    the streams that the arrays of the call name themselves; they count if `stream` is None
    """
    if stream is None:
        named = {one for one in used if one is not None}
        if len(named) > 1:
            raise InvalidArgument("the arrays come after several streams: let one wait for the others, "
                                  "and pass it as stream=")
        return named.pop() if named else None
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return count(handle, "stream", UINT64_MAX)
    return count(stream, "stream", UINT64_MAX)


def pair(span: Any, what: str) -> tuple[int, int]:
    """(begin, end) of a range; (0, 0) for None."""
    if span is None:
        return 0, 0
    begin, end = span
    return count(begin, what), count(end, what)


def text(value: Any, what: str) -> Optional[bytes]:
    """UTF-8; None for "" and None."""
    if not value:
        return None
    if not isinstance(value, str) or "\0" in value:
        raise InvalidArgument(f"{what} is {value!r}: it must be a str without NUL")
    return value.encode()


def choice(table: dict[Any, int], key: Any, what: str) -> int:
    try:
        return table[key]
    except (KeyError, TypeError):
        names = ", ".join(repr(name) for name in table)
        raise InvalidArgument(f"{what} is {key!r}: it must be one of {names}") from None


def nanoseconds(seconds: Optional[float], what: str = "timeout") -> int:
    """A timeout as an argument: 0 has passed at once, None never does."""
    if seconds is None:
        return UINT64_MAX
    if not seconds >= 0:
        raise InvalidArgument(f"{what} is {seconds!r}: it must be 0 or more seconds, or None")
    return min(int(seconds * 1e9), UINT64_MAX) if seconds < 1e10 else UINT64_MAX


def field_nanoseconds(seconds: Optional[float], what: str = "timeout") -> int:
    """A timeout in a struct, where 0 would be the default: 0 s become 1 ns."""
    return nanoseconds(seconds, what) or 1


def wait_in_slices(wait: Any, before: tuple[Any, ...], timeout: Optional[float], done: Any,
                   *after: Any) -> int:
    """Calls wait(*before, nanoseconds, done, *after) until it is done or failed, or time is over."""
    left, at = nanoseconds(timeout), byref(done)
    while True:
        status = wait(*before, min(left, _SLICE_NS), at, *after)
        if status or done.value or left <= _SLICE_NS:
            return status
        left -= _SLICE_NS
