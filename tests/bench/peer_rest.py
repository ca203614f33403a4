"""What a fleet costs at rest: the processor time of its daemons, and its first call after a rest.

    python3 tests/bench/peer_rest.py BUILD_DIR

Each fleet has a directory, a holder and a client for each fabric and call. A client makes three single calls, at least a
second apart, and then one after 90 seconds. CKV_REST_S sets another rest: 3600 is the hour of a night's lull. The floor is
two processes that exchange a byte and a copy of the same rows (peers/rest_echo.c): what the machine forgets meanwhile.
"""

import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import peer_transfers  # noqa: E402
from peer_transfers import DAEMON_CPU, Asked  # noqa: E402

FLEETS, FABRICS, CORPUS = 3, ("shm", "tcp"), "short"
SHORT_REST_S, SHORT_RESTS = 1, 3
REST_S = float(os.environ.get("CKV_REST_S", "90"))
CALLS = {"route": f"route {CORPUS} 16 1", "fetch": f"rows {CORPUS} 1 1"}


def daemons():
    """The ids of this process's children that are ckvd."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [child for child in children if pathlib.Path(f"/proc/{child}/comm").read_text() == "ckvd\n"]


def processor_s(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """Makes one kind of call again and again. A second passes before each, so that the holder is asleep, too."""

    def __init__(self, stack, log, key, line, *command):
        self.key, self.line = key, line
        self.program = Asked(stack, log, command)
        self.program.ask(self.line)  # connects

    def us(self):
        time.sleep(SHORT_REST_S)
        return int(self.program.ask(self.line)) / 1e3


def figures(build):
    """{"shm route": {"ratio": after REST_S over after a second, "short_us"}, ..., "floor": likewise, "idle": {"percent": of a
    core, "daemons"}, "worst": {"of_floor": the largest ratio over the floor's}}"""
    build = build.resolve()
    with tempfile.TemporaryDirectory(prefix="ckv-rest-") as name, contextlib.ExitStack() as stack:
        clients = []
        for number in range(FLEETS):
            folder = pathlib.Path(name) / str(number)
            folder.mkdir()
            directory, _ = peer_transfers.fleet_with(stack, folder, build, {CORPUS: peer_transfers.TOKENS[CORPUS]})
            clients += [Client(stack, folder / f"{fabric}-{call}.log", f"{fabric} {call}", line, build / "bin/c_loop", directory, fabric)
                        for fabric in FABRICS for call, line in CALLS.items()]
            clients.append(Client(stack, folder / "floor.log", "floor", "exchange", build / "bin/rest_echo", DAEMON_CPU))
        short, long = {}, {}
        for _ in range(SHORT_RESTS):
            for client in clients:
                short.setdefault(client.key, []).append(client.us())
        before, begin = {process: processor_s(process) for process in daemons()}, time.monotonic()
        time.sleep(REST_S)
        rest_s = time.monotonic() - begin
        shares = [100 * (processor_s(process) - used) / rest_s for process, used in before.items()]
        for client in clients:
            long.setdefault(client.key, []).append(client.us())
        made = {key: {"ratio": statistics.median(long[key]) / statistics.median(short[key]),
                      "short_us": statistics.median(short[key])} for key in short}
        worst = max(made[key]["ratio"] for key in made if key != "floor") / made["floor"]["ratio"]
        return {**made, "worst": {"of_floor": worst}, "idle": {"percent": max(shares), "daemons": len(shares)}}


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
