"""The plug-in's counts in vLLM's log and in its Prometheus metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

from . import counts


class CkvStats(KVConnectorStats):
    """`data`: what was added of each of counts.NAMES."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"ckv {name.replace('_', ' ')}": round(count, 3) for name, count in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class CkvMetrics(KVConnectorPromMetrics):
    """Counters vllm:ckv_NAME_total of each engine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(name=f"vllm:ckv_{name}", documentation=what, labelnames=self._labelnames),
                self.per_engine_labelvalues)
            for name, what in counts.NAMES.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(count)


def stats_of(since: dict[str, float]) -> CkvStats | None:
    return CkvStats(since) if since else None
