"""Figures of a daemon's HTTP pages: the bytes of a large fleet's page, the time of a scrape, and whether every query
and every alert of deploy/monitoring works.

    python3 tests/bench/web_figures.py BUILD_DIR [page|scrape|monitoring]...

The daemons are real. A directory has 1,000 members and 10,000 corpora. A holder has 200 sessions, each with its own
requester, which has attended. A scrape is one GET over a new connection, timed by this script.
"""

import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from fleet import daemon

TREE = pathlib.Path(__file__).resolve().parents[2]
DEPLOY_TESTS = TREE / "tests" / "deploy"
sys.path.insert(0, str(DEPLOY_TESTS))
import monitored_fleet  # noqa: E402
import monitoring_test  # noqa: E402

MEMBERS, CORPORA = 1000, 10_000
SESSIONS, SCRAPES = 200, 200
QUERIES = len(list(monitoring_test.expressions()))
ALERTS = len(re.findall(r"- alert: ", (TREE / "deploy" / "monitoring" / "alerts.yaml").read_text()))
CANNOT = 77


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as reply:
        return reply.read()


def page(build):
    address = f"127.0.0.1:{monitored_fleet.free_port()}"
    with tempfile.TemporaryDirectory() as name:
        with daemon(build, pathlib.Path(name), [], "--role=directory", "--listen=127.0.0.1:0",
                    f"--metrics-address={address}") as directory:
            subprocess.run([str(build / "bin" / "web_fill"), "members", directory, str(MEMBERS), str(CORPORA)], check=True,
                           stdout=subprocess.DEVNULL)
            begin = time.perf_counter()
            data = get(address, "/status.json")
            took = time.perf_counter() - begin
            told = json.loads(data)["directory"]
            assert (told["member_count"], told["corpus_count"]) == (MEMBERS, CORPORA), told
            return {"bytes": len(get(address, "/")) + len(data), "json_bytes": len(data), "json_ms": 1e3 * took}


def scrape(build):
    address = f"127.0.0.1:{monitored_fleet.free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        monitored_fleet.ctl_fleet.Rows(1, 70, 0).write(folder / "rows.safetensors")
        with daemon(build, folder, [], "--role=directory", "--listen=127.0.0.1:0") as directory, daemon(
                build, folder, [], "--role=holder", "--name=h0", "--listen=127.0.0.1:0", f"--directory={directory}",
                "--store-capacity=64MiB", "--session-count-max=1024", f"--metrics-address={address}"):
            subprocess.run([str(build / "bin" / "ckvctl"), "--directory", directory, "corpus", "load", "docs",
                            str(folder / "rows.safetensors")], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            filler = subprocess.Popen([str(build / "bin" / "web_fill"), "sessions", directory, "docs", str(SESSIONS)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                assert filler.stdout.readline() == b"ready\n"
                took_ms = []
                for _ in range(SCRAPES):
                    begin = time.perf_counter()
                    text = get(address, "/metrics")
                    took_ms.append(1e3 * (time.perf_counter() - begin))
                sessions = int(re.search(rb"(?m)^ckv_holder_sessions (\d+)", text).group(1))
            finally:
                filler.stdin.close()
                filler.wait(60)
                filler.stdout.close()
    assert sessions >= SESSIONS, sessions
    return {"median_ms": statistics.median(took_ms), "worst_ms": max(took_ms), "sessions": sessions, "bytes": len(text)}


def monitoring(build):
    """How many queries returned data and how many alerts fired once and cleared; or why there are no figures."""
    programs = build / "bin"
    done = subprocess.run([sys.executable, str(DEPLOY_TESTS / "monitoring_test.py"), "--ckvd", str(programs / "ckvd"),
                           "--ckvctl", str(programs / "ckvctl"), "--attend-caller", str(programs / "attend_caller")],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == CANNOT:
        return done.stdout.strip().splitlines()[-1]
    found = re.search(r"(?m)^== (\d+) queries have data", done.stdout)
    # The test ends at the first alert that does not fire once and clear. That may be the last one printed.
    fired = len(re.findall(r"(?m)^   \w+ fires", done.stdout))
    return {"queries": int(found.group(1)) if found else 0,
            "alerts": fired if done.returncode == 0 else max(0, fired - 1)}


PARTS = {"page": page, "scrape": scrape, "monitoring": monitoring}


def figures(build, parts=tuple(PARTS)):
    build, said = pathlib.Path(build).resolve(), {}
    for part in parts:
        found = PARTS[part](build)
        said.update({part: found} if isinstance(found, dict) else {f"not_here/{part}": found})
    return said


if __name__ == "__main__":
    print(json.dumps(figures(sys.argv[1], sys.argv[2:] or tuple(PARTS)), indent=2))
