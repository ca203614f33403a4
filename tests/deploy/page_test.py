#!/usr/bin/python3
"""Goal: the status pages of a directory, a requester and a holder show the fleet's state, on a large screen and on a
phone, in light and in dark: idle, and under load while a holder is dead.

Method: a fleet of real processes, and Chromium on each page. The test reads the page after the browser has built it.
Without Chromium it exits 77, with the reason; if CI is set, it fails.

    python3 tests/deploy/page_test.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl \\
        --attend-caller build/release/bin/attend_caller [--pictures FOLDER]
"""

import argparse
import contextlib
import pathlib
import re
import signal
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

from monitored_fleet import LOCAL_CACHE_BYTES, Load, Monitored, ctl_fleet, load_corpora  # noqa: E402
import browser  # noqa: E402

HOLDERS = 3
SIZES = {"1400": (1400, 1000), "390": (390, 844)}
BYTES_MAX = 100_000  # of a page and its data
CONTRAST_MIN = 4.5   # WCAG 2.1, AA
TAP_PX_MIN = 32      # the least height of a touch target
LONG = "a-corpus-whose-name-is-as-long-as-names-may-be-" + "x" * 80

SECTION = """(title => [...document.querySelectorAll("section")].find(
    one => one.querySelector("h2") && one.querySelector("h2").firstChild.data === title))"""
# The visible texts whose contrast with their background is too low, each with that contrast.
PALE = """(() => {
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => numbers(color).slice(0, 3).map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = at => { for (; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color; } return "rgb(255, 255, 255)"; };
  const pale = [];
  for (const one of document.querySelectorAll("body *")) {
    if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(one.tagName)) continue;
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < LEAST) pale.push(one.textContent.slice(0, 40) + ": " + ratio.toFixed(2));
  }
  return pale;
})()""".replace("LEAST", str(CONTRAST_MIN))


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as reply:
        return reply.read().decode(), reply.headers


class Pages:
    """The status pages of a fleet, in one browser."""

    def __init__(self, shown, fleet, pictures):
        self.shown, self.fleet, self.pictures, self.origin = shown, fleet, pictures, ""

    def open(self, name):
        address = self.fleet.metrics[name]
        self.origin = f"http://{address}/"
        page, headers = get(address, "/")
        assert "default-src 'none'" in headers["Content-Security-Policy"], headers
        for word in ("src=", "https:", "@import", "url("):
            assert word not in page, f"{name}: {word} in the page"
        data, _ = get(address, "/status.json")
        assert len(page) + len(data) < BYTES_MAX, f"{name}: {len(page)} + {len(data)} bytes"
        self.shown.open(self.origin)
        self.shown.wait(f'location.href === "{self.origin}" && !!document.querySelector("footer")')

    def text(self, title):
        """The text of a section."""
        return self.shown.ask(f'{SECTION}("{title}").innerText')

    def rows(self, title):
        """The rows of a section's table, each a list of the texts of its cells."""
        return self.shown.ask(f"""[...{SECTION}("{title}").querySelectorAll("tbody tr")].map(
            row => [...row.cells].map(cell => cell.innerText))""")

    def check(self, what):
        """Checks in every size and both colour schemes that the page fits, is readable, and lacks no value."""
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                where = f"{what}-{size}-{'dark' if dark else 'light'}"
                self.shown.size(width, height, dark)
                if self.pictures:
                    self.shown.picture(self.pictures / f"{where}.png")
                wide = self.shown.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, f"{where}: {wide} px too wide"
                pale = self.shown.ask(PALE)
                assert not pale, f"{where}: {pale}"
            if width < 600:
                small = self.shown.ask(f"""[...document.querySelectorAll("button")].map(
                    one => [one.innerText, one.getBoundingClientRect().height]).filter(([_, high]) => high < {TAP_PX_MIN})""")
                assert not small, f"{where}: {small}"
        said = self.shown.ask("document.body.innerText")
        found = re.search(r"NaN|undefined|null|\[object|Infinity", said)
        assert not found, f"{what}: {found.group()} in {said}"


def number(cell):
    """The leading number of a cell: 12 of "12/s"."""
    return float(re.match(r"[\d.]+", cell).group()) if re.match(r"[\d.]+", cell) else 0.0


def check_idle(pages):
    for name in ("directory", "requester", "h0"):
        pages.open(name)
        pages.check(f"idle-{name}")
        if name != "directory":
            assert "nothing was asked yet" in pages.text("Latency"), pages.text("Latency")
    pages.open("directory")
    assert "ckvctl corpus load" in pages.text("Corpora"), pages.text("Corpora")


def check_directory(pages):
    pages.open("directory")
    pages.shown.wait(f'{SECTION}("Members").innerText.includes("lost")')
    states = {row[0]: row[1] for row in pages.rows("Members")}
    assert states["h0"] == states["h1"] == states["requester"] == "up", states
    assert states["h2"].startswith("lost"), states
    corpora = {row[0]: row for row in pages.rows("Corpora")}
    assert set(corpora) == {"docs", "text-0", "text-1", LONG}, corpora  # without the tenant's
    assert corpora["docs"][1:] == ["2 copies", "2", "10.9 KiB", "70", "3"], corpora  # those of h2
    assert 0 < int(corpora[LONG][1]) < 100 and corpora[LONG][2] == "1", corpora
    assert "of tenants" in pages.text("Corpora"), pages.text("Corpora")
    pages.shown.ask(f"""[...{SECTION}("Corpora").querySelectorAll("button")].find(one => one.innerText === "docs").click()""")
    pages.shown.wait('!!document.querySelector("#map canvas")')
    told = pages.shown.ask('document.getElementById("map").innerText')
    assert "70 tokens" in told and "3 chunks" in told, told
    assert sum(map(int, re.findall(r"(\d+) %", told))) in range(98, 103) and "h2 (away)" in told, told
    pages.check("loaded-directory")


def check_requester(pages):
    pages.open("requester")
    live = f'[...{SECTION}("Calls").querySelectorAll(".tile")].map(one => one.innerText.split("\\n"))'
    ways = [way for way, _ in pages.shown.wait(
        f'(all => all.length && all.slice(0, 3).every(([_, rate]) => parseFloat(rate) > 0) ? all : null)({live})')]
    assert ways[:4] == ["route", "cached", "fetch", "local"], ways
    pages.shown.wait(f'{SECTION}("Calls").querySelector("polyline").points.length > 1')
    peers = {row[0]: row for row in pages.rows("Holders as this requester sees them")}
    assert peers["h0"][1:3] == ["connected", "tcp"] and number(peers["h0"][4]) > 0, peers
    hottest = {row[0]: row for row in pages.rows("Hottest corpora")}
    assert number(hottest["docs"][1]) > 0 and number(hottest["docs"][2]) > 0, hottest
    assert number(hottest["text-0"][3]) > 0, hottest
    latency = {row[0]: row for row in pages.rows("Latency")}
    assert {"route", "cached", "fetch", "prefetch", "lane tcp"} <= set(latency), latency
    bars = pages.shown.ask(f"""[...{SECTION}("Latency").querySelectorAll("svg")].map(
        svg => [...svg.querySelectorAll("rect")].filter(bar => bar.getAttribute("height") >= 2).length)""")
    assert len(bars) == len(latency) and min(bars) > 0, bars
    pages.check("loaded-requester")


def check_holder(pages):
    pages.open("h0")
    tile = f'(name => [...{SECTION}("Holder").querySelectorAll(".tile")].find(one => one.innerText.startsWith(name)))'
    pages.shown.wait(f'parseFloat({tile}("query rows").innerText.split("\\n")[1]) > 0')
    tiles = dict(pages.shown.ask(f"""[...{SECTION}("Holder").querySelectorAll(".tile")].map(
        one => one.innerText.split("\\n"))"""))
    assert number(tiles["chunks"]) > 0 and number(tiles["tokens"]) > 0 and number(tiles["sessions"]) > 0, tiles
    assert tiles["lanes"].startswith("tcp "), tiles
    assert {"kernel", "wait", "push wait"} <= {row[0] for row in pages.rows("Latency")}, pages.text("Latency")
    pages.check("loaded-holder")


def fill(fleet, folder):
    load_corpora(fleet, folder, copies=2)
    ctl_fleet.Rows(2, 300, 0).write(folder / "long.safetensors")
    fleet.ctl("corpus", "load", LONG, folder / "long.safetensors", "--chunk-tokens", 3)
    fleet.ctl("--tenant", "acme", "corpus", "load", "secret", folder / "rows.safetensors", "--chunk-tokens", 16)
    fleet.ctl("explain", "--corpus", "docs", "--mq", 1)  # measures the lanes


def check_quiet(shown, origins):
    """The pages sent no request to another server, and logged no error."""
    for url in shown.requested:
        assert url.startswith(("data:", "about:", *origins)), url
    assert not shown.complaints, shown.complaints


def test(folder, caller, pictures):
    with contextlib.ExitStack() as stack:
        fleet = Monitored(folder, HOLDERS, "--fabric=tcp", LOCAL_CACHE_BYTES)
        stack.callback(fleet.stop)
        shown = browser.Browser(folder)
        stack.callback(shown.stop)
        pages = Pages(shown, fleet, pictures)
        check_idle(pages)
        fill(fleet, folder)
        load = Load(fleet, folder, caller)
        stack.callback(load.stop)
        fleet.end("h2", signal.SIGKILL)
        check_directory(pages)
        check_requester(pages)
        check_holder(pages)
        check_quiet(shown, [f"http://{address}/" for address in fleet.metrics.values()])
        print(f"== {len(shown.requested)} requests, all of the fleet's own")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    options = parser.parse_args()
    ctl_fleet.PROGRAMS.ckvd, ctl_fleet.PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    if not browser.CHROMIUM:
        return skip.lacks("no chromium here")
    with tempfile.TemporaryDirectory(prefix="ckv-page-", ignore_cleanup_errors=True) as folder:
        test(pathlib.Path(folder), options.attend_caller, options.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
