"""Characterizes one holder over links of given speeds, with real processes on a real wire.

A directory and a holder run in a network namespace of their own, behind a link of that speed (fleet.py); ckvctl runs
outside and measures. Full speed is a fleet on loopback, over shm and tcp. The limited links need root.
"""

import contextlib
import csv
import json
import pathlib
import subprocess
import tempfile

from fleet import INSIDE, daemon, shaped_link

LINKS = ("10gbit", "1gbit")
ROW_BYTES = 1152  # of V2-Lite, for which `characterize` measures
PREFILL_US = "1"  # a token and layer: the middle of the paper's range (section 5.1)


def characterize(build, folder, directory, fabrics, *options):
    """What `ckvctl characterize` says of each fabric, by name."""
    command = [str(build / "bin" / "ckvctl"), "--directory", directory, "characterize", *options,
               "--dir", str(folder / "costs"), "--prefill-us", PREFILL_US, "--output", "json"]
    for fabric in fabrics:
        command += ["--fabric", fabric]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(out)
    if result["disturbed"]:
        raise SystemExit(f"the machine was disturbed, measure again: {result['disturbed']}")
    found = {row["fabric"]: row for row in result["findings"]}
    with open(folder / "costs" / "samples.csv", newline="") as file:
        samples = [row for row in csv.DictReader(line for line in file if not line.startswith("#"))]
    for row in samples:
        if (row["sweep"], row["query_rows"], row["tokens"]) == ("route", "256", "2048"):
            routed = int(row["bytes_out"]) + int(row["bytes_in"])
            found[row["fabric"]]["bytes_saved"] = 1 - routed / (2048 * ROW_BYTES)
    return found


def full_speed(build):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        directory = stack.enter_context(daemon(build, folder, [], "--role=directory", "--listen=127.0.0.1:0"))
        stack.enter_context(daemon(build, folder, [], "--role=holder", "--name=h0", "--listen=127.0.0.1:0",
                                   f"--directory={directory}"))
        # The whole grid, 6 min: --quick is over in 30 s, and a shared machine's slow moments last for seconds.
        return characterize(build, folder, directory, ("shm", "tcp"))


def limited(build, rate):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        inside = ["ip", "netns", "exec", stack.enter_context(shaped_link(rate))]
        directory = stack.enter_context(
            daemon(build, folder, inside, "--role=directory", f"--listen={INSIDE}:7400"))
        stack.enter_context(
            daemon(build, folder, inside, "--role=holder", "--name=h0", f"--listen={INSIDE}:7401",
                   f"--data-listen={INSIDE}:7402", f"--directory={INSIDE}:7400"))
        return characterize(build, folder, directory, ("tcp",), "--quick")


def figures(build):
    """{link: {figure: value}} of every link: shm, tcp, 10gbit, 1gbit."""
    links = full_speed(build)
    for rate in LINKS:
        links[rate] = limited(build, rate)["tcp"]
    return {link: {"mape": 100 * row["mape"], "mape_large": 100 * row["mape_large"], "regret": 100 * row["regret"],
                   "right": 100 * row["right_share"], "clear_points": row["clear_points"],
                   "resolved_right": 100 * row["resolved_right_share"], "resolved_points": row["resolved_points"],
                   "bytes_saved": 100 * row["bytes_saved"]}
            for link, row in links.items()}


if __name__ == "__main__":
    import sys
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
