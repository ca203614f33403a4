"""The long form of tests/e2e/directory_kill_e2e.py: a directory is killed 200 times while its fleet works."""

import os
import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

KILLS = 200


def figures(build):
    """{"kills": counts}; prints the seed, and what went wrong."""
    import directory_kill_e2e as kill

    kill.PROGRAMS.ckvd, kill.PROGRAMS.ckvctl, kill.PROGRAMS.attend_caller = (
        build / "bin" / name for name in ("ckvd", "ckvctl", "attend_caller"))
    seed = random.randrange(1 << 32)
    print(f"directory_kills: seed {seed}", file=sys.stderr, flush=True)
    # These are counts. Daemons that poll ahead of all other work (bench.sh --realtime) starve those
    # that they wait for: leases ran out, and a start took longer than 30 s.
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        with tempfile.TemporaryDirectory(prefix="ckv-directory-kill-") as name:
            tally = kill.play(pathlib.Path(name), KILLS, seed)
    finally:
        os.sched_setscheduler(0, policy, priority)
    for said in tally.said[:20]:
        print(f"directory_kills: {said}", file=sys.stderr)
    return {"kills": tally.counts}
