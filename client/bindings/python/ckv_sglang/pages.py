"""HiCache pages in corpora of real tokens, by the hash keys of their prefixes.

A HiCache key is a hash over all tokens up to the page's end. Token ids cannot be recovered from it,
and the directory does not return them. So a file with the corpus' token ids is needed. The directory
finds the chunks by these ids, so a wrong file finds nothing. The engine's keys are computed from the
same ids.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import numpy as np

Hash = Callable[[list, Optional[str], int], list]  # SGLang's get_hash_str(token_ids, prior_hash, page_size)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of a corpus: its tokens [token_begin, token_begin + page_size)."""

    corpus: int  # index in Pages.corpora
    token_begin: int


@dataclasses.dataclass
class Piece:
    """One fetch, and the pages in it."""

    corpus: Any
    chunks: tuple[int, int]
    token_begin: int  # the corpus' token with which its first chunk begins
    tokens: int
    pages: list[tuple[int, int]]  # (index of the key, its first token in the piece)


class Pages:
    """Maps keys to pages of corpora. Only `add` changes it; all other use is thread-safe."""

    def __init__(self, page_size: int, hash_of: Hash) -> None:
        self.page_size, self.hash_of = page_size, hash_of
        self.corpora: list[Any] = []
        self.begins: list[np.ndarray] = []  # per corpus: tokens before each chunk of the prefix, then all tokens
        self.by_key: dict[str, Page] = {}

    def add(self, found: Any, tokens: Sequence[int]) -> int:
        """Adds the complete pages of a prompt's prefix that is in found chunks. Returns their number.

        found   the result of Requester.find for `tokens`
        The prefix consists of the chunks from token 0 on, without a gap, at their canonical positions.
        Other chunks were computed after other tokens, or none, so their rows differ from this prefix's.
        """
        _, counts, _ = found.corpus.chunks(0, len(found.token_begins))
        begins = [0]
        for begin, offset, count in zip(found.token_begins, found.offsets, counts):
            if int(begin) != begins[-1] or int(offset) != 0:
                break
            begins.append(begins[-1] + int(count))
        number = len(self.corpora)
        self.corpora.append(found.corpus)
        self.begins.append(np.asarray(begins, np.int64))
        whole = begins[-1] // self.page_size
        ids = [int(token) for token in tokens[:whole * self.page_size]]
        for i, key in enumerate(self.hash_of(ids, None, self.page_size) if whole else []):
            self.by_key.setdefault(key, Page(number, i * self.page_size))
        return whole

    def pieces(self, keys: Iterable[str], bytes_max: int) -> Iterator[Piece]:
        """Yields the fetches for those keys that are pages here. Adjacent pages are fetched together.

        bytes_max  rows of one fetch. Chunks are fetched whole, so the chunks of a single page may exceed it.
        """
        piece: Optional[Piece] = None
        number = -1
        for i, key in enumerate(keys):
            page = self.by_key.get(key)
            if page is None:
                continue
            first, last, begin = self._chunks_of(page)
            end = int(self.begins[page.corpus][last])
            corpus = self.corpora[page.corpus]
            if piece is not None and number == page.corpus and piece.chunks[0] <= first <= piece.chunks[1]:
                tokens = max(end - piece.token_begin, piece.tokens)
                if tokens == piece.tokens or tokens * corpus.layers * corpus.row_bytes <= bytes_max:
                    piece.chunks, piece.tokens = (piece.chunks[0], max(last, piece.chunks[1])), tokens
                    piece.pages.append((i, page.token_begin - piece.token_begin))
                    continue
            if piece is not None:
                yield piece
            piece, number = Piece(corpus, (first, last), begin, end - begin,
                                  [(i, page.token_begin - begin)]), page.corpus
        if piece is not None:
            yield piece

    def _chunks_of(self, page: Page) -> tuple[int, int, int]:
        """Returns (chunk_begin, chunk_end, first token) of the chunks that contain the page."""
        begins = self.begins[page.corpus]
        first = int(np.searchsorted(begins, page.token_begin, side="right")) - 1
        last = int(np.searchsorted(begins, page.token_begin + self.page_size, side="left"))
        return first, last, int(begins[first])
