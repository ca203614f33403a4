#!/usr/bin/python3
"""Goal: ckvd's units start, watch, reload and stop daemons under a real systemd.

Method: on the machine of machine.sh, with the programs of this build where a package puts them. A
holder waits for its directory past its start limit; it serves once it is ready; it reloads; its
dispatcher is stopped until the watchdog ends the holder; it restarts and answers with the same bits; it
reads a slow store past the start limit; all stop.

    tests/deploy/machine.sh python3 tests/deploy/units_test.py --ckvd build/... --ckvctl build/...
"""

import argparse
import ctypes
import os
import pathlib
import resource
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
from on_machine import (ALL_UNITS, CONFIG, Corpus, check, install_units, journal, main, run, show,
                        status, step, wait_active, wait_until)  # noqa: E402
from slow_store import SlowFiles  # noqa: E402

DIRECTORY, HOLDER, REQUESTER = ALL_UNITS
# Names shm: on a busy machine, a probe may find tcp faster.
FLEET = "directory: 127.0.0.1:7400\nfabric: shm\n"
# Keeps the test short. A dispatcher's loop runs at least once a second, and this machine may be busy.
WATCHDOG_S = 6
START_LIMIT_S = 2
CAP_SYS_RESOURCE = 1 << 24
WALL = 0x40000000  # for waitpid: includes threads


def install(programs):
    install_units(programs, FLEET + "store.capacity: 64MiB\nlog.level: info\n")
    drop_in = pathlib.Path("/etc/systemd/system/ckvd-holder@.service.d/test.conf")
    drop_in.parent.mkdir()
    drop_in.write_text(f"[Service]\nTimeoutStartSec={START_LIMIT_S}s\nWatchdogSec={WATCHDOG_S}s\n")
    run("systemctl", "daemon-reload")


def holder_waits_for_its_directory():
    step("a holder waits for its directory, and is not ready")
    begin = time.monotonic()
    run("systemctl", "start", "--no-block", HOLDER)
    wait_until("the holder says that it waits",
               lambda: show(HOLDER, "StatusText").startswith("waits to be registered: directory"))
    wait_until("its start has taken longer than its limit",
               lambda: time.monotonic() > begin + START_LIMIT_S + 1)
    check(show(HOLDER, "ActiveState") == "activating", "it is still starting")
    check(show(HOLDER, "NRestarts") == "0", "it was not given up")


def all_start():
    step("each is ready when it serves")
    run("systemctl", "start", DIRECTORY)
    wait_active(HOLDER)
    run("systemctl", "start", REQUESTER)
    # A started unit serves, so there is no wait here.
    run("ckvctl", "status")
    for unit in ALL_UNITS:
        check(show(unit, "StatusText").startswith("serves at 127.0.0.1:"), f"{unit} says that it serves")


def facts_of(pid):
    """The numbers of /proc/PID/status that state what a process may do."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: int(value, 16) for name, value in (line.split(":\t", 1) for line in lines)
            if name in ("NoNewPrivs", "Seccomp", "CapBnd", "CapEff")}


def holder_is_confined():
    step("a holder has a user, folders and limits of its own")
    pid = show(HOLDER, "MainPID")
    check(run("ps", "-o", "user=", "-p", pid).strip() == "ckv", "it runs as ckv")
    store = pathlib.Path("/var/lib/ckv/holder-a")
    check(store.is_dir() and store.owner() == "ckv" and store.stat().st_mode & 0o777 == 0o750,
          f"{store} is ckv's alone")
    check((store / "FORMAT").exists(), "its chunks are there")
    check(pathlib.Path("/run/ckv/holder-a").owner() == "ckv", "its run-time folder is there")
    check(show(HOLDER, "LimitMEMLOCK") == "infinity", "it may lock memory")
    locked = resource.prlimit(int(pid), resource.RLIMIT_MEMLOCK)[0]
    if facts_of(1)["CapEff"] & CAP_SYS_RESOURCE:
        check(locked == resource.RLIM_INFINITY, f"it may lock memory, and not {locked} bytes")
    else:
        print(f"   the host lets nobody raise a limit: locked memory stays at {locked} bytes")
    facts = facts_of(pid)
    check(facts["NoNewPrivs"] == 1 and facts["Seccomp"] == 2, "its system calls are filtered")
    check(facts["CapBnd"] == 0 and facts["CapEff"] == 0, "it has no capability")


def rows_go_by_shm():
    step("the sandbox leaves daemons of one host their shared memory")
    fabrics = {holder["fabric"] for holder in status()["requester"]["holders"]}
    check(fabrics == {"shm"}, f"lanes are {fabrics}, not shm")


def reload():
    step("a reload changes what can change, names what cannot, and ends nothing")
    pid = show(HOLDER, "MainPID")
    CONFIG.write_text(FLEET + "store.capacity: 128MiB\nlog.level: debug\n")
    run("systemctl", "reload", HOLDER)
    wait_until("the log says what changed", lambda: "1 changed, 1 need a restart" in journal(HOLDER))
    log = journal(HOLDER)
    check("log.level: 'info' is now 'debug'" in log, "what changed is named")
    check("store.capacity: '64MiB' here, '128MiB' in the configuration: needs a restart" in log,
          "what needs a restart is named")
    warnings = journal(HOLDER, "-p", "warning")
    check("needs a restart" in warnings and "SIGHUP: read the configuration" not in warnings,
          "journald knows the priorities of lines")
    check("<4>" not in log and "Z warning" not in log, "lines have no mark and no second time")
    check("reads its configuration again" not in show(HOLDER, "StatusText"), "it is ready again")
    CONFIG.write_text("log.level: loud\n")
    refused = run("systemctl", "reload", HOLDER, code=1)
    check("failed" in refused, "a reload with errors fails")
    check("ckvd.yaml:1: log.level: 'loud' is not one of" in journal(HOLDER), "the log says why")
    CONFIG.write_text(FLEET + "store.capacity: 64MiB\n")
    check(show(HOLDER, "ActiveState") == "active" and show(HOLDER, "MainPID") == pid, "it runs on")


def freeze(pid, name):
    """Stops one thread, as a bug in it would. The stop ends with the process."""
    # Threads that it created later have the same name and higher ids.
    thread = min(int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                 if (task / "comm").read_text().strip() == name)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt = 0x4206, 0x4207
    check(libc.ptrace(seize, thread, None, None) == 0 and
          libc.ptrace(interrupt, thread, None, None) == 0, f"thread {name} can be held")
    return thread


def bury(thread):
    """Reaps a thread that this process has stopped. Otherwise the thread's process cannot end."""
    try:
        os.waitpid(thread, os.WNOHANG | WALL)
    except ChildProcessError:
        pass


def watchdog(corpus, bits):
    step("a dispatcher that stands still ends the daemon, and it comes back with the same bits")
    began = int(show(HOLDER, "ActiveEnterTimestampMonotonic")) / 1e6
    wait_until("it has lived for two watchdog periods", lambda: time.monotonic() > began + 2 * WATCHDOG_S)
    check(show(HOLDER, "NRestarts") == "0", "the watchdog is fed")
    pid = show(HOLDER, "MainPID")
    thread = freeze(pid, "dispatcher")

    def restarted():
        bury(thread)
        return show(HOLDER, "NRestarts") == "1"
    wait_until("the watchdog has ended it", restarted)
    log = journal(HOLDER)
    check("the dispatcher makes no progress: the watchdog gets no more reports" in log, "the log says which part")
    check("Watchdog timeout" in log, "it was the watchdog")
    wait_active(HOLDER)
    check(show(HOLDER, "MainPID") != pid, "it is another process")
    corpus.await_same_bits(bits)


def slow_store(corpus, bits):
    step("a holder that reads a slow store past its start limit is waited for")
    run("systemctl", "stop", HOLDER)
    slow = SlowFiles(pathlib.Path("/var/lib/ckv/holder-a"), count=2)
    begin = time.monotonic()
    run("systemctl", "start", "--no-block", HOLDER)
    slow.let_go()
    wait_until("it says that it loads", lambda: show(HOLDER, "StatusText").startswith("loads: "))
    wait_until("its start has taken longer than its limit",
               lambda: time.monotonic() > begin + START_LIMIT_S + 1)
    check(show(HOLDER, "ActiveState") == "activating", "it is still starting")
    slow.let_go()
    wait_active(HOLDER)
    # After a failed start, a second one would have found the files in quarantine.
    check(show(HOLDER, "Result") == "success" and "timed out" not in journal(HOLDER), "its start was one")
    corpus.await_same_bits(bits)


def stop():
    step("a stop drains")
    run("systemctl", "stop", REQUESTER, HOLDER, DIRECTORY)
    for unit in ALL_UNITS:
        check(show(unit, "ActiveState") == "inactive" and show(unit, "Result") == "success",
              f"{unit} has ended well")
        check("drained" in journal(unit), f"{unit} was drained")
    check(not pathlib.Path("/run/ckv/holder-a").exists(), "its run-time folder is gone")
    check(pathlib.Path("/var/lib/ckv/holder-a/FORMAT").exists(), "its chunks are kept")


def test(folder):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    install(vars(parser.parse_args()))
    holder_waits_for_its_directory()
    all_start()
    holder_is_confined()
    corpus = Corpus(folder)
    corpus.load()
    bits = corpus.bits()
    rows_go_by_shm()
    reload()
    watchdog(corpus, bits)
    slow_store(corpus, bits)
    stop()


if __name__ == "__main__":
    sys.exit(main(test))
