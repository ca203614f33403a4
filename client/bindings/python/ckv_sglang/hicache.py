"""The class that SGLang loads: module_path "ckv_sglang.hicache". Imports SGLang.

There is one instance per rank. SGLang calls it from its prefetch, I/O and backup threads at once. It registers,
attaches and detaches on the scheduler's thread.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional

import numpy as np
import torch

from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageExtraInfo, PoolHitPolicy, PoolName,
                                                  PoolTransfer, PoolTransferResult)
from sglang.srt.mem_cache.utils import get_hash_str

from . import identity, settings
from .store import Store

log = logging.getLogger("ckv_sglang")


class CkvHiCacheStorage(HiCacheStorage):
    """Stores pages of KV in ckv. deploy/handbook/sglang.md describes the settings in extra_config."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """Called by StorageBackendFactory. Raises ValueError for settings that do not fit, and ckv.Error."""
        self.store = Store(settings.read(storage_config), storage_config.is_storage_writer)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Raises ValueError or ckv.Error if the pages are not rows of ckv. SGLang then does not attach the backend."""
        super().register_mem_pool_host(mem_pool_host)
        self.store.open_pages(identity.shape_of(mem_pool_host), get_hash_str)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            log.warning("ckv: pages of the pool %s are not kept, and requests that need them find none", host_pool_name)

    def close(self) -> None:
        self.store.close()

    def clear(self) -> None:
        """Raises NotImplementedError, because other instances use the same pages. SGLang reports a failed call."""
        raise NotImplementedError("ckv_sglang drops no pages: ckvctl corpus drop does")

    def exists(self, key: str) -> bool:
        """Returns whether the page is stored. Does not query its holders, so get may still miss."""
        return self.store.prefix([key]) == 1

    def batch_exists(self, keys: List[str], extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        """Returns how many of the first keys are stored, without a gap."""
        return self.store.prefix(keys)

    def get(self, key: str, target_location: Optional[Any] = None,
            target_sizes: Optional[Any] = None) -> Optional[torch.Tensor]:
        """Fills and returns `target_location`, a flat page in host memory. Returns None for a miss."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: List[str], target_locations: Optional[Any] = None,
                  target_sizes: Optional[Any] = None) -> List[Optional[torch.Tensor]]:
        """As get, for each key. Adjacent pages are fetched together."""
        targets = list(target_locations or [None] * len(keys))

        def take(i: int, rows: np.ndarray) -> None:
            if targets[i] is None:
                targets[i] = self.store.shape.new_page()
            self.store.shape.fill(targets[i], rows)

        return [target if there else None for target, there in zip(targets, self.store.get(keys, take))]

    def batch_get_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        """Fills pages of the host pool. host_indices: [tokens of all pages], the pool's slots."""
        pool = self.mem_pool_host
        flat: List[torch.Tensor] = []

        def take(i: int, rows: np.ndarray) -> None:
            if not flat:
                flat.append(self.store.shape.new_page())
            self.store.shape.fill(flat[0], rows)
            pool.set_from_flat_data_page(int(host_indices[i * pool.page_size]), flat[0])

        return self.store.get(keys, take)

    def batch_get_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> Dict[str, List[bool]]:
        """As batch_get_v1, for pages of KV. Pages of other pools are misses."""
        return {one.name: self.batch_get_v1(one.keys or [], one.host_indices) if one.name == PoolName.KV
                else [False] * len(one.keys or []) for one in transfers}

    def set(self, key: str, value: Optional[Any] = None, target_location: Optional[Any] = None,
            target_sizes: Optional[Any] = None) -> bool:
        """Publishes a flat page. If it is stored already, that page is kept. True without the setting `publish`."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: List[str], values: Optional[Any] = None, target_locations: Optional[Any] = None,
                  target_sizes: Optional[Any] = None) -> bool:
        return self.store.set(keys, lambda i: self.store.shape.rows(values[i]))

    def batch_set_v1(self, keys: List[str], host_indices: torch.Tensor,
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> List[bool]:
        pool = self.mem_pool_host

        def rows_of(i: int) -> np.ndarray:
            return self.store.shape.rows(pool.get_data_page(int(host_indices[i * pool.page_size]), flat=True))

        return [self.store.set(keys, rows_of)] * len(keys)

    def batch_set_v2(self, transfers: List[PoolTransfer],
                     extra_info: Optional[HiCacheStorageExtraInfo] = None) -> Dict[str, List[bool]]:
        """As batch_set_v1, for pages of KV. Pages of other pools are not stored."""
        return {one.name: self.batch_set_v1(one.keys or [], one.host_indices) if one.name == PoolName.KV
                else [False] * len(one.keys or []) for one in transfers}

    def batch_exists_v2(self, keys: List[str], pool_transfers: Optional[List[PoolTransfer]] = None,
                        extra_info: Optional[HiCacheStorageExtraInfo] = None) -> PoolTransferResult:
        """Returns the prefix that can be restored: none if it also needs a pool other than KV."""
        pages = self.store.prefix(keys)
        needed = [one for one in pool_transfers or [] if one.name != PoolName.KV
                  and one.hit_policy in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES)]
        hits: Dict[str, int] = {one.name: 0 for one in pool_transfers or []}
        hits[PoolName.KV] = pages
        return PoolTransferResult(0 if needed else pages, hits, [] if needed else list(range(1, pages + 1)))
