"""HiCache pages that published corpora have, by the hash keys of their prefixes.

A key of HiCache is a hash over all tokens up to the page's end. Token ids cannot be read out of it,
and the directory does not tell them. So a file of a corpus' token ids is needed. The directory finds
its chunks by these ids, so a wrong file finds nothing, and the same ids give the engine's keys.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

Hash = Callable[[list, Optional[str]], str]  # SGLang's get_hash_str(token_ids, prior_hash)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of a corpus: its tokens [token_begin, token_begin + page_size)."""

    corpus: int  # index in Pages.corpora
    token_begin: int


class Pages:
    """Which page of which corpus has a key. Immutable but for `add`; reads are thread-safe."""

    def __init__(self, page_size: int, hash_of: Hash) -> None:
        self.page_size, self.hash_of = page_size, hash_of
        self.corpora: list[Any] = []
        self.begins: list[np.ndarray] = []  # of each corpus: tokens before each chunk of the prefix, and all
        self.by_key: dict[str, Page] = {}

    def add(self, found: Any, tokens: Sequence[int]) -> int:
        """Adds the whole pages that a prompt's found chunks have as its prefix; returns their number.

        found   what Requester.find told of `tokens`
        Chunks count from token 0 on, without a hole, at their canonical positions. Others were
        computed behind other tokens or none, and their rows are not those of this prefix.
        """
        _, counts, _ = found.corpus.chunks(0, len(found.token_begins))
        begins = [0]
        for begin, offset, count in zip(found.token_begins, found.offsets, counts):
            if int(begin) != begins[-1] or int(offset) != 0:
                break
            begins.append(begins[-1] + int(count))
        number, key = len(self.corpora), None
        self.corpora.append(found.corpus)
        self.begins.append(np.asarray(begins, np.int64))
        whole = begins[-1] // self.page_size
        for i in range(whole):
            begin = i * self.page_size
            key = self.hash_of([int(t) for t in tokens[begin:begin + self.page_size]], key)
            self.by_key.setdefault(key, Page(number, begin))
        return whole

    def runs(self, keys: Iterable[str]) -> list[tuple[int, list[Optional[Page]]]]:
        """The pages of the keys, cut into runs of one corpus and rising tokens without a hole."""
        runs: list[tuple[int, list[Optional[Page]]]] = []
        for key in keys:
            page = self.by_key.get(key)
            last = runs[-1][1][-1] if runs else None
            follows = (page is None and last is None) if page is None or last is None else (
                page.corpus == last.corpus
                and page.token_begin == last.token_begin + self.page_size)
            if runs and follows:
                runs[-1][1].append(page)
            else:
                runs.append((-1 if page is None else page.corpus, [page]))
        return runs

    def chunks_of(self, corpus: int, begin: int, end: int) -> tuple[int, int, int]:
        """(chunk_begin, chunk_end, first token) of the chunks that have the tokens [begin, end)."""
        begins = self.begins[corpus]
        first = int(np.searchsorted(begins, begin, side="right")) - 1
        last = int(np.searchsorted(begins, end, side="left"))
        return first, last, int(begins[first])
