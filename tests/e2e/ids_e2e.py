#!/usr/bin/python3
"""Goal: one rule for token ids at every door, and no picture finds another one's rows.

Method: a directory, two holders with folders and a requester. Passes one table of inputs through every door (entry
point): files of rows, arrays, lines, look-ups, gRPC, C and Python. Each accepts the same inputs, makes the same chunk
id of them, and refuses the others by index and value. Then rows of the same token ids and other pictures. Each is found
by its own keys only, also by tenants, and after the holders were killed, a move, and an export that is loaded again.

    /usr/bin/python3 tests/e2e/ids_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl --stubs build/dev/stubs \\
        [--library build/dev/client/bindings/c/libckv.so.1]
"""

import argparse
import ctypes
import importlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402
from ctl_fleet import D_QK, D_ROPE, D_V, LAYERS, PROGRAMS, SCALE, THETA, Fleet, Rows, read_safetensors, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = shutil.which("grpc_python_plugin")
CALL_S = 60  # on a machine that may be busy
TOKENS = 32
ID_MAX = 2**31 - 1
NO_ID = "no token id: those are whole numbers from 0 to 2^31 - 1"
FORMATS = {"i4": "i", "i8": "q", "u4": "I", "u8": "Q"}

GEOMETRY = {"model": "test/ctl", "revision": "1", "layers": LAYERS, "d_qk": D_QK, "d_v": D_V, "d_rope": D_ROPE,
            "dtype": "bf16", "rope_style": "interleaved", "rope_theta": THETA, "softmax_scale": SCALE}


def with_value(index, value):
    return [*range(index), value, *range(index + 1, TOKENS)]


# (index, value at that index, whether it is a token id)
INPUTS = [(5, 0, True), (9, ID_MAX, True), (31, 151643, True), (3, -1, False), (0, -2**31, False), (7, 2**31, False),
          (8, 2**32 + 1, False), (30, -2**40, False), (4, 1.5, False), (6, 2.0, False)]


def fits(value, kind):
    try:
        struct.pack("<" + FORMATS[kind], value)
    except struct.error:
        return False
    return True


def write_npy(path, kind, shape, raw):
    head = f"{{'descr': '<{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + raw)


def ids_of(kind, values):
    return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)


def picture_ids(token):
    """48 ids: text, the picture's 12 placeholders from 10 on, text. Nothing in them repeats but these."""
    ids = list(range(1000 * token, 1000 * token + 48))
    ids[10:22] = [token] * 12
    return ids


def key(begin, tokens, digest):
    return {"begin": begin, "tokens": tokens, "digest": digest.hex()}


def make_stubs(folder):
    """Makes the stubs of the .proto files, next to the modules of client/bindings/python: both have the package ckv."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["protoc", "-I", ROOT / "proto", f"--python_out={folder}", f"--grpc_out={folder}",
                    f"--plugin=protoc-gen-grpc={PLUGIN}", "ckv/v1/types.proto", "ckv/v1/requester.proto"],
                   check=True, timeout=CALL_S)
    if PROGRAMS.library:
        os.environ["CKV_LIBRARY"] = PROGRAMS.library
        sys.path.insert(0, str(ROOT / "client/bindings/python"))
        importlib.import_module("ckv").__path__.append(str(folder / "ckv"))
    else:
        sys.path.insert(0, str(folder))


class Refused(Exception):
    """The error that a door returned for an input."""


class IdsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-ids-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2, durable=True, keyed=True)
        cls.addClassCleanup(lambda: cls.fleet.stop())
        (cls.folder / "geometry.json").write_text(json.dumps(GEOMETRY))
        cls.number = 0
        cls.grpc = importlib.import_module("grpc")
        cls.pb = importlib.import_module("ckv.v1.requester_pb2")
        cls.types = importlib.import_module("ckv.v1.types_pb2")
        cls.stub = importlib.import_module("ckv.v1.requester_pb2_grpc").RequesterServiceStub(
            cls.grpc.insecure_channel(cls.fleet.requester))
        if PROGRAMS.library:
            cls.ckv = importlib.import_module("ckv")
            cls.numpy = importlib.import_module("numpy")
            cls.requester = cls.ckv.open(cls.fleet.directory)
            cls.addClassCleanup(cls.requester.close)

    def name(self):
        IdsTest.number += 1
        return f"c{IdsTest.number}"

    def ctl(self, *arguments, tenant=""):
        done = subprocess.run(
            [PROGRAMS.ckvctl, "--directory", self.fleet.directory, "--requester", self.fleet.requester,
             *(["--tenant", tenant] if tenant else []), *[str(a) for a in arguments]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * CALL_S)
        if done.returncode != 0:
            raise Refused(done.stderr)
        return done.stdout

    def chunk_ids(self, corpus, tenant=""):
        return [chunk["id"] for chunk in json.loads(self.ctl("corpus", "show", corpus, "-o", "json", tenant=tenant))["chunks"]]

    # Doors. Each returns the ids of the chunks that it made or found, and raises Refused.

    def load_rows(self, dtype, values):
        rows, corpus, path = Rows(1, TOKENS, 0), self.name(), self.folder / "door.safetensors"
        tensors = {"token_ids": (dtype, [TOKENS], ids_of({"I32": "i4", "I64": "i8"}[dtype], values))}
        for layer in range(LAYERS):
            tensors[f"layers.{layer}.ckv"] = ("BF16", [TOKENS, D_QK], rows.layer_bytes(layer))
        rows.write(path)
        write_safetensors(path, tensors, read_safetensors(path)[1])
        self.ctl("corpus", "load", corpus, path)
        return self.chunk_ids(corpus)

    def load_array(self, kind, values):
        rows, corpus = Rows(1, TOKENS, 0), self.name()
        write_npy(self.folder / "rows.npy", "u2", f"({LAYERS}, {TOKENS}, {D_QK})",
                  b"".join(rows.layer_bytes(layer) for layer in range(LAYERS)))
        write_npy(self.folder / "ids.npy", kind, f"({TOKENS},)", ids_of(kind, values))
        self.ctl("corpus", "load", corpus, self.folder / "rows.npy", "--dtype", "bf16", "--geometry",
                 self.folder / "geometry.json", "--token-ids", self.folder / "ids.npy")
        return self.chunk_ids(corpus)

    def find(self, *arguments, tenant=""):
        try:
            found = json.loads(self.ctl("chunk", "find", *arguments, "-o", "json", tenant=tenant))
        except Refused as refused:
            if "no holder has a chunk" in str(refused):
                return []
            raise
        return [span["chunk"] for span in found["spans"]]

    def find_array(self, kind, values):
        write_npy(self.folder / "prompt.npy", kind, f"({len(values)},)", ids_of(kind, values))
        return self.find(self.folder / "prompt.npy")

    def find_line(self, values):
        (self.folder / "prompt.jsonl").write_text(json.dumps(values) + "\n")
        return self.find(self.folder / "prompt.jsonl")

    def rpc_find(self, values, **fields):
        try:
            reply = self.stub.Resolve(self.pb.ResolveRequest(token_ids=ids_of("i4", values), **fields), timeout=CALL_S)
        except self.grpc.RpcError as error:
            if error.code() == self.grpc.StatusCode.NOT_FOUND:
                return []
            raise Refused(error.details()) from None
        return [span.chunk.id.hex() for span in reply.spans] or [chunk.id.hex() for chunk in reply.corpus.chunks]

    def rpc_put(self, values, corpus=None, seed=1, **fields):
        geometry = self.types.Geometry(model="test/ctl", revision="1", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=D_ROPE,
                                       dtype=self.types.ROW_DTYPE_BF16, rope_style=self.types.ROPE_STYLE_INTERLEAVED,
                                       rope_theta=THETA, softmax_scale=SCALE)
        rows = Rows(seed, len(values), 0)
        parts = [self.pb.PutRequest(target=self.pb.PutTarget(corpus=corpus or self.name(), create=True, geometry=geometry)),
                 self.pb.PutRequest(chunk=self.pb.PutChunk(token_ids=ids_of("i4", values), **fields))]
        parts += [self.pb.PutRequest(rows=self.pb.PutRows(layer=layer, rows=rows.layer_bytes(layer)))
                  for layer in range(LAYERS)]
        try:
            return [one.hex() for one in self.stub.Put(iter(parts), timeout=CALL_S).ids]
        except self.grpc.RpcError as error:
            raise Refused(error.details()) from None

    def python_find(self, values, **options):
        try:
            found = self.requester.find(values, timeout=CALL_S, **options)
        except self.ckv.NotFound:
            return []
        except self.ckv.InvalidArgument as error:
            raise Refused(str(error)) from None
        with found.corpus as corpus:
            return [bytes(one).hex() for one in corpus.chunks(0, corpus.chunk_count)[0]]

    def python_put(self, values, corpus=None, seed=1, **options):
        model = self.ckv.Model("test/ctl", "1", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=D_ROPE, softmax_scale=SCALE)
        rows = Rows(seed, len(values), 0)
        try:
            with self.requester.put(corpus or self.name(), create=model, timeout=CALL_S) as put:
                put.chunk(values, **options)
                for layer in range(LAYERS):
                    put.rows(layer, self.numpy.array(rows.layers[layer], self.numpy.uint16))
                put.finish(CALL_S)
                return [bytes(one).hex() for one in put.ids()]
        except self.ckv.InvalidArgument as error:
            raise Refused(str(error)) from None

    def c_find(self, values):
        """Calls the library directly, without the checks of Python."""
        structs = importlib.import_module("ckv._structs")
        array = (ctypes.c_int32 * len(values))(*values)
        call = structs.FindCall.made(tokens=ctypes.addressof(array), token_count=len(values))
        corpus, library = ctypes.c_void_p(), self.requester._owner.library
        status = library.find(self.requester._owner.live(), ctypes.byref(call), ctypes.byref(corpus), None)
        if status:
            raise Refused(library.last_error(None).decode())
        library.corpus_free(corpus)
        return None

    def doors(self):
        """Yields (name, whether the door can express a value, the door)."""
        whole = lambda kind: lambda value: isinstance(value, int) and fits(value, kind)  # noqa: E731
        for dtype, kind in (("I32", "i4"), ("I64", "i8")):
            yield f"safetensors {dtype}", whole(kind), lambda values, d=dtype: self.load_rows(d, values)
        for kind in FORMATS:
            yield f"load npy {kind}", whole(kind), lambda values, k=kind: self.load_array(k, values)
            yield f"find npy {kind}", whole(kind), lambda values, k=kind: self.find_array(k, values)
        yield "find jsonl", lambda value: True, self.find_line
        yield "gRPC Resolve", whole("i4"), self.rpc_find
        yield "gRPC Put", whole("i4"), self.rpc_put
        if PROGRAMS.library:
            yield "Python find, a list", lambda value: True, self.python_find
            yield "Python put, a list", lambda value: True, self.python_put
            for dtype, kind in (("int32", "i4"), ("int64", "i8"), ("uint32", "u4"), ("uint64", "u8")):
                make = lambda values, d=dtype: self.numpy.array(values, d)  # noqa: E731
                yield f"Python find, {dtype}", whole(kind), lambda values, m=make: self.python_find(m(values))
                yield f"Python put, {dtype}", whole(kind), lambda values, m=make: self.python_put(m(values))
            yield "C find", lambda value: whole("i4")(value) and value < 0, self.c_find

    def test_all_doors_apply_the_same_rule(self):
        for index, value, is_id in INPUTS:
            values = with_value(index, value)
            want = self.load_rows("I32", values) if is_id else None
            for name, can_say, door in self.doors():
                if not can_say(value):
                    continue
                with self.subTest(door=name, index=index, value=value):
                    if is_id:
                        self.assertEqual(door(values), want)
                        continue
                    with self.assertRaises(Refused) as refused:
                        door(values)
                    self.assertIn(f"[{index}] is {value}, {NO_ID}", str(refused.exception))

    def test_other_arrays_are_refused(self):
        """Floats that happen to be whole, truth values and other shapes are no token ids either."""
        write_npy(self.folder / "prompt.npy", "f8", f"({TOKENS},)", struct.pack(f"<{TOKENS}d", *range(TOKENS)))
        with self.assertRaisesRegex(Refused, "must be i4, i8, u4 or u8"):
            self.find(self.folder / "prompt.npy")
        if PROGRAMS.library:
            numpy = self.numpy
            for values in (numpy.arange(32.0), numpy.ones(32, bool), numpy.zeros((2, 16), int), ["1"] * 16, [None] * 16):
                with self.assertRaises(Refused):
                    self.python_find(values)
            torch = importlib.import_module("torch")
            self.assertEqual(self.python_find(torch.arange(10**6, 10**6 + 32)), [])
            with self.assertRaisesRegex(Refused, r"tokens\[0\] is -1"):
                self.python_find(torch.full((32,), -1))

    # Extra keys.

    def load_picture(self, corpus, digest, seed, token=7, tenant="", **options):
        """Rows of picture_ids, cut into three chunks."""
        rows, path = Rows(seed, 48, 0), self.folder / f"{corpus}.safetensors"
        rows.token_ids = picture_ids(token)
        keys = {"extra_keys": json.dumps([key(10, 12, digest)])} if digest else {}
        rows.write(path, **keys)
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.ctl("corpus", "load", corpus, path, "--chunk-tokens", 16, *arguments, tenant=tenant)
        return self.chunk_ids(corpus, tenant)

    def find_picture(self, digest, begin=10, count=12, token=7, tenant=""):
        write_npy(self.folder / "prompt.npy", "i4", "(48,)", ids_of("i4", picture_ids(token)))
        if digest is None:
            return self.find(self.folder / "prompt.npy", tenant=tenant)
        (self.folder / "keys.json").write_text(json.dumps([key(begin, count, digest)]))
        return self.find(self.folder / "prompt.npy", "--extra-keys", self.folder / "keys.json", tenant=tenant)

    def assert_own_pictures_only(self, a, b, **options):
        self.assertEqual(self.find_picture(b"a" * 32, **options), a)
        self.assertEqual(self.find_picture(b"b" * 32, **options), b)
        for digest, begin, count in ((None, 0, 0), (b"c" * 32, 10, 12), (b"a" * 32, 11, 12), (b"a" * 32, 10, 11),
                                     (b"a" * 31, 10, 12)):
            self.assertEqual(self.find_picture(digest, begin, count, **options), [], (digest, begin, count))

    def test_each_picture_is_found_by_its_own_keys(self):
        a = self.load_picture("a", b"a" * 32, 11, replicas=2)
        b = self.load_picture("b", b"b" * 32, 12)
        self.assertFalse(set(a) & set(b))
        self.assert_own_pictures_only(a, b)
        # A picture in the second half of one chunk and the first of the next is a key of both: another one's second
        # chunk is not found behind the first's.
        extra = [self.types.ExtraKey(begin=10, token_count=12, digest=b"a" * 32)]
        for hint in ("", "a"):
            self.assertEqual(self.rpc_find(picture_ids(7), extra_keys=extra, corpus_hint=hint), a)
        self.assertEqual(self.rpc_find(picture_ids(7), extra_keys=extra, corpus_hint="b"), [])
        self.assertEqual(self.rpc_find(picture_ids(7)), [])
        with self.assertRaisesRegex(Refused, "1025 extra keys, limit 1024"):
            self.rpc_find(picture_ids(7), extra_keys=extra * 1025)
        with self.assertRaisesRegex(Refused, "twice"):
            self.rpc_find(picture_ids(7), extra_keys=extra * 2)
        if PROGRAMS.library:
            self.assertEqual(self.python_find(picture_ids(7), extra_keys=[(10, 12, b"a" * 32)]), a)
            self.assertEqual(self.python_find(picture_ids(7), extra_keys=[(10, 12, b"b" * 32)]), b)
            self.assertEqual(self.python_find(picture_ids(7)), [])
            for wrong in ([(10, 12, b"")], [(10, 12, b"x" * 65)], [(48, 1, b"x")], [(10, 0, b"x")], [(1, 2)], ["x"],
                          [(10, 12, "x")], [b"x"] * 1025):
                with self.assertRaises(Refused, msg=wrong):
                    self.python_find(picture_ids(7), extra_keys=wrong)
        with self.subTest("a line has its keys itself"):
            line = {"token_ids": picture_ids(7), "extra_keys": [key(10, 12, b"b" * 32)]}
            (self.folder / "prompt.jsonl").write_text(json.dumps(line) + "\n")
            self.assertEqual(self.find(self.folder / "prompt.jsonl"), b)
        with self.subTest("exported and loaded again"):
            out = self.folder / "again.safetensors"
            self.ctl("corpus", "export", "a", "--out", out)
            self.assertEqual(json.loads(read_safetensors(out)[1]["extra_keys"]), [key(10, 12, b"a" * 32)])
            self.ctl("corpus", "load", "again", out, "--chunk-tokens", 16)
            self.assertEqual(self.chunk_ids("again"), a)
            self.assertEqual(out.read_bytes(), self.export("again"))
        with self.subTest("an array with a file of keys"):
            self.assertEqual(self.load_array_with_keys(), a)
        with self.subTest("moved to the other holder, and the holders killed"):
            self.ctl("corpus", "partition", "b", "--weights", "h0=0")
            self.ctl("corpus", "verify", "b")
            self.restart_holders()
            self.assert_own_pictures_only(a, b)
            self.ctl("corpus", "verify", "a")
            self.ctl("corpus", "verify", "b")

    def export(self, corpus):
        self.ctl("corpus", "export", corpus, "--out", self.folder / "export.safetensors")
        return (self.folder / "export.safetensors").read_bytes()

    def load_array_with_keys(self):
        rows = Rows(11, 48, 0)
        write_npy(self.folder / "rows.npy", "u2", f"({LAYERS}, 48, {D_QK})",
                  b"".join(rows.layer_bytes(layer) for layer in range(LAYERS)))
        write_npy(self.folder / "ids.npy", "i8", "(48,)", ids_of("i8", picture_ids(7)))
        (self.folder / "keys.json").write_text(json.dumps([key(10, 12, b"a" * 32)]))
        self.ctl("corpus", "load", "array", self.folder / "rows.npy", "--dtype", "bf16", "--geometry",
                 self.folder / "geometry.json", "--token-ids", self.folder / "ids.npy", "--extra-keys",
                 self.folder / "keys.json", "--chunk-tokens", 16)
        return self.chunk_ids("array")

    def restart_holders(self):
        for process in self.fleet.processes[1:3]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        requester = self.fleet.processes[3]
        self.fleet.processes = [self.fleet.processes[0]]
        for index in range(2):
            self.fleet.start_holder(index)
        self.fleet.processes.append(requester)
        deadline = time.monotonic() + CALL_S
        while True:  # until both have reported their chunks to the directory
            try:
                return self.ctl("corpus", "verify", "a")
            except Refused:
                if time.monotonic() > deadline:
                    raise

    def test_tenants_have_pictures_of_their_own(self):
        acme = {"token": 8, "tenant": "acme"}
        a, b = self.load_picture("ta", b"a" * 32, 21, **acme), self.load_picture("tb", b"b" * 32, 22, **acme)
        self.assert_own_pictures_only(a, b, **acme)
        self.assertEqual(self.find_picture(b"a" * 32, token=8), [])
        self.assertEqual(self.find_picture(b"a" * 32, token=8, tenant="other"), [])

    def test_puts_make_the_ids_of_loads(self):
        rows, path = Rows(31, 20, 0), self.folder / "adapted.safetensors"
        rows.token_ids = list(range(900, 920))
        rows.write(path, extra_keys=json.dumps([{"digest": b"adapter".hex()}, key(-4, 6, b"picture")]))
        self.ctl("corpus", "load", "adapted", path)
        want = self.chunk_ids("adapted")
        extra = [self.types.ExtraKey(begin=-4, token_count=6, digest=b"picture"), self.types.ExtraKey(digest=b"adapter")]
        self.assertEqual(self.rpc_put(rows.token_ids, seed=31, extra_keys=extra), want)
        with self.assertRaisesRegex(Refused, "are none of the 20"):
            self.rpc_put(rows.token_ids, seed=31, extra_keys=[self.types.ExtraKey(begin=20, token_count=1, digest=b"x")])
        if PROGRAMS.library:
            extra = [b"adapter", (-4, 6, b"picture")]
            self.assertEqual(self.python_put(rows.token_ids, seed=31, extra_keys=extra), want)
            self.assertEqual(self.python_find(rows.token_ids, extra_keys=extra), want)
            self.assertEqual(self.python_find(rows.token_ids, extra_keys=[b"adapter"]), [])
            self.assertNotEqual(self.python_put(rows.token_ids, seed=32), want)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--stubs", required=True, type=lambda path: pathlib.Path(path).resolve(), help="a folder that is made anew")
    parser.add_argument("--library", help="libckv.so.1: without it the doors of C and Python are left out")
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl, PROGRAMS.library = arguments.ckvd, arguments.ckvctl, arguments.library
    if PLUGIN is None:
        sys.exit(skip.lacks("no grpc_python_plugin here"))
    skip.needs("grpc", "google.protobuf", *(("numpy", "torch") if PROGRAMS.library else ()))
    make_stubs(arguments.stubs)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
