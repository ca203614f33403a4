#!/usr/bin/python3
"""Goal: vLLM's plug-in computes the same with tensors of a simulated GPU as with tensors in host memory.

    vllm_gpu_check.py DIRECTORY CORPUS STAND_IN

The libckv_cuda.so next to libckv.so is a stand-in, whose memory this process can access. Tensors report a GPU as their
device. A step of two routed requests, a load and a copy for a publish run on both, and the bits are compared.
"""

import ctypes
import sys
import threading
import time
import types

import numpy as np
import torch

import ckv
from ckv_vllm import contexts, counts, loading, messages, places, route, settings, shared

HEADS, NOPE, ROPE, LATENT, BLOCK, BLOCKS = 2, 16, 8, 32, 16, 12
LAYERS, TIMEOUT = 2, 30.0
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class OnGpu(torch.Tensor):
    """A tensor that reports a GPU as its device. Its memory is the host's, which the stand-in also accepts."""

    is_cuda = True

    @property
    def device(self):
        return torch.device("cuda", 0)


class StandIn(places.Gpu):
    """A places.Gpu with the stand-in's stream, without torch's CUDA."""

    def __init__(self, path):
        self.dll = ctypes.CDLL(path)
        self.dll.stand_in_stream_new.restype = ctypes.c_void_p
        self.dll.stand_in_attend_count.restype = ctypes.c_uint64
        self.native, self.marks, self.ended = None, 0, threading.Event()
        self.time = threading.Thread(target=self._pass_time)

    def _pass_time(self):
        """Makes the stand-in do its work every 1 ms; a GPU would do it by itself."""
        while not self.ended.wait(0.001):
            self.dll.stand_in_do_all()

    def __enter__(self):
        self.time.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        self.time.join()

    def stream(self):
        self.native = self.native or self.dll.stand_in_stream_new()
        return self.native

    def _memory(self, shape):
        return torch.empty(shape, dtype=torch.int16)

    def _mark(self):
        self.marks += 1
        return types.SimpleNamespace(synchronize=lambda: None)


def require(holds, what):
    if not holds:
        sys.exit(f"vllm_gpu_check: {what}")


def tensors(on_gpu):
    """A layer, its cache, and the queries of a step: the same values each time."""
    make = torch.Generator().manual_seed(7)

    def values(*shape):
        one = torch.randn(shape, generator=make).to(torch.bfloat16)
        return one.as_subclass(OnGpu) if on_gpu else one

    layer = types.SimpleNamespace(layer_name="model.layers.1.attn", kv_lora_rank=LATENT, qk_nope_head_dim=NOPE,
                                  qk_rope_head_dim=ROPE, W_UK_T=values(HEADS, NOPE, LATENT))
    layer._v_up_proj = lambda o, out: out.copy_(o.reshape(out.shape))
    caches = {number: values(BLOCKS, BLOCK, LATENT + ROPE) for number in range(LAYERS)}
    output = values(8, HEADS * LATENT)
    return layer, caches, values(8, HEADS, NOPE + ROPE), output


class Worker:
    """The parts of the worker's half that a step needs."""

    def __init__(self, given, place):
        self.settings, self.place, self.counts = given, place, counts.Counts()
        shared.REQUESTERS.use(given)
        self.requester = shared.REQUESTERS.of(given, place.backend)
        self.corpus, meant = shared.REQUESTERS.resolve(given, sys.argv[2], TIMEOUT)
        self.meant = meant.to_list()
        self.model = types.SimpleNamespace(d_v=LATENT)
        self.contexts = contexts.Contexts(given, self.requester, self.corpus.revision)

    def failed(self, one, count, reason):
        require(False, f"request {one.request_id} failed: {reason}")

    def step(self, policy, on_gpu):
        """The output of a step: five tokens of a prompt, one that decodes, and two of no routed request."""
        layer, caches, q, output = tensors(on_gpu)
        rows = [route.Row(messages.Route("a", [self.meant], policy, [3, 1], 21), 0, 5),
                route.Row(messages.Route("b", [self.meant], policy, [7], 9), 5, 6)]
        step = route.Step(rows, self, HEADS)
        metadata = types.SimpleNamespace(num_actual_tokens=8)

        def original(*arguments):
            output[6:8] = 1
            return output

        step.forward(layer, original, q, None, None, caches[1], metadata, output)
        return plain(output)

    def load(self, on_gpu):
        _, caches, _, _ = tensors(on_gpu)
        loader = loading.Loader(self.settings, self.requester, self.corpus.revision, self.counts, self.place)
        ids, sizes, _ = self.corpus.chunks()
        tokens = int(sizes.sum()) // BLOCK * BLOCK
        loader._load(messages.Load("c", TOKENS, BLOCK, tokens, list(range(BLOCKS))[::-1], ids.tobytes(), trace=TRACE),
                     list(caches.values()),
                     self.place.stream(), time.monotonic() + TIMEOUT)
        loader.close()
        return np.stack([plain(cache) for cache in caches.values()])

    def copy(self, on_gpu):
        return self.place.rows(tensors(on_gpu)[1], [2, 5, 0], 40).wait()


def plain(tensor):
    return tensor.as_subclass(torch.Tensor).view(torch.int16).numpy().copy()


def compare(host, gpu, stand_in):
    for policy in ("route", "cache"):
        before = stand_in.dll.stand_in_attend_count()
        expected, found = host.step(policy, False), gpu.step(policy, True)
        require(np.array_equal(expected, found), f"policy {policy}: a step over tensors of a GPU has other bits")
        require(stand_in.dll.stand_in_attend_count() > before, f"policy {policy}: nothing was computed on the GPU")
    before = plain(tensors(False)[1][0])
    loaded = host.load(False)
    require(not np.array_equal(loaded[0], before), "nothing was loaded")
    require(np.array_equal(loaded, gpu.load(True)), "a load to blocks of a GPU has other bits")
    require(np.array_equal(host.copy(False), gpu.copy(True)) and stand_in.marks == 1, "rows copied from a GPU differ")


def main():
    global TOKENS
    directory, path = sys.argv[1], sys.argv[3]
    TOKENS = [int(token) for token in sys.stdin.read().split()]
    given = settings.read({"directory": directory, "precision": "exact"})
    host, stand_in = Worker(given, places.Host()), StandIn(path)
    gpu = Worker(given, stand_in)
    with stand_in:
        compare(host, gpu, stand_in)
    print("vLLM's plug-in: tensors of a GPU give the bits of the processor's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
