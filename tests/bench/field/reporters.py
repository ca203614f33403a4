"""The six places where a fleet reports whether it is well, each read as a monitor reads it.

A reporter returns (well, its report). `well` is true only if the reporter reports that nothing is wrong.
"""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "deploy"))
from monitored_fleet import free_port  # noqa: E402

RULES = HERE.parents[2] / "deploy" / "monitoring" / "alerts.yaml"
CTL_S = 60  # a ckvctl that queries silent members is slow
PAGE_S = 5
SCRAPE_S = 1
WINDOW = "6s"  # of rates. Each alert fires at once


def _ctl(fleet, *arguments):
    try:
        done = fleet.ctl(*arguments, check=False, timeout=CTL_S, **fleet.environment)
    except subprocess.TimeoutExpired:
        return None, "", f"no answer in {CTL_S} s"
    return done.returncode, done.stdout, done.stderr


# A finding of either severity. A warning does not mean a broken fleet, but it is a report.
FINDING = re.compile(r"^(broken|warning): ", re.MULTILINE)


def health(fleet, _subject):
    code, out, err = _ctl(fleet, "health")
    return code == 0 and not FINDING.search(out), out + err


def status(fleet, _subject):
    code, out, err = _ctl(fleet, "status")
    return code == 0 and not FINDING.search(out), out + err


def corpora(fleet, _subject):
    code, out, err = _ctl(fleet, "corpus", "list", "-o", "json")
    if code != 0:
        return False, err
    listed = json.loads(out)
    listed = listed["corpora"] if isinstance(listed, dict) else listed
    names = {one["name"] for one in listed}
    if not fleet.loaded <= names:
        return False, f"lists {sorted(names)} of {sorted(fleet.loaded)}"
    wrong = [one for one in listed if one.get("missing_count") != 0]
    return not wrong, json.dumps(wrong)


def _get(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PAGE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def page(fleet, _subject):
    """The status page's data, which the page shows first if anything is wrong."""
    code, body = _get(fleet.metrics["directory"], "/status.json")
    if code != 200:
        return False, body
    findings = json.loads(body)["findings"]
    return not findings, json.dumps(findings)


def ready(fleet, subject):
    """/readyz of the daemon that is broken."""
    code, body = _get(fleet.metrics[subject], "/readyz")
    return code == 200 and not FINDING.search(body), f"{code} {body}"


class Alerts:
    """Debian's Prometheus with the rules of deploy/monitoring, without their waits."""

    def __init__(self, fleet):
        self.url = f"http://127.0.0.1:{free_port()}"
        folder = fleet.folder / "prometheus"
        folder.mkdir()
        rules = re.sub(r"\[\d+m\]", f"[{WINDOW}]", re.sub(r"for: \d+[ms]", "for: 0s", RULES.read_text()))
        (folder / "alerts.yaml").write_text(rules)
        targets = [fleet.metrics[name] for name in ("directory", "h0", "h1", "requester")]
        (folder / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(folder / "alerts.yaml")],
            "scrape_configs": [{"job_name": "ckv", "static_configs": [{"targets": targets}]}]}))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log)

    def __call__(self, _fleet, _subject):
        code, body = _get(self.url.removeprefix("http://"), "/api/v1/alerts")
        if code != 200:
            return True, body  # no report
        firing = [one["labels"] for one in json.loads(body)["data"]["alerts"] if one["state"] == "firing"]
        return not firing, json.dumps(firing)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


SAYING = {"health": health, "status": status, "corpora": corpora, "page": page, "ready": ready}
NAMES = (*SAYING, "alerts")


def await_unwell(reporter, fleet, subject, seconds):
    """Polls for up to `seconds` until the reporter reports that something is wrong. Returns (well, its report)."""
    deadline = time.monotonic() + seconds
    while True:
        well, said = reporter(fleet, subject)
        if not well or time.monotonic() > deadline:
            return well, said
        fleet.live(0.2)


def await_named(fleet, code, seconds):
    """Polls health for up to `seconds` until a finding has this code. Returns (whether one has, the report)."""
    deadline = time.monotonic() + seconds
    while True:
        said = fleet.ctl("health", "-o", "json", check=False).stdout
        named = f'"{code}"' in said
        if named or time.monotonic() > deadline:
            return named, said
        fleet.live(0.2)
