"""Converts arguments for the C ABI: arrays to addresses, numbers, texts, and timeouts.

Arrays are numpy arrays, torch tensors, or arrays on a GPU. torch is never imported: an object with
data_ptr(), stride(), element_size() and device is a tensor. A tensor is on a GPU if its is_cuda is
set. Any other array on a GPU has __cuda_array_interface__.

Wrong arguments raise InvalidArgument; `what` is the argument's name in its text.
"""

from __future__ import annotations

import operator
from ctypes import byref
from typing import Any, Iterable, NamedTuple, Optional

import numpy as np

from .errors import InvalidArgument

# numpy's names. Big-endian types are not supported. The bfloat16 of ml_dtypes is a V2.
_NUMPY_DTYPES = {"<u2": "uint16", "|u1": "uint8", "<f4": "float32", "<V2": "bfloat16",
                 "<i4": "int32", "<u4": "uint32"}
BF16 = ("uint16", "bfloat16")
ROWS = ("uint16", "bfloat16", "uint8")
# The longest wait in one call of the library. Between two calls, Python handles Ctrl-C.
_SLICE_NS = 200_000_000
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
HOST, DEVICE = 0, 2  # CKV_MEMORY_HOST and CKV_MEMORY_DEVICE


class Memory(NamedTuple):
    """The memory of an array. It is borrowed: keep the array alive while the address is used.

    strides  bytes
    kind     HOST or DEVICE
    stream   the native stream that the array's owner names for it, or None
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: str
    kind: int = HOST
    stream: Optional[int] = None


def _on_gpu(interface: dict[str, Any], what: str, writable: bool) -> Memory:
    """Returns the memory of an object with __cuda_array_interface__, whose value `interface` is."""
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
    """Returns the memory of a torch tensor. InvalidArgument: it is on a device that is not allowed."""
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
    """Returns the memory of a numpy array, a torch tensor, or an array on a GPU.

    dtypes    the allowed types, by numpy's names or "bfloat16"
    writable  whether read-only memory is an error
    device    whether memory of a GPU is allowed
    InvalidArgument  another kind of object or dtype, or memory that is not allowed
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
    """Returns a numpy array, a tensor, or an array on a GPU unchanged. Views others as a numpy array.

    Keep the result alive: its memory is the argument's. An object of another kind is returned
    unchanged, and memory_of refuses it.
    """
    if isinstance(array, np.ndarray) or hasattr(array, "data_ptr"):
        return array
    if hasattr(array, "__cuda_array_interface__"):
        return array
    try:
        if hasattr(array, "__array_interface__"):
            return np.asarray(array)
        return np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
    except (BufferError, RuntimeError, TypeError) as error:  # on a device, or no numpy type
        raise InvalidArgument(f"{what}: {error}") from error


def is_dense(memory: Memory) -> bool:
    """Returns whether the elements are contiguous, in C's order."""
    follows = memory.item_bytes
    for extent, stride in zip(reversed(memory.shape), reversed(memory.strides)):
        if extent > 1 and stride != follows:
            return False
        follows *= extent
    return True


def dense(array: Any, what: str, dtypes: tuple[str, ...], writable: bool = False,
          device: bool = False) -> Memory:
    """As memory_of. InvalidArgument also: the elements are not contiguous in C's order."""
    memory = memory_of(array, what, dtypes, writable, device)
    if not is_dense(memory):
        raise InvalidArgument(f"{what} is not contiguous: shape {memory.shape}, "
                              f"strides {memory.strides} bytes")
    return memory


def size_of(memory: Memory) -> int:
    """Returns the number of elements."""
    count = 1
    for extent in memory.shape:
        count *= extent
    return count


def ints(values: Any, dtype: Any, what: str, dimensions: int = 1) -> np.ndarray:
    """Returns integers as a contiguous array of `dtype`: the argument itself if it is one, else a copy.

    InvalidArgument  no integers, another number of dimensions, or a value beyond the dtype
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:  # TypeError: a tensor on a device
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
    """Returns an integer from 0 to `maximum`. ctypes would truncate a larger one silently."""
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
    """Returns the native stream after whose work a call may use its arrays; None if they are ready.

    stream  from the caller: an int, or an object with cuda_stream (torch) or ptr (cupy)
    used    the streams that the call's arrays name; used only if `stream` is None
    InvalidArgument  the arrays name several streams, and `stream` is None
    """
    if stream is None:
        named = {one for one in used if one is not None}
        if len(named) > 1:
            raise InvalidArgument("several streams write the arrays: let one wait for the others, "
                                  "and pass it as stream=")
        return named.pop() if named else None
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return count(handle, "stream", UINT64_MAX)
    return count(stream, "stream", UINT64_MAX)


def pair(span: Any, what: str) -> tuple[int, int]:
    """Returns the two numbers of a range; (0, 0) for None."""
    if span is None:
        return 0, 0
    begin, end = span
    return count(begin, what), count(end, what)


def text(value: Any, what: str) -> Optional[bytes]:
    """Returns a text in UTF-8; None for "" and None. InvalidArgument: no str, or it contains NUL."""
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
    """Returns a timeout for a C argument. 0 s expires immediately; None and 10^10 s or more never do."""
    if seconds is None:
        return UINT64_MAX
    if not seconds >= 0:
        raise InvalidArgument(f"{what} is {seconds!r}: it must be 0 or more seconds, or None")
    return min(int(seconds * 1e9), UINT64_MAX) if seconds < 1e10 else UINT64_MAX


def field_nanoseconds(seconds: Optional[float], what: str = "timeout") -> int:
    """Returns a timeout for a field of a struct, where 0 means the default. So 0 s becomes 1 ns."""
    return nanoseconds(seconds, what) or 1


def wait_in_slices(wait: Any, before: tuple[Any, ...], timeout: Optional[float], done: Any,
                   *after: Any) -> int:
    """Calls wait(*before, nanoseconds, done, *after) until `done` is set, it fails, or time is up.

    Waits at most 0.2 s at a time, so that Python can handle Ctrl-C. Returns the last call's status.
    """
    left, at = nanoseconds(timeout), byref(done)
    while True:
        status = wait(*before, min(left, _SLICE_NS), at, *after)
        if status or done.value or left <= _SLICE_NS:
            return status
        left -= _SLICE_NS
