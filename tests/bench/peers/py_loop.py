"""Routes query rows over a corpus from Python, again and again, as peers/cc_loop.cc does from C++.

    py_loop.py DIRECTORY CORPUS

Each line on stdin is a number of query rows and a number of calls. The answer is a line with the time of each call in
nanoseconds. Uses client/bindings/python and libckv.so (CKV_LIBRARY).
"""

import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
import numpy  # noqa: E402

import ckv  # noqa: E402


def main():
    with ckv.open(sys.argv[1], fabrics="shm", local_cache_bytes=0) as requester:
        corpus = requester.resolve(sys.argv[2])
        with requester.context([ckv.Part(corpus)], policy="route") as context:
            for line in sys.stdin:
                rows, count = map(int, line.split())
                q = numpy.zeros((rows, corpus.d_qk), numpy.uint16)
                call = requester.prepare(q, context)
                times = []
                for _ in range(count):
                    begin = time.perf_counter_ns()
                    call.attend(0)
                    times.append(time.perf_counter_ns() - begin)
                print(*times, flush=True)


if __name__ == "__main__":
    main()
