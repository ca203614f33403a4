"""The first instance: SGLang's controllers back pages up. reader.py, another process, then looks for them."""

import sys
import threading
import unittest

import numpy as np

import ckv
import controllers
from controllers import ARGUMENTS, Cache, FAMILY, MODEL, PAGE, PAGES, REVISION, WAYS, keys_of, prompt, rows_of
from ckv_sglang import keyed, store

LOG = None
# Seeds of prompts that both processes know; WAYS have 0, 1, 2 and so on.
SALTED, TWICE, AT_ONCE, REAL, READ_ONLY, OTHER_RANK = 100, 101, 102, 103, 104, 105


class Write(unittest.TestCase):
    """In the order of the names: the first test has the corpora made."""

    def tearDown(self):
        self.assertEqual([], LOG.take())

    def cache(self, *arguments, **more):
        return Cache(ARGUMENTS.directory, *arguments, **{"publish": FAMILY, **more})

    def test_all_ways(self):
        for seed, way in enumerate(WAYS):
            with self.subTest(way), self.cache(way) as cache:
                self.assertEqual(cache.back_up(prompt(seed), rows_of(seed)), PAGES * PAGE)
                hit, rows = cache.prefetch(prompt(seed))
                self.assertEqual(hit, PAGES * PAGE)
                np.testing.assert_array_equal(rows, rows_of(seed))

    def test_salted(self):
        with self.cache() as cache:
            self.assertEqual(cache.back_up(prompt(SALTED, "lora-1"), rows_of(SALTED)), PAGES * PAGE)

    def test_the_same_page_twice(self):
        """No error, and the first one stays: reader.py sees which."""
        with self.cache() as cache:
            self.assertEqual(cache.back_up(prompt(TWICE, pages=3), rows_of(TWICE, 3)), 3 * PAGE)
            other = np.concatenate([rows_of(TWICE + 1000, 3), rows_of(TWICE, 4)[:, 3 * PAGE:]], axis=1)
            self.assertEqual(cache.back_up(prompt(TWICE, pages=4), other), 4 * PAGE)

    def test_two_instances_at_once(self):
        """Both have the same keys, with other bits. Both set, and each page is whole."""
        keys = keys_of(prompt(AT_ONCE))
        rows = [rows_of(AT_ONCE), rows_of(AT_ONCE + 1000)]
        both = [controllers.storage(ARGUMENTS.directory, publish=FAMILY) for _ in rows]
        done = [None, None]

        def put(i):
            done[i] = both[i].batch_set(keys, controllers.flat(rows[i]))

        threads = [threading.Thread(target=put, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(controllers.WAIT_S)
        self.assertEqual(both[0].batch_exists(keys), PAGES)
        targets = controllers.flat(np.zeros_like(rows[0]))
        for i, page in enumerate(both[1].batch_get(keys, targets)):
            self.assertTrue(any(np.array_equal(controllers.bits(page), controllers.bits(controllers.flat(one)[i]))
                                for one in rows), f"page {i} is of neither")
        for one in both:
            one.close()
        self.assertEqual(done, [True, True])

    def test_corpora_are_of_a_limited_size(self):
        with self.cache() as cache:
            first = cache.storage.store.requester.resolve(f"{FAMILY}.0")
            second = cache.storage.store.requester.resolve(f"{FAMILY}.1")
            self.assertLess(first.chunk_count, keyed.CORPUS_CHUNKS_MAX + PAGES + 1)
            self.assertEqual({(one.model, one.revision, one.layers, one.d_qk, one.rope_style)
                              for one in (first, second)},
                             {(MODEL, REVISION, controllers.LAYERS, controllers.WIDTH, "none")})
            for one in (first, second):
                one.close()

    def test_without_publish_nothing_is_kept(self):
        with self.cache(publish="") as cache:
            self.assertEqual(cache.back_up(prompt(READ_ONLY), rows_of(READ_ONLY)), PAGES * PAGE)
            self.assertEqual(cache.storage.batch_exists(keys_of(prompt(READ_ONLY))), 0)

    def test_another_rank_writes_nothing(self):
        keys = keys_of(prompt(OTHER_RANK))
        one = controllers.storage(ARGUMENTS.directory, tp_rank=1, tp_size=2, publish=FAMILY)
        self.assertTrue(one.batch_set(keys, controllers.flat(rows_of(OTHER_RANK))))
        self.assertEqual(one.batch_exists(keys), 0)
        one.close()

    def test_real_tokens(self):
        """A corpus that somebody else published: chunks that pages cross."""
        rows, tokens = rows_of(REAL), controllers.tokens_of(REAL)
        model = ckv.Model(MODEL, REVISION, controllers.LAYERS, controllers.WIDTH, controllers.RANK, controllers.ROPE,
                          softmax_scale=0.1)
        with ckv.open(ARGUMENTS.directory) as requester, requester.put("docs", create=model) as put:
            for begin in range(0, len(tokens), 48):
                put.chunk(tokens[begin:begin + 48])
                for layer, one in enumerate(rows):
                    put.rows(layer, one[begin:begin + 48])
            put.finish(controllers.WAIT_S)

    def test_v2_of_a_pool_that_is_not_kept(self):
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        for way in [one for one in WAYS if one[0] == "hybrid"]:
            with self.subTest(way), self.cache(way) as cache:
                key, rows = prompt(200 + WAYS.index(way)), rows_of(200 + WAYS.index(way))
                sidecar = PoolTransfer(name=PoolName.INDEXER, indices_from_pool=PoolName.KV)
                self.assertEqual(cache.back_up(key, rows, extra_pools=[sidecar]), PAGES * PAGE)
                self.assertEqual(cache.prefetch(key, extra_pools=[sidecar])[0], 0)
                self.assertEqual(cache.prefetch(key)[0], PAGES * PAGE)


def run():
    """Whether all tests hold."""
    # So that a prompt takes several fetches, puts, look-ups and corpora.
    page_bytes = PAGE * controllers.LAYERS * controllers.WIDTH * 2
    store.FETCH_BYTES_MAX = keyed.PUT_BYTES_MAX = 3 * page_bytes
    keyed.FIND_TOKENS_MAX, keyed.CORPUS_CHUNKS_MAX = 4 * PAGE, 10
    global LOG
    LOG = controllers.start()
    return unittest.main(sys.modules[__name__], argv=["writer", "-v"], exit=False).result.wasSuccessful()
