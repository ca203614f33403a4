"""Settings of vLLM that the plug-in refuses: what was not proven is not tried in silence."""

from __future__ import annotations

from typing import Any

from .identity import Unsupported
from .settings import Settings


def check(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
    """Raises Unsupported, with what to change."""
    parallel = vllm_config.parallel_config
    for name, what in (("pipeline_parallel_size", "pipeline parallelism"),
                       ("decode_context_parallel_size", "decode context parallelism"),
                       ("prefill_context_parallel_size", "prefill context parallelism")):
        if getattr(parallel, name, 1) > 1:
            raise Unsupported(f"ckv: {what} ({name}) is not supported")
    if getattr(parallel, "enable_dbo", False):
        raise Unsupported("ckv: dual batch overlap (enable_dbo) is not supported")
    device = vllm_config.device_config.device_type
    if device not in ("cpu", "cuda"):
        raise Unsupported(f"ckv: a device of type {device} is not supported")
    if device == "cuda" and not settings.try_gpu:
        raise Unsupported("ckv: the plug-in was never run on a GPU, only its parts against a stand-in; to try it, set "
                          "try_gpu to true in kv_connector_extra_config, and check answers")
    if vllm_config.speculative_config is not None:
        raise Unsupported("ckv: speculative decoding is not supported: draft layers have no rows in a corpus")
    if not vllm_config.model_config.use_mla:
        raise Unsupported("ckv: the model's attention is not latent (MLA), or VLLM_MLA_DISABLE is set")
    if vllm_config.cache_config.cache_dtype not in ("auto", "bfloat16"):
        raise Unsupported(f"ckv: a cache of {vllm_config.cache_config.cache_dtype}; rows of bf16 are supported")
    transfer = vllm_config.kv_transfer_config
    if getattr(transfer, "kv_load_failure_policy", "fail") != "fail":
        raise Unsupported("ckv: kv_load_failure_policy must be fail: under recompute a routed request whose "
                          "corpus failed would go on without it. Rows that were to be loaded are computed "
                          "here without it")
    if kv_cache_config is not None and len(kv_cache_config.kv_cache_groups) > 1:
        raise Unsupported("ckv: a model with several groups of KV caches is not supported")
