"""A HiCacheStorage over ckv that reads. `storage_over(base, hash_of)` makes the class.

This file needs no SGLang. The signatures are those of HiCacheStorage.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, List, Optional

import numpy as np
import torch

import ckv

from . import pages

log = logging.getLogger("ckv_sglang")

TOKEN_FIRST = ("page_first",)  # a flat page is [token][layer][value]
LAYER_FIRST = ("layer_first", "page_first_direct")  # [layer][token][value]

TOKENS_MAX = 1 << 20  # of one Requester.find


def check_config(config: Any) -> dict:
    """The extra_config. Raises ValueError for an engine whose pages are not whole rows of MLA."""
    if not config.is_mla_model:
        raise ValueError("ckv_sglang: not an MLA model")
    for size in ("pp_size", "attn_cp_size", "dcp_size"):
        if (getattr(config, size, 1) or 1) > 1:
            raise ValueError(f"ckv_sglang: {size} is {getattr(config, size)}, only 1 is supported")
    extra = config.extra_config or {}
    missing = [name for name in ("directory", "page_size", "token_files") if not extra.get(name)]
    if missing:
        raise ValueError(f"ckv_sglang: extra_config has no {', '.join(missing)}")
    return extra


def storage_over(base: type, hash_of: pages.Hash,
                 open_with: Callable[..., Any] = ckv.open) -> type:
    """A backend class over HiCacheStorage.

    extra_config has, besides what SGLang needs to find the class:
      directory    host:port of ckv's directory      tenant   optional
      page_size    SGLang's --page-size              timeout  seconds, optional
      token_files  list of files, each with the token ids of a corpus: int32, little-endian
      model        the model's name in ckv, if SGLang has it under another
    A token file that finds nothing is an error. A page that cannot be fetched is a miss, and logged.
    set and batch_set store nothing.
    """

    class CkvHiCacheStorage(base):  # type: ignore[misc, valid-type]
        def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
            extra = check_config(storage_config)
            self.timeout = float(extra.get("timeout", 10.0))
            self.requester = open_with(extra["directory"], tenant=extra.get("tenant", ""),
                                       name="sglang")
            self.pages = pages.Pages(int(extra["page_size"]), hash_of)
            model = extra.get("model", getattr(storage_config, "model_name", None))
            for path in extra["token_files"]:
                self._add(path, model)

        def _add(self, path: str, model: Any) -> None:
            tokens = np.fromfile(path, "<i4")[:TOKENS_MAX]
            found = self.requester.find(tokens, timeout=self.timeout)
            if found.corpus.model != model:
                raise ValueError(f"ckv_sglang: {path} is of {found.corpus.model}, the engine serves "
                                 f"{model}; extra_config's `model` may name it")
            if found.corpus.row_bytes != 2 * found.corpus.d_qk:
                raise ValueError(f"ckv_sglang: rows of {path} are not bf16")
            if self.pages.add(found, tokens) == 0:
                raise ValueError(f"ckv_sglang: no whole page of {path} is published as a prefix")

        def get(self, key: str, target_location: Optional[Any] = None,
                target_sizes: Optional[Any] = None) -> Optional[torch.Tensor]:
            """Fills and returns `target_location`, a flat page in host memory; None for a miss."""
            return self.batch_get([key], [target_location], target_sizes)[0]

        def batch_get(self, keys: List[str], target_locations: Optional[Any] = None,
                      target_sizes: Optional[Any] = None) -> List[Optional[torch.Tensor]]:
            """get of each key. Neighbours in a corpus come in one fetch."""
            got: List[Optional[torch.Tensor]] = []
            for corpus, run in self.pages.runs(keys):
                targets = (target_locations or [None] * len(keys))[len(got):len(got) + len(run)]
                got += [None] * len(run) if corpus < 0 else self._fetch(corpus, run, targets)
            return got

        def _fetch(self, number: int, run: List[Any], targets: List[Any]) -> List[Any]:
            size, corpus = self.pages.page_size, self.pages.corpora[number]
            begin, end = run[0].token_begin, run[-1].token_begin + size
            first, last, token = self.pages.chunks_of(number, begin, end)
            tokens = int(self.pages.begins[number][last]) - token
            rows = np.empty((corpus.layers, tokens, corpus.d_qk), np.uint16)
            try:
                self.requester.fetch(corpus, rows, chunks=(first, last), timeout=self.timeout)
            except ckv.Error as error:
                log.warning("pages of tokens %d to %d are a miss: %s", begin, end, error)
                return [None] * len(run)
            cut = [rows[:, page.token_begin - token:page.token_begin - token + size]
                   for page in run]
            return [self._into(page, target) for page, target in zip(cut, targets)]

        def _into(self, page: np.ndarray, target: Any) -> torch.Tensor:
            layout = getattr(getattr(self, "mem_pool_host", None), "layout", None)
            if layout not in TOKEN_FIRST + LAYER_FIRST:
                raise ValueError(f"ckv_sglang: pages of the layout {layout!r}")
            if not isinstance(target, torch.Tensor) or target.dtype != torch.bfloat16 \
                    or target.numel() != page.size or not target.is_contiguous():
                raise ValueError(f"ckv_sglang: a page is {page.size} values of bf16, in one tensor")
            ordered = page.transpose(1, 0, 2) if layout in TOKEN_FIRST else page
            flat = torch.from_numpy(np.ascontiguousarray(ordered).view(np.int16))
            target.view(-1).copy_(flat.view(torch.bfloat16).view(-1))
            return target

        def batch_get_v1(self, keys: List[str], host_indices: torch.Tensor,
                         extra_info: Optional[Any] = None) -> List[bool]:
            pool, size = self.mem_pool_host, self.pages.page_size
            got = self.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
            for i, page in enumerate(got):
                if page is not None:
                    pool.set_from_flat_data_page(host_indices[i * size], page)
            return [page is not None for page in got]

        def set(self, key: str, value: Optional[Any] = None, target_location: Optional[Any] = None,
                target_sizes: Optional[Any] = None) -> bool:
            """Stores nothing. True if the page is a corpus' already."""
            return self.exists(key)

        def batch_set(self, keys: List[str], values: Optional[Any] = None,
                      target_locations: Optional[Any] = None,
                      target_sizes: Optional[Any] = None) -> bool:
            return all(self.exists(key) for key in keys)

        def batch_set_v1(self, keys: List[str], host_indices: torch.Tensor,
                         extra_info: Optional[Any] = None) -> List[bool]:
            return [self.exists(key) for key in keys]

        def exists(self, key: str) -> bool:
            """Whether a corpus has the page. Its holders are not asked: get may still miss."""
            return key in self.pages.by_key

        def batch_exists(self, keys: List[str], extra_info: Optional[Any] = None) -> int:
            """How many keys from the first one on exist, without a hole."""
            return next((i for i, key in enumerate(keys) if not self.exists(key)), len(keys))

    return CkvHiCacheStorage
