#!/usr/bin/python3
"""Checks calls with arrays on a simulated GPU: the libckv_cuda.so next to libckv.so is a stand-in.

    device_check.py DIRECTORY CORPUS STAND_IN

This process cannot access the stand-in's memory. The stand-in does its work only when a caller waits for it.
Arrays describe their memory as those of cupy, numba and torch do. Answers and rows equal those of host memory.
"""

import ctypes
import sys
from ctypes import c_int, c_uint32, c_uint64, c_void_p

import numpy as np

import ckv
from py_client import OWN_TOKENS, ROWS, SHIFT, TIMEOUT, bf16, refused, require

TYPESTRS = {np.dtype(np.uint16): "<u2", np.dtype(np.float32): "<f4", np.dtype(np.uint8): "|u1"}
DEVICE = 2


class Device:
    """The functions of tests/support/stand_in/cuda_stand_in.h."""

    def __init__(self, path):
        dll = ctypes.CDLL(path)
        for name, result, arguments in (("allocate", c_void_p, [c_uint32, c_uint64]), ("free", None, [c_void_p]),
                                        ("copy", None, [c_void_p, c_void_p, c_uint64]),
                                        ("stream_new", c_void_p, []), ("stream_free", None, [c_void_p]),
                                        ("stream_copy", None, [c_void_p, c_void_p, c_void_p, c_uint64]),
                                        ("stream_ready", c_int, [c_void_p]), ("do_all", None, []),
                                        ("attend_count", c_uint64, [])):
            function = getattr(dll, "stand_in_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


class Array:
    """An array on the device, with the interface of libraries whose memory numpy cannot access."""

    def __init__(self, device, shape, dtype, stream=None):
        self.device, self.shape, self.dtype = device, shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.address = device.allocate(DEVICE, self.nbytes)
        self.interface = {"shape": shape, "typestr": TYPESTRS[self.dtype], "data": (self.address, False),
                          "version": 3, "strides": None, "stream": stream}

    @property
    def __cuda_array_interface__(self):
        return self.interface

    def read(self):
        host = np.empty(self.shape, self.dtype)
        self.device.copy(host.ctypes.data, self.address, self.nbytes)
        return host

    def write(self, host):
        self.device.copy(self.address, host.ctypes.data, self.nbytes)
        return self

    def write_later(self, native, host):
        """Writes by a copy on the stream. `host` must stay valid until then."""
        self.device.stream_copy(native, self.address, host.ctypes.data, self.nbytes)

    def free(self):
        self.device.free(self.address)


class Tensor:
    """The methods of a torch tensor that ckv calls, over an array that must outlive it."""

    is_cuda = True

    class device:
        type = "cuda"

    def __init__(self, array, dtype):
        self.array, self.shape, self.dtype = array, array.shape, "torch." + dtype

    def data_ptr(self):
        return self.array.address

    def element_size(self):
        return self.array.dtype.itemsize

    def stride(self):
        strides = [1]
        for extent in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * extent)
        return tuple(strides)


class TorchStream:
    def __init__(self, native):
        self.cuda_stream = native


class CupyStream:
    def __init__(self, native):
        self.ptr = native


def equal(got, want):
    return all(np.array_equal(a.view(np.uint32).ravel(), b.view(np.uint32).ravel()) for a, b in zip(got, want))


def check_attend(there, corpus, device, native, q, own, want):
    """Tries each way to describe an array and to pass the stream that precedes the call."""
    with there.context(ckv.Part(corpus, offset=SHIFT), policy="route") as context:
        for name, stream, as_tensor, named in (("an int", native, False, None),
                                               ("torch's stream", TorchStream(native), True, None),
                                               ("cupy's stream", CupyStream(native), False, None),
                                               ("the arrays' own", None, False, native)):
            q_there = Array(device, q.shape, np.uint16, named)
            own_there = Array(device, own.shape, np.uint16, named)
            out = [Array(device, array.shape, np.float32, named) for array in want]
            for array in (q_there, own_there, *out):
                array.write(np.zeros(array.shape, array.dtype))
            tensors = (lambda one, dtype: Tensor(one, dtype)) if as_tensor else (lambda one, _dtype: one)
            segment = ckv.Segment(context, own=[ckv.OwnRows(tensors(own_there, "bfloat16"))])
            options = {"out": [tensors(one, "float32") for one in out], "wire": "f32", "timeout": TIMEOUT,
                       "stream": stream}

            q_there.write_later(native, q)
            own_there.write_later(native, own)
            require(not device.stream_ready(native), "the engine's stream is busy")
            attends = device.attend_count()
            there.attend(1, tensors(q_there, "bfloat16"), segment, **options)
            require(device.attend_count() > attends, "own rows are attended on the device")
            require(equal([one.read() for one in out], want), f"an answer after {name}")

            for one in out:
                one.write(np.zeros(one.shape, one.dtype))
            q_there.write(np.zeros(q.shape, np.uint16))
            q_there.write_later(native, q)
            ticket = there.submit(1, tensors(q_there, "bfloat16"), segment, **options)
            require(not ticket.poll(), "done before the device has worked")
            while not ticket.poll():
                device.do_all()
            answer = ticket.wait()
            require(answer.o is options["out"][0] and "shape" in repr(answer), "the answer is in out")
            require(equal([one.read() for one in out], want), f"an answer of a ticket after {name}")
            for array in (q_there, own_there, *out):
                array.free()
        # Without `out`, the answer is in host memory.
        q_there = Array(device, q.shape, np.uint16).write(q)
        answer = there.attend(1, q_there, ckv.Segment(context, own=[ckv.OwnRows(own)]), wire="f32", timeout=TIMEOUT)
        require(equal(answer, want), "an answer in host memory to queries on the device")
        q_there.free()


def check_fetch(here, there, corpus, corpus_there, device, native):
    want = np.zeros((corpus.layers, corpus.token_count, corpus.row_bytes), np.uint8)
    here.fetch(corpus, want, position=SHIFT, timeout=TIMEOUT)
    old = np.full(want.shape, 9, np.uint8)
    rows = Array(device, want.shape, np.uint8)
    rows.write_later(native, old)
    there.fetch(corpus_there, rows, position=SHIFT, timeout=TIMEOUT, stream=native)
    require(np.array_equal(rows.read(), want), "rows on the device")
    rows.write_later(native, old)
    with there.begin_fetch(corpus_there, rows, position=SHIFT, timeout=TIMEOUT, stream=native) as fetch:
        require(fetch.wait_layer(corpus.layers - 1, TIMEOUT), "the last layer")
        require(np.array_equal(rows.read(), want), "rows of a ticket on the device")
    rows.free()


def check_refused(here, there, corpus, device, native, q):
    """Errors state the remedy. `here` computes on the processor, so it refuses memory of the device."""
    todo = 'open it with backend "cuda"'
    on_device = Array(device, q.shape, np.uint16).write(q)
    rows = Array(device, (corpus.layers, corpus.token_count, corpus.row_bytes), np.uint8)
    out = [Array(device, shape, np.float32) for shape in ((ROWS, corpus.d_v), (ROWS,), (ROWS,))]
    for error in (refused(ckv.InvalidArgument, here.attend, 0, on_device, corpus),
                  refused(ckv.InvalidArgument, here.attend, 0, q, corpus, out=out),
                  refused(ckv.InvalidArgument, here.fetch, corpus, rows),
                  refused(ckv.Unimplemented, here.attend, 0, q, corpus, stream=native)):
        require(todo in str(error), f"what to do: {error}")
    host = (np.empty((ROWS, corpus.d_v), np.float32), np.empty(ROWS, np.float32), np.empty(ROWS, np.float32))
    for call, arguments, options in (
            (there.attend, (0, on_device, corpus), {"out": (out[0], host[1], host[2])}),
            (there.attend, (0, on_device, corpus), {"stream": "fast"}),
            (there.attend, (0, on_device, corpus), {"stream": -1}),
            (ckv.merge, ([(*out,)],), {}), (ckv.merge, ([host],), {"out": out}),
            (ckv.lse_from_partial, (out[1], out[2]), {})):
        refused(ckv.InvalidArgument, call, *arguments, **options)
    other = Array(device, q.shape, np.uint16, native + 1)
    out[1].interface = {**out[1].interface, "stream": native}
    error = refused(ckv.InvalidArgument, there.attend, 0, other, corpus, out=out)
    require("several streams" in str(error), f"{error}")
    for change, what in (({"data": (out[2].address, True)}, "read-only"), ({"mask": out[1]}, "mask"),
                         ({"typestr": "<f8"}, "dtype")):
        kept, out[2].interface = out[2].interface, {**out[2].interface, **change}
        require(what in str(refused(ckv.InvalidArgument, there.attend, 0, q, corpus, out=out)), what)
        out[2].interface = kept
    # Strides of every other value, so that rows would have to be copied.
    on_device.interface = {**on_device.interface, "strides": (2 * corpus.d_qk, 4)}
    require("contiguous" in str(refused(ckv.InvalidArgument, there.attend, 0, on_device, corpus)), "strides")
    uneven = np.zeros((2, 2 * corpus.d_qk), np.uint16)[:, ::2]  # a copy would be made before the work on the stream
    require("contiguous" in str(refused(ckv.InvalidArgument, there.attend, 0, uneven, corpus, stream=native)),
            "a copy before the stream")
    for array in (on_device, rows, other, *out):
        array.free()


def main():
    directory, name, stand_in = sys.argv[1:]
    with ckv.open(directory) as here, ckv.open(directory, backend="cuda") as there:
        require(here.backend == "backend cpu: it is the default", here.backend)
        require(there.backend == f"backend cuda: {stand_in}, kernels CUDA_SM90", there.backend)
        refused(ckv.InvalidArgument, ckv.open, directory, backend="rocm")
        device = Device(stand_in)
        native = device.stream_new()
        corpus, corpus_there = here.resolve(name, timeout=TIMEOUT), there.resolve(name, timeout=TIMEOUT)
        q = bf16(ROWS * corpus.d_qk, 1).reshape(ROWS, corpus.d_qk)
        own = bf16(OWN_TOKENS * corpus.d_qk, 2).reshape(OWN_TOKENS, corpus.d_qk)
        with here.context(ckv.Part(corpus, offset=SHIFT), policy="route") as context:
            want = list(here.attend(1, q, ckv.Segment(context, own=[ckv.OwnRows(own)]), wire="f32", timeout=TIMEOUT))
        check_attend(there, corpus_there, device, native, q, own, want)
        check_fetch(here, there, corpus, corpus_there, device, native)
        check_refused(here, there, corpus_there, device, native, q)
        # An open ticket keeps its stream: close is refused, and the ticket continues.
        with there.context(corpus_there, policy="route") as context:
            ticket = there.submit(0, q, context, stream=native, timeout=TIMEOUT)
            refused(ckv.FailedPrecondition, there.close)
            while not ticket.poll():
                device.do_all()
            ticket.wait()
    device.stream_free(native)
    refused(ckv.FailedPrecondition, lambda: there.backend)
    print("answers and rows on a stand-in of a GPU")


if __name__ == "__main__":
    main()
