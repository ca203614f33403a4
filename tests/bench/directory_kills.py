"""The long form of tests/e2e/directory_kill_e2e.py: a directory is killed 200 times while its fleet works."""

import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from priority import usual_priority  # noqa: E402

KILLS = 200


def figures(build):
    """{"kills": counts}; prints the seed, and what went wrong."""
    import directory_kill_e2e as kill

    kill.PROGRAMS.ckvd, kill.PROGRAMS.ckvctl, kill.PROGRAMS.attend_caller = (
        build / "bin" / name for name in ("ckvd", "ckvctl", "attend_caller"))
    seed = random.randrange(1 << 32)
    print(f"directory_kills: seed {seed}", file=sys.stderr, flush=True)
    # At another priority leases ran out, and a start took longer than 30 s.
    with tempfile.TemporaryDirectory(prefix="ckv-directory-kill-") as name, usual_priority():
        tally = kill.play(pathlib.Path(name), KILLS, seed)
    for said in tally.said[:20]:
        print(f"directory_kills: {said}", file=sys.stderr)
    return {"kills": tally.counts}
