"""Which model rows are of: the fingerprint that corpora carry as their revision. Imports no vLLM.

Rows of one model are worthless to another, and nothing in them shows it. So whatever shapes a row is
in the fingerprint: the configuration, the weights, the cache's dtype. It is compared wherever rows
enter or leave the engine.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from typing import Any, Mapping

import ckv

# What a configuration has that shapes no row: names, the library's version, how text is generated.
_NO_SHAPE = ("_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache",
             "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "architectures",
             "max_position_embeddings", "output_attentions", "output_hidden_states", "return_dict",
             "chunk_size_feed_forward", "problem_type", "tie_word_embeddings", "_commit_hash", "auto_map")
# A digest of all bytes of a large model takes minutes at each start. Weights that differ, differ
# everywhere: a fine-tune moves most values. The header has every tensor's name, dtype and shape.
_SAMPLES, _SAMPLE_BYTES = 64, 4096


class Unsupported(ValueError):
    """A model or a setting of vLLM whose rows ckv cannot take. The text names it."""


def weights_digest(folder: str) -> str:
    """The digest of a folder's weights: its safetensors' headers, sizes, and samples of their bytes.

    Unsupported  the folder has none
    """
    files = sorted(pathlib.Path(folder).glob("*.safetensors"))
    if not files:
        raise Unsupported(f"ckv: {folder} has no *.safetensors that identify its weights; name them: "
                          f"kv_connector_extra_config: revision")
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size)))
            for i in range(_SAMPLES):
                file.seek(max(0, (size - _SAMPLE_BYTES) * i // (_SAMPLES - 1)))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _NO_SHAPE}


def fingerprint(config: Mapping[str, Any], weights: str, dtype: str, quantization: str,
                cache_dtype: str) -> str:
    """The name of the weights, and a digest of all else that shapes a row.

    weights  what names them: the operator's revision, a hub's commit, or weights_digest
    """
    facts = [_shape_of(config), dtype, quantization, cache_dtype]
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"{weights[:40]}+{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def fingerprint_of(vllm_config: Any, revision: str) -> str:
    """The same of an engine's configuration. Alike in all of its processes and ranks."""
    model = vllm_config.model_config
    if vllm_config.load_config.load_format == "dummy" and not revision:
        raise Unsupported("ckv: load_format is dummy, so nothing identifies the weights; name them: "
                          "kv_connector_extra_config: revision")
    commit = getattr(model.hf_config, "_commit_hash", None)
    weights = revision or commit or "files-" + weights_digest(str(model.model))[:24]
    return fingerprint(model.hf_text_config.to_dict(), weights, str(model.dtype),
                       str(model.quantization or ""), str(vllm_config.cache_config.cache_dtype))


def _yarn(rope: Mapping[str, Any]) -> dict[str, float]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None):
        return {}
    if kind not in ("yarn", "deepseek_yarn"):
        raise Unsupported(f"ckv: RoPE of type {kind!r}; default and yarn are known")
    return {"yarn_factor": float(rope["factor"]),
            "yarn_original_max_position": float(rope["original_max_position_embeddings"]),
            "yarn_beta_fast": float(rope.get("beta_fast", 32)), "yarn_beta_slow": float(rope.get("beta_slow", 1)),
            "yarn_mscale": float(rope.get("mscale", 1)),
            "yarn_mscale_all_dim": float(rope.get("mscale_all_dim", 0))}


def softmax_scale(config: Any, yarn: Mapping[str, float]) -> float:
    """What DeepSeek's attention multiplies logits by: with YaRN, mscale_all_dim counts twice."""
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    all_dim = yarn.get("yarn_mscale_all_dim", 0)
    if yarn and all_dim:
        mscale = 0.1 * all_dim * math.log(yarn["yarn_factor"]) + 1 if yarn["yarn_factor"] > 1 else 1.0
        scale *= mscale * mscale
    return scale


def model_of(name: str, config: Any, revision: str) -> ckv.Model:
    """The geometry of a model's rows, from its text configuration. Unsupported: it has none."""
    for field in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "num_hidden_layers"):
        if not getattr(config, field, None):
            raise Unsupported(f"ckv: {name} has no {field}: its attention is not latent (MLA)")
    if getattr(config, "index_topk", None):
        raise Unsupported(f"ckv: {name} selects rows by an indexer, which vLLM runs on GPUs alone, where this plug-in "
                          f"never ran. ckv's C and Python APIs keep the keys and select the rows")
    rope = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    theta = rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0
    yarn = _yarn(rope)
    return ckv.Model(model=name, revision=revision, layers=config.num_hidden_layers,
                     d_qk=config.kv_lora_rank + config.qk_rope_head_dim, d_v=config.kv_lora_rank,
                     d_rope=config.qk_rope_head_dim, softmax_scale=softmax_scale(config, yarn),
                     rope_style="interleaved", rope_theta=float(theta), **yarn)
