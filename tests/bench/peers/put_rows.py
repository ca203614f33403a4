"""Puts the corpora that tests/bench/peer_transfers.py fetches, by client/bindings/python and libckv.so (CKV_LIBRARY).

    put_rows.py DIRECTORY '{"NAME": TOKENS, ...}'

Each corpus is one chunk of DeepSeek-V2-Lite's 27 layers. Prints a line of JSON: {NAME: [the SHA-256 of its first layer, of
its first two, ...]}, each of the rows of these layers, one layer after another.
"""

import hashlib
import json
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
import numpy  # noqa: E402

import ckv  # noqa: E402

LAYERS, D_QK, D_V, D_ROPE = 27, 576, 512, 64
MODEL = ckv.Model(model="deepseek-ai/DeepSeek-V2-Lite", revision="bench", layers=LAYERS, d_qk=D_QK, d_v=D_V, d_rope=D_ROPE,
                  row_dtype="bf16", rope_style="interleaved", rope_theta=10000.0, softmax_scale=0.1)
LONG_S = 120.0


def put(requester, name, tokens):
    random = numpy.random.default_rng(tokens)
    total, sums = hashlib.sha256(), []
    with requester.put(name, create=MODEL) as target:
        target.chunk(random.integers(0, 100_000, tokens, dtype=numpy.int32), standalone=True)
        for layer in range(LAYERS):
            # Finite bf16 values, whatever the bits: the exponent's highest bit is 0.
            rows = random.integers(0, 1 << 14, (tokens, D_QK), dtype=numpy.uint16)
            target.rows(layer, rows)
            total.update(rows.tobytes())
            sums.append(total.hexdigest())
        target.finish(LONG_S)
    return sums


def main():
    with ckv.open(sys.argv[1], local_cache_bytes=0) as requester:
        print(json.dumps({name: put(requester, name, tokens) for name, tokens in json.loads(sys.argv[2]).items()}))


if __name__ == "__main__":
    main()
