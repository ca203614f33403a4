"""The model that rows are of, and their layout in SGLang's host pool. Does not import SGLang.

Rows of one model are useless to another, and nothing in a row shows its model. So models are compared
wherever rows enter or leave the engine.
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
    """The shape of a page of a host pool, in tokens, layers and bf16 values."""

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
        """Returns an uninitialized flat page. It is not pinned as SGLang's own are: it stays in host memory."""
        return torch.empty(self.page_values, dtype=torch.bfloat16)

    def rows(self, flat: torch.Tensor) -> np.ndarray:
        """Returns a flat page as uint16 [layers, tokens, values]: a view if it is in host memory, else a copy.

        Raises ValueError if it is not a flat page.
        """
        self.check(flat)
        bits = flat.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)
        if self.token_first:
            return bits.reshape(self.page_size, self.layers, self.d_qk).transpose(1, 0, 2)
        return bits.reshape(self.layers, self.page_size, self.d_qk)

    def fill(self, flat: torch.Tensor, rows: np.ndarray) -> None:
        """Writes rows, uint16 [layers, tokens, values] of any strides, into a flat page.

        Raises ValueError if that is not a flat page.
        """
        self.check(flat)
        if self.token_first:
            rows = rows.transpose(1, 0, 2)
        bits = torch.from_numpy(rows.view(np.int16))
        flat.view(torch.int16).view(bits.shape).copy_(bits)

    def check(self, flat: Any) -> None:
        """Raises ValueError unless `flat` is a flat page: a contiguous bf16 tensor of page_values values."""
        if not isinstance(flat, torch.Tensor) or flat.dtype != torch.bfloat16 or flat.numel() != self.page_values \
                or not flat.is_contiguous():
            raise ValueError(f"ckv_sglang: a page is {self.page_values} values of bf16, in one tensor")


def shape_of(pool: Any) -> Shape:
    """Returns the shape of a host pool's pages. Raises ValueError if they are not rows of MLA in bf16."""
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
    """Returns the model for corpora of pages.

    The model has no RoPE, because SGLang does not report the positions of a page. Nothing may rotate these rows, or
    attend them in ckv.
    """
    return ckv.Model(name, revision, shape.layers, shape.d_qk, shape.d_v, shape.d_rope, softmax_scale=1.0,
                     rope_style="none", rope_theta=0.0)


def difference(corpus: Any, model: ckv.Model) -> Optional[str]:
    """Returns how a corpus' model differs from the engine's; None if it does not.

    An engine without a revision accepts any revision.
    """
    for name in ("model", "revision", "layers", "d_qk", "d_v", "d_rope", "row_dtype"):
        theirs, ours = getattr(corpus, name), getattr(model, name)
        if theirs != ours and (name != "revision" or ours):
            return f"its {name} is {theirs}, the engine has {ours}"
    return None
