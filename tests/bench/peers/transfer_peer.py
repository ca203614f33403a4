"""One end of a transfer engine that is not ckv: NIXL (over UCX) or Mooncake's. Runs in the environment of requirements.txt.

    transfer_peer.py ENGINE server BYTES SETTINGS
    transfer_peer.py ENGINE client BYTES SETTINGS SERVER

ENGINE is nixl or mooncake, BYTES the size of the memory that each end registers, SETTINGS and SERVER are JSON. A server
fills its memory with bytes that a seed gives, prints a line of JSON, which is SERVER for the client, and serves until its
stdin ends. A client answers a line of JSON on stdin with one on stdout, behind MARK:

    {"runs": [[OFFSET, AT, BYTES], ...], "count": N}    reads each run of the server's memory to AT of its own, N times
                                                        over: the nanoseconds of each time
    {"sum": [[AT, BYTES], ...]}                         the SHA-256 of these runs of its own memory, one after another
"""

import base64
import hashlib
import json
import mmap
import sys
import time

SEED = 41
MARK = "= "  # of an answer: the engines write to stdout, too


def memory(size):
    """Pages that are there: no read meets a new one."""
    import numpy
    made = numpy.frombuffer(mmap.mmap(-1, size), numpy.uint8)
    made[:] = 0
    return made


class Nixl:
    def __init__(self, role, own, settings):
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        self.agent = nixl_agent(role, nixl_agent_config(enable_prog_thread=settings[role], backends=["UCX"]))
        self.agent.register_memory([(own.ctypes.data, own.nbytes, 0, "")], "DRAM")
        self.own = own

    def address(self):
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "memory": self.own.ctypes.data}

    def connect(self, server):
        peer = self.agent.add_remote_agent(base64.b64decode(server["metadata"]))
        self.peer, self.far = peer.decode() if isinstance(peer, bytes) else peer, server["memory"]

    def prepare(self, runs):
        here, there = self.own.ctypes.data, self.far
        near = self.agent.get_xfer_descs([(here + at, size, 0) for _, at, size in runs], "DRAM")
        far = self.agent.get_xfer_descs([(there + offset, size, 0) for offset, _, size in runs], "DRAM")
        handle = self.agent.initialize_xfer("READ", near, far, self.peer)

        def read():
            state = self.agent.transfer(handle)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"NIXL: {state}")
        return read


class Mooncake:
    def __init__(self, role, own, settings):
        from mooncake.engine import TransferEngine
        self.engine, self.own = TransferEngine(), own
        self._check(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self._check(self.engine.register_memory(own.ctypes.data, own.nbytes), "register_memory")

    @staticmethod
    def _check(code, what):
        if code != 0:
            raise RuntimeError(f"Mooncake: {what}: {code}")

    def address(self):
        return {"peer": f"127.0.0.1:{self.engine.get_rpc_port()}", "memory": self.own.ctypes.data}

    def connect(self, server):
        self.peer, self.far = server["peer"], server["memory"]

    def prepare(self, runs):
        here = [self.own.ctypes.data + at for _, at, _ in runs]
        there = [self.far + offset for offset, _, _ in runs]
        sizes = [size for _, _, size in runs]
        if len(runs) == 1:
            return lambda: self._check(self.engine.transfer_sync_read(self.peer, here[0], there[0], sizes[0]), "read")
        return lambda: self._check(self.engine.batch_transfer_sync_read(self.peer, here, there, sizes), "batch read")


def answer(value):
    print(f"{MARK}{json.dumps(value)}", flush=True)


def held(size):
    """The bytes that a server has."""
    import numpy  # here, so that a coordinator without it can read MARK
    return numpy.random.default_rng(SEED).integers(0, 256, size, dtype=numpy.uint8)


def serve(engine, own):
    own[:] = held(own.nbytes)
    answer(engine.address())
    sys.stdin.read()


def ask(engine, own):
    answer({})
    prepared = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "sum" in asked:
            total = hashlib.sha256()
            for at, size in asked["sum"]:
                total.update(own[at:at + size])
            answer(total.hexdigest())
            continue
        key = json.dumps(asked["runs"])
        if key not in prepared:
            prepared[key] = engine.prepare(asked["runs"])
        times = []
        for _ in range(asked["count"]):
            begin = time.perf_counter_ns()
            prepared[key]()
            times.append(time.perf_counter_ns() - begin)
        answer(times)


def main():
    name, role, size, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    own = memory(size)
    engine = {"nixl": Nixl, "mooncake": Mooncake}[name](role, own, settings)
    if role == "server":
        return serve(engine, own)
    engine.connect(json.loads(sys.argv[5]))
    return ask(engine, own)


if __name__ == "__main__":
    sys.exit(main())
