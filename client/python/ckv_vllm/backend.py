"""The attention backend that vLLM loads for AttentionBackendEnum.CUSTOM. Imports vLLM.

Never run: no vLLM can be installed where this is tested.
"""

from __future__ import annotations

from vllm.v1.attention.backend import AttentionCGSupport

import ckv

from . import attend, settings, tensors

_settings = settings.read()
if not _settings.corpus:
    raise ValueError("ckv_vllm: no corpus to attend; set CKV_VLLM_CORPUS")

if _settings.base == "flashmla":
    from vllm.v1.attention.backends.mla.flashmla import FlashMLABackend as _Backend
    _LAYOUT, _FORM = tensors.SEQUENCES_HEADS_STEPS, "flashmla"
else:
    from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend as _Backend
    _LAYOUT, _FORM = tensors.TOKENS_HEADS, "natural"


def _source() -> attend.EverySequence:
    requester = ckv.open(_settings.directory, tenant=_settings.tenant, name="vllm")
    return attend.EverySequence(requester, _settings.corpus, _settings.timeout)


CkvMLAImpl = attend.impl_over(_Backend.get_impl_cls(), _source, layout=_LAYOUT, form=_FORM,
                              allow_coarse_lse=_settings.allow_coarse_lse)


class CkvMetadataBuilder(_Backend.get_builder_cls()):
    # A step waits for holders in the middle, which a graph cannot capture.
    _cudagraph_support = AttentionCGSupport.NEVER


class CkvMLABackend(_Backend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type:
        return CkvMLAImpl

    @staticmethod
    def get_builder_cls() -> type:
        return CkvMetadataBuilder
