"""The usual priority, for benchmarks that count or build: these need no idle machine."""

import contextlib
import os


@contextlib.contextmanager
def usual_priority():
    """Leaves the priority of `bench.sh --realtime` while it is entered. Daemons that poll ahead of all other work starve the
    processes that they wait for, and so do busy loops."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
