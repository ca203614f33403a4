"""Admission of requests, where vLLM takes them: what cannot be answered as asked is refused with 400.

The process of the API server, or the one that calls LLM.generate. It asks the directory alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Any, Optional, Union

import ckv

from . import identity, wants
from .settings import Settings, read
from .shared import REQUESTERS, Resolved

log = logging.getLogger("ckv_vllm")
CONNECTOR = "CkvConnector"
SALT = "ckv:"
LOOKUP_MAX = 0.5  # seconds: requests of all clients come by this thread


@dataclasses.dataclass(frozen=True)
class Server:
    """What is fixed for an engine."""

    settings: Optional[Settings]  # None: it has no connector of ckv
    fingerprint: str = ""


def server_of(vllm_config: Any) -> Server:
    """Of an engine's configuration, kept on it. Raises as identity.fingerprint_of."""
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
    """A request without a corpus: it must not look like one that has."""

    @staticmethod
    def finish(request: Any) -> Any:
        if (request.cache_salt or "").startswith(SALT):
            raise refused(f"ckv: a cache_salt may not begin with {SALT!r}")
        return request


class Admission:
    """A request of ckv's that was checked."""

    def __init__(self, asked: wants.Wants, resolved: list[Resolved]) -> None:
        self.asked, self.resolved = asked, resolved

    def finish(self, request: Any) -> Any:
        """Checks what vLLM made of it, and notes for the engine what its names mean now."""
        if self.asked.routes or self.asked.publish:
            for name, what in (("lora_request", "an adapter"), ("mm_features", "pictures or sounds"),
                               ("prompt_embeds", "embeddings")):
                if getattr(request, name, None) is not None and len_of(getattr(request, name)) != 0:
                    raise refused(f"ckv: a request with {what} cannot be routed or published")
        if getattr(request, "resumable", False):
            raise refused("ckv: a session whose prompt comes in parts cannot name a corpus")
        params = request.sampling_params
        extra = dict(params.extra_args or {})
        extra[wants.RESOLVED] = [one.to_list() for one in self.resolved]
        params.extra_args = extra
        if self.asked.routes:
            request.cache_salt = salt_of(self.resolved, request.cache_salt)
        return request


def len_of(value: Any) -> int:
    """Of a list or a tensor; 1 of anything else."""
    return len(value) if hasattr(value, "__len__") else 1


def salt_of(resolved: list[Resolved], own: Optional[str]) -> str:
    """Requests share blocks only if equal corpora stand before their equal tokens."""
    digest = hashlib.sha256("".join(one.digest for one in resolved).encode()).hexdigest()[:32]
    return f"{SALT}{digest}" + (f":{own}" if own else "")


def refused(reason: str) -> Exception:
    """The error that vLLM's server answers with HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError(reason, parameter="kv_transfer_params")


def admit(vllm_config: Any, params: Any) -> Union[Admission, Plain, None]:
    """None: the request has nothing to do with ckv. Raises `refused`."""
    extra = getattr(params, "extra_args", None)
    if extra and wants.RESOLVED in extra:
        raise refused(f"ckv: a request has {wants.RESOLVED!r}, which is not for clients")
    server = server_of(vllm_config)
    if server.settings is None:
        # Without its corpus the answer would be another one, and nothing would say so.
        if extra and (wants.KEY in extra or wants.KEY in (extra.get("kv_transfer_params") or {})):
            raise refused("ckv: this server has no CkvConnector (--kv-transfer-config)")
        return None
    try:
        asked = wants.read(extra, server.settings)
        if not asked.corpus and not asked.publish:
            return Plain()
        return Admission(asked, [_resolve(server, name) for name in asked.corpus])
    except wants.Refused as error:
        raise refused(str(error)) from error


def _resolve(server: Server, name: str) -> Resolved:
    assert server.settings is not None
    try:
        corpus, resolved = REQUESTERS.resolve(server.settings, name, min(server.settings.deadline, LOOKUP_MAX))
    except ckv.NotFound as error:
        raise wants.Refused(f"ckv: there is no corpus {name!r}, or it is another tenant's") from error
    except ckv.Error as error:
        raise wants.Refused(f"ckv: corpus {name!r} cannot be looked up: {error}") from error
    if corpus.revision != server.fingerprint:
        raise wants.Refused(f"ckv: corpus {name!r} is of another model: its rows are of {corpus.model} "
                            f"{corpus.revision}, this server is {server.fingerprint}")
    return resolved
