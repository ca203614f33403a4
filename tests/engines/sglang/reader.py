"""The second instance: loads the pages that writer.py has written, and then loses its fleet."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import torch

import ckv
import controllers
from controllers import (ARGUMENTS, Cache, FAMILY, LAYERS, PAGE, PAGES, TIMEOUT_S, WAYS, keys_of, prompt, rows_of,
                         tokens_of)
from writer import REAL, SALTED, TWICE
from ckv_sglang import calls, keyed, settings, store

LOG = None
TOKENS = PAGES * PAGE
ATTACHES = 5
SLACK_S = 1.5  # on top of a deadline: two busy cores


class Case(unittest.TestCase):
    def tearDown(self):
        self.assertEqual([], LOG.take())

    def cache(self, *arguments, **more):
        return Cache(ARGUMENTS.directory, *arguments, **more)

    def check_loaded(self, cache, key, want):
        """The prefix has the rows that were written, and a page after it is a miss."""
        hit, rows = cache.prefetch(key)
        self.assertEqual(hit, want.shape[1])
        np.testing.assert_array_equal(rows, want)


class A_Loaded(Case):
    def test_pages_of_each_way_in_each_way(self):
        for way in WAYS:
            with self.cache(way) as cache:
                for seed, written in enumerate(WAYS):
                    with self.subTest(f"{written} in {way}"):
                        key = prompt(seed)
                        key.token_ids.extend(tokens_of(9999, 1))
                        self.check_loaded(cache, key, rows_of(seed))

    def test_a_salt_makes_other_pages(self):
        with self.cache() as cache:
            self.check_loaded(cache, prompt(SALTED, "lora-1"), rows_of(SALTED))
            self.assertEqual(cache.prefetch(prompt(SALTED))[0], 0)
            self.assertEqual(cache.prefetch(prompt(SALTED, "lora-2"))[0], 0)
            self.assertEqual(cache.prefetch(prompt(0, "lora-1"))[0], 0)

    def test_the_first_of_two_stays(self):
        with self.cache() as cache:
            self.check_loaded(cache, prompt(TWICE, pages=4), rows_of(TWICE, 4))

    def test_single_calls_and_holes(self):
        """Makes calls that the controllers do not make: one key, no target, keys in any order, and one twice."""
        one = controllers.storage(ARGUMENTS.directory)
        keys, want = keys_of(prompt(0)), [controllers.bits(page) for page in controllers.flat(rows_of(0))]
        self.assertTrue(one.exists(keys[2]))
        self.assertFalse(one.exists("00" * 32))
        np.testing.assert_array_equal(controllers.bits(one.get(keys[2])), want[2])
        order = [3, 1, None, 5, 1]
        asked = ["00" * 32 if i is None else keys[i] for i in order]
        for i, page in zip(order, one.batch_get(asked, controllers.flat(np.zeros_like(rows_of(0, len(order)))))):
            if i is None:
                self.assertIsNone(page)
            else:
                np.testing.assert_array_equal(controllers.bits(page), want[i])
        self.assertEqual(one.batch_exists([keys[1], keys[0], "00" * 32, keys[2]]), 2)
        self.assertEqual(one.batch_exists([]), 0)
        self.assertEqual([], LOG.take())
        one.close()

    def test_a_malformed_page_raises_nothing(self):
        one = controllers.storage(ARGUMENTS.directory, publish=FAMILY)
        self.assertIsNone(one.get(keys_of(prompt(0))[0], torch.zeros(3, dtype=torch.bfloat16)))
        self.assertFalse(one.set("11" * 32, torch.zeros(3, dtype=torch.bfloat16)))
        self.assertFalse(one.set("11" * 32, None))
        self.assertEqual(one.batch_get_v1(keys_of(prompt(0)), torch.arange(2)), [True] + [False] * (PAGES - 1))
        self.assertEqual(" ".join(LOG.take()).count("a page is"), 2)
        self.assertFalse(one.exists("11" * 32))
        one.close()

    def test_no_more_is_fetched_at_once_than_the_limit(self):
        one = controllers.storage(ARGUMENTS.directory)
        ranges, fetch = [], one.store.requester.fetch

        def counted(corpus, rows, **more):
            ranges.append(rows.nbytes)
            return fetch(corpus, rows, **more)

        one.store.requester.fetch = counted
        keys = keys_of(prompt(0))
        self.assertNotIn(None, one.batch_get(keys, controllers.flat(np.zeros_like(rows_of(0)))))
        one.close()
        self.assertGreater(len(ranges), 2)
        self.assertLessEqual(max(ranges), store.FETCH_BYTES_MAX)

    def test_pools_that_are_not_kept(self):
        from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult

        one = controllers.storage(ARGUMENTS.directory, publish=FAMILY)
        keys = keys_of(prompt(0))
        for policy, gates in ((PoolHitPolicy.ALL_PAGES, True), (PoolHitPolicy.TRAILING_PAGES, True),
                              (PoolHitPolicy.BLOCK_GROUPS, False)):
            asked = [PoolTransfer(name=PoolName.INDEXER, keys=keys, hit_policy=policy)]
            self.assertEqual(one.batch_exists_v2(keys, asked), PoolTransferResult(
                0 if gates else PAGES, {PoolName.KV: PAGES, PoolName.INDEXER: 0},
                [] if gates else list(range(1, PAGES + 1))))
            self.assertEqual(one.batch_get_v2(asked), {PoolName.INDEXER: [False] * PAGES})
            self.assertEqual(one.batch_set_v2(asked), {PoolName.INDEXER: [False] * PAGES})
        self.assertEqual(one.batch_exists_v2(keys, None), PoolTransferResult(
            PAGES, {PoolName.KV: PAGES}, list(range(1, PAGES + 1))))
        pool = one.mem_pool_host
        indices = pool.alloc(TOKENS)
        of_kv = [PoolTransfer(name=PoolName.KV, keys=keys, host_indices=indices)]
        self.assertEqual(one.batch_get_v2(of_kv), {PoolName.KV: [True] * PAGES})
        np.testing.assert_array_equal(controllers.view(pool, int(indices[PAGE])).numpy().view(np.uint16),
                                      rows_of(0)[:, PAGE:2 * PAGE])
        self.assertEqual(one.batch_set_v2(of_kv), {PoolName.KV: [True] * PAGES})
        one.register_mem_host_pool_v2(pool, PoolName.KV)
        self.assertEqual([], LOG.take())
        one.register_mem_host_pool_v2(pool, PoolName.INDEXER)
        self.assertIn("pool indexer", " ".join(LOG.take()))
        one.close()


class B_RealTokens(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name) / "docs.i32")
        np.asarray(tokens_of(REAL), "<i4").tofile(self.path)

    def test_a_corpus_of_tokens(self):
        for way in WAYS:
            with self.subTest(way), self.cache(way, token_files=[self.path], revision="") as cache:
                self.check_loaded(cache, prompt(REAL), rows_of(REAL))
                self.assertEqual(cache.prefetch(prompt(REAL, "lora-1"))[0], 0)
                self.assertEqual(cache.prefetch(prompt(0))[0], 0)

    def test_reads_pages_next_to_pages_that_were_set(self):
        with self.cache(token_files=[self.path], publish=FAMILY) as cache:
            self.check_loaded(cache, prompt(REAL), rows_of(REAL))
            self.check_loaded(cache, prompt(0), rows_of(0))
            key = prompt(REAL)
            key.token_ids.extend(tokens_of(300, 2))
            rows = np.concatenate([rows_of(REAL + 1000), rows_of(300, 2)], axis=1)
            self.assertEqual(cache.back_up(key, rows), rows.shape[1])
            self.check_loaded(cache, key, np.concatenate([rows_of(REAL), rows_of(300, 2)], axis=1))

    def test_ignores_pages_of_another_model(self):
        for what, more in (("revision", {"revision": "rev2"}), ("model", {"model": "test/other"}),
                           ("layers", {"layers": LAYERS + 1})):
            with self.subTest(what), self.assertRaisesRegex(ValueError, f"of another model: its {what}"):
                self.cache(token_files=[self.path], **{"revision": "", **more})
        with self.assertRaises(ckv.NotFound):
            np.asarray(tokens_of(9998), "<i4").tofile(self.path)
            self.cache(token_files=[self.path])


class C_Refused(Case):
    def refused(self, pattern, kind=ValueError, **more):
        with self.assertRaisesRegex(kind, pattern):
            self.cache(**more)

    def tearDown(self):
        LOG.take()  # the factory logs the storage that it could not make

    def test_another_model(self):
        """It finds nothing, and may not publish into these corpora."""
        for what, more in (("revision", {"revision": "rev2"}), ("model", {"model": "test/other"}),
                           ("layers", {"layers": LAYERS + 1})):
            with self.subTest(what):
                with self.cache(**more) as cache:
                    self.assertEqual(cache.prefetch(prompt(0))[0], 0)
                self.refused("", ckv.FailedPrecondition, publish=FAMILY, **more)

    def test_rows_of_another_model_under_the_same_ids(self):
        """Shows the effect of a change in how ids are made."""
        made = keyed.json.dumps
        self.addCleanup(setattr, keyed.json, "dumps", made)
        one = controllers.storage(ARGUMENTS.directory)
        keyed.json.dumps = lambda facts: made([*facts[:3], one.store.settings.revision, *facts[4:]])
        other = controllers.storage(ARGUMENTS.directory, revision="rev2")
        self.assertEqual(other.batch_exists(keys_of(prompt(0))), 0)
        self.assertIn("of another model", " ".join(LOG.take()))
        one.close()
        other.close()

    def test_layouts(self):
        for layout in ("page_first_kv_split", "page_head", "page_unified"):
            with self.subTest(layout):
                self.refused(f"the layout '{layout}' is not known",
                             change=lambda pool, name=layout: setattr(pool, "layout", name))

    def test_a_tag_of_the_model(self):
        self.refused("pages of the format 'unified-token-major'",
                     change=lambda pool: setattr(pool, "storage_format_tag", "unified-token-major"))

    def test_pools(self):
        self.refused("not 64 .* values of bf16", change=lambda pool: setattr(pool, "dtype", torch.float16))
        self.refused("keeps no rows of MLA", change=lambda pool: setattr(pool, "kv_buffer", None))
        self.refused("pages of 8 tokens are not found", page=8)

    def test_settings(self):
        self.refused("publish needs revision", publish=FAMILY, revision="")
        self.refused("neither revision nor token_files", revision="")
        self.refused("timeout is 60", timeout=60)
        self.refused("replicas is 9", replicas=9)
        with self.assertRaisesRegex(ValueError, "no directory"):
            Cache("")
        LOG.take()
        with self.assertRaisesRegex(ValueError, "not MLA"):
            settings.read(controllers.config_of("h:1", is_mla_model=False))
        with self.assertRaisesRegex(ValueError, "pp_size is 2"):
            settings.read(controllers.config_of("h:1", pp_size=2))
        self.assertEqual([], LOG.take())
        settings.read(controllers.config_of("h:1", revison="rev1"))
        self.assertIn("revison", " ".join(LOG.take()))

    def test_without_a_directory(self):
        with socket.socket() as held:  # bound, but not listening
            held.bind(("127.0.0.1", 0))
            with self.assertRaises((ckv.Unavailable, ckv.DeadlineExceeded)):
                Cache(f"127.0.0.1:{held.getsockname()[1]}")


class D_Ended(Case):
    def test_detach_and_attach(self):
        for way in (WAYS[0], WAYS[-1]):
            cache = self.cache(way)
            self.check_loaded(cache, prompt(0), rows_of(0))
            before = cache.storage
            cache.controller.detach_storage_backend()
            with self.assertRaisesRegex(ckv.FailedPrecondition, "closed"):
                before.store.requester.resolve(f"{FAMILY}.0")
            self.assertEqual(before.batch_exists(keys_of(prompt(0))), 0)
            self.assertEqual(before.get(keys_of(prompt(0))[0]), None)
            before.close()
            cache.attach()
            with cache:
                self.check_loaded(cache, prompt(0), rows_of(0))

    def test_sessions_end(self):
        """Threads and files do not grow with each session, although the storages are kept."""
        kept = []

        def attach_once():
            kept.append(controllers.storage(ARGUMENTS.directory))
            self.assertIsNotNone(kept[-1].get(keys_of(prompt(0))[0]))
            kept[-1].close()

        def held():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        for _ in range(2):  # allocates what a process needs once
            attach_once()
        before = held()
        for _ in range(ATTACHES):
            attach_once()
        for now, earlier in zip(held(), before):  # a thread of torch or of an earlier test may start or end
            self.assertLess(now, earlier + ATTACHES)

    def test_dropped_pages_are_set_again(self):
        """As in the handbook, while both run."""
        with self.cache(publish="dropped") as cache:
            for seed in (500, 501):
                self.assertEqual(cache.back_up(prompt(500), rows_of(seed)), TOKENS)
                self.check_loaded(cache, prompt(500), rows_of(seed))
                subprocess.run([ARGUMENTS.ckvctl, "--directory", ARGUMENTS.directory, "corpus", "drop", "dropped.0"],
                               check=True, stdout=subprocess.DEVNULL, timeout=controllers.WAIT_S)
                self.assertEqual(cache.prefetch(prompt(500))[0], 0)

    def test_clear_reports_that_it_cannot(self):
        with self.cache(WAYS[-1]) as cache:
            with self.assertRaisesRegex(NotImplementedError, "ckvctl corpus drop"):
                cache.controller.clear_storage_backend()


class Later:
    """The clock of pauses and deadlines, which a test advances."""

    seconds = 0.0

    @classmethod
    def monotonic(cls):
        return time.monotonic() + cls.seconds


class E_Failing(Case):
    """Run last: processes of the fleet stop and end."""

    def timed(self, work, limit_s):
        begin = time.monotonic()
        answer = work()
        self.assertLess(time.monotonic() - begin, limit_s)
        return answer

    def stopped(self, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: [os.kill(pid, signal.SIGCONT) for pid in pids])

    def go_on(self):
        self.doCleanups()

    def test_1_a_directory_that_stops(self):
        with self.cache(publish=FAMILY) as cache:
            self.check_loaded(cache, prompt(1), rows_of(1))
            self.stopped(ARGUMENTS.pids[:1])
            self.assertEqual(self.timed(lambda: cache.prefetch(prompt(1))[0], TIMEOUT_S + SLACK_S), 0)
            self.assertIn("exists fails", " ".join(LOG.take()))
            for _ in range(3):  # no call waits again or warns again
                self.assertEqual(self.timed(lambda: cache.prefetch(prompt(1))[0], SLACK_S), 0)
            self.assertEqual([], LOG.take())
            self.assertTrue(cache.has_threads())
            self.go_on()
            Later.seconds += calls.PAUSE_S
            self.check_loaded(cache, prompt(1), rows_of(1))

    def test_2_holders_that_stop(self):
        with self.cache(WAYS[1], publish=FAMILY) as cache:
            self.check_loaded(cache, prompt(2), rows_of(2))
            self.stopped(ARGUMENTS.pids[1:])
            for seed, limit_s in ((400, settings.TIMEOUT_S_MAX + SLACK_S), (401, SLACK_S)):
                stored = self.timed(lambda one=seed: cache.back_up(prompt(one), rows_of(one)), limit_s)
                self.assertEqual(stored, 0)
            self.assertFalse(cache.storage.store.calls.begin("set"), "the next backup would wait again")
            told = " ".join(LOG.take())
            self.assertEqual((told.count("set fails"), told.count("Write page to storage")), (1, 2))
            hit, rows = self.timed(lambda: cache.prefetch(prompt(2)), TIMEOUT_S + SLACK_S)
            self.assertEqual((hit, rows.shape[1]), (TOKENS, 0))
            self.assertIn("pages are a miss", " ".join(LOG.take()))
            # Its pages are not offered again immediately.
            self.assertEqual(self.timed(lambda: cache.prefetch(prompt(2))[0], SLACK_S), 0)
            self.assertTrue(cache.has_threads())

    def test_3_close_while_a_call_waits(self):
        """Detach waits for the call's deadline, and then ends everything."""
        with self.cache() as cache:
            self.check_loaded(cache, prompt(3), rows_of(3))
            self.stopped(ARGUMENTS.pids[1:])
            cache.controller.prefetch("r1", prompt(3), None, None)
            operation = cache.controller.prefetch_hit_queue.get(timeout=controllers.WAIT_S)
            operation.host_indices = cache.group.alloc(operation.storage_hit_count)
            cache.controller.prefetch_buffer.put(operation)
            before = cache.storage
            self.timed(cache.controller.detach_storage_backend, 2 * TIMEOUT_S + SLACK_S)
            with self.assertRaises(ckv.FailedPrecondition):
                before.store.requester.resolve(f"{FAMILY}.0")
            LOG.take()

    def test_4_holders_that_end(self):
        with self.cache(publish="twofold", replicas=2) as cache:
            self.assertEqual(cache.back_up(prompt(403), rows_of(403)), TOKENS)
        with self.cache(publish=FAMILY) as cache:
            self.check_loaded(cache, prompt(4), rows_of(4))
            os.kill(ARGUMENTS.pids[1], signal.SIGKILL)
            self.check_loaded(cache, prompt(403), rows_of(403))
            os.kill(ARGUMENTS.pids[2], signal.SIGKILL)
            hit, rows = self.timed(lambda: cache.prefetch(prompt(4)), TIMEOUT_S + SLACK_S)
            self.assertEqual((hit, rows.shape[1]), (TOKENS, 0))
            self.assertEqual(cache.back_up(prompt(402), rows_of(402)), 0)
            self.assertTrue(cache.has_threads())
            self.assertNotEqual([], LOG.take())

    def test_5_a_directory_that_ends(self):
        with self.cache() as cache:
            os.kill(ARGUMENTS.pids[0], signal.SIGKILL)
            self.assertEqual(self.timed(lambda: cache.prefetch(prompt(5))[0], TIMEOUT_S + SLACK_S), 0)
            self.assertEqual(cache.storage.get(keys_of(prompt(5))[0]), None)
            self.assertTrue(cache.has_threads())
            LOG.take()


def run():
    """Runs the tests. Returns whether all pass."""
    store.FETCH_BYTES_MAX = 3 * PAGE * LAYERS * controllers.WIDTH * 2
    keyed.FIND_TOKENS_MAX = 4 * PAGE
    settings.TIMEOUT_S_MAX = 2.0  # which tests wait for
    calls.time = Later
    global LOG
    LOG = controllers.start()
    return unittest.main(sys.modules[__name__], argv=["reader", "-v"], exit=False).result.wasSuccessful()
