"""What ckvctl's tests run against: a fleet of real ckvd processes, files, and attention in float64.

Nothing of ckv's code is used but the programs.
"""

import argparse
import json
import math
import os
import random
import signal
import struct
import subprocess

D_QK, D_V, D_ROPE, LAYERS, SCALE, THETA = 40, 32, 8, 2, 0.2, 10000.0
READY_TIMEOUT_S = 60
PROGRAMS = argparse.Namespace(ckvd=None, ckvctl=None)


def bf16(value):
    """The bits of the nearest bf16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def write_safetensors(path, tensors, metadata=None):
    """tensors: name to (dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin:8 + size + end])
    return tensors, header.get("__metadata__", {})


def floats(tensor):
    return list(struct.unpack(f"<{len(tensor[2]) // 4}f", tensor[2]))


class Rows:
    """The rows of one file: [layer][token][D_QK] as bf16 bits."""

    def __init__(self, seed, tokens, position):
        rng = random.Random(seed)
        self.position = position
        self.token_ids = [rng.randrange(1000) for _ in range(tokens)]
        self.layers = [[[bf16(rng.gauss(0, 1)) for _ in range(D_QK)] for _ in range(tokens)]
                       for _ in range(LAYERS)]

    def layer_bytes(self, layer):
        return b"".join(struct.pack(f"<{D_QK}H", *row) for row in self.layers[layer])

    def write(self, path, **override):
        count = len(self.token_ids)
        tensors = {"token_ids": ("I32", [count], struct.pack(f"<{count}i", *self.token_ids))}
        for layer in range(LAYERS):
            tensors[f"layers.{layer}.ckv"] = ("BF16", [count, D_QK], self.layer_bytes(layer))
        metadata = {"model": "test/ctl", "revision": "1", "d_v": str(D_V), "d_rope": str(D_ROPE),
                    "rope_style": "interleaved", "rope_theta": str(THETA),
                    "softmax_scale": str(SCALE), "base_position": str(self.position)}
        write_safetensors(path, tensors, {**metadata, **override})


def rotate(row, delta):
    """The RoPE band of a row turned by `delta` positions."""
    out = list(row)
    for i in range(D_ROPE // 2):
        angle = delta * THETA ** (-2.0 * i / D_ROPE)
        x, y = row[D_QK - D_ROPE + 2 * i], row[D_QK - D_ROPE + 2 * i + 1]
        out[D_QK - D_ROPE + 2 * i] = x * math.cos(angle) - y * math.sin(angle)
        out[D_QK - D_ROPE + 2 * i + 1] = x * math.sin(angle) + y * math.cos(angle)
    return out


def attend(queries, rows, chosen=None):
    """(o, m, l) of each query in float64; `chosen` lists row indices a query, or None for all."""
    out = []
    for number, query in enumerate(queries):
        seen = rows if chosen is None else [rows[i] for i in chosen[number] if i >= 0]
        logits = [SCALE * sum(a * b for a, b in zip(query, row)) for row in seen]
        if not logits:
            out.append(([0.0] * D_V, -math.inf, 0.0))
            continue
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        total = sum(weights)
        o = [sum(w * row[c] for w, row in zip(weights, seen)) / total for c in range(D_V)]
        out.append((o, top, total))
    return out


class Fleet:
    """A directory, holders and a requester, each a ckvd of its own."""

    prefix = ()  # of the commands of those that call it, if they run on another host

    def __init__(self, folder, holders, durable=False, keyed=False, directory_options=(), local_cache="64MiB",
                 capacity="64MiB"):
        """durable: each holder has a folder, `folder`/NAME-store. keyed: the directory has one, so that it keeps keys of tenants."""
        self.folder, self.processes, self.durable, self.capacity = folder, [], durable, capacity
        keys = [f"--directory-path={folder}/directory"] if keyed else []
        self.directory = self.start("directory", "--role=directory", *keys, *directory_options)
        for i in range(holders):
            self.start_holder(i)
        self.requester = self.start("requester", "--role=requester",
                                    f"--directory={self.directory}", f"--requester-local-cache-bytes={local_cache}")

    def start_holder(self, index):
        store = [f"--store-path={self.store(index)}"] if self.durable else []
        self.start(f"h{index}", "--role=holder", f"--directory={self.directory}",
                   f"--store-capacity={self.capacity}", *store)
        return self.processes[-1]

    def store(self, index):
        return self.folder / f"h{index}-store"

    def durable_count(self, index):
        """Chunk files that a holder's folder has: whole ones, each with its place."""
        return sum(1 for path in self.store(index).glob("chunks/*/*/*") if not path.suffix)

    def start(self, name, *arguments, listen="127.0.0.1:0"):
        ready, log = self.folder / f"{name}.ready", self.folder / f"{name}.log"
        ready.unlink(missing_ok=True)  # of an earlier life
        with log.open("wb") as out:
            process = subprocess.Popen(
                [PROGRAMS.ckvd, f"--name={name}", f"--listen={listen}", f"--ready-file={ready}",
                 *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.processes.append(process)
        for _ in range(READY_TIMEOUT_S * 20):
            if ready.exists() and ready.read_text().endswith("\n"):
                return ready.read_text().split("\n")[0]
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        self.stop()
        raise RuntimeError(f"{name} did not start:\n{log.read_text()}")

    def run_ctl(self, *arguments):
        """Runs ckvctl by this fleet's requester, whatever CKV_ variables there are."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.requester
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=120,
                              capture_output=True, text=True, check=False)

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)  # a test may have failed with one stopped
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []
