"""Opens requesters: ckv.open."""

from __future__ import annotations

import os
from ctypes import byref, c_void_p
from typing import Optional, Union

from . import _library, _structs
from ._handles import Owner
from ._memory import UINT64_MAX, count, nanoseconds, text
from .errors import Error, NotFound
from .requester import Requester


def open(directory: str, *, tenant: str = "", name: str = "", fabrics: str = "",
         verbs_device: str = "", kernel_target: str = "", local_cache_bytes: Optional[int] = None,
         call_count_max: int = 0, call_threads: int = 0, connect_timeout: float = 0.0,
         backend: str = "", library: Union[str, os.PathLike[str], None] = None,
         check: Optional[float] = None, announce: Optional[str] = None, announce_rank: int = 0,
         announce_rank_count: int = 0, requester: str = "") -> Requester:
    """Makes a requester; one per process is enough. Does not wait for the network without `check`.

    directory        host:port of the directory, or of several: host:port,host:port
    tenant           the tenant whose corpora are read in addition to the shared ones; by default only
                     shared ones are. A name, not a credential
    name             this requester's name in the logs of holders; by default "ckv-PID"
    fabrics          "shm,tcp,verbs" or some of them, in order of preference if a probe measures no
                     difference; by default "shm,tcp"
    verbs_device     the RDMA device for verbs; by default the only one
    kernel_target    the kernel target, for example "AVX3", if the fleet is configured with one.
                     Applies to the whole process. By default the fastest on this processor
    local_cache_bytes       capacity of the local row cache, for rows that contexts prefetch; by default
                     1 GiB. 0 disables it
    call_count_max   concurrent calls, at most 4096; by default 16
    call_threads     threads that attend the cached and own rows of a call; by default 1
    connect_timeout  how long a new session may take, in seconds; by default 3
    backend          computes in this process: "cpu", the default, is the processor. "cuda" is a GPU;
                     its libckv_cuda.so is in the folder of libckv.so, or in the subfolder ckv.
                     "auto" is the GPU if it is usable and kernel_target is not set, and the processor
                     otherwise. Requester.backend describes the choice
    library          the file of libckv.so.1; by default the one that the environment's CKV_LIBRARY
                     names, or the system's
    check            if set, looks up a name in the directory now, for at most this many seconds. By
                     default an unreachable directory is an error of the first call
    announce         the model that this program serves, as a fingerprint or any text of at most 256
                     bytes, or "". `ckvctl status` shows the program while the requester is open.
                     By default it does not
    announce_rank    the program's rank among the processes of one engine, from 0
    announce_rank_count  the number of those processes; 0, the default, if there are no ranks
    requester        host:port of a ckvd with the roles holder and requester on this host. Rows that are
                     fetched or prefetched are copied there once, for all requesters that name it.
                     While it fails, rows are read from their holders. By default each requester
                     fetches for itself

    Any thread may call it. The requester watches the directory on a thread of its own. The library
    writes warnings and errors to stderr, and installs no signal handlers. A child after fork cannot use
    ckv: start it by spawn.
    LibraryError        no libckv.so.1 can be loaded
    InvalidArgument     no directory; an unknown fabric, kernel target or backend; a text or count
                        beyond its limit; a malformed tenant or `requester`
    FailedPrecondition  another requester of the process uses another kernel target. Or the process has
                        loaded another library, or is a child after fork. Or backend "cuda": there is
                        no device, or the library does not load or is of another build
    NotFound            backend "cuda": there is no library. Or there is no such verbs device
    Unimplemented       verbs is requested, and this library or host does not support it
    Unavailable, DeadlineExceeded  with `check`: the directory does not answer, or not in time
    """
    functions = _library.load(library)
    if local_cache_bytes is None:
        capacity = 0
    else:
        capacity = count(local_cache_bytes, "local_cache_bytes", UINT64_MAX) or _structs.LOCAL_CACHE_NONE
    options = _structs.OpenOptions.made(
        directory=text(directory, "directory"), tenant=text(tenant, "tenant"),
        name=text(name, "name"), fabrics=text(fabrics, "fabrics"),
        verbs_device=text(verbs_device, "verbs_device"),
        kernel_target=text(kernel_target, "kernel_target"), local_cache_bytes=capacity,
        call_count_max=count(call_count_max, "call_count_max"),
        call_threads=count(call_threads, "call_threads"),
        connect_timeout_ns=nanoseconds(connect_timeout, "connect_timeout"),
        backend=text(backend, "backend"),
        announce=None if announce is None else text(announce, "announce") or b"",
        announce_rank=count(announce_rank, "announce_rank"),
        announce_rank_count=count(announce_rank_count, "announce_rank_count"),
        requester=text(requester, "requester"))
    handle = c_void_p()
    status = functions.open_version(_structs.API_MAJOR, _structs.API_MINOR, byref(options),
                                    byref(handle))
    if status:
        functions.fail(status)
    assert handle.value is not None
    requester = Requester(Owner(functions, handle.value))
    if check is not None:
        try:
            requester.resolve("ckv.check", timeout=check)
        except NotFound:
            pass  # the directory has answered
        except Error:
            requester.close()
            raise
    return requester
