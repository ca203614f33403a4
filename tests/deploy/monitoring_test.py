#!/usr/bin/env python3
"""Goal: every query of the dashboard and of the alerts finds data, and each alert fires when its fault is made,
once, and clears when the fault is mended.

Method: a fleet of real processes and Debian's Prometheus on loopback. The rules are those of deploy/monitoring
with shorter windows: a fault of minutes would take minutes. Exits 77, with the reason, without Prometheus.

    python3 tests/deploy/monitoring_test.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402

RULES = HERE.parent.parent / "deploy" / "monitoring"
SKIPPED = 77
SCRAPE_S = 1
WINDOW = f"{8 * SCRAPE_S}s"  # of rates and increases
WAIT_S = 60                  # for an alert, on a machine that may be busy
HOLDERS = 2


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Monitored(ctl_fleet.Fleet):
    """A fleet whose processes keep their addresses, and can be started again by name."""

    def __init__(self, folder):
        self.folder, self.processes, self.by_name, self.metrics = folder, [], {}, {}
        self.directory = f"127.0.0.1:{free_port()}"
        self.again("directory", "--role=directory", f"--directory-path={folder}/directory", listen=self.directory)
        for index in range(HOLDERS):
            self.holder(index)
        self.requester = self.again("requester", "--role=requester", f"--directory={self.directory}")

    def holder(self, index, *more, capacity="16MiB"):
        return self.again(f"h{index}", "--role=holder", f"--directory={self.directory}", "--lease-ttl=1s",
                          f"--store-capacity={capacity}", f"--store-path={self.store(index)}",
                          *more)

    def again(self, name, *arguments, listen="127.0.0.1:0"):
        self.metrics.setdefault(name, f"127.0.0.1:{free_port()}")
        address = self.start(name, f"--metrics-address={self.metrics[name]}", *arguments, listen=listen)
        self.by_name[name] = self.processes[-1]
        return address

    def end(self, name, how=signal.SIGTERM):
        process = self.by_name.pop(name)
        process.send_signal(how)
        process.wait(60)
        self.processes.remove(process)

    def ctl(self, *arguments, check=True):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.requester
        done = subprocess.run([ctl_fleet.PROGRAMS.ckvctl, "--directory", self.directory, *map(str, arguments)], env=env,
                              timeout=120, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done


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
        """{(alert, its labels): since when} of what fires now."""
        return {(one["labels"]["alertname"], one["labels"].get("instance", "")): one["activeAt"]
                for one in self.get("alerts")["alerts"] if one["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def wait_until(what, condition):
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            value = condition()
        except OSError:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"not in {WAIT_S} s: {what}"
        time.sleep(0.2)


def expressions():
    """(where, expression) of the dashboard, and of each alert without its threshold."""
    for panel in json.loads((RULES / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], re.sub(r"\[1h\]", f"[{WINDOW}]", target["expr"].replace("$__rate_interval", WINDOW))
    for alert, expression in re.findall(r"alert: (\w+)\n\s+expr: (.*)", (RULES / "alerts.yaml").read_text()):
        bare = re.sub(r" [<>] [\d.]+$", "", re.sub(r"\[\d+m\]", f"[{WINDOW}]", expression))
        assert bare != expression, f"{alert} has no threshold"
        yield alert, bare


def attend(fleet, folder, *more, check=True):
    return fleet.ctl("attend", "--corpus", "docs", "--layer", 0, "--queries", folder / "q.safetensors", "--out",
                     folder / "o.safetensors", *more, check=check)


def write_inputs(folder):
    ctl_fleet.Rows(1, 70, 0).write(folder / "rows.safetensors")
    query = [ctl_fleet.bf16(0.5)] * ctl_fleet.D_QK
    ctl_fleet.write_safetensors(folder / "q.safetensors",
                                {"q": ("BF16", [1, ctl_fleet.D_QK], b"".join(v.to_bytes(2, "little") for v in query))})


class Faults:
    """Each method makes the fault of one alert, and returns what mends it. `instance` is the label of the alert."""

    def __init__(self, fleet, folder, prometheus):
        self.fleet, self.folder, self.prometheus = fleet, folder, prometheus
        self.lives = set()

    def await_scrape(self, instance):
        """Until Prometheus has seen a life of the process that it had not seen before."""
        def new_life():
            found = self.prometheus.query(f'process_start_time_seconds{{instance="{instance}"}}')
            return {one["value"][1] for one in found} - self.lives
        self.lives |= wait_until("the life is scraped", new_life)

    def CkvDoesNotAnswer(self):
        self.fleet.end("h1", signal.SIGKILL)
        return self.fleet.metrics["h1"], lambda: self.fleet.holder(1)

    def CkvHolderRefuses(self):
        # Leases run out while the directory stands still; it is not away for long enough to page.
        self.fleet.by_name["directory"].send_signal(signal.SIGSTOP)
        return self.fleet.metrics["h0"], lambda: self.fleet.by_name["directory"].send_signal(signal.SIGCONT)

    def CkvDirectoryAway(self):
        self.fleet.end("directory")
        return self.fleet.metrics["requester"], lambda: self.fleet.again(
            "directory", "--role=directory", f"--directory-path={self.folder}/directory", listen=self.fleet.directory)

    def CkvStoreDamaged(self):
        # In memory it would be whole, and the file be made good from there.
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

    def CkvMixedBuilds(self):
        self.fleet.end("h1")
        self.fleet.holder(1, "--kernel-target=SCALAR")

        def mend():
            self.fleet.end("h1")
            self.fleet.holder(1)
        return "", mend

    def CkvRestarts(self):
        for _ in range(4):
            self.fleet.end("h1")
            self.fleet.holder(1)
            self.await_scrape(self.fleet.metrics["h1"])
        return self.fleet.metrics["h1"], lambda: None

    def CkvFilesNearLimit(self):
        process = self.fleet.by_name["h0"].pid
        before = resource.prlimit(process, resource.RLIMIT_NOFILE)
        count = len(os.listdir(f"/proc/{process}/fd"))
        resource.prlimit(process, resource.RLIMIT_NOFILE, (count + 1, before[1]))
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


def test(folder):
    write_inputs(folder)
    fleet, prometheus = Monitored(folder), None
    try:
        fleet.ctl("corpus", "load", "docs", folder / "rows.safetensors", "--chunk-tokens", 32)
        fleet.ctl("explain", "--corpus", "docs", "--mq", 1)  # measures holders, so that calls are predicted
        attend(fleet, folder)
        for _ in range(20):  # LiveError::kSampleCountMin and more, each of one frame
            attend(fleet, folder, "--chunks", 0)
        prometheus = Prometheus(folder, list(fleet.metrics.values()))
        wait_until("all targets answer", lambda: len(prometheus.query('up{job="ckv"} == 1')) == len(fleet.metrics))
        for where, expression in expressions():
            wait_until(f"{where}: {expression} has data", lambda: prometheus.query(expression))
        print(f"== {len(list(expressions()))} queries have data")
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
    parser.parse_args(namespace=ctl_fleet.PROGRAMS)
    if not shutil.which("prometheus"):
        print("skipped: no prometheus here (deploy/install-packages.sh check)")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="ckv-monitoring-") as folder:
        test(pathlib.Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
