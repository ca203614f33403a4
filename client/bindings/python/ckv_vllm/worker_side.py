"""The worker's half of the connector: loads, publishes and routes as the scheduler's half decides."""

from __future__ import annotations

import logging
import math
import sys
from typing import Any, Iterable, Optional

import torch

import ckv

from . import announced_chunks, contexts, counts, identity, loading, messages, places, publish, rope, route, shared
from .settings import Settings

log = logging.getLogger("ckv_vllm")


def layers_of(kv_caches: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The caches [blocks, block rows, values] by layer, in order. Raises Unsupported for others.

    vLLM has them with an axis for heads, of which latent rows have one.
    """
    layers: dict[int, torch.Tensor] = {}
    for name, cache in kv_caches.items():
        found = route.LAYER.search(name)
        if found is None:
            raise identity.Unsupported(f"ckv: {name} has a cache, and no layer's number")
        number = int(found.group(1))
        if number in layers:
            raise identity.Unsupported(f"ckv: layer {number} has several caches, as of an indexer")
        if cache.dim() == 4 and cache.shape[1] == 1:
            cache = cache.squeeze(1)
        if cache.dim() != 3 or cache.dtype != torch.bfloat16 or cache.stride(2) != 1:
            raise identity.Unsupported(f"ckv: {name} has a cache of {cache.dtype} {tuple(cache.shape)}; bf16 "
                                       f"rows of latent attention are known")
        layers[number] = cache
    if sorted(layers) != list(range(len(layers))):
        raise identity.Unsupported(f"ckv: caches of the layers {sorted(layers)}: pipeline parallelism, or a "
                                   f"draft model's")
    return dict(sorted(layers.items()))


class WorkerSide:
    """Of one rank. The thread that runs the model calls all methods."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self.settings = settings
        model = vllm_config.model_config
        self.fingerprint = identity.fingerprint_of(vllm_config, settings.revision)
        self.model = identity.model_of(str(model.model), model.hf_text_config, self.fingerprint)
        self.heads = model.get_num_attention_heads(vllm_config.parallel_config)
        shared.REQUESTERS.use(settings)
        parallel = vllm_config.parallel_config
        shared.REQUESTERS.announce(settings, self.fingerprint, parallel.rank, parallel.world_size)
        self.place = places.place_of(vllm_config.device_config.device_type)
        self.requester = shared.REQUESTERS.of(settings, self.place.backend)
        self.contexts = contexts.Contexts(settings, self.requester, self.fingerprint)
        self.counts = counts.Counts()
        self.publisher = publish.Publisher(settings, self.requester, self.model, self.counts, self.place,
                                           announced_chunks.events_enabled(vllm_config))
        self.loader = loading.Loader(settings, self.requester, self.fingerprint, self.counts, self.place)
        # Latent rows are alike on all ranks, and so is what ranks do: one publishes and counts.
        self.first = vllm_config.parallel_config.rank == 0
        self.caches: dict[int, torch.Tensor] = {}
        self.step: Optional[messages.Step] = None
        self._layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context
        self._failed: dict[str, tuple[str, list[int]]] = {}
        self._loads_failed: dict[str, str] = {}

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = layers_of(kv_caches)
        self._check_scales(kv_caches)
        width = next(iter(self.caches.values())).shape[2]
        if width != self.model.d_qk or len(self.caches) != self.model.layers:
            raise identity.Unsupported(f"ckv: {len(self.caches)} caches of {width} values; the configuration "
                                       f"has {self.model.layers} layers of {self.model.d_qk}")
        rope.check(self.model, rope.tables())
        route.WORKER = self

    def _check_scales(self, names: Iterable[str]) -> None:
        """Holders multiply logits by the corpus' softmax scale, so it must be what vLLM's layers use."""
        layers = self._layers
        for name in names:
            scale = getattr(getattr(layers.get(name), "impl", None), "scale", None)
            if scale is not None and not math.isclose(scale, self.model.softmax_scale, rel_tol=1e-5):
                raise identity.Unsupported(f"ckv: {name} multiplies logits by {scale}, and its configuration has "
                                           f"{self.model.softmax_scale}: a RoPE that ckv does not support")

    # Routes.

    def routed_step(self, attn_metadata: Any) -> Optional[route.Step]:
        if self.step is None or not self.step.routes:
            return None
        size = next(iter(self.caches.values())).shape[1]
        try:
            rows = route.rows_of(attn_metadata, self.step.routes, size)
        except Exception as error:  # none of them is attended: each ends
            log.error("ckv: all routed requests of a step end: %s", error)
            for one in self.step.routes.values():
                self.failed(one, one.token_end, f"{type(error).__name__}: {error}")
            return None
        return route.Step(rows, self, self.heads)

    def failed(self, one: messages.Route, count: int, reason: str) -> None:
        """`count`: of its last tokens, whose rows are wrong in the layers above."""
        first = (one.token_end - count) // next(iter(self.caches.values())).shape[1]
        if one.request_id not in self._failed:
            self.counts.add("route_failed_requests")
        self._failed[one.request_id] = (reason, one.block_ids[first:])
        self.contexts.failed(one)

    def take_failed(self) -> dict[str, tuple[str, list[int]]]:
        """{request: (why, its blocks whose rows are wrong)}."""
        failed, self._failed = self._failed, {}
        if self.step is not None:
            failed.update({one: (why, []) for one, why in self.step.refused.items()})
        return failed

    # Loads.

    def begin_loads(self) -> None:
        for load in self.step.loads if self.step is not None else ():
            self.loader.begin(load, list(self.caches.values()))

    def take_loaded(self) -> set[str]:
        """Requests whose load has ended. Those of failed ones are also in take_loads_failed."""
        done = self.loader.take()
        self._loads_failed.update({one: why for one, why in done.items() if why})
        return set(done)

    def take_loads_failed(self) -> dict[str, str]:
        failed, self._loads_failed = self._loads_failed, {}
        return failed

    # The cost of prefill.

    def report_prefill(self) -> None:
        """Passes on the time of a step, with which contexts compare. Never raises: it changes no answer."""
        took = self.step.prefill if self.step is not None else None
        if took is None:
            return
        try:
            self.requester.report_prefill(self.model, took.tokens, took.seconds)
        except ckv.Error as error:
            log.warning("ckv: the time of a prefill is not reported: %s", error)
            return
        self.counts.add("prefilled_tokens", took.tokens)
        self.counts.add("prefill_seconds", took.seconds)

    # Publishing.

    def publish(self) -> None:
        """At the end of a step, while the blocks are still the requests'."""
        # vLLM calls this also for a forward that raised, which has left rows of later layers as they were.
        if self.step is None or not self.first or sys.exc_info()[0] is not None:
            return
        for message in self.step.publishes:
            self.publisher.add(message, self.caches)

    def take_stored(self) -> list[messages.Chunks]:
        return self.publisher.take_stored()

    def take_counts(self) -> dict[str, float]:
        return self.counts.take() if self.first else {}

    def close(self) -> None:
        self.publisher.close()
        self.loader.close()
        if route.WORKER is self:
            route.WORKER = None
        self.contexts.close()
        shared.REQUESTERS.close(self.settings)
