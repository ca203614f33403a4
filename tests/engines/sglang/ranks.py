"""Two ranks of tensor parallelism, each a process with a controller of its own, which agree by SGLang's collectives.

Rows of MLA are the same on all ranks, so SGLang has the first one write. Here the second one has other rows: they must
not be stored.
"""

import numpy as np
import torch.distributed as dist

import controllers
from controllers import Cache, PAGE, PAGES, WAYS, prompt, rows_of

SEED = 700
TOKENS = PAGES * PAGE


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def run(rank, place):
    """One rank. place: see controllers.start."""
    log = controllers.start(rank, 2, place)
    for i, way in enumerate((WAYS[0], WAYS[-1])):
        with Cache(controllers.ARGUMENTS.directory, way, publish="ranks") as cache:
            stored = cache.back_up(prompt(SEED + i), rows_of(SEED + i + 1000 * rank))
            check(stored == (0 if rank else TOKENS), f"rank {rank} stored {stored} tokens")
            dist.barrier()
            hit, rows = cache.prefetch(prompt(SEED + i))
            check(hit == TOKENS and np.array_equal(rows, rows_of(SEED + i)), f"rank {rank} loaded {hit} other tokens")
            if rank:
                cache.storage.close()
            dist.barrier()
            check(cache.prefetch(prompt(SEED + i))[0] == 0, "the ranks do not agree on what one of them lacks")
            dist.barrier()
    told = log.take()
    check(not told, f"rank {rank}: {told}")
    dist.barrier()
    return True
