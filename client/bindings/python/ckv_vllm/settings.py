"""Settings of the plug-in: `kv_connector_extra_config`. Settings that the daemon has, too, have its names."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

POLICIES = ("route", "cache", "auto", "fetch")
PRECISIONS = ("exact", "wire", "fast")
PUBLISH = ("off", "request", "rule")
FABRICS = "shm,tcp"
CHUNK_TOKENS_MIN = 16  # the directory finds no shorter chunks by their tokens


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings. Immutable and hashable.

    directory   host:port of the directory, or of several: host:port,host:port; required
    requester   host:port of a ckvd with the roles holder and requester on this host, which keeps rows for
                all ranks and engines of the host. If it is "", each of them fetches for itself
    tenant      the tenant whose corpora are published, and read in addition to the shared ones
    policy      the policy of requests that name a corpus and no policy: one of POLICIES
    lookup      whether prompts of requests that name no corpus are looked up, and found rows loaded
    publish     "request": prompts of requests that name `publish`; "rule": also prompts with a common
                beginning; "off": nothing
    rule_corpus, rule_tokens, rule_times
                under "rule", a beginning of at least rule_tokens tokens is added to rule_corpus once
                rule_times prompts had it
    chunk_tokens  tokens of a published chunk; the last chunk of a prompt may have fewer
    replicas    copies of each published chunk; 0 means as many as the corpus has, or 1
    revision    the name of these weights, if the digest of their files is not to be used
    deadline    seconds by which ckv may delay a request: in a look-up, a load or a layer's attention
    min_tokens  vLLM computes rows of fewer tokens, because loading them costs more
    local_cache_bytes  capacity of the local row cache, for the policies cache and auto
    precision   how exactly routed attention is computed, one of PRECISIONS (ckv_attend.h)
    fabrics     the fabrics to holders, separated by commas
    engine_address  host:port of this server, at which routers reach it. If it is "", no load is reported
    required    whether a request without a corpus is refused
    try_gpu     whether it starts on a GPU, where it was never run
    """

    directory: str
    requester: str = ""
    tenant: str = ""
    policy: str = "auto"
    lookup: bool = True
    publish: str = "request"
    rule_corpus: str = "prompts"
    rule_tokens: int = 2048
    rule_times: int = 2
    chunk_tokens: int = 512
    replicas: int = 0
    revision: str = ""
    deadline: float = 10.0
    min_tokens: int = 512
    local_cache_bytes: int = 1 << 30
    precision: str = "fast"
    fabrics: str = FABRICS
    engine_address: str = ""
    required: bool = False
    try_gpu: bool = False


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"ckv: {name} is {value!r}, it must be true or false")


def read(extra: Mapping[str, Any]) -> Settings:
    """Reads `kv_connector_extra_config`. Raises ValueError, whose text names the wrong setting."""
    known = {field.name: field for field in dataclasses.fields(Settings)}
    given = {}
    for name, value in extra.items():
        key = name.replace("-", "_")
        if key not in known:
            raise ValueError(f"ckv: kv_connector_extra_config has {name!r}; known are "
                             f"{', '.join(sorted(known))}")
        given[key] = value
    if not given.get("directory"):
        raise ValueError("ckv: kv_connector_extra_config names no directory (host:port)")
    for name in ("lookup", "required", "try_gpu"):
        if name in given:
            given[name] = _flag(name, given[name])
    for name, least in (("deadline", 0.0), ("min_tokens", 0), ("local_cache_bytes", 0), ("rule_tokens", 1), ("rule_times", 1),
                        ("chunk_tokens", CHUNK_TOKENS_MIN), ("replicas", 0)):
        if name not in given:
            continue
        try:
            given[name] = type(known[name].default)(given[name])
        except (TypeError, ValueError):
            raise ValueError(f"ckv: {name} is {given[name]!r}, it must be a number") from None
        if not given[name] >= least or (name == "deadline" and given[name] == 0):
            raise ValueError(f"ckv: {name} is {given[name]}, too small")
    settings = Settings(**given)
    for name, choices in (("policy", POLICIES), ("publish", PUBLISH), ("precision", PRECISIONS)):
        if getattr(settings, name) not in choices:
            raise ValueError(f"ckv: {name} is {getattr(settings, name)!r}, one of {', '.join(choices)}")
    return settings
