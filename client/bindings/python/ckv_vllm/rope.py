"""Checks that vLLM's RoPE equals ckv's. ckv rotates queries over a corpus to the positions of its rows."""

from __future__ import annotations

import math
from typing import Any, Iterable

import numpy as np

import ckv

from .identity import Unsupported

# Tables are float32 or bf16, whose values err by 2^-9. With another base or scaling, the error is 1 at one of these.
POSITIONS = (1, 7, 64, 511, 2047)
ERROR_MAX = 0.02


def frequencies(model: ckv.Model) -> np.ndarray:
    """Returns radians per position, for each pair of values. As RopeFrequencies in attention/rope.cc."""
    pairs = np.arange(model.d_rope // 2, dtype=np.float64)
    plain = model.rope_theta ** (-2 * pairs / model.d_rope)
    if not model.yarn_factor:
        return plain

    def index(turns: float) -> float:
        return (model.d_rope * math.log(model.yarn_original_max_position / (turns * 2 * math.pi))
                / (2 * math.log(model.rope_theta)))

    low = max(math.floor(index(model.yarn_beta_fast)), 0)
    high = min(math.ceil(index(model.yarn_beta_slow)), model.d_rope - 1)
    ramp = np.clip((pairs - low) / (high - low if high != low else 0.001), 0, 1)
    return plain / model.yarn_factor * ramp + plain * (1 - ramp)


def amplitude(model: ckv.Model) -> float:
    """Returns YaRN's factor for cosines and sines. As RopeAmplitude in attention/rope.cc."""
    def of(mscale: float) -> float:
        return 0.1 * mscale * math.log(model.yarn_factor) + 1 if model.yarn_factor > 1 else 1.0

    return of(model.yarn_mscale) / of(model.yarn_mscale_all_dim) if model.yarn_factor else 1.0


def error(model: ckv.Model, table: Any) -> float:
    """Returns the largest difference of a table [positions, cosines then sines] from ckv's formula."""
    positions = np.array([position for position in POSITIONS if position < table.shape[0]])
    angles = positions[:, None] * frequencies(model)
    expected = amplitude(model) * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return float(np.abs(table[positions.tolist()].float().cpu().numpy() - expected).max())


def tables() -> Iterable[Any]:
    """Returns the tables of all rotations that the models of this process have made."""
    from vllm.model_executor.layers import rotary_embedding

    return [module.cos_sin_cache for module in rotary_embedding._ROPE_DICT.values()]


def check(model: ckv.Model, made: Iterable[Any]) -> None:
    """Raises Unsupported if no table has the model's width, or one of that width differs from ckv's formula."""
    errors = [error(model, table) for table in made if table.dim() == 2 and table.shape[1] == model.d_rope]
    if not errors:
        raise Unsupported(f"ckv: vLLM has no table of rotations of {model.d_rope} values")
    if max(errors) > ERROR_MAX:
        raise Unsupported(f"ckv: vLLM's rotations differ by {max(errors):.2g} from those of its configuration: a RoPE "
                          f"that ckv does not support")
