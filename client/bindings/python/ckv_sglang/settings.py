"""The plug-in's settings: extra_config, without the names that SGLang itself reads."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

log = logging.getLogger("ckv_sglang")

# When the backend is detached, SGLang waits 10 s for its storage threads. It aborts the detach if one of
# them is still in a call then.
TIMEOUT_S_MAX = 8.0
REPLICAS_MAX = 8  # ckv's own limit
# The names that SGLang reads in the same mapping.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings, as the table in deploy/handbook/sglang.md describes them."""

    directory: str
    model: str
    tenant: str = ""
    revision: str = ""
    publish: str = ""
    token_files: tuple[str, ...] = ()
    replicas: int = 1  # copies of a page that is set
    timeout: float = 3.0  # seconds for one look-up or one get by SGLang


def read(config: Any) -> Settings:
    """Reads the settings of a HiCacheStorageConfig. Raises ValueError for an engine or setting that does not fit."""
    if not config.is_mla_model:
        raise ValueError("ckv_sglang: the model is not MLA, so its pages are not rows of ckv")
    for size in ("pp_size", "attn_cp_size", "dcp_size"):
        if (getattr(config, size, 1) or 1) > 1:
            raise ValueError(f"ckv_sglang: {size} is {getattr(config, size)}, and was never run but with 1")
    extra = dict(config.extra_config or {})
    names = {field.name for field in dataclasses.fields(Settings)}
    others = sorted(set(extra) - names - set(_OF_SGLANG) - {"page_size"})
    if others:
        log.warning("ckv: extra_config has %s, which ckv_sglang does not support", ", ".join(others))
    given = {name: extra[name] for name in names if extra.get(name) not in (None, "", [])}
    given.setdefault("model", config.model_name)
    for name in ("directory", "model"):
        if not isinstance(given.get(name), str):
            raise ValueError(f"ckv_sglang: extra_config has no {name}")
    for name in ("tenant", "revision", "publish"):
        if not isinstance(given.get(name, ""), str):
            raise ValueError(f"ckv_sglang: {name} is {given[name]!r}, and must be a text")
    files = given.pop("token_files", ())
    given["token_files"] = (files,) if isinstance(files, str) else tuple(files)
    settings = Settings(**given)
    if settings.publish and not settings.revision:
        raise ValueError("ckv_sglang: publish needs revision, a name of the weights: a page does not identify them")
    if not settings.revision and not settings.token_files:
        raise ValueError("ckv_sglang: extra_config has neither revision nor token_files, so no page would be found")
    if not isinstance(settings.replicas, int) or not 0 < settings.replicas <= REPLICAS_MAX:
        raise ValueError(f"ckv_sglang: replicas is {settings.replicas!r}: 1 to {REPLICAS_MAX}")
    if not isinstance(settings.timeout, (int, float)) or not 0 < settings.timeout <= TIMEOUT_S_MAX:
        raise ValueError(f"ckv_sglang: timeout is {settings.timeout!r}: above 0 and at most {TIMEOUT_S_MAX:g} seconds")
    return settings
