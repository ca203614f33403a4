"""ckv for SGLang: a storage of HiCache's pages, and corpora as pages."""

__version__ = "0.2.0"
