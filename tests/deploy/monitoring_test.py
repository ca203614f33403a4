#!/usr/bin/python3
"""Goal: every query of the dashboard and of the alerts finds data. Each alert fires once when its fault is made,
and clears when the fault is repaired.

Method: a fleet of real processes and Debian's Prometheus on loopback. The rules are those of deploy/monitoring
with shorter windows, so that a fault need not last for minutes. Exits 77, with the reason, without Prometheus.

    python3 tests/deploy/monitoring_test.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \\
        --attend-caller build/release/bin/attend_caller
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

from monitored_fleet import LOCAL_CACHE_BYTES, TEXTS, Load, Monitored, attend, ctl_fleet, free_port, load_corpora, wait_until  # noqa: E402

RULES = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
SCRAPE_S = 1
WINDOW = f"{8 * SCRAPE_S}s"  # of rates and increases
HOLDERS = 2
# (metric, label, the values of the label that every query of the metric must return). "local" is missing, because no
# ckvd recomputes rows: that value is for engines that link the library.
SERIES = (("ckv_requester_call_seconds", "primitive", {"route", "cached", "fetch", "prefetch"}),
          ("ckv_requester_measured_over_predicted", "primitive", {"route", "prefetch"}),
          ("ckv_requester_lane_seconds", "fabric", {"tcp"}), ("ckv_holder_queue_wait_seconds", "kind", {"attend", "push"}))


class Prometheus:
    def __init__(self, folder, targets):
        self.url = f"http://127.0.0.1:{free_port()}"
        rules = (RULES / "alerts.yaml").read_text()
        rules = re.sub(r"\[\d+m\]", f"[{WINDOW}]", re.sub(r"for: \d+[ms]", "for: 1s", rules))
        (folder / "alerts.yaml").write_text(rules)
        (folder / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(folder / "alerts.yaml")],
            "scrape_configs": [{"job_name": "ckv", "static_configs": [{"targets": targets}]}]}))
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log)

    def get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as reply:
            return json.load(reply)["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def firing(self):
        """{(alert, its instance): since when} of the alerts that fire now."""
        return {(one["labels"]["alertname"], one["labels"].get("instance", "")): one["activeAt"]
                for one in self.get("alerts")["alerts"] if one["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def expressions():
    """(title, expression) of each query of the dashboard, and of each alert without its threshold."""
    for panel in json.loads((RULES / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], re.sub(r"\[1h\]", f"[{WINDOW}]", target["expr"].replace("$__rate_interval", WINDOW))
    for alert, expression in re.findall(r"alert: (\w+)\n\s+expr: (.*)", (RULES / "alerts.yaml").read_text()):
        bare = re.sub(r" [<>] [\d.]+$", "", re.sub(r"\[\d+m\]", f"[{WINDOW}]", expression))
        assert bare != expression, f"{alert} has no threshold"
        yield alert, bare


class Faults:
    """Each method makes the fault of one alert. Returns (the alert's label `instance`, a function that repairs it)."""

    def __init__(self, fleet, folder, prometheus):
        self.fleet, self.folder, self.prometheus = fleet, folder, prometheus

    def lives(self, instance):
        """The starts of the process that Prometheus scraped last."""
        return {one["value"][1] for one in self.prometheus.query(f'process_start_time_seconds{{instance="{instance}"}}')}

    def CkvDoesNotAnswer(self):
        self.fleet.end("h1", signal.SIGKILL)
        return self.fleet.metrics["h1"], lambda: self.fleet.holder(1)

    def CkvBroken(self):
        # Without a holder no corpus can be loaded, and the directory reports that.
        for holder in ("h0", "h1"):
            self.fleet.end(holder)

        def mend():
            for number in range(HOLDERS):
                self.fleet.holder(number)
        return self.fleet.metrics["directory"], mend

    def CkvHolderRefuses(self):
        # Leases expire while the directory is stopped. It is not unreachable for long enough to page.
        self.fleet.by_name["directory"].send_signal(signal.SIGSTOP)
        return self.fleet.metrics["h0"], lambda: self.fleet.by_name["directory"].send_signal(signal.SIGCONT)

    def CkvDirectoryAway(self):
        self.fleet.end("directory")
        return self.fleet.metrics["requester"], lambda: self.fleet.again(
            "directory", "--role=directory", f"--directory-path={self.folder}/directory", listen=self.fleet.directory)

    def CkvStoreDamaged(self):
        # Ends the holder first: it would otherwise repair the file from the intact chunk in memory.
        self.fleet.end("h0")
        path = next(one for one in self.fleet.store(0).glob("chunks/*/*/*") if not one.suffix)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.fleet.holder(0)
        self.fleet.ctl("corpus", "verify", "docs", check=False)

        def mend():
            self.fleet.ctl("corpus", "load", "docs", self.folder / "rows.safetensors", "--chunk-tokens", 32, "--replace")
            self.fleet.end("h0")
            self.fleet.holder(0)
        return self.fleet.metrics["h0"], mend

    def CkvStoreFull(self):
        self.fleet.end("h1")
        self.fleet.holder(1, capacity="1MiB")
        ctl_fleet.Rows(3, 2000, 0).write(self.folder / "big.safetensors")
        for count in range(10):  # 160 KB each on either holder
            self.fleet.ctl("corpus", "load", f"big{count}", self.folder / "big.safetensors", "--chunk-tokens",
                           100 + count)

        def mend():
            for count in range(10):
                self.fleet.ctl("corpus", "drop", f"big{count}")
            self.fleet.end("h1")
            self.fleet.holder(1)
        return self.fleet.metrics["h1"], mend

    def CkvTooFewCopies(self):
        ctl_fleet.Rows(4, 70, 0).write(self.folder / "two.safetensors")
        self.fleet.ctl("corpus", "load", "two", self.folder / "two.safetensors", "--chunk-tokens", 32, "--replicas", 2)
        self.fleet.end("h1")

        def mend():
            self.fleet.holder(1)
            self.fleet.ctl("corpus", "drop", "two")
        return self.fleet.metrics["directory"], mend

    def CkvCopiesStuck(self):
        # All holders are drained, so none may take a copy.
        drains = [self.fleet.start_ctl("holder", "drain", f"h{number}") for number in range(HOLDERS)]

        def mend():
            for drain in drains:
                drain.terminate()
                drain.wait(30)
            for number in range(HOLDERS):  # a drain goes on without its command
                self.fleet.ctl("holder", "undrain", f"h{number}")
        return self.fleet.metrics["directory"], mend

    def CkvMixedBuilds(self):
        self.fleet.end("h1")
        self.fleet.holder(1, "--kernel-target=SCALAR")

        def mend():
            self.fleet.end("h1")
            self.fleet.holder(1)
        return "", mend

    def CkvRestarts(self):
        instance = self.fleet.metrics["h1"]
        for _ in range(4):
            before = wait_until("a life is scraped", lambda: self.lives(instance))
            self.fleet.end("h1")
            self.fleet.holder(1)
            wait_until("the next life is scraped", lambda: self.lives(instance) - before)
        return self.fleet.metrics["h1"], lambda: None

    def CkvFilesNearLimit(self):
        process = self.fleet.by_name["h0"].pid
        before = resource.prlimit(process, resource.RLIMIT_NOFILE)
        count = len(os.listdir(f"/proc/{process}/fd"))
        # Leaves room for the scrape itself, in addition to the four descriptors that the metrics port reserves.
        resource.prlimit(process, resource.RLIMIT_NOFILE, (count + 6, before[1]))
        return self.fleet.metrics["h0"], lambda: resource.prlimit(process, resource.RLIMIT_NOFILE, before)

    def CkvAttendsFail(self):
        self.fleet.end("h0")
        for _ in range(20):
            attend(self.fleet, self.folder, check=False)
        return self.fleet.metrics["requester"], lambda: self.fleet.holder(0)


def check_alert(prometheus, faults, name):
    instance, mend = getattr(faults, name)()

    def mine():
        return [(key, since) for key, since in prometheus.firing().items()
                if key[0] == name and instance in (None, key[1])]
    (_, since), *_ = wait_until(f"{name} fires", mine)
    print(f"   {name} fires")
    mend()
    seen = {since}

    def cleared():
        now = mine()
        seen.update(one[1] for one in now if instance is not None)
        return not now
    wait_until(f"{name} clears", cleared)
    assert len(seen) == 1, f"{name} fired {len(seen)} times: {seen}"


def quiet(prometheus):
    wait_until("no alert is left", lambda: not prometheus.get("alerts")["alerts"])


def make_cold_read(fleet, folder, prometheus):
    """Restarts a holder unless reads of cold chunks are visible: after a restart, its chunks are only on disk."""
    def seen():
        return [one for one in prometheus.query('ckv_holder_load_seconds_count') if float(one["value"][1]) > 0]
    if not seen():
        wait_until("the holder is scraped", lambda: prometheus.query(f'up{{instance="{fleet.metrics["h0"]}"}} == 1'))
        fleet.end("h0")
        fleet.holder(0)


def has_data(prometheus, expression):
    """Whether the query returns a number, and one for each series that the load must produce."""
    found = [one for one in prometheus.query(expression) if one["value"][1] != "NaN"]
    for metric, label, values in SERIES:
        if metric in expression and not values <= {one["metric"].get(label) for one in found}:
            return False
    return bool(found)


def check_queries(fleet, folder, prometheus, caller):
    load = Load(fleet, folder, caller)
    try:
        for where, expression in expressions():
            if "load_seconds" in expression:
                make_cold_read(fleet, folder, prometheus)
            wait_until(f"{where}: {expression} has data", lambda: has_data(prometheus, expression))
    finally:
        load.stop()
    print(f"== {len(list(expressions()))} queries have data")


def test(folder, caller):
    fleet, prometheus = Monitored(folder, HOLDERS, "--fabric=tcp", LOCAL_CACHE_BYTES), None
    try:
        load_corpora(fleet, folder, copies=1)
        fleet.ctl("explain", "--corpus", "docs", "--mq", 1)  # measures holders, so that calls are predicted
        prometheus = Prometheus(folder, list(fleet.metrics.values()))
        wait_until("all targets answer", lambda: len(prometheus.query('up{job="ckv"} == 1')) == len(fleet.metrics))
        check_queries(fleet, folder, prometheus, caller)
        for name in TEXTS:
            fleet.ctl("corpus", "drop", name)
        quiet(prometheus)
        names = re.findall(r"alert: (\w+)", (RULES / "alerts.yaml").read_text())
        faults = Faults(fleet, folder, prometheus)
        for name in names:
            check_alert(prometheus, faults, name)
            quiet(prometheus)
        print(f"== {len(names)} alerts fired once and cleared")
    finally:
        if prometheus:
            prometheus.stop()
        fleet.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    options = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    if not shutil.which("prometheus"):
        return skip.lacks("no prometheus here")
    with tempfile.TemporaryDirectory(prefix="ckv-monitoring-") as folder:
        test(pathlib.Path(folder), options.attend_caller)
    return 0


if __name__ == "__main__":
    sys.exit(main())
