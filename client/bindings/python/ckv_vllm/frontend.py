"""Admission of requests, where vLLM accepts them. Refuses with HTTP 400 what cannot be answered as requested.

Runs in the process of the API server, or in the one that calls LLM.generate. Queries only the directory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Any, Optional, Union

import ckv

from . import identity, request_params
from .settings import Settings, read
from .shared import REQUESTERS, Resolved

log = logging.getLogger("ckv_vllm")
CONNECTOR = "CkvConnector"
SALT = "ckv:"
LOOKUP_MAX = 0.5  # seconds; this thread takes the requests of all clients


@dataclasses.dataclass(frozen=True)
class Server:
    """The properties of an engine that do not change."""

    settings: Optional[Settings]  # None if it has no connector of ckv
    fingerprint: str = ""


def server_of(vllm_config: Any) -> Server:
    """Returns the Server of an engine's configuration, and caches it there. Raises as identity.fingerprint_of."""
    server = getattr(vllm_config, "_ckv_server", None)
    if server is None:
        transfer = vllm_config.kv_transfer_config
        if transfer is None or transfer.kv_connector != CONNECTOR:
            server = Server(None)
        else:
            settings = read(transfer.kv_connector_extra_config)
            server = Server(settings, identity.fingerprint_of(vllm_config, settings.revision))
        object.__setattr__(vllm_config, "_ckv_server", server)
    return server


class Plain:
    """A request without a corpus. It must not look like one with a corpus."""

    @staticmethod
    def finish(request: Any) -> Any:
        if (request.cache_salt or "").startswith(SALT):
            raise refused(f"ckv: a cache_salt may not begin with {SALT!r}")
        return request


class Admission:
    """A request for ckv that was checked."""

    def __init__(self, asked: request_params.RequestParams, resolved: list[Resolved]) -> None:
        self.asked, self.resolved = asked, resolved

    def finish(self, request: Any) -> Any:
        """Checks vLLM's request, and records in it for the engine what its corpora's names mean now."""
        if self.asked.routes or self.asked.publish:
            for name, what in (("lora_request", "an adapter"), ("mm_features", "pictures or sounds"),
                               ("prompt_embeds", "embeddings")):
                if getattr(request, name, None) is not None and len_of(getattr(request, name)) != 0:
                    raise refused(f"ckv: a request with {what} cannot be routed or published")
        if getattr(request, "resumable", False):
            raise refused("ckv: a session whose prompt is sent in parts cannot name a corpus")
        params = request.sampling_params
        extra = dict(params.extra_args or {})
        extra[request_params.RESOLVED] = [one.to_list() for one in self.resolved]
        params.extra_args = extra
        if self.asked.routes:
            request.cache_salt = salt_of(self.resolved, request.cache_salt)
        return request


def len_of(value: Any) -> int:
    """Returns the length of a list or tensor; 1 for anything else."""
    return len(value) if hasattr(value, "__len__") else 1


def salt_of(resolved: list[Resolved], own: Optional[str]) -> str:
    """Returns the cache_salt. With it, requests share blocks of equal tokens only if their corpora are equal."""
    digest = hashlib.sha256("".join(one.digest for one in resolved).encode()).hexdigest()[:32]
    return f"{SALT}{digest}" + (f":{own}" if own else "")


def refused(reason: str) -> Exception:
    """Returns the error for which vLLM's server answers HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError(reason, parameter="kv_transfer_params")


def admit(vllm_config: Any, params: Any) -> Union[Admission, Plain, None]:
    """Checks a request. Returns None if the server has no connector of ckv. Raises `refused`."""
    extra = getattr(params, "extra_args", None)
    if extra and request_params.RESOLVED in extra:
        raise refused(f"ckv: a request has {request_params.RESOLVED!r}, which is not for clients")
    server = server_of(vllm_config)
    if server.settings is None:
        # Without its corpus the answer would differ, and nothing would show it.
        if extra and (request_params.KEY in extra or request_params.KEY in (extra.get("kv_transfer_params") or {})):
            raise refused("ckv: this server has no CkvConnector (--kv-transfer-config)")
        return None
    try:
        asked = request_params.read(extra, server.settings)
        if not asked.corpus and not asked.publish:
            return Plain()
        return Admission(asked, [_resolve(server, name) for name in asked.corpus])
    except request_params.Refused as error:
        raise refused(str(error)) from error


def _resolve(server: Server, name: str) -> Resolved:
    assert server.settings is not None
    try:
        corpus, resolved = REQUESTERS.resolve(server.settings, name, min(server.settings.deadline, LOOKUP_MAX))
    except ckv.NotFound as error:
        raise request_params.Refused(f"ckv: there is no corpus {name!r}, or it is another tenant's") from error
    except ckv.Error as error:
        raise request_params.Refused(f"ckv: corpus {name!r} cannot be looked up: {error}") from error
    if corpus.revision != server.fingerprint:
        raise request_params.Refused(f"ckv: corpus {name!r} is of another model: its rows are of {corpus.model} "
                                     f"{corpus.revision}, this server is {server.fingerprint}")
    return resolved
