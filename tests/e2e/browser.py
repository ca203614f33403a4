"""Runs headless Chromium through its DevTools pipe: opens pages at a size, reads their text, and takes pictures.

Needs only Chromium (deploy/install-packages.sh check).
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium")
ANSWER_S = 30  # for one call, on a machine that may be busy
FIRST_FREE_FD = 10  # above those that the shell gives the browser


class Browser:
    """One browser with one page. Keeps the URLs that the page requests, and the errors and warnings that it logs."""

    def __init__(self, folder):
        to_browser, from_browser = os.pipe(), os.pipe()
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE_FD) for fd in (to_browser[0], from_browser[1])]
        with (folder / "chromium.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f'exec "$@" 3<&{given[0]} 4>&{given[1]}', "bash", CHROMIUM, "--headless=new",
                 "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                 f"--user-data-dir={folder}/browser", "--remote-debugging-pipe", "about:blank"],
                pass_fds=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for fd in (*given, to_browser[0], from_browser[1]):
            os.close(fd)
        self.out, self.fd, self.rest = to_browser[1], from_browser[0], b""
        self.number, self.session = 0, None
        self.requested, self.complaints = [], []
        page = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _read(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self.fd, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self.rest += part
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **parameters):
        """Calls a method of the DevTools protocol; returns its result."""
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.out, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            said = self._read(deadline)
            if said.get("id") == self.number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self._keep(said.get("method"), said.get("params", {}))

    def _keep(self, event, told):
        if event == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"])[:500])
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def ask(self, expression):
        """The value of a JavaScript expression. If it is a promise, waits for its value."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, f"{expression}: {said['exceptionDetails']}"
        return said["result"].get("value")

    def wait(self, condition):
        """Waits until the expression is true; returns its value. Tries again if the page changes meanwhile."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            value = self.ask(f"""new Promise(resolve => {{
                const begin = Date.now();
                const look = () => {{
                    let value = null;
                    try {{ value = {condition}; }} catch (error) {{ }}
                    if (value || Date.now() - begin > 1000) resolve(value); else setTimeout(look, 50);
                }};
                look();
            }})""")
            if value:
                return value
        raise AssertionError(f"not in {ANSWER_S} s: {condition}; the page says: {self.ask('document.body.innerText')}")

    def picture(self, path, whole=True):
        """Writes a PNG of the whole page, or of the part that its window shows."""
        said = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(said["data"]))

    def stop(self):
        for fd in (self.out, self.fd):
            os.close(fd)  # the browser ends when its pipes close
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
