#!/usr/bin/python3
"""Goal: a fleet on three hosts works as deploy/handbook/several-hosts.md describes, and each mistake has the symptoms
that the page shows.

Method: hosts in namespaces of their own (lan.py). Each gets the page's files and runs the page's
commands, whose output matches the page. Answers have the bits of a fleet on one host. Then a function
here makes each mistake of the page, and the test finds the symptoms that the page shows. Last,
all daemons end and start in another order, with the same bits.

    python3 tests/deploy/hosts_test.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl
"""

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/docs"), str(ROOT / "tests/e2e")]
import pages  # noqa: E402
from ctl_fleet import bf16, write_safetensors  # noqa: E402
from lan import Lan, NoLan, why_not  # noqa: E402
from on_machine import Failed, check, step, wait_until  # noqa: E402

PAGE = ROOT / "deploy/handbook/several-hosts.md"
READY_FILE = re.compile(r"--ready-file (\S+)")
DIRECTORY, REQUESTER = "10.77.0.1:7400", "10.77.0.1:7311"
D_QK = 576  # of the reference engine
KERNEL_TARGETS = ("AVX2", "SSE4", "SCALAR")
MISTAKES = {}  # name on the page: function(test), which returns the symptoms


def mistake(name):
    def keep(function):
        MISTAKES[name] = function
        return function
    return keep


class Test:
    def __init__(self, folder, programs):
        self.folder = folder
        (folder / "bin").mkdir()
        for name, path in programs.items():
            (folder / "bin" / name).symlink_to(pathlib.Path(path).resolve())
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        self.env["PATH"] = f"{folder / 'bin'}:{self.env['PATH']}"
        # Bits are compared, and a busy machine may choose another target at each start.
        self.env["CKV_KERNEL_TARGET"] = next(filter(self.has_target, KERNEL_TARGETS))
        self.blocks, errors = pages.blocks(PAGE.read_text(encoding="utf-8"))
        check(not errors, f"{PAGE}: {errors}")
        self.query = folder / "query.safetensors"
        values = b"".join(bf16(0.25 * (i % 7) - 0.5).to_bytes(2, "little") for i in range(4 * D_QK))
        write_safetensors(self.query, {"q": ("BF16", [4, D_QK], values)})
        self.pending = []  # ready files of daemons that were started
        self.expected = {}  # the bits of each corpus
        self.lan = Lan(folder, 3)

    def has_target(self, name):
        return subprocess.run(["ckvd", "--role=directory", f"--kernel-target={name}", "--check-config"],
                              env=self.env, capture_output=True).returncode == 0

    def on(self, host, *command, code=0):
        """The output of the command on that host. The test fails if it does not end with `code`."""
        try:
            return self.lan.hosts[host].run(*command, env=self.env, code=code)
        except subprocess.CalledProcessError as error:
            raise Failed(f"{host}: {' '.join(map(str, command))}\nexit {error.returncode}, not {code}\n"
                         f"{error.output}") from error

    def ckvctl(self, *arguments, host="host-1", code=0):
        return self.on(host, "ckvctl", f"--requester={REQUESTER}", *arguments, code=code)

    def bits(self, corpus, layer=1, host="host-1", requester=REQUESTER):
        out = self.folder / "partial.safetensors"
        out.unlink(missing_ok=True)
        self.on(host, "ckvctl", f"--requester={requester}", "attend", "--corpus", corpus, "--layer", layer,
                "--queries", self.query, "--out", out, "--wire", "f32")
        return out.read_bytes()

    def answers(self, corpus):
        with contextlib.suppress(Failed):
            return self.bits(corpus)
        return None

    def healthy(self, members=3):
        return f"ok: {members} members" in self.ckvctl("health", code=None)

    @contextlib.contextmanager
    def daemon(self, host, *arguments):
        """Runs a ckvd beside those of the page. Yields a function that returns its log so far."""
        log = self.lan.hosts[host].folder / "other.log"
        with self.lan.hosts[host].daemon("ckvd", *arguments, env=self.env, log=log):
            yield log.read_text

    def log_of_holder(self, host, *arguments, until):
        """The log of another holder, once it contains `until`. That holder has no folder; the page's holder uses it."""
        with self.daemon(host, "--config", "holder.yaml", "--store-path=", "--metrics-address=",
                         *arguments) as log:
            wait_until(f"{host}: {until}", lambda: until in log())
            return log()

    # The page.

    def write_files(self):
        for block in self.blocks:
            found = re.match(r"file on ([\w-]+): (\S+)$", block.mark or "")
            if found:
                (self.lan.hosts[found[1]].folder / found[2]).write_text(block.code)

    def sections(self):
        """(heading, blocks) of the page, in its order."""
        heads = [(number, line[3:]) for number, line in enumerate(PAGE.read_text().split("\n"), 1)
                 if line.startswith("## ")]
        for (begin, heading), (end, _) in zip(heads, heads[1:] + [(1 << 30, "")]):
            yield heading, [b for b in self.blocks if begin < b.line < end]

    def run_section(self, wanted):
        (blocks,) = [blocks for heading, blocks in self.sections() if heading == wanted]
        printed = ""
        for block in blocks:
            if (block.mark or "").startswith("run on "):
                printed = "".join(self.run_block(block, host) for host in block.mark[7:].split(", "))
            elif block.mark == "prints":
                missing = list(pages.lines_missing(block.code, printed))
                check(not missing, f"{PAGE}:{block.line}: not printed: {missing}\n{printed}")

    def run_block(self, block, host):
        printed = self.on(host, "bash", "-euo", "pipefail", "-c", block.code)
        for name in READY_FILE.findall(block.code):
            file = self.lan.hosts[host].folder / name
            # Does not wait here: a member becomes ready with its directory, which another block starts.
            self.pending.append(file)
        return printed

    def await_ready(self):
        for file in self.pending:
            wait_until(f"{file} is written", lambda file=file: file.exists() and file.read_text().endswith("\n"))
        self.pending = []

    def await_end(self):
        for host in self.lan.hosts.values():
            for file in host.folder.glob("*.pid"):
                stat = f"/proc/{file.read_text().strip()}/stat"
                wait_until(f"{host.name}: {file.stem} has ended",
                           lambda host=host, stat=stat: "No such file" in host.run("cat", stat, code=None))

    def check_mistakes(self):
        shown = {block.mark[7:]: block for block in self.blocks if (block.mark or "").startswith("shows: ")}
        check(set(shown) == set(MISTAKES),
              f"in the page and here: {set(shown) ^ set(MISTAKES)} stand in one of them only")
        for name, block in shown.items():
            began = time.monotonic()
            seen = MISTAKES[name](self)
            missing = list(pages.lines_missing(block.code, seen))
            check(not missing, f"{PAGE}:{block.line}: {name}: not seen: {missing}\n{seen}")
            step(f"{name}: {time.monotonic() - began:.1f} s")


# Mistakes, in the page's order. Each leaves the fleet unchanged.

@mistake("data_listen on loopback")
def _(test):
    wrong = ("ckvd", "--config", "holder.yaml", "--data-listen=127.0.0.1:7402")
    test.on("host-2", *wrong, "--check-config", code=2)
    return test.on("host-2", *wrong, code=2)


@mistake("listen on all addresses")
def _(test):
    return test.on("host-2", "ckvd", "--config", "holder.yaml", "--listen=0.0.0.0:7401", code=2)


@mistake("an address of another host")
def _(test):
    return test.on("host-2", "ckvd", "--config", "holder.yaml", "--store-path=", "--metrics-address=",
                   "--listen=10.77.0.3:7401", "--data-listen=10.77.0.3:7402", code=1)


@mistake("listen left out")
def _(test):
    with test.daemon("host-2", "--role=holder", "--name=holder-4", f"--directory={DIRECTORY}") as log:
        wait_until("it is registered", lambda: "registered in epoch" in log())
        seen = log() + test.ckvctl("status", code=4)
        check("holder-4" in test.ckvctl("health", code=4), "health says so, too")
    wait_until("it is gone", test.healthy)
    return seen


@mistake("a name that is loopback")
def _(test):
    return test.on("host-2", "ckvd", "--config", "holder.yaml", "--listen=host-2:7401",
                   "--data-listen=host-2:7402", "--check-config")


@mistake("a name that nobody may know")
def _(test):
    return test.on("host-2", "ckvd", "--config", "holder.yaml", "--listen=0.0.0.0:7401",
                   "--advertise=holder-2.example:7401", "--check-config")


@mistake("nobody is the directory")
def _(test):
    return test.log_of_holder("host-2", "--listen=10.77.0.2:0", "--data-listen=10.77.0.2:0",
                              "--directory=10.77.0.1:7499", until="does not register it")


@mistake("the directory is silent")
def _(test):
    seen = test.log_of_holder("host-2", "--listen=10.77.0.2:0", "--data-listen=10.77.0.2:0",
                              "--directory=10.77.0.9:7400", until="does not register it")
    # gRPC ends the connect after 1 s. Which of its errors is reported depends on what its threads see first: the
    # timer, or the socket that the timer has shut down, which then counts as reset.
    check(any(text in seen for text in ("Deadline Exceeded", "handshaker shutdown", "connection reset")),
          f"there was no answer:\n{seen}")
    return seen


@mistake("another daemon is no directory")
def _(test):
    return test.log_of_holder("host-2", "--listen=10.77.0.2:0", "--data-listen=10.77.0.2:0",
                              "--directory=10.77.0.3:7401", until="does not register it")


@mistake("a name that is taken")
def _(test):
    before = test.ckvctl("status", "-o", "json")
    seen = test.on("host-2", "ckvd", "--role=holder", "--name=holder-3", "--listen=10.77.0.2:0",
                   f"--directory={DIRECTORY}", code=1)
    epoch = re.compile(r'"epoch": *"?\d+')
    check(epoch.findall(before) == epoch.findall(test.ckvctl("status", "-o", "json")),
          "the others kept their leases")
    return seen


@mistake("a closed control port")
def _(test):
    host = test.lan.hosts["host-3"]
    host.close_port(7401)
    try:
        return test.ckvctl("status", code=4) + test.ckvctl("health", code=4)
    finally:
        host.open_port()
        wait_until("all answer again", test.healthy)


@mistake("a closed data port")
def _(test):
    host = test.lan.hosts["host-3"]
    host.close_port(7402)
    # Another requester, which has no lanes yet.
    other = "10.77.0.1:7312"
    try:
        with test.daemon("host-1", "--role=requester", "--name=requester-2", f"--listen={other}",
                         f"--directory={DIRECTORY}") as log:
            wait_until("it is registered", lambda: "registered in epoch" in log())
            ask = ("ckvctl", f"--requester={other}")
            seen = test.on("host-1", *ask, "health")
            seen += test.on("host-1", *ask, "attend", "--corpus", "first", "--layer", 0, "--queries", test.query,
                            "--out", "refused.safetensors", code=4)
            seen += test.on("host-1", *ask, "health", code=4)
            return seen + test.on("host-1", *ask, "status", code=4)
    finally:
        host.open_port()


@mistake("holder-3 is cut off")
def _(test):
    bits = test.bits("both")
    test.lan.cut("host-3")
    check(test.bits("both") == bits, "a replica answers with the same bits")
    test.ckvctl("attend", "--corpus", "first", "--layer", 0, "--queries", test.query, "--out",
                test.folder / "refused.safetensors", code=4)
    wait_until("its lease runs out", lambda: "holder-3 at 10.77.0.3:7401 is gone" in
               test.ckvctl("status", code=None))
    check(test.bits("both") == bits, "a replica answers with the same bits")
    test.ckvctl("health", code=4)
    return test.ckvctl("status", code=4)


@mistake("the log of the holder that was cut off")
def _(test):
    test.lan.join("host-3")
    wait_until("it is back", test.healthy)
    wait_until("its chunks answer", lambda: test.answers("first") is not None)
    check(test.bits("first") == test.expected["first"], "with the bits that they had")
    return (test.lan.hosts["host-3"].folder / "holder.log").read_text()


def others_are_cut_off(test):
    """Cuts off the other hosts one at a time. Then each holder that can answer for `both` has been cut off once."""
    test.lan.cut("host-2")
    check(test.bits("both") == test.expected["both"], "holder-3 answers with the same bits")
    test.lan.join("host-2")
    wait_until("holder-2 is back", test.healthy)
    logs = [test.lan.hosts[host].folder / "holder.log" for host in ("host-2", "host-3")]
    before = [log.read_text().count("refuses every request") for log in logs]
    test.lan.isolate("host-1")
    wait_until("all holders refuse",
               lambda: all(log.read_text().count("refuses every request") > count
                           for log, count in zip(logs, before)))
    test.ckvctl("health", host="host-2", code=4)
    test.lan.join("host-1")
    wait_until("all are back", test.healthy)
    wait_until("and answer", lambda: test.answers("first") == test.expected["first"])


def one_host(test):
    """The bits of corpus `first` from a whole fleet in one process."""
    with test.daemon("host-1", "--role=directory,holder,requester", "--name=alone", "--listen=127.0.0.1:7500",
                     "--store-capacity=64MiB", "--ready-file=alone.ready"):
        ready = test.lan.hosts["host-1"].folder / "alone.ready"
        wait_until("it serves", lambda: ready.exists() and ready.read_text().endswith("\n"))
        # Exports the same rows: another prefill might use another kernel.
        test.ckvctl("corpus", "export", "first", "--out", test.folder / "first.safetensors")
        test.on("host-1", "ckvctl", "--requester=127.0.0.1:7500", "corpus", "load", "first",
                test.folder / "first.safetensors", "--chunk-tokens", 128)
        return test.bits("first", requester="127.0.0.1:7500")


def metrics_answer(test):
    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=30).status)"
    for address in ("10.77.0.1:9464", "10.77.0.1:9465", "10.77.0.2:9464", "10.77.0.3:9464"):
        check(test.on("host-2", sys.executable, "-c", fetch, f"http://{address}/readyz") == "200\n",
              f"{address} is ready, asked from host-2")


def start_again(test):
    """Ends all daemons, and starts them in the opposite order: members before their directory."""
    test.run_section("Stop")
    test.await_end()
    (blocks,) = [blocks for heading, blocks in test.sections() if heading == "Start"]
    for block in reversed(blocks):
        for host in reversed(block.mark[7:].split(", ")):
            test.run_block(block, host)
    test.await_ready()
    wait_until("all have registered", test.healthy)
    wait_until("and answer", lambda: test.answers("first") == test.expected["first"])
    check(test.bits("both") == test.expected["both"], "with the same bits")


def run(test):
    test.write_files()
    step("the fleet starts")
    test.run_section("Start")
    test.await_ready()
    step("it is checked")
    test.run_section("Check")
    metrics_answer(test)
    test.expected = {name: test.bits(name) for name in ("first", "both")}
    check(test.expected["first"] == test.bits("first", host="host-3"), "any host may ask")
    step("one host has the same bits")
    check(one_host(test) == test.expected["first"], "a fleet on one host has other bits")
    test.check_mistakes()
    step("the other hosts are cut off")
    others_are_cut_off(test)
    step("all start again")
    start_again(test)
    step("all stop")
    test.run_section("Stop")
    test.await_end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    programs = vars(parser.parse_args())
    without = why_not()
    if without:
        return skip.cannot(*without)
    with tempfile.TemporaryDirectory(prefix="ckv-hosts-") as name:
        try:
            test = Test(pathlib.Path(name), programs)
        except NoLan as none:
            return skip.cannot(f"no hosts here: {none}", "a kernel that lets root make namespaces")
        try:
            run(test)
        except Failed as failure:
            print(failure)
            for log in sorted(pathlib.Path(name).glob("host-*/*.log")):
                print(f"== {log.parent.name}/{log.name}\n" + "\n".join(log.read_text().split("\n")[-30:]))
            return 1
        finally:
            test.lan.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
