"""A fleet on eight hosts (tests/e2e/lan_fleet.py): all of its programs are restarted in turn, the directory that leads is
killed, one member of etcd is away, then most of them, and a campaign of all kinds of faults.

    python3 tests/bench/lan_faults.py BUILD_DIR [rolling|leader|member|majority|campaign]...
"""

import datetime
import json
import pathlib
import random
import signal
import struct
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("tests/bench", "tests/e2e", "tests/support")]
from bar import NOT_HERE  # noqa: E402
from directories_e2e import LEADS, LED, poll  # noqa: E402
from priority import usual_priority  # noqa: E402

WORKERS = 2
CALLS, ROLLING_S = 100_000, 120  # of the rolling restart: at least so many calls, and so long
LEADER_KILLS = 20
AWAY_S = 600  # how long members of etcd are away
CAMPAIGN_S = 600


class LanBench:
    """A fleet with a corpus, engines that call it, and ckvctl processes that change other corpora."""

    def __init__(self, folder, late):
        import campaign_e2e as campaign
        from ctl_fleet import write_safetensors

        self.campaign, self.seed = campaign, random.randrange(1 << 32)
        self.tally, self.done, self.workers, self.engines = campaign.Tally(), threading.Event(), [], None
        self.fleet = campaign.LanFleet(folder)
        try:
            campaign.load(self.fleet, folder)
            self.query = folder / "q.safetensors"
            values = struct.pack(f"<{campaign.D_QK}f", *[0.5] * campaign.D_QK)
            write_safetensors(self.query, {"q": ("F32", [1, campaign.D_QK], values)})
            for number in range(WORKERS):
                worker = (campaign.LateWorker if late else campaign.Worker)(number, self.fleet, folder, self.seed, self.tally, self.done)
                worker.prepare()
                self.workers.append(worker)
            self.engines = campaign.Engines(self.fleet)
            self.engines.await_answers()
            for worker in self.workers:
                worker.start()
        except BaseException:
            self.stop()
            raise

    def end(self):
        """{"queries", "failed", "changed" of the calls, and the tally of the changes}"""
        self.done.set()
        for worker in self.workers:
            worker.join()
            for name in worker.states:
                worker.check(name)
        said = self.engines.end()
        for one in said:
            if one["failed"]:
                print(f"lan_faults: {one['first_error']}", file=sys.stderr)
        for line in self.tally.said[:20]:
            print(f"lan_faults: {line}", file=sys.stderr)
        return {**{name: self.tally.counts[name] for name in ("acknowledged", "refused", "lost", "half_seen", "other_errors")},
                **{name: sum(one[name] for one in said) for name in ("queries", "failed", "changed")},
                "longest_ms": max(one["ms"][3] for one in said)}

    def stop(self):
        self.done.set()
        for worker in self.workers:
            if worker.is_alive():
                worker.join()
        if self.engines is not None:
            self.engines.kill()
        self.fleet.stop()

    def leader(self):
        """The directory that leads, or None."""
        for program in self.fleet.role("directory"):
            log = program.log.read_text()
            # What it is, as far as this life's lines tell: one that was killed wrote no last line.
            life = log[program.life_begin:]
            if program.outside.poll() is None and life.rfind(LEADS) > life.rfind(LED):
                return program
        return None

    def await_leader(self):
        if not poll(lambda: self.leader() is not None):
            raise RuntimeError("no directory leads")
        return self.leader()

    def await_health(self):
        if not poll(lambda: self.campaign.run_ctl(self.fleet, "health").returncode == 0):
            raise RuntimeError(self.campaign.run_ctl(self.fleet, "health").stdout)


def restart(bench, program, sign):
    ready = program.host.folder / f"{program.name}.ready"
    program.kill(sign)
    ready.unlink(missing_ok=True)
    program.start()
    if program.name.startswith("etcd"):
        bench.await_leader()
    else:
        bench.fleet.await_ready(program)
    bench.await_health()


def rolling(bench):
    """Every program but the requester, which the callers over gRPC call, in turn."""
    begin, restarts = time.monotonic(), 0
    while time.monotonic() < begin + ROLLING_S:
        for program in bench.fleet.programs.values():
            if program.name != "requester":
                restart(bench, program, signal.SIGTERM)
                restarts += 1
    return {"restarts": restarts}


def leader(bench):
    took = []
    for _ in range(LEADER_KILLS):
        program = bench.await_leader()
        program.kill()
        since = time.monotonic()
        bench.await_leader()
        took.append(time.monotonic() - since)
        program.start()
        bench.await_health()
    return {"lead_s": max(took)}


def member(bench):
    (program, *_) = bench.fleet.role("etcd")
    program.kill()
    time.sleep(AWAY_S)  # the length of the fault
    program.start()
    bench.await_health()
    return {}


def majority(bench):
    """Seconds from the loss of most members until a call is refused, its error, and from their return until one is not."""
    if (answered := attend(bench)).returncode != 0:
        raise RuntimeError(answered.stderr)
    lost = bench.fleet.role("etcd")[:2]
    for program in lost:
        program.kill()
    since = time.monotonic()
    refusal = []

    def is_refused():
        called = attend(bench)
        if called.returncode != 0:
            refusal.append(called.stderr)
        return called.returncode != 0

    if not poll(is_refused):
        raise RuntimeError("no call is refused")
    refused_s = time.monotonic() - since
    time.sleep(max(0.0, AWAY_S - refused_s))  # the length of the fault
    for program in lost:
        program.start()
    if not poll(lambda: attend(bench).returncode == 0):
        raise RuntimeError("no call is answered")
    right_s = time.time() - last_election(bench.fleet.role("etcd"))
    return {"refused_s": refused_s, "right_s": right_s, "names_reason": int("lease" in refusal[0])}


def last_election(members):
    """When etcd last elected a leader, as seconds since 1970. The members that return elect one, and the one that was not away has
    a higher term and makes them elect again: seconds in which etcd answers nobody."""
    lines = [line for member in members for line in member.log.read_text().splitlines() if "elected leader" in line]
    times = [datetime.datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00")) for line in lines]
    return max(times).timestamp()


def attend(bench):
    return bench.campaign.run_ctl(bench.fleet, "attend", "--corpus", "base", "--layer", 0, "--queries", bench.query,
                                  "--out", bench.query.with_name("partial.safetensors"), "--timeout", "1s")


def campaign(bench):
    played = bench.campaign.Campaign(bench.fleet, random.Random(bench.seed))
    print(f"lan_faults: campaign: seed {bench.seed}", file=sys.stderr)
    played.play(CAMPAIGN_S)
    right_s = bench.campaign.await_right(bench.fleet)
    crashes = [crash for program in bench.fleet.programs.values() for crash in program.crashes]
    for crash in crashes:
        print(f"lan_faults: {crash}", file=sys.stderr)
    return {"faults": sum(played.counts.values()), "kinds": len(played.counts), "right_s": right_s, "crashes": len(crashes)}


SCENES = {"rolling": rolling, "leader": leader, "member": member, "majority": majority, "campaign": campaign}


@usual_priority()
def figures(build, names=tuple(SCENES)):
    """{scene: its figures, with those of LanBench.end}"""
    import campaign_e2e
    from lan import why_not

    if (reason := why_not()) is not None:
        return {NOT_HERE: "; ".join(reason)}
    for program in ("ckvd", "ckvctl", "attend_caller", "c_caller"):
        setattr(campaign_e2e.PROGRAMS, program, build.resolve() / "bin" / program)
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ckv-lan-") as folder:
            # A campaign's changes may be made late, so that their tally would not be exact.
            bench = LanBench(pathlib.Path(folder), late=name == "campaign")
            try:
                scene = SCENES[name](bench)
                found[name] = {**bench.end(), **scene}
            finally:
                bench.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1]), sys.argv[2:] or tuple(SCENES)), indent=2))
