"""Plays agents of unknown length over three links, with each policy: agents_bench.cc against real daemons.

    python3 tests/bench/policy_links.py BUILD_DIR

A directory and three holders are processes, agents_bench is the requester. Links: shm, tcp on loopback, and 1 Gbit/s
(fleet.py), where all three holders are behind the one link. That link needs root. The requester has one processor and
the daemons have the other. Agents run one after another, so one holder computes at a time.

Each run is a new requester with an empty local row cache. A round runs each policy on each link, in an order that
changes, so that a slow minute of the machine affects all policies alike. A figure is the median over rounds of a sum,
or of a ratio within one round.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from fleet import INSIDE, daemon, shaped_link

POLICIES = ("route", "cache", "auto")
LINKS = {"shm": "shm", "tcp": "tcp", "1gbit": "tcp"}  # and the fabric of each
HOLDERS = 3
ROUNDS = 2
# Decides which agent has which length. Another seed mixes the same lengths differently.
SEED = 1
REQUESTER_CPU, DAEMON_CPU = "0", "1"
# 14 chunks of 64 MB over three holders, at most 6 on one.
CAPACITY = "512MiB"


@contextlib.contextmanager
def three_holders(build, inside, host):
    """Yields the directory's address after loading the documents. Loads within the namespace, so at full speed."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        prefix = [*inside, "taskset", "-c", DAEMON_CPU]
        directory = stack.enter_context(daemon(build, folder, prefix, "--role=directory", f"--listen={host}:0"))
        for i in range(HOLDERS):
            stack.enter_context(
                daemon(build, folder, prefix, "--role=holder", f"--name=h{i}", f"--listen={host}:0",
                       f"--directory={directory}", f"--store-capacity={CAPACITY}"))
        subprocess.run([*inside, str(build / "bin" / "agents_bench"), "load", directory], check=True)
        yield directory


def play(build, directory, policy, fabric, seed):
    command = ["taskset", "-c", REQUESTER_CPU, str(build / "bin" / "agents_bench"), "play", directory, policy, fabric,
               str(seed)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def runs(build, links, rounds, seed, note):
    """{link: {policy: [output of agents_bench, one per round]}}"""
    if "1gbit" in links and os.geteuid() != 0:
        raise RuntimeError("the link of 1 Gbit/s needs root")
    said = {link: {policy: [] for policy in POLICIES} for link in links}
    with contextlib.ExitStack() as stack:
        directories = {}
        for link in links:
            inside, host = [], "127.0.0.1"
            if link == "1gbit":
                inside, host = ["ip", "netns", "exec", stack.enter_context(shaped_link(link))], INSIDE
            directories[link] = stack.enter_context(three_holders(build, inside, host))
        for turn in range(rounds):
            for link in links:
                for policy in POLICIES[turn % 3:] + POLICIES[:turn % 3]:
                    one = play(build, directories[link], policy, LINKS[link], seed)
                    said[link][policy].append(one)
                    facts = {fact: one[fact] for fact in ("cached", "steps", "believed")}
                    note(f"round {turn}, {link}, {policy}: {one['sum_s']:.2f} s, {facts}")
    return said


def figures_of(said):
    figures = {}
    for link, by_policy in said.items():
        sums = {policy: [one["sum_s"] for one in ones] for policy, ones in by_policy.items()}
        of_better = [auto / min(route, cache) for route, cache, auto in zip(*(sums[policy] for policy in POLICIES))]
        figures[link] = {**{f"{policy}_s": statistics.median(each) for policy, each in sums.items()},
                         "of_better": statistics.median(of_better)}
    wins = {min(("route", "cache"), key=lambda policy, row=row: row[f"{policy}_s"]) for row in figures.values()}
    figures["mix"] = {"winners": len(wins)}
    return figures


def figures(build):
    """{link: {figure: value}} of every link, and of "mix": how many static policies win on some link."""
    return figures_of(runs(build, LINKS, ROUNDS, SEED, lambda line: None))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    print(json.dumps(figures_of(runs(folder, LINKS, ROUNDS, SEED, lambda line: print(line, file=sys.stderr))), indent=2))
