"""vLLM's kernel of MLA decode on a CPU beside ckv's, in one process, over the same rows. Runs in vLLM's environment.

    kernel_peer.py ATTEND_KERNEL ROUNDS THREADS

ATTEND_KERNEL is the library of peers/attend_kernel.cc. Prints a line of JSON: {case: {kernel: [nanoseconds of each round]}},
each case one layer of 16 heads a sequence. Both kernels write bf16. The result of each is compared with one in float64.
"""

import ctypes
import json
import sys
import time

import torch
from vllm import _custom_ops
from vllm.platforms import current_platform

HEADS, D_QK, D_V, BLOCK = 16, 576, 512, 16
SCALE = 192 ** -0.5
WIRE, FAST = 2, 3  # attention/precision.h
CASES = {"1 x 2048": (1, 2048, False), "8 x 2048": (8, 2048, False), "1 x 16384": (1, 16384, False),
         "8 x 16384": (8, 16384, False), "8 on the same 2048": (8, 2048, True)}
ERROR_MAX = 4e-3  # of |o| below 1: half a bf16 step, and a weight of 8 bits
CHECKED = 2       # sequences whose answer is compared


class Case:
    """One case's tensors, and a call of each kernel over them."""

    def __init__(self, kernel, sequences, rows, shared, threads):
        random = torch.Generator().manual_seed(rows + sequences)
        owners = 1 if shared else sequences
        self.kv = torch.randn(owners * rows // BLOCK, BLOCK, D_QK, generator=random).bfloat16()
        self.q = torch.randn(sequences, HEADS, D_QK, generator=random).bfloat16()
        table = torch.arange(owners * rows // BLOCK, dtype=torch.int32).view(owners, -1).expand(sequences, -1).contiguous()
        lengths = torch.full((sequences,), rows, dtype=torch.int32)
        self.rows, self.owners = rows, owners
        self.o = torch.zeros(sequences, HEADS, D_V, dtype=torch.bfloat16)
        m, l = torch.zeros(sequences * HEADS), torch.zeros(sequences * HEADS)
        addresses = (ctypes.c_uint64 * sequences)(*[self.kv.data_ptr() + (i % owners) * rows * D_QK * 2 for i in range(sequences)])

        def pointer(tensor):
            return ctypes.c_void_p(tensor.data_ptr())

        def ckv(precision):
            return lambda: kernel.attend_kernel(pointer(self.q), sequences, HEADS, addresses, rows, ctypes.c_float(SCALE),
                                                pointer(self.o), pointer(m), pointer(l), threads, precision, int(shared))
        self.calls = {"vllm": lambda: _custom_ops.mla_decode_kvcache_cpu(self.o, self.q, self.kv, SCALE, table, lengths),
                      "wire": ckv(WIRE), "fast": ckv(FAST)}
        self.kept = (table, lengths, m, l)

    def exact(self):
        rows = self.kv.view(self.owners, self.rows, D_QK)[:CHECKED].double()
        q = self.q[:CHECKED].double()
        return torch.softmax(q @ rows.transpose(1, 2) * SCALE, -1) @ rows[..., :D_V]

    def times(self, rounds):
        exact, times = self.exact(), {}
        for name, call in self.calls.items():
            self.o.zero_()
            call()
            error = (self.o[:CHECKED].double() - exact).abs().max().item()
            if not error <= ERROR_MAX * max(1.0, exact.abs().max().item()):
                raise SystemExit(f"kernel_peer: {name} errs by {error}")
        for _ in range(rounds):
            for name, call in self.calls.items():
                begin = time.perf_counter_ns()
                call()
                times.setdefault(name, []).append(time.perf_counter_ns() - begin)
        return times


def main():
    current_platform.import_kernels()
    kernel, threads = ctypes.CDLL(sys.argv[1]), int(sys.argv[3])
    kernel.attend_kernel_target.restype = ctypes.c_char_p
    torch.set_num_threads(threads)
    made = {name: Case(kernel, *case, threads).times(int(sys.argv[2])) for name, case in CASES.items()}
    print(json.dumps({"target": kernel.attend_kernel_target().decode(), "cases": made}), flush=True)


if __name__ == "__main__":
    main()
