"""A connector over ckv: prompts whose first tokens are in chunks get the rows of these.

`connector_over(base, metadata_class)` makes the class, so that this file needs no vLLM. Signatures
are those of KVConnectorBase_V1. Loads are synchronous: a layer waits for its own rows.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch

import ckv

from . import attend, keys, prefix, settings

log = logging.getLogger("ckv_vllm")


@dataclasses.dataclass
class Load:
    """Tokens [token_begin, token_end) of a request, which its blocks get. Goes to the workers."""

    request_id: str
    tokens: list[int]  # the whole prompt: a chunk is found only with all its tokens
    token_begin: int
    token_end: int
    block_ids: list[int]
    extra_keys: list[keys.ExtraKey] = dataclasses.field(default_factory=list)  # of the prompt


class Fetching:
    """A load under way: rows come layer by layer into host memory, and from there to the cache.

    Raises the errors of ckv, and ValueError if what is found is not what the cache holds.
    """

    def __init__(self, requester: Any, load: Load, layers: Sequence[int], block_size: int,
                 width: int, timeout: float) -> None:
        self.timeout, self.load, self.pending = timeout, load, set(layers)
        found = requester.find(load.tokens, timeout=timeout, extra_keys=load.extra_keys)
        corpus, have = found.corpus, prefix.prefix_found(found)
        if have.token_count < load.token_end:
            raise ValueError(f"ckv_vllm: request {load.request_id} was to load {load.token_end} "
                             f"tokens, {have.token_count} are left")
        if corpus.d_qk != width or corpus.row_bytes != 2 * width:
            raise ValueError(f"ckv_vllm: the cache has rows of {width} values of bf16, ckv has rows "
                             f"of {corpus.d_qk} values in {corpus.row_bytes} bytes")
        if max(layers) >= corpus.layers:
            raise ValueError(f"ckv_vllm: layer {max(layers)} of {corpus.layers}")
        self.first = min(layers)
        self.slots = prefix.slots_of(load.block_ids, block_size, load.token_begin,
                                     load.token_end)
        self.rows = np.empty((max(layers) + 1 - self.first, have.token_count, width), np.uint16)
        self.ticket = requester.begin_fetch(
            corpus, self.rows, chunks=(0, have.chunk_count),
            layers=(self.first, max(layers) + 1), timeout=timeout)

    def into(self, layer: int, cache: torch.Tensor) -> None:
        """Waits for a layer and writes it to the cache [blocks, block_size, width]. Once a layer."""
        if layer not in self.pending:
            return
        if not self.ticket.wait_layer(layer, self.timeout):
            raise ckv.DeadlineExceeded(f"layer {layer} of request {self.load.request_id}")
        rows = self.rows[layer - self.first, self.load.token_begin:self.load.token_end]
        values = torch.from_numpy(np.ascontiguousarray(rows).view(np.int16)).view(torch.bfloat16)
        flat = cache.view(-1, cache.shape[-1])
        flat[torch.as_tensor(self.slots, device=cache.device)] = values.to(cache.device)
        self.pending.discard(layer)

    def close(self) -> None:
        """Gives up what has not come. Nothing is written to host memory after it."""
        self.ticket.close()


def check_caches(kv_caches: dict[str, torch.Tensor]) -> dict[str, int]:
    """Layer numbers by name. Raises ValueError for a cache that is not rows of bf16."""
    for name, cache in kv_caches.items():
        if cache.dim() != 3 or cache.dtype != torch.bfloat16 or not cache.is_contiguous():
            raise ValueError(f"ckv_vllm: {name} has a cache of {cache.dtype} {tuple(cache.shape)}, "
                             "not contiguous bf16 [blocks, block_size, width]")
    numbers = {name: attend.LAYER.search(name) for name in kv_caches}
    if not numbers or not all(numbers.values()):
        raise ValueError(f"ckv_vllm: caches without a layer number: {sorted(kv_caches)}")
    layers = {name: int(found.group(1)) for name, found in numbers.items() if found}
    if len(set(layers.values())) != len(layers):
        raise ValueError("ckv_vllm: several caches of one layer, as of an indexer")
    return layers


def open_requester(config: settings.Settings) -> Any:
    return ckv.open(config.directory, tenant=config.tenant, name="vllm-kv")


def connector_over(base: type, metadata_class: Callable[[list[Load]], Any],
                   open_with: Callable[[settings.Settings], Any] = open_requester) -> type:
    """A connector class over KVConnectorBase_V1.

    metadata_class  makes the metadata of a step, with its argument as `loads`. It is pickled, so it
                    is a class of a module.
    A prompt that cannot be looked up counts as not found; so does one of an adapter (keys.py). A load that fails is raised, so the step
    fails: its blocks have no rows, and an answer over them would be wrong.
    """

    class CkvConnector(base):  # type: ignore[misc, valid-type]
        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            transfer = vllm_config.kv_transfer_config
            self._settings = settings.read(transfer.kv_connector_extra_config)
            self._block_size = int(vllm_config.cache_config.block_size)
            self._requester = open_with(self._settings)
            self._loads: list[Load] = []
            self._offers: dict[str, int] = {}  # request to its first token that was offered
            self._caches: dict[str, torch.Tensor] = {}
            self._layers: dict[str, int] = {}
            self._fetching: list[Fetching] = []

        # Scheduler.

        def get_num_new_matched_tokens(self, request: Any,
                                       num_computed_tokens: int) -> tuple[int, bool]:
            tokens = request.prompt_token_ids
            if not tokens:  # a prompt of embeddings
                return 0, False
            extra_keys = keys.extra_keys(request)
            if extra_keys is None:
                return 0, False
            try:
                found = self._requester.find(tokens, timeout=self._settings.timeout,
                                             extra_keys=extra_keys)
            except ckv.NotFound:
                return 0, False
            except ckv.Error as error:
                log.warning("request %s is computed here: %s", request.request_id, error)
                return 0, False
            have = prefix.prefix_found(found).token_count
            loadable = prefix.whole_blocks(have, len(tokens), self._block_size)
            # The last offer counts: the scheduler may ask several times.
            self._offers[request.request_id] = num_computed_tokens
            return max(loadable - num_computed_tokens, 0), False

        def update_state_after_alloc(self, request: Any, blocks: Any,
                                     num_external_tokens: int) -> None:
            if num_external_tokens == 0:
                return
            groups = blocks.get_block_ids()
            if len(groups) != 1:
                raise ValueError(f"ckv_vllm: {len(groups)} groups of KV caches; one is supported")
            begin = self._offers.pop(request.request_id, None)
            if begin is None:
                raise ValueError(f"ckv_vllm: request {request.request_id} was offered nothing")
            end = begin + num_external_tokens
            self._loads.append(Load(request.request_id, list(request.prompt_token_ids), begin,
                                    end, list(groups[0]), keys.extra_keys(request) or []))

        def request_finished(self, request: Any,
                             block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
            self._offers.pop(request.request_id, None)
            return False, None

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            loads, self._loads = self._loads, []
            return metadata_class(loads)

        # Workers.

        def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
            self._layers, self._caches = check_caches(kv_caches), dict(kv_caches)

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
            self._close_fetching()  # of a step that failed
            for load in self._get_connector_metadata().loads:
                width = next(iter(self._caches.values())).shape[-1]
                self._fetching.append(Fetching(
                    self._requester, load, sorted(self._layers.values()), self._block_size, width,
                    self._settings.timeout))

        def wait_for_layer_load(self, layer_name: str) -> None:
            for fetching in self._fetching:
                fetching.into(self._layers[layer_name], self._caches[layer_name])

        def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any,
                          **kwargs: Any) -> None:
            """Saves nothing: this connector only loads."""

        def wait_for_save(self) -> None:
            """The step's end. Raises if the engine did not wait for a layer of a load."""
            missed = sorted({layer for one in self._fetching for layer in one.pending})
            self._close_fetching()
            if missed:
                raise RuntimeError(f"ckv_vllm: the engine did not wait for the layers {missed}")

        def _close_fetching(self) -> None:
            fetching, self._fetching = self._fetching, []
            for one in fetching:
                one.close()

        def shutdown(self) -> None:
            self._close_fetching()
            self._requester.close()

    return CkvConnector
