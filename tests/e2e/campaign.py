"""Faults that a seed chooses, on the hosts of a fleet, several at a time (campaign_e2e.py, and bench.sh fleet)."""

import collections
import itertools
import signal
import time

from lan_fleet import DISK

# How long a fault lasts, and from one's begin to the next one's, in seconds.
LASTS_S, APART_S = (0.2, 3.0), (0.0, 1.0)
FAULTS_MAX = 3  # at a time
LOSSES_PERCENT = (5, 20, 50)


class Campaign:
    """Each fault is a method: it begins one with what is free, and returns what it took and how to end it."""

    def __init__(self, fleet, rng):
        self.fleet, self.rng = fleet, rng
        self.taken, self.numbers = set(), itertools.count()
        self.counts = collections.Counter()
        self.active = []  # (until, what it took, how to end it)

    def play(self, seconds, each=lambda: None):
        """Disturbs the fleet for `seconds`, then ends all faults. Calls `each` after each begin of a fault."""
        end = time.monotonic() + seconds
        following = 0.0
        while (now := time.monotonic()) < end:
            self._end_faults(now)
            if now >= following and len(self.active) < FAULTS_MAX:
                self._begin(now)
                following = now + self.rng.uniform(*APART_S)
                each()
            self.fleet.restart_ended(self.taken)
            time.sleep(0.01)  # the pace of the faults; waits for nothing
        self._end_faults(float("inf"))
        self.fleet.restart_ended()

    def _begin(self, now):
        kind = self.rng.choice(KINDS)
        begun = kind(self)
        if begun is None:
            return
        took, end = begun
        self.taken.update(took)
        self.counts[kind.__name__] += 1
        self.active.append((now + self.rng.uniform(*LASTS_S), took, end))

    def _end_faults(self, now):
        for fault in [fault for fault in self.active if fault[0] <= now]:
            self.active.remove(fault)
            _, took, end = fault
            end()
            self.taken.difference_update(took)

    def _free_programs(self):
        return [program for name, program in self.fleet.programs.items() if name not in self.taken]

    def _free_hosts(self):
        return [host for name, host in self.fleet.lan.hosts.items() if name not in self.taken]

    # The faults. Those of programs take their names, those of the network the hosts' names.

    def kill(self):
        program = self.rng.choice(self._free_programs())
        program.kill()
        return [program.name], program.start

    def term(self):
        program = self.rng.choice(self._free_programs())
        program.kill(signal.SIGTERM)
        return [program.name], program.start

    def stop(self):
        program = self.rng.choice(self._free_programs())
        program.send(signal.SIGSTOP)
        return [program.name], lambda: program.send(signal.SIGCONT)

    def storm(self):
        """All programs of a role are killed and started at once."""
        programs = self.fleet.role(self.rng.choice(["etcd", "directory", "h", ""]))
        if any(program.name in self.taken for program in programs):
            return None
        for program in programs:
            program.kill()
        for program in programs:
            program.start()
        return [], lambda: None

    def one_way(self):
        """A host gets nothing from another, which gets all that it sends."""
        if len(hosts := self._free_hosts()) < 2:
            return None
        deaf, unheard = self.rng.sample(hosts, 2)
        return [self._name(deaf)], self._drop(deaf, f"ip saddr {self._address(unheard)} drop")

    def lossy(self):
        """A host loses a part of all packets that it should get."""
        if not (hosts := self._free_hosts()):
            return None
        host = self.rng.choice(hosts)
        return [self._name(host)], self._drop(host, f"numgen random mod 100 < {self.rng.choice(LOSSES_PERCENT)} drop")

    def isolate(self):
        if not (hosts := self._free_hosts()):
            return None
        name = self._name(self.rng.choice(hosts))
        self.fleet.lan.isolate(name)
        return [name], lambda: self.fleet.lan.join(name)

    def half_open(self):
        """A program is killed while its host is cut off, so that its peers' connections stay open."""
        program = self.rng.choice(self._free_programs())
        name = self._name(program.host)
        if name in self.taken:
            return None
        self.fleet.lan.isolate(name)
        program.kill()

        def end():
            self.fleet.lan.join(name)
            program.start()
        return [name, program.name], end

    def full_disk(self):
        program = self.rng.choice(self.fleet.role("h"))
        what = f"disk of {program.name}"
        if what in self.taken:
            return None
        program.host.run("dd", "if=/dev/zero", f"of={DISK}/filler", "bs=1M", code=None)
        return [what], lambda: program.host.run("rm", "-f", f"{DISK}/filler")

    def _drop(self, host, rule):
        table = f"fault{next(self.numbers)}"
        host.run("nft", f"add table inet {table}; add chain inet {table} in {{ type filter hook input priority 0; }}; "
                        f"add rule inet {table} in {rule}")
        return lambda: host.run("nft", f"delete table inet {table}")

    def _name(self, host):
        return next(name for name, one in self.fleet.lan.hosts.items() if one is host)

    def _address(self, host):
        return "10.77.0." + self._name(host).removeprefix("host-")


KINDS = [Campaign.kill, Campaign.term, Campaign.stop, Campaign.storm, Campaign.one_way, Campaign.lossy, Campaign.isolate,
         Campaign.half_open, Campaign.full_disk]
