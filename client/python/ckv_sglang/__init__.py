"""ckv for SGLang: published corpora as pages of HiCache's storage, read only."""

__version__ = "0.1.0"
