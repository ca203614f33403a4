"""The connector that vLLM loads through kv_connector_module_path. It imports vLLM; its two halves do not.

vLLM creates one for its scheduler, and one in each worker.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Iterable, Optional

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from . import hooks, kv_events, limits, messages, metrics, settings, shared
from .scheduler_side import SchedulerSide
from .worker_side import WorkerSide

log = logging.getLogger("ckv_vllm")


@dataclasses.dataclass
class CkvMetadata(KVConnectorMetadata):
    step: messages.Step


@dataclasses.dataclass
class CkvWorkerMetadata(KVConnectorWorkerMetadata):
    """A rank's report to the scheduler: requests that failed in the step, with reasons, and published chunks."""

    ckv_failed: dict[str, tuple[str, list[int]]]
    ckv_loads_failed: dict[str, str]
    ckv_stored: list[messages.Chunks] = dataclasses.field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        return CkvWorkerMetadata({**getattr(other, "ckv_failed", {}), **self.ckv_failed},
                                 {**getattr(other, "ckv_loads_failed", {}), **self.ckv_loads_failed},
                                 [*getattr(other, "ckv_stored", []), *self.ckv_stored])


class CkvConnector(KVConnectorBase_V1):
    """Routes, loads and publishes. The constructor raises if it does not support the configuration. After
    that, no error of ckv leaves the connector."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        hooks.check_installed()
        given = settings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
        limits.check(vllm_config, kv_cache_config, given)
        self._scheduler: Optional[SchedulerSide] = None
        self._worker: Optional[WorkerSide] = None
        if role == KVConnectorRole.SCHEDULER:
            shared.check_directory(given)
            self._scheduler = SchedulerSide(vllm_config, given)
            log.warning("ckv: on; directory %s, model %s, policy %s, look-ups %s, publish %s, deadline %s s",
                        given.directory, self._scheduler.fingerprint, given.policy,
                        "on" if given.lookup else "off", given.publish, given.deadline)
        else:
            self._worker = WorkerSide(vllm_config, given)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a lost publish is only a later miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # attention of routed rows runs Python between the graphs

    # Scheduler.

    def on_new_request(self, request: Any) -> None:
        self._scheduler.new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[Optional[int], bool]:
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        (block_ids,) = blocks.get_block_ids()
        self._scheduler.allocated(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> CkvMetadata:
        return CkvMetadata(self._scheduler.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        self._scheduler.loads_failed(getattr(meta, "ckv_loads_failed", None) or {})
        self._scheduler.loads_ended(connector_output.finished_recving or ())
        self._scheduler.stored(getattr(meta, "ckv_stored", None) or ())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        return False, self._scheduler.finished(request)

    # Worker.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.step = connector_metadata.step
        self._worker.report_prefill()

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        self._worker.step = None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.begin_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        self._worker.publish()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[Optional[set[str]], Optional[set[str]]]:
        return None, self._worker.take_loaded() or None

    def build_connector_worker_meta(self) -> Optional[CkvWorkerMetadata]:
        report = self._worker.take_failed(), self._worker.take_loads_failed(), self._worker.take_stored()
        return CkvWorkerMetadata(*report) if any(report) else None

    def reset_cache(self) -> Optional[bool]:
        """vLLM drops its rows because the weights may have been replaced. Nothing identifies the new weights, so
        from now on nothing is offered, routed or published."""
        if self._scheduler is not None:
            self._scheduler.stop("its weights may have been replaced: restart the server, with their revision")
        return False

    def shutdown(self) -> None:
        for half in (self._scheduler, self._worker):
            if half is not None:
                half.close()

    # Both.

    def get_kv_connector_stats(self) -> Optional[metrics.CkvStats]:
        half = self._scheduler or self._worker
        return metrics.stats_of(half.take_counts()) if half is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[dict[str, Any]] = None) -> metrics.CkvStats:
        return metrics.CkvStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> metrics.CkvMetrics:
        return metrics.CkvMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def take_events(self) -> Iterable[Any]:
        """Returns events for chunks that this engine published or loaded, and for those that it no longer offers."""
        return kv_events.made(self._scheduler.take_events())
