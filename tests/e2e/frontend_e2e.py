#!/usr/bin/python3
"""Goal: an author of a frontend needs the .proto files and deploy/handbook/frontends.md, and no library of ckv.

Method: protoc makes stubs from the .proto files. The program of the page runs unchanged against a directory, two
holders and a requester, and its functions make the requests here. Answers are compared with attention in float64.
Each rule of the page has a test. Health and reflection are called with raw bytes: their stubs are in other packages.

    /usr/bin/python3 tests/e2e/frontend_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl --stubs build/dev/stubs
"""

import argparse
import importlib
import importlib.util
import math
import os
import pathlib
import queue
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
import pages  # noqa: E402
from ctl_fleet import D_QK, D_V, LAYERS, PROGRAMS, Fleet, Rows, attend, bf16, from_bf16  # noqa: E402

PAGE = ROOT / "deploy/handbook/frontends.md"
PLUGIN = shutil.which("grpc_python_plugin")
HEADS, TOKENS = 4, 3
ROWS = HEADS * TOKENS
CHUNK_TOKENS = 5  # 18 chunks: a holder gets at most 15 in a row
CALL_S = 60  # on a machine that may be busy
STREAM_COUNT_MAX = 256
INDEX_COUNT_MAX = 1 << 24
# f32 partials of logits up to about 10, and sums of 90 terms.
TOLERANCE = 1e-5


def make_stubs(folder):
    """Makes the stubs of the services that a frontend calls, in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["protoc", "-I", ROOT / "proto", f"--python_out={folder}", f"--grpc_out={folder}",
                    f"--plugin=protoc-gen-grpc={PLUGIN}", "ckv/v1/types.proto", "ckv/v1/requester.proto"],
                   check=True, timeout=CALL_S)
    sys.path.insert(0, str(folder))


def load_program(folder):
    """The program of the page, as a module."""
    blocks, errors = pages.blocks(PAGE.read_text())
    assert not errors, errors
    (code,) = (block.code for block in blocks if block.language == "python")
    path = folder / "frontend_program.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("frontend_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


class FrontendTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-frontend-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2)
        cls.addClassCleanup(cls.fleet.stop)
        rows = Rows(1, 90, 0)
        path = cls.folder / "rows.safetensors"
        rows.write(path)
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("CKV_")}, "CKV_REQUESTER": cls.fleet.requester}
        for name, tenant in (("docs", []), ("theirs", ["--tenant", "them"])):
            subprocess.run([PROGRAMS.ckvctl, *tenant, "corpus", "load", name, path, "--chunk-tokens", str(CHUNK_TOKENS)],
                           env=env, check=True, timeout=CALL_S, stdout=subprocess.DEVNULL)
        cls.rows = [[[from_bf16(v) for v in row] for row in layer] for layer in rows.layers]
        cls.path, cls.program = load_program(cls.folder)
        cls.grpc = importlib.import_module("grpc")
        cls.pb = importlib.import_module("ckv.v1.requester_pb2")
        cls.types = importlib.import_module("ckv.v1.types_pb2")
        cls.rpc = importlib.import_module("ckv.v1.requester_pb2_grpc")
        cls.stub = cls.program.connect(cls.fleet.requester)
        rng = random.Random(3)
        cls.values = [rng.gauss(0, 1) for _ in range(ROWS * D_QK)]
        cls.bits = [bf16(v) for v in cls.values]
        cls.queries = [[from_bf16(b) for b in cls.bits[i * D_QK:(i + 1) * D_QK]] for i in range(ROWS)]

    def request(self, **fields):
        """bf16 queries over all of docs, with f32 partials between the processes."""
        given = {"corpus": "docs", "layer": 1, "row_count": ROWS, "q": struct.pack(f"<{ROWS * D_QK}H", *self.bits),
                 "wire": self.types.PARTIAL_DTYPE_F32, **fields}
        return self.pb.AttendRequest(**given)

    def attend(self, **fields):
        return self.stub.Attend(self.request(**fields), timeout=CALL_S)

    def streamed(self, *requests):
        """The replies of a stream by tag."""
        replies = {}
        for reply in self.stub.AttendStream(iter(requests), timeout=CALL_S):
            self.assertNotIn(reply.tag, replies)
            replies[reply.tag] = reply
        self.assertEqual(len(replies), len(requests))
        return replies

    def same_bits(self, one, other):
        self.assertEqual((one.o, one.m, one.l), (other.o, other.m, other.l))

    def near(self, reply, chosen=None, rows=None):
        """`chosen` lists the rows of each query, or None for all of them."""
        o, m, l = (self.program.floats(getattr(reply, name)) for name in "oml")
        wanted = attend(self.queries, self.rows[1] if rows is None else rows, chosen)
        self.assertEqual((len(o), len(m), len(l)), (len(wanted) * D_V, len(wanted), len(wanted)))
        for i, (o_row, m_row, l_row) in enumerate(wanted):
            if l_row == 0:
                self.assertEqual((o[i * D_V:(i + 1) * D_V], m[i], l[i]), ([0.0] * D_V, -math.inf, 0.0))
                continue
            self.assertAlmostEqual(m[i] + math.log(l[i]), m_row + math.log(l_row), delta=TOLERANCE)
            for c in range(D_V):
                self.assertAlmostEqual(o[i * D_V + c], o_row[c], delta=TOLERANCE)

    def refused(self, code, text, call, *arguments, **fields):
        with self.assertRaises(self.grpc.RpcError) as raised:
            call(*arguments, **fields)
        self.assertEqual(raised.exception.code().name, code, raised.exception.details())
        self.assertIsNotNone(re.search(text, raised.exception.details()), raised.exception.details())
        return dict(raised.exception.trailing_metadata() or ())

    def wrong(self, text, **fields):
        """The call returns INVALID_ARGUMENT. A stream does too, and continues."""
        self.refused("INVALID_ARGUMENT", text, self.attend, **fields)
        replies = self.streamed(self.request(tag=1, **fields), self.request(tag=2))
        self.assertEqual((replies[1].code, replies[2].code), (self.grpc.StatusCode.INVALID_ARGUMENT.value[0], 0))
        self.assertRegex(replies[1].message, text)
        self.assertFalse(replies[1].HasField("reply"))

    def selection(self, k, indices, group_rows=HEADS):
        return self.pb.Selection(k=k, group_rows=group_rows, indices=struct.pack(f"<{len(indices)}i", *indices))

    def runs(self, k, flat, group_rows=ROWS):
        return self.pb.Selection(k=k, group_rows=group_rows, runs=struct.pack(f"<{len(flat)}i", *flat))

    def limits(self, values, group_rows=HEADS):
        return self.pb.RowLimits(limits=struct.pack(f"<{len(values)}I", *values), group_rows=group_rows)

    # The program.

    def test_the_program_of_the_page_runs(self):
        env = {**os.environ, "PYTHONPATH": str(PROGRAMS.stubs)}
        done = subprocess.run([sys.executable, self.path, self.fleet.requester, "docs"], env=env, timeout=2 * CALL_S,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"causal: {ROWS} rows from 2 holders", done.stdout)
        self.assertIn(f"blocks: {ROWS * 16} pairs", done.stdout)
        self.assertEqual(done.stdout.count("code 0"), LAYERS)

    def test_an_answer_is_attention(self):
        self.near(self.attend())
        self.near(self.attend(chunk_begin=1, chunk_end=2), rows=self.rows[1][CHUNK_TOKENS:2 * CHUNK_TOKENS])

    def test_partials_merge_by_the_formula_of_the_page(self):
        parts = [self.attend(chunk_end=7), self.attend(chunk_begin=7)]
        parts = [[self.program.floats(getattr(part, name)) for name in "oml"] for part in parts]
        for i, (o_row, m_row, l_row) in enumerate(attend(self.queries, self.rows[1])):
            m = max(part[1][i] for part in parts)
            weights = [part[2][i] * math.exp(part[1][i] - m) for part in parts]
            self.assertAlmostEqual(m, m_row, delta=TOLERANCE)
            self.assertAlmostEqual(sum(weights), l_row, delta=len(self.rows[1]) * TOLERANCE)
            for c in range(D_V):
                o = sum(w * part[0][i * D_V + c] for w, part in zip(weights, parts)) / sum(weights)
                self.assertAlmostEqual(o, o_row[c], delta=TOLERANCE)

    # Sizes.

    def test_f32_queries_have_the_bits_of_rounded_ones(self):
        f32 = {"q": self.program.f32(self.values), "q_dtype": self.pb.QUERY_DTYPE_F32}
        plain = self.attend()
        self.same_bits(self.attend(**f32), plain)
        replies = self.streamed(self.request(tag=1, **f32), self.request(tag=2))
        self.same_bits(replies[1].reply, replies[2].reply)
        ties = [(1 + 2 ** -8, 0x3f80), (1 + 3 * 2 ** -8, 0x3f82)]
        self.assertEqual([bf16(value) for value, _ in ties], [bits for _, bits in ties])
        one = [value for value, _ in ties] + [0.0] * (D_QK - 2)
        rounded = struct.pack(f"<{D_QK}H", *(bf16(v) for v in one))
        self.same_bits(self.attend(row_count=1, q=self.program.f32(one), q_dtype=self.pb.QUERY_DTYPE_F32),
                       self.attend(row_count=1, q=rounded))

    def test_wrong_sizes_are_refused_with_a_reason(self):
        q = self.request().q
        self.wrong(f"{ROWS} rows of {D_QK} bf16 values are {len(q)}", q=q[:-2])
        self.wrong(f"{ROWS} rows of {D_QK} f32 values are {2 * len(q)}", q_dtype=self.pb.QUERY_DTYPE_F32)
        self.wrong("65537 query rows, limit 65536", row_count=65537)
        self.wrong("layer 2 of 2", layer=LAYERS)

    def test_an_answer_that_the_client_does_not_take_is_refused(self):
        row_bytes = 4 * D_V + 8
        count = (4 << 20) // row_bytes + 1
        large = {"row_count": count, "q": bytes(count * 2 * D_QK)}
        self.wrong(r"reply_bytes_max is 4194304: \d+ rows fit", **large)
        reply = self.attend(reply_bytes_max=self.program.MESSAGE_BYTES_MAX, **large)
        self.assertEqual(len(reply.o), count * 4 * D_V)
        self.attend(answer=self.types.PARTIAL_DTYPE_BF16, **large)  # half of it
        # A client that has not raised its own limit ends the call itself.
        with self.grpc.insecure_channel(self.fleet.requester) as channel:
            metadata = self.refused("RESOURCE_EXHAUSTED", "larger than max", self.rpc.RequesterServiceStub(channel).Attend,
                                    self.request(reply_bytes_max=self.program.MESSAGE_BYTES_MAX, **large), timeout=CALL_S)
        self.assertNotIn("retry-after-us", metadata)

    def test_a_message_has_at_most_64_mib(self):
        options = [("grpc.max_send_message_length", -1)]
        with self.grpc.insecure_channel(self.fleet.requester, options) as channel:
            metadata = self.refused("RESOURCE_EXHAUSTED", "larger than max", self.rpc.RequesterServiceStub(channel).Attend,
                                    self.request(q=bytes(self.program.MESSAGE_BYTES_MAX)), timeout=CALL_S)
        self.assertNotIn("retry-after-us", metadata)
        self.attend()

    # Rows that a query sees.

    def test_indices(self):
        chosen = [[5, -1, 89, 5], [-1, -1, -1, -1], [0, 1, 33, 64]]
        reply = self.attend(selection=self.selection(4, sum(chosen, [])))
        self.near(reply, [chosen[row // HEADS] for row in range(ROWS)])
        for index in (90, -2, 2 ** 31 - 1, -2 ** 31):
            self.wrong(f"is {index}; the chunks have 90 rows, and -1 is skipped",
                       selection=self.selection(4, sum(chosen[:2], []) + [0, 1, 2, index]))
        self.wrong("3 groups of 4 are 12", selection=self.selection(4, [0] * 11))
        each = [row for row in range(ROWS)]
        self.near(self.attend(selection=self.selection(1, each, group_rows=0)), [[row] for row in each])

    def test_indices_count_the_listed_chunks(self):
        corpus = self.stub.Resolve(self.pb.ResolveRequest(corpus="docs"), timeout=CALL_S).corpus
        listed = [self.pb.ChunkRef(id=corpus.chunks[i].id) for i in (17, 0)]
        rows = self.rows[1][-CHUNK_TOKENS:] + self.rows[1][:CHUNK_TOKENS]
        self.near(self.attend(chunks=listed, selection=self.selection(1, [6], ROWS)), [[6]] * ROWS, rows)
        self.near(self.attend(chunks=listed, row_limits=self.limits([7], ROWS)), [range(7)] * ROWS, rows)

    def test_runs(self):
        groups = [[(30, 4), (0, 1)], [(80, 10), (0, 0)], [(5, 2), (6, 1)]]
        chosen = [[row for begin, length in group for row in range(begin, begin + length)] for group in groups]
        reply = self.attend(selection=self.pb.Selection(group_rows=HEADS, **self.program.runs(groups)))
        self.near(reply, [chosen[row // HEADS] for row in range(ROWS)])
        indices = sum(((rows + [-1] * 10)[:10] for rows in chosen), [])
        self.same_bits(reply, self.attend(selection=self.selection(10, indices)))
        self.near(self.attend(selection=self.runs(1, [-9, 0])), [[]] * ROWS)
        self.wrong("is 90; the chunks have 90 rows", selection=self.runs(1, [89, 2]))
        self.wrong("2 rows from -1", selection=self.runs(1, [-1, 2]))
        self.wrong("-1 rows from 5", selection=self.runs(1, [5, -1]))
        self.wrong("1 groups of 2 runs", selection=self.runs(2, [0, 1]))
        self.wrong("send one of them", selection=self.pb.Selection(k=1, group_rows=ROWS, indices=bytes(4), runs=bytes(8)))

    def test_runs_are_counted_before_they_take_memory(self):
        resident = self.resident_bytes()
        self.wrong(str(INDEX_COUNT_MAX), selection=self.runs(1, [0, 2 ** 31 - 1]))
        self.wrong(str(INDEX_COUNT_MAX), selection=self.runs(2, [0, INDEX_COUNT_MAX, 0, 1]))
        self.wrong(str(INDEX_COUNT_MAX), selection=self.runs(1, [0, 1, 0, 1, 0, INDEX_COUNT_MAX // 3 + 1], HEADS))
        self.assertLess(self.resident_bytes() - resident, 4 * INDEX_COUNT_MAX)

    def test_one_group_s_rows_of_one_chunk_fit_a_slot(self):
        self.attend(selection=self.runs(14000, [0, 5] * 14000))
        # Uses the call, which routes: a stream may have the rows cached locally.
        self.refused("INVALID_ARGUMENT", "do not fit a slot", self.attend, selection=self.runs(20000, [0, 5] * 20000))

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.fleet.processes[-1].pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def test_row_limits_are_a_causal_mask(self):
        for first in (0, 10, 30, 63, 87):
            limits = self.pb.RowLimits(limits=self.program.prefill(first, TOKENS), group_rows=HEADS)
            chosen = [range(first + row // HEADS) for row in range(ROWS)]
            with self.subTest(first=first):
                self.near(self.attend(row_limits=limits), chosen)
                replies = self.streamed(
                    *(self.request(tag=policy, policy=policy, row_limits=limits)
                      for policy in (self.pb.CONTEXT_POLICY_ROUTE, self.pb.CONTEXT_POLICY_CACHE)))
                for reply in replies.values():
                    self.assertEqual(reply.code, 0, reply.message)
                    self.near(reply.reply, chosen)
        each = [7 * row for row in range(ROWS)]
        self.near(self.attend(row_limits=self.limits(each, 0)), [range(limit) for limit in each])
        self.same_bits(self.attend(row_limits=self.limits([90], ROWS)), self.attend())
        self.same_bits(self.attend(row_limits=self.limits([CHUNK_TOKENS], ROWS)), self.attend(chunk_end=1))

    def test_row_limits_that_do_not_fit(self):
        self.wrong("row limit 2 is 91; the chunks have 90 rows", row_limits=self.limits([0, 90, 91]))
        self.wrong("3 groups of 4 bytes are 12", row_limits=self.limits([0, 1]))
        self.wrong("together with a selection", row_limits=self.limits([1], ROWS), selection=self.selection(1, [0], ROWS))

    # Streams and errors.

    def test_a_stream_names_its_chunks_once(self):
        replies = self.streamed(self.request(tag=0, layer=0),
                                *(self.request(tag=tag, corpus="") for tag in range(1, 40)))
        self.assertEqual({reply.code for reply in replies.values()}, {0})
        self.same_bits(replies[39].reply, self.attend())

    def test_too_many_streams_are_refused_with_a_time_to_retry(self):
        ends, streams = [], []
        try:
            for _ in range(STREAM_COUNT_MAX):
                requests = queue.SimpleQueue()
                ends.append(requests)
                requests.put(self.request(tag=7))
                streams.append(self.stub.AttendStream(iter(requests.get, None), timeout=CALL_S))
                self.assertEqual(next(streams[-1]).code, 0)
            metadata = self.refused("RESOURCE_EXHAUSTED", str(STREAM_COUNT_MAX), self.streamed, self.request())
            self.assertRegex(metadata["retry-after-us"], r"^[1-9]\d*$")
        finally:
            for requests in ends:
                requests.put(None)
        for stream in streams:
            self.assertEqual(list(stream), [])
        # The program retries after that time.
        self.assertEqual(self.program.again(lambda: self.streamed(self.request(tag=1)))[1].code, 0)

    def test_missing_corpora_and_chunks_are_not_found(self):
        self.attend(corpus="theirs", tenant="them")
        for fields in ({"corpus": "nothing"}, {"chunks": [self.pb.ChunkRef(id=bytes(32))]},
                       {"corpus": "theirs"}, {"corpus": "theirs", "tenant": "others"}):
            self.refused("NOT_FOUND", "corpus", self.attend, **fields)

    def test_the_sooner_deadline_counts(self):
        self.attend()
        holders = self.fleet.processes[1:3]
        for holder in holders:
            holder.send_signal(signal.SIGSTOP)
        try:
            self.refused("DEADLINE_EXCEEDED", "the call had 200 ms", self.attend, timeout_ms=200)
            self.refused("DEADLINE_EXCEEDED", "", self.stub.Attend, self.request(timeout_ms=9000), timeout=0.2)
        finally:
            for holder in holders:
                holder.send_signal(signal.SIGCONT)
        self.program.again(self.attend)

    def test_a_requester_that_drains_ends_its_streams(self):
        address = self.fleet.start("draining", "--role=requester", f"--directory={self.fleet.directory}")
        process = self.fleet.processes.pop()
        try:
            requests = queue.SimpleQueue()
            requests.put(self.request())
            stream = self.program.connect(address).AttendStream(iter(requests.get, None), timeout=CALL_S)
            self.assertEqual(next(stream).code, 0)
            process.send_signal(signal.SIGTERM)
            self.refused("UNAVAILABLE", "drain", next, stream)
            requests.put(None)
            self.refused("UNAVAILABLE", "", self.program.connect(address).Attend, self.request(), timeout=CALL_S)
        finally:
            process.terminate()
            process.wait(CALL_S)

    # Health and reflection.

    def test_health(self):
        with self.grpc.insecure_channel(self.fleet.requester) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            serving = b"\x08\x01"  # HealthCheckResponse.status is SERVING
            self.assertEqual(check(b"", timeout=CALL_S), serving)
            name = b"ckv.v1.RequesterService"
            self.assertEqual(check(bytes([0x0a, len(name)]) + name, timeout=CALL_S), serving)
            self.refused("NOT_FOUND", "unknown", check, b"\x0a\x01x", timeout=CALL_S)

    def test_reflection_is_v1alpha_only(self):
        list_services = b"\x3a\x00"  # ServerReflectionRequest.list_services
        with self.grpc.insecure_channel(self.fleet.requester) as channel:
            method = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"
            ask = channel.stream_stream(method.format("v1alpha"))
            (answer,) = ask(iter([list_services]), timeout=CALL_S)
            self.assertIn(b"ckv.v1.RequesterService", answer)
            ask = channel.stream_stream(method.format("v1"))
            self.refused("UNIMPLEMENTED", "", list, ask(iter([list_services]), timeout=CALL_S))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--stubs", required=True, type=lambda path: pathlib.Path(path).resolve(), help="a folder that is made anew")
    parser.parse_args(namespace=PROGRAMS)
    if PLUGIN is None:
        sys.exit(skip.lacks("no grpc_python_plugin here"))
    skip.needs("grpc", "google.protobuf")
    make_stubs(PROGRAMS.stubs)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
