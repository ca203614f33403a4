"""ckv's fetch beside NIXL's and Mooncake's reads: the same bytes on this host, in turns.

    python3 tests/bench/peer_transfers.py BUILD_DIR

Each transfer engine has a server and a client process (peers/transfer_peer.py), ckv a directory, a holder and a client in C
(peers/c_loop.c). In each round every one of them makes each transfer several times, and only one of them runs at a
time: NIXL's processes poll without end, so they are stopped when it is not their turn. Servers have one processor and
clients another. Otherwise the scheduler may have both ends of a short turn take turns on one, and then it is measured. A
peer's row is that of its best settings. The bytes that arrived are compared with those that were sent.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE / "peers"), str(HERE.parent / "engines")]
import fleet  # noqa: E402
import transfer_peer  # noqa: E402
import venvs  # noqa: E402
from bar import NOT_HERE  # noqa: E402
from policy_links import DAEMON_CPU, REQUESTER_CPU  # noqa: E402

REQUIREMENTS = HERE / "peers" / "requirements.txt"
FREE_BYTES_MIN = 2 << 30
ROUNDS, WARM_UP = 21, 2  # transfers of each turn that do not count
ANSWER_S = 120
ROW, BLOCK_ROWS, CACHE_FACTOR = 1152, 16, 4
TOKENS = {"short": 16, "long": 2048}
# The name of a case: its corpus, how many layers of it, whether into blocks, transfers a turn.
CASES = {"18 KB": ("short", 1, False, 200), "9.4 MB": ("long", 4, False, 8), "64 MB": ("long", 27, False, 3),
         "512 blocks": ("long", 4, True, 6)}
# A server without a progress thread answers no client; a client without one reads faster on few processors.
NIXL = {"defaults": {"server": True, "client": True}, "client without its progress thread": {"server": True, "client": False}}
SLICES = {"defaults": {}, "slices of 1 MB": {"MC_TCP_SLICE_SIZE": "1048576"}}


def bytes_of(case):
    corpus, layers, _, _ = CASES[case]
    return layers * TOKENS[corpus] * ROW


def runs_of(case):
    """What a peer's client reads: one run, or as many as ckv writes blocks, each to a place of its own."""
    if not CASES[case][2]:
        return [[0, 0, bytes_of(case)]]
    size = BLOCK_ROWS * ROW
    count = bytes_of(case) // size
    places = random.Random(1).sample(range(CACHE_FACTOR * count), count)
    return [[i * size, place * size, size] for i, place in enumerate(places)]


def memory_bytes():
    return max(max(at + size for _, at, size in runs_of(case)) for case in CASES)


def on(processor):
    """The prefix of a command that runs on one processor."""
    return ["taskset", "-c", processor]


class Asked:
    """A program that answers lines with lines that begin with `mark`. `stopped`: it does not run when it is not asked."""

    def __init__(self, stack, log, command, mark="", processor=REQUESTER_CPU, **environment):
        self.log, self.mark, self.others, self.stopped = log, mark, [], False
        with log.open("wb") as errors:
            self.process = subprocess.Popen([str(part) for part in [*on(processor), *command]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, text=True, env={**os.environ, **environment})
        stack.callback(self.end)

    def end(self):
        self.run(True)
        self.process.kill()
        self.process.wait()

    def run(self, on):
        if self.stopped:
            for process in [self.process, *self.others]:
                process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def answer(self):
        timer = threading.Timer(ANSWER_S, self.process.kill)
        timer.start()
        try:
            while line := self.process.stdout.readline():
                if line.startswith(self.mark):
                    return line[len(self.mark):]
        finally:
            timer.cancel()
        raise RuntimeError(f"{self.process.args[0]} ended, or took more than {ANSWER_S} s: "
                           f"{' '.join(self.log.read_text(errors='replace').split())[-300:]}")

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.answer()


class Peer:
    """A server and a client of one transfer engine."""

    def __init__(self, stack, folder, python, engine, name, settings, **environment):
        command = [python, HERE / "peers" / "transfer_peer.py", engine]
        words = [memory_bytes(), json.dumps(settings)]
        server = Asked(stack, folder / f"{name}-server.log", [*command, "server", *words], transfer_peer.MARK, DAEMON_CPU,
                       **environment)
        where = server.answer()
        self.client = Asked(stack, folder / f"{name}-client.log", [*command, "client", *words, where], transfer_peer.MARK, **environment)
        self.client.answer()
        self.client.others, self.client.stopped = [server.process], True
        self.client.run(False)

    def times(self, case):
        self.client.run(True)
        try:
            count = CASES[case][3] + WARM_UP
            return json.loads(self.client.ask(json.dumps({"runs": runs_of(case), "count": count})))[WARM_UP:]
        finally:
            self.client.run(False)

    def check(self, case, sent):
        self.client.run(True)
        got = json.loads(self.client.ask(json.dumps({"sum": [[at, size] for _, at, size in runs_of(case)]})))
        self.client.run(False)
        return got == sent(case)


class Ckv:
    """A client in C of a holder, over one fabric."""

    def __init__(self, stack, folder, build, directory, fabric, sums):
        self.sums, self.dump = sums, folder / f"{fabric}.dump"
        self.client = Asked(stack, folder / f"{fabric}-client.log", [build / "bin/c_loop", directory, fabric])

    def times(self, case):
        corpus, layers, scattered, count = CASES[case]
        work = "blocks" if scattered else "rows"
        return [int(one) for one in self.client.ask(f"{work} {corpus} {layers} {count + WARM_UP}").split()][WARM_UP:]

    def copies(self, case):
        count = CASES[case][3] + WARM_UP
        return [int(one) for one in self.client.ask(f"memcpy {bytes_of(case)} {count}").split()][WARM_UP:]

    def check(self, case):
        corpus, layers, _, _ = CASES[case]
        self.client.ask(f"dump {self.dump}")
        with self.dump.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sums[corpus][layers - 1]


class TwoCopies:
    """Two processes that copy as ckv's do over shm, and do nothing else (peers/copy_pipe.c)."""

    def __init__(self, stack, folder, build):
        self.client = Asked(stack, folder / "copies.log", [build / "bin/copy_pipe", DAEMON_CPU])

    def times(self, case):
        return [int(one) for one in self.client.ask(f"{bytes_of(case)} {CASES[case][3] + WARM_UP}").split()][WARM_UP:]


def summary(rounds):
    """Of one contestant's rounds of one case: the median of the rounds' medians, and the best single transfer, in us."""
    return {"median_us": statistics.median(map(statistics.median, rounds)) / 1e3, "best_us": min(map(min, rounds)) / 1e3}


def compared(ckv, peers):
    """ckv's rounds beside those of the best of `peers`, {settings: rounds}: round by round."""
    best = min(peers, key=lambda name: summary(peers[name])["median_us"])
    ratios = [statistics.median(mine) / statistics.median(its) for mine, its in zip(ckv, peers[best])]
    return {"ratio": statistics.median(ratios), "best": best, **{f"peer_{k}": v for k, v in summary(peers[best]).items()},
            **summary(ckv)}


def binding(build):
    """The environment in which Python finds ckv's package and library."""
    return {"PYTHONPATH": str(SOURCE / "client/bindings/python"), "CKV_LIBRARY": str(build / "client/bindings/c/libckv.so")}


def fleet_with(stack, folder, build, tokens):
    """A directory and a holder, with corpora of {name: tokens}: the directory's address, and the sums of put_rows.py."""
    start = lambda *options: stack.enter_context(fleet.daemon(build, folder, on(DAEMON_CPU), *options))  # noqa: E731
    directory = start("--role=directory", "--listen=127.0.0.1:0")
    start("--role=holder", "--listen=127.0.0.1:0", f"--directory={directory}", "--store-capacity=1GiB")
    put = subprocess.run([sys.executable, HERE / "peers/put_rows.py", directory, json.dumps(tokens)], check=True,
                         stdout=subprocess.PIPE, text=True, env={**os.environ, **binding(build)})
    return directory, json.loads(put.stdout)


def contestants(stack, folder, build, python):
    """{group: {name: contestant}}: ckv under "ckv", the peers of each group by their settings."""
    directory, sums = fleet_with(stack, folder, build, TOKENS)

    def peer(engine, name, settings, **environment):
        return Peer(stack, folder, python, engine, name.replace(" ", "-"), settings, **environment)
    return {"ckv": {fabric: Ckv(stack, folder, build, directory, fabric, sums) for fabric in ("shm", "tcp")},
            "NIXL on this host": {name: peer("nixl", f"nixl {name}", settings) for name, settings in NIXL.items()},
            "NIXL over tcp": {name: peer("nixl", f"nixl-tcp {name}", settings, UCX_TLS="tcp") for name, settings in NIXL.items()},
            "Mooncake over tcp": {name: peer("mooncake", f"mooncake {name}", {}, **slices) for name, slices in SLICES.items()}}


def sent_by_peers():
    """case -> the SHA-256 of what a peer's server holds of it."""
    held = transfer_peer.held(memory_bytes())
    return lambda case: hashlib.sha256(held[:bytes_of(case)]).hexdigest()


def measured(groups, floor, case):
    """{(group, name): its rounds}, those of memcpy under ("memcpy", ""), and those of `floor` under ("two copies", "")."""
    rounds = {}
    for number in range(ROUNDS + 1):
        turns = [((group, name), one.times) for group, members in groups.items() for name, one in members.items()]
        turns += [(("memcpy", ""), groups["ckv"]["shm"].copies), (("two copies", ""), floor.times)]
        for key, times in turns:
            if key[0] == "Mooncake over tcp" and CASES[case][2]:
                continue  # its queue refuses that many runs at once
            made = times(case)
            if number > 0:  # the first round connects
                rounds.setdefault(key, []).append(made)
    return rounds


def check(groups, case, sent):
    for group, members in groups.items():
        for name, one in members.items():
            if group == "Mooncake over tcp" and CASES[case][2]:
                continue
            if not (one.check(case) if group == "ckv" else one.check(case, sent)):
                raise RuntimeError(f"{group}, {name}: other bytes arrived than were sent, {case}")


def figures(build):
    """{"shm 18 KB", ...: {"ratio": over the best peer, ...}, "memcpy 9.4 MB", "two copies 9.4 MB", ...: likewise}."""
    build = build.resolve()
    try:
        python = venvs.python("transfers", REQUIREMENTS, FREE_BYTES_MIN)
    except venvs.Unavailable as error:
        return {NOT_HERE: f"no NIXL and Mooncake: {error}"}
    sent, made = sent_by_peers(), {}
    with tempfile.TemporaryDirectory(prefix="ckv-peers-") as name, contextlib.ExitStack() as stack:
        groups = contestants(stack, pathlib.Path(name), build, python)
        floor = TwoCopies(stack, pathlib.Path(name), build)
        for case in CASES:
            rounds = measured(groups, floor, case)
            check(groups, case, sent)

            def of(*wanted):
                return {f"{group}, {name}": its for (group, name), its in rounds.items() if group in wanted}
            shm, tcp = rounds["ckv", "shm"], rounds["ckv", "tcp"]
            made[f"shm {case}"] = compared(shm, of("NIXL on this host"))
            made[f"tcp {case}"] = compared(tcp, of("NIXL over tcp", "Mooncake over tcp"))
            made[f"memcpy {case}"] = compared(shm, of("memcpy"))
            made[f"two copies {case}"] = compared(shm, of("two copies"))
            for (group, setting), its in rounds.items():
                made[f"{group}, {setting}, {case}"] = summary(its)
    return made


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
