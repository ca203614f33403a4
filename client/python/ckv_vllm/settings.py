"""Settings of the plug-in, from the environment and from `kv_connector_extra_config`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Mapping, Optional


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the plug-in was told. Field `corpus` of extra_config is CKV_VLLM_CORPUS, and so on.

    directory         host:port of the directory; needed
    tenant            the tenant whose corpora are read, beside the shared ones
    corpus            the corpus that every sequence attends; "": none (attention only)
    base              the backend whose kernel attends own rows: "flashmla" or "triton"
    timeout           seconds that one call may take
    allow_coarse_lse  take a log-sum-exp of 16 bits, which makes weights wrong by some percent
    """

    directory: str
    tenant: str = ""
    corpus: str = ""
    base: str = "flashmla"
    timeout: float = 10.0
    allow_coarse_lse: bool = False


def read(extra: Optional[Mapping[str, Any]] = None,
         environment: Optional[Mapping[str, str]] = None) -> Settings:
    """Reads settings. `extra` goes before the environment. Raises ValueError for a wrong one."""
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        value: Any = environment.get(f"CKV_VLLM_{field.name.upper()}") or None  # an empty one is unset
        if extra is not None and field.name in extra:
            value = extra[field.name]
        if value is not None:
            given[field.name] = value
    if not given.get("directory"):
        raise ValueError("ckv_vllm: no directory; set CKV_VLLM_DIRECTORY to its host:port")
    coarse = str(given.get("allow_coarse_lse", "0")).lower()
    if coarse not in ("0", "1", "false", "true"):
        raise ValueError(f"ckv_vllm: CKV_VLLM_ALLOW_COARSE_LSE is {coarse!r}, not 0 or 1")
    given["allow_coarse_lse"] = coarse in ("1", "true")
    given["timeout"] = float(given.get("timeout", 10.0))
    settings = Settings(**given)
    if settings.base not in ("flashmla", "triton"):
        raise ValueError(f"ckv_vllm: CKV_VLLM_BASE is {settings.base!r}, not flashmla or triton")
    return settings
