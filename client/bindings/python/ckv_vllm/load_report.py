"""The load of this engine, for routers that ask ckv's directory for a ranking. Does not import vLLM.

free_bytes  the blocks that no running request fills, times their bytes. Blocks that only vLLM's prefix cache has are free
queued      requests that vLLM has taken and that are not in the last step
batch       requests of the last step
iteration   a line through the times of recent steps that only decode, over their batches. 0 until there are two batches
chunks      those of recent requests (recent_chunks)
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any, Mapping, Optional

import ckv

from . import prefix, recent_chunks
from .settings import Settings

log = logging.getLogger("ckv_vllm")

# The weight of earlier steps at each new one: the line is that of some 200 steps.
KEPT = 0.995
# A step that ends longer after the one before was idle in between, or computed a prefill.
STEP_S_MAX = 1.0


class IterationTimes:
    """The line t(b) = base + per_request * b through weighted steps, by least squares. Both are not negative."""

    def __init__(self) -> None:
        self._n = self._b = self._bb = self._t = self._bt = 0.0

    def add(self, batch: int, us: float) -> None:
        for name, value in (("_n", 1), ("_b", batch), ("_bb", batch * batch), ("_t", us), ("_bt", batch * us)):
            setattr(self, name, getattr(self, name) * KEPT + value)

    def line(self) -> tuple[float, float]:
        """Returns (base, per_request) in microseconds."""
        if self._n == 0:
            return 0.0, 0.0
        spread = self._n * self._bb - self._b * self._b
        # One batch alone has no slope, up to rounding.
        slope = (self._n * self._bt - self._b * self._t) / spread if spread > 1e-6 * self._n * self._bb else 0.0
        slope = max(0.0, slope)
        base = (self._t - slope * self._b) / self._n
        if base < 0:  # a line through the origin
            return 0.0, self._bt / self._bb
        return base, slope


class EngineLoad:
    """Makes loads from steps. Only for the scheduler's thread."""

    def __init__(self, batch_max: int, block_count: int, block_size: int, token_bytes: int) -> None:
        self._batch_max, self._block_count, self._block_size = batch_max, block_count, block_size
        self._block_bytes = block_size * token_bytes
        self._times = IterationTimes()
        self._last: Optional[tuple[float, int]] = None  # time and batch of the last step, if it only decoded

    def step(self, now: float, scheduled: Mapping[str, int], ends: Mapping[str, int], known_count: int) -> ckv.Load:
        """Returns the load as of a step.

        now          seconds of a monotonic clock
        scheduled    new tokens of each request in the step
        ends         tokens of each of them at the end of the step
        known_count  requests that vLLM has taken and that have not finished
        """
        batch = len(scheduled)
        if self._last is not None and batch > 0 and now - self._last[0] <= STEP_S_MAX:
            self._times.add(self._last[1], (now - self._last[0]) * 1e6)
        only_decodes = batch > 0 and all(count == 1 for count in scheduled.values())
        self._last = (now, batch) if only_decodes else None
        used = sum(-(-end // self._block_size) for end in ends.values())
        base, per_request = self._times.line()
        return ckv.Load(free_bytes=max(0, self._block_count - used) * self._block_bytes,
                        queued=max(0, known_count - batch), batch=batch, batch_max=self._batch_max,
                        iteration_base_us=base, iteration_request_us=per_request)


class LoadReport:
    """Reports the loads under the name of the server's address. Only for the scheduler's thread."""

    def __init__(self, settings: Settings, vllm_config: Any, token_bytes: int) -> None:
        self._settings = settings
        cache = vllm_config.cache_config
        block_count = cache.num_gpu_blocks or 0
        self._load = EngineLoad(vllm_config.scheduler_config.max_num_seqs, block_count, cache.block_size, token_bytes)
        # A requester of its own, because its name must be that of one engine only.
        parallel = vllm_config.parallel_config
        rank = parallel.data_parallel_rank if parallel.data_parallel_size > 1 else None
        self._requester = ckv.open(settings.directory, name=name_of(settings.engine_address, rank), local_cache_bytes=0)
        self._failed = False
        # Without prefix caching, vLLM uses no row twice.
        self._recent = (recent_chunks.RecentChunks(block_count * cache.block_size) if cache.enable_prefix_caching
                        else None)
        # An empty list, because none would stand for the chunks that the requester has cached.
        # Unlike a later one, it raises: a malformed address must not be found out by a router that has no engine.
        self._last = self._load.step(time.monotonic(), {}, {}, 0)
        self._requester.report_load(settings.engine_address, self._last, [])

    def used(self, request_id: str, found: prefix.Prefix, tokens: int) -> None:
        """Takes a request that begins with these chunks, whose `tokens` tokens have blocks now. May be called again."""
        if self._recent is not None:
            self._recent.used(request_id, found, tokens)

    def forget(self) -> None:
        """From now on, reports no chunks: vLLM has dropped its rows, and offers none of ckv."""
        self._recent = None
        self._report(self._last, [])

    def step(self, scheduled: Mapping[str, int], ends: Mapping[str, int], known_count: int) -> None:
        """Never raises: an engine that no router finds still answers."""
        self._last = self._load.step(time.monotonic(), scheduled, ends, known_count)
        self._report(self._last, self._recent.take() if self._recent is not None else None)

    def _report(self, load: ckv.Load, chunks: Optional[list[bytes]]) -> None:
        try:
            self._requester.report_load(self._settings.engine_address, load, chunks)
            self._failed = False
        except ckv.Error as error:
            if not self._failed:
                log.warning("ckv: the load is not reported: %s", error)
            self._failed = True
            if self._recent is not None and chunks is not None:
                self._recent.again()

    def close(self) -> None:
        self._requester.close()


def name_of(address: str, rank: Optional[int] = None) -> str:
    """Returns the engine's name: "vllm-10.0.0.7-8000" for 10.0.0.7:8000.

    rank  which of several engines behind the address it is (data parallelism): "vllm-10.0.0.7-8000-1"
    """
    name = "vllm-" + re.sub(r"[^A-Za-z0-9_.-]", "-", address)
    return name if rank is None else f"{name}-{rank}"
