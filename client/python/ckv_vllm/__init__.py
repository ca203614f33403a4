"""ckv for vLLM: an attention backend that attends a corpus where it lies, and a KV connector."""

__version__ = "0.1.0"


def register() -> None:
    """Called by vLLM in each of its processes, by the entry point vllm.general_plugins."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "ckv_vllm.backend.CkvMLABackend")
