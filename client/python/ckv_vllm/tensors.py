"""Between an engine's tensors and the host arrays that ckv takes. Knows torch, not vLLM.

A query row is token x heads + head, as everywhere in ckv.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# How a kernel lays its log-sum-exps out. Sizes alone do not tell: tokens may equal heads.
TOKENS_HEADS = "tokens_heads"  # [tokens, heads], as Triton MLA
HEADS_TOKENS = "heads_tokens"  # [heads, tokens]
SEQUENCES_HEADS_STEPS = "sequences_heads_steps"  # [sequences, heads, tokens a sequence], as FlashMLA
LAYOUTS = (TOKENS_HEADS, HEADS_TOKENS, SEQUENCES_HEADS_STEPS)


def whole_query(q: Any) -> torch.Tensor:
    """[tokens, heads, d_qk] of a tensor or of a pair (q_nope, q_pe)."""
    q = torch.cat(tuple(q), dim=-1) if isinstance(q, (tuple, list)) else q
    if q.dim() != 3:
        raise ValueError(f"ckv_vllm: queries of shape {tuple(q.shape)}, not [tokens, heads, d_qk]")
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"ckv_vllm: queries of {q.dtype}; quantised ones are not taken")
    return q


def host_bf16(rows: torch.Tensor) -> np.ndarray:
    """The bits of a tensor as uint16 in host memory, C-contiguous. Rounds other types to bf16.

    Waits for the stream that computes the tensor.
    """
    rows = rows.detach().to(torch.bfloat16).contiguous().cpu()
    return rows.view(torch.int16).numpy().view(np.uint16)


def host_f32(values: torch.Tensor) -> np.ndarray:
    """A tensor as float32 in host memory, C-contiguous."""
    return values.detach().to(torch.float32).contiguous().cpu().numpy()


def rows_of_lse(lse: torch.Tensor, layout: str, tokens: int, heads: int) -> torch.Tensor:
    """[tokens, heads] of a log-sum-exp in the given layout. Raises ValueError for another shape."""
    if layout == TOKENS_HEADS and tuple(lse.shape) == (tokens, heads):
        return lse
    if layout == HEADS_TOKENS and tuple(lse.shape) == (heads, tokens):
        return lse.transpose(0, 1)
    if (layout == SEQUENCES_HEADS_STEPS and lse.dim() == 3 and lse.shape[1] == heads
            and lse.shape[0] * lse.shape[2] == tokens):
        return lse.transpose(1, 2).reshape(tokens, heads)
    raise ValueError(f"ckv_vllm: a log-sum-exp of shape {tuple(lse.shape)} is not {layout} of "
                     f"{tokens} tokens and {heads} heads")


def lse_of_rows(rows: torch.Tensor, layout: str, like: torch.Tensor) -> torch.Tensor:
    """The inverse of rows_of_lse, with the shape and the dtype of `like`."""
    if layout == HEADS_TOKENS:
        rows = rows.transpose(0, 1)
    elif layout == SEQUENCES_HEADS_STEPS:
        sequences, heads, steps = like.shape
        rows = rows.reshape(sequences, steps, heads).transpose(1, 2)
    return rows.contiguous().to(like.dtype)
