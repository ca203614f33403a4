"""Which model rows are of, and how SGLang's host pool lays them. Knows no SGLang.

Rows of one model are worthless to another, and nothing in them shows it. So they are compared wherever
they enter or leave the engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import torch

import ckv

TOKEN_FIRST = ("page_first",)  # a flat page is [token][layer][value]
LAYER_FIRST = ("layer_first", "page_first_direct")  # [layer][token][value]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A page of a host pool. Lengths are counts of tokens, layers and values of bf16."""

    page_size: int
    layers: int
    d_qk: int
    d_v: int
    d_rope: int
    token_first: bool

    @property
    def page_values(self) -> int:
        return self.page_size * self.layers * self.d_qk

    def new_page(self) -> torch.Tensor:
        """A flat page that is not written yet. Not pinned as SGLang's own are: it stays in the host's memory."""
        return torch.empty(self.page_values, dtype=torch.bfloat16)

    def rows(self, flat: torch.Tensor) -> np.ndarray:
        """A flat page as uint16 [layers, tokens, values], in its own memory if that is contiguous and the host's."""
        self.check(flat)
        bits = flat.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)
        if self.token_first:
            return bits.reshape(self.page_size, self.layers, self.d_qk).transpose(1, 0, 2)
        return bits.reshape(self.layers, self.page_size, self.d_qk)

    def fill(self, flat: torch.Tensor, rows: np.ndarray) -> None:
        """Writes rows, uint16 [layers, tokens, values] of any strides, into a flat page."""
        self.check(flat)
        if self.token_first:
            rows = rows.transpose(1, 0, 2)
        bits = torch.from_numpy(rows.view(np.int16))
        flat.view(torch.int16).view(bits.shape).copy_(bits)

    def check(self, flat: Any) -> None:
        """Raises ValueError for what is no flat page."""
        if not isinstance(flat, torch.Tensor) or flat.dtype != torch.bfloat16 or flat.numel() != self.page_values \
                or not flat.is_contiguous():
            raise ValueError(f"ckv_sglang: a page is {self.page_values} values of bf16, in one tensor")


def shape_of(pool: Any) -> Shape:
    """The shape of a host pool's pages. Raises ValueError for a pool whose pages are not rows of MLA in bf16."""
    tag = getattr(pool, "storage_format_tag", None)
    if tag:
        raise ValueError(f"ckv_sglang: pages of the format {tag!r} are not rows of one model")
    if pool.layout not in TOKEN_FIRST + LAYER_FIRST:
        raise ValueError(f"ckv_sglang: the layout {pool.layout!r} is not known; "
                         f"--hicache-mem-layout may be {', '.join(LAYER_FIRST + TOKEN_FIRST)}")
    if getattr(pool, "kv_buffer", None) is None or not hasattr(pool, "kv_lora_rank"):
        raise ValueError(f"ckv_sglang: a {type(pool).__name__} keeps no rows of MLA")
    if pool.dtype != torch.bfloat16 or pool.kv_cache_dim != pool.kv_lora_rank + pool.qk_rope_head_dim:
        raise ValueError(f"ckv_sglang: rows of {pool.kv_cache_dim} values of {pool.dtype} are not "
                         f"{pool.kv_lora_rank} + {pool.qk_rope_head_dim} values of bf16")
    return Shape(pool.page_size, pool.layer_num, pool.kv_cache_dim, pool.kv_lora_rank, pool.qk_rope_head_dim,
                 pool.layout in TOKEN_FIRST)


def model_of(name: str, revision: str, shape: Shape) -> ckv.Model:
    """The model of corpora of pages.

    No position of a page is told, so no RoPE either: nothing may rotate its rows, or attend them there.
    """
    return ckv.Model(name, revision, shape.layers, shape.d_qk, shape.d_v, shape.d_rope, softmax_scale=1.0,
                     rope_style="none", rope_theta=0.0)


def difference(corpus: Any, model: ckv.Model) -> Optional[str]:
    """How a corpus' model differs from the engine's, or None. An engine without a revision takes each."""
    for name in ("model", "revision", "layers", "d_qk", "d_v", "d_rope", "row_dtype"):
        theirs, ours = getattr(corpus, name), getattr(model, name)
        if theirs != ours and (name != "revision" or ours):
            return f"its {name} is {theirs}, the engine has {ours}"
    return None
