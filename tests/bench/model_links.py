"""The cost model of two models with the same row widths, against a holder over links of given speeds.

V2-Lite (27 layers, 16 query rows a token) and V3 (61 layers, 128), each with constants of its own, and V3 with those of
V2-Lite. As in decision_links.py, links of 10 and 1 Gbit/s are namespaces behind a shaper and need root.

    python3 tests/bench/model_links.py BUILD_DIR ["full speed"] [10gbit] [1gbit]
"""

import contextlib
import json
import pathlib
import subprocess
import tempfile

from decision_links import LINKS, PREFILL_US
from fleet import INSIDE, daemon, shaped_link

ROWS, TOKENS = "16,128,512,1024,4096", "256,2048,8192"
CAPACITY = "--store-capacity=6GiB"  # chunks of 8,192 tokens and 61 layers take 576 MB each
MODELS = {"v2-lite": "deepseek-v2-lite", "v3": "deepseek-v3"}
BORROWED = "v3 by v2-lite"  # V3 with the constants of V2-Lite


def measured(build, folder, directory, fabrics, model, profile=None):
    """{fabric: findings} of a model, and its folder. A disturbed run is repeated once."""
    for attempt in range(2):
        place = folder / f"{model}-{'own' if profile is None else 'borrowed'}-{attempt}"
        command = [str(build / "bin" / "ckvctl"), "--directory", directory, "characterize", "--dir", str(place),
                   "--geometry", MODELS[model], "--mq", ROWS, "--tokens", TOKENS, "--no-sweeps", "--prefill-us",
                   PREFILL_US, "--output", "json"]
        for fabric in fabrics:
            command += ["--fabric", fabric]
        if profile is not None:
            command += ["--profile", str(profile)]
        out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        if not out["disturbed"]:
            return {row["fabric"]: row for row in out["findings"]}, place
    raise SystemExit(f"the machine was disturbed twice, measure again: {out['disturbed']}")


def of_models(build, folder, directory, fabrics):
    """{fabric: {model: findings}}."""
    found = {fabric: {} for fabric in fabrics}
    own, lite = measured(build, folder, directory, fabrics, "v2-lite")
    others = {"v3": measured(build, folder, directory, fabrics, "v3")[0],
              BORROWED: measured(build, folder, directory, fabrics, "v3", lite / "profile.json")[0]}
    for model, rows in {"v2-lite": own, **others}.items():
        for fabric in fabrics:
            found[fabric][model] = rows[fabric]
    return found


def full_speed(build):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        directory = stack.enter_context(daemon(build, folder, [], "--role=directory", "--listen=127.0.0.1:0"))
        stack.enter_context(daemon(build, folder, [], "--role=holder", "--name=h0", "--listen=127.0.0.1:0", CAPACITY,
                                   f"--directory={directory}"))
        return of_models(build, folder, directory, ("shm", "tcp"))


def limited(build, rate):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        inside = ["ip", "netns", "exec", stack.enter_context(shaped_link(rate))]
        stack.enter_context(daemon(build, folder, inside, "--role=directory", f"--listen={INSIDE}:7400"))
        stack.enter_context(
            daemon(build, folder, inside, "--role=holder", "--name=h0", f"--listen={INSIDE}:7401",
                   f"--data-listen={INSIDE}:7402", f"--directory={INSIDE}:7400", CAPACITY))
        return of_models(build, folder, f"{INSIDE}:7400", ("tcp",))["tcp"]


def said(link, models):
    """{"MODEL, LINK": {figure: value}}, which is also printed: all links take most of an hour."""
    rows = {f"{model}, {link}": {
        "mape": 100 * row["mape"], "mape_large": 100 * row["mape_large"], "beyond": 100 * row["mape_beyond_kernel"],
        "beyond_large": 100 * row["mape_beyond_kernel_large"], "regret": 100 * row["regret"],
        "resolved_right": 100 * row["resolved_right_share"], "resolved_points": row["resolved_points"],
        "clear_points": row["clear_points"]} for model, row in models.items()}
    for name, row in rows.items():
        print(name, {figure: round(value, 2) for figure, value in row.items()}, flush=True)
    return rows


def figures(build, links=("full speed", *LINKS)):
    """{"MODEL, LINK": {figure: value}} of every model and link."""
    rows = {}
    for name in links:
        found = full_speed(build) if name == "full speed" else {name: limited(build, name)}
        for link, models in found.items():
            rows.update(said(link, models))
    return rows


if __name__ == "__main__":
    import sys
    print(json.dumps(figures(pathlib.Path(sys.argv[1]), sys.argv[2:] or ("full speed", *LINKS)), indent=2))
