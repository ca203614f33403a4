"""The memory of the model's tensors: host memory, or a GPU's.

The code for a GPU was never run on one. A test runs it with a stand-in for ckv's backend.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

import ckv


class Host:
    """Tensors in host memory."""

    backend = ""

    def stream(self) -> Any:
        """Returns the stream after whose work ckv reads and writes tensors; None if they are ready."""
        return None

    def out(self, queries: torch.Tensor, d_v: int) -> Optional[tuple[torch.Tensor, ...]]:
        """Returns memory for the answer (o, m, l) of a call; None if ckv allocates it."""
        return None

    def rows(self, caches: dict[int, torch.Tensor], block_ids: list[int], token_count: int) -> "Rows":
        """Copies the rows of a sequence out of its blocks."""
        first = next(iter(caches.values()))
        size, width = first.shape[1], first.shape[2]
        blocks = first.new_tensor(block_ids[:(token_count + size - 1) // size], dtype=torch.int64)
        copied = self._memory((len(caches), token_count, width))
        for to, cache in zip(copied, caches.values()):
            bits = cache.index_select(0, blocks).view(torch.int16)
            to.copy_(bits.reshape(-1, width)[:token_count], non_blocking=True)
        return Rows(copied, self._mark())

    def _memory(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int16)

    def _mark(self) -> Any:
        return None


class Gpu(Host):
    """Tensors on a GPU. The model's stream never waits for ckv; the thread that runs the model does."""

    backend = "cuda"

    def stream(self) -> Any:
        return torch.cuda.current_stream()

    def out(self, queries: torch.Tensor, d_v: int) -> Optional[tuple[torch.Tensor, ...]]:
        rows = queries.shape[0]
        return tuple(queries.new_empty(shape, dtype=torch.float32) for shape in ((rows, d_v), (rows,), (rows,)))

    def _memory(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int16, pin_memory=True)

    def _mark(self) -> Any:
        event = torch.cuda.Event()
        event.record()
        return event


class Rows:
    """Copied rows [layers, tokens, values]. They are complete once `wait` has returned, on any thread."""

    def __init__(self, copied: torch.Tensor, copied_at: Any) -> None:
        self._copied, self._copied_at = copied, copied_at
        self.nbytes = copied.numel() * copied.element_size()

    def wait(self) -> np.ndarray:
        if self._copied_at is not None:
            self._copied_at.synchronize()
        return self._copied.numpy().view(np.uint16)


def place_of(device_type: str) -> Host:
    return Gpu() if device_type == "cuda" else Host()


def o_of(answer: ckv.Answer) -> torch.Tensor:
    """Returns the outputs of an answer, float32 [rows, d_v], without a copy."""
    return torch.as_tensor(answer.o)
