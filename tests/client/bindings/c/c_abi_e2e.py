#!/usr/bin/python3
r"""Goal: C programs get the same bits from a fleet as the C++ client.

Method: a directory, two holders and a corpus of several chunks. Each given program makes the same
calls and writes its answers to a file; the files are equal to that of the C++ program. Then each
holder in turn is stopped while c_stopped queries. It fetches the chunks before the stopped holder's
first one; an early return reports the rest. c_advice prints JSON, whose numbers are checked.
c_put puts the chunks into another corpus, and finds them.

    python3 tests/client/bindings/c/c_abi_e2e.py --ckvd ... --ckvctl ... --reference cc_client \
        --stopped c_stopped --put c_put --advice c_advice PROGRAM...
"""

import argparse
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "e2e"))
from ctl_fleet import PROGRAMS, Fleet, Rows  # noqa: E402

TOKENS, CHUNK_TOKENS = 100, 24
CORPUS = "c-abi"
TIMEOUT_S = 120


def run(*command):
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}\nexit {done.returncode}\n{done.stdout}")
    return done.stdout


def check_advice(program, fleet):
    """Checks that the JSON texts have the members listed in ckv_advice.h, and consistent numbers."""
    explained, quoted, moved, some = [json.loads(line) for line in run(program, fleet.directory, CORPUS).splitlines()]
    decision = {"choice", "runner_up", "costs", "route_bytes", "fetch_bytes"}
    names = ["route", "fetch", "local"]
    for text in (explained, moved, some, *quoted["groups"]):
        if not decision <= text.keys() or [cost["primitive"] for cost in text["costs"]] != names:
            sys.exit(f"no decision: {text}")
        offered = [cost for cost in text["costs"] if cost["offered"]]
        if text["choice"] != min(offered, key=lambda cost: cost["total_us"])["primitive"]:
            sys.exit(f"not the cheapest: {text}")
        for cost in offered:
            if abs(sum(cost["terms_us"].values()) - cost["total_us"]) > 1e-6 * cost["total_us"]:
                sys.exit(f"terms that do not add up: {cost}")
    if explained["tokens"] != TOKENS or some["tokens"] != 2 * CHUNK_TOKENS or not explained["summary"]:
        sys.exit(f"tokens: {explained}")
    if {holder["name"] for holder in explained["holders"]} != {"h0", "h1"}:
        sys.exit(f"holders: {explained}")
    if {knob["name"]: knob["value"] for knob in explained["inputs"]}["steps"] != 3:
        sys.exit(f"inputs: {explained}")
    if some["costs"][1]["offered"] or not some["costs"][1]["reason"]:
        sys.exit(f"a fetch without room: {some}")
    # The program reported 500 us a token.
    prefill_us = moved["costs"][2]["terms_us"]["prefill"]
    if explained["costs"][2]["offered"] or abs(prefill_us - 500 * TOKENS) > 1:
        sys.exit(f"prefill: {explained} and {moved}")
    if explained["costs"][1]["terms_us"]["splice"] != 0 or moved["costs"][1]["terms_us"]["splice"] <= 0:
        sys.exit(f"splice: {explained} and {moved}")
    if sum(group["tokens"] for group in quoted["groups"]) != TOKENS:
        sys.exit(f"groups: {quoted}")
    print(f"{program.name}: {explained['summary']}")


def difference(got, want):
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    return f"{len(got)} bytes, {len(want)} expected; the first difference is at byte {at}"


def beside_a_stopped_holder(program, fleet, holder):
    """[number of chunks fetched while the holder was stopped, number of all chunks]."""
    process = subprocess.Popen([str(program), fleet.directory, CORPUS], text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != "ready\n":
            sys.exit(f"{program.name} is not ready: exit {process.wait(TIMEOUT_S)}")
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)  # all its threads have stopped
        said, _ = process.communicate("go\n", timeout=TIMEOUT_S)
    finally:
        holder.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
    if process.returncode != 0:
        sys.exit(f"{program.name}: exit {process.returncode}")
    return [int(word) for word in said.split()]


def check_policy(fleet):
    """The corpus has what the first put of c_put wanted, which later puts kept."""
    shown = json.loads(subprocess.run([PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "show", "put-again", "-o", "json"],
                                      check=True, capture_output=True, text=True).stdout)
    wanted = {"ttl_ms": 3600000, "kept_version_count": 2, "quota_bytes": 0}
    if {name: shown[name] for name in wanted} != wanted or shown["expires_at_ms"] == 0:
        sys.exit(f"policy: {shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--reference", type=pathlib.Path, required=True)
    parser.add_argument("--stopped", type=pathlib.Path, required=True)
    parser.add_argument("--put", type=pathlib.Path, required=True)
    parser.add_argument("--advice", type=pathlib.Path, required=True)
    parser.add_argument("programs", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fleet = Fleet(folder, holders=2)
        try:
            rows = Rows(seed=5, tokens=TOKENS, position=0)
            rows.write(folder / "rows.safetensors")
            (folder / "tokens").write_bytes(struct.pack(f"<{TOKENS}i", *rows.token_ids))
            run(PROGRAMS.ckvctl, "--directory", fleet.directory, "corpus", "load", CORPUS,
                folder / "rows.safetensors", "--chunk-tokens", CHUNK_TOKENS)
            answers = {}
            for program in (arguments.reference, *arguments.programs):
                run(program, fleet.directory, CORPUS, folder / "answers")
                answers[program] = (folder / "answers").read_bytes()
            check_advice(arguments.advice, fleet)
            run(arguments.put, fleet.directory, CORPUS, "put-again", folder / "tokens")
            check_policy(fleet)
            # The directory was started first, then the holders.
            came = [beside_a_stopped_holder(arguments.stopped, fleet, holder) for holder in fleet.processes[1:3]]
        finally:
            fleet.stop()
    (few, total), (more, _) = sorted(came)
    if few != 0 or not 0 < more < total:
        sys.exit(f"early returns: {came}; the holder of the first chunk leaves none, the other some")
    print(f"of {total} chunks, {more} came beside a stopped holder")
    want = answers[arguments.reference]
    for program in arguments.programs:
        if answers[program] != want:
            sys.exit(f"{program.name}: {difference(answers[program], want)}")
        print(f"{program.name}: {len(want)} bytes of answers, as the C++ client's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
